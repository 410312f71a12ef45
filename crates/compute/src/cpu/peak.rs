//! The machine's own limits: what every figure of a kernel is compared with.
//!
//! Limits are measured, never looked up, and in the same run as what they are compared with, because clocks, neighbours
//! and hypervisors change them. A measurement is many short rounds in which all threads work at once, and the best round
//! counts: on a machine that others use too, some rounds are undisturbed.
#![expect(unsafe_code, reason = "the peak of an instruction set is reached only by its own instructions")]

use std::{
    hint::black_box,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use super::simd::{InstructionSet, Simd};
use crate::tensor::DType;

/// What the machine can do at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The instructions that were measured.
    pub instruction_set: InstructionSet,
    /// How many threads worked at once.
    pub threads: usize,
    /// Multiplications and additions a second in f32.
    pub f32_flops_per_s: f64,
    /// The same for products of bf16 pairs summed in f32, where the processor has an instruction for them.
    pub bf16_flops_per_s: Option<f64>,
    /// Bytes read a second from a buffer that no cache holds.
    pub read_bytes_per_s: f64,
    /// Bytes read and written a second when one such buffer is copied to another.
    pub copy_bytes_per_s: f64,
    /// Bytes read and written a second when such a buffer is changed where it is. That is more than a copy's, because a
    /// copy also reads what it overwrites.
    pub update_bytes_per_s: f64,
}

/// How thoroughly to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of arithmetic.
    pub rounds: usize,
    /// The length of one.
    pub round: Duration,
    /// How long to go on trying when threads together do less than each does alone.
    pub patience: Duration,
    /// Passes over memory.
    pub passes: usize,
    /// What a thread goes through in one round: short enough to end within a scheduler's time slice, long enough that what
    /// it writes does not stay in a cache.
    pub piece_bytes: usize,
    /// The buffer of all threads together; larger than the last-level cache, or the cache is what is measured.
    pub buffer_bytes: usize,
}

impl Effort {
    /// About two seconds on an idle machine, more on a busy one, for a last-level cache of this size.
    pub fn thorough(cache_bytes: usize) -> Self {
        let buffer_bytes = (4 * cache_bytes).clamp(64 << 20, 1 << 30);
        Effort {
            rounds: 200,
            round: Duration::from_micros(500),
            patience: Duration::from_secs(5),
            passes: 8,
            piece_bytes: 16 << 20,
            buffer_bytes,
        }
    }

    /// A few milliseconds: enough to see that it works.
    pub fn glance() -> Self {
        Effort {
            rounds: 10,
            round: Duration::from_micros(200),
            patience: Duration::ZERO,
            passes: 2,
            piece_bytes: 1 << 20,
            buffer_bytes: 8 << 20,
        }
    }
}

impl Peak {
    /// Measures an instruction set on some threads; nothing when this processor does not have it.
    pub fn measure(set: InstructionSet, threads: usize, effort: Effort) -> Option<Peak> {
        let simd = Simd::new(set)?;
        let threads = threads.max(1);
        // Two cores usually get more out of memory than one does, though not twice as much.
        let memory = |best: &dyn Fn(usize) -> f64| patient(threads, effort, 1.2, best);
        Some(Peak {
            instruction_set: set,
            threads,
            f32_flops_per_s: arithmetic(threads, effort, F32::of(simd)),
            bf16_flops_per_s: Bf16::of(simd).map(|bf16| arithmetic(threads, effort, bf16)),
            read_bytes_per_s: memory(&|threads| Memory::new(threads, effort).read()),
            copy_bytes_per_s: memory(&|threads| Memory::new(threads, effort).copy()),
            update_bytes_per_s: memory(&|threads| Memory::new(threads, effort).update()),
        })
    }
}

/// Bytes read a second now, as they usually are and not at best, for a last-level cache of this size: memory is shared with neighbours whom
/// no quiet moment shows, so whoever reads for seconds is compared with this, measured before and after.
pub fn reading_now(threads: usize, cache_bytes: usize) -> f64 {
    let effort = Effort { passes: 2, ..Effort::thorough(cache_bytes) };
    let mut rates = Memory::new(threads, effort).reads();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

/// The arithmetic of a peak in bursts that stand between runs of what it is compared with: clocks and neighbours change
/// within seconds, so a share is of what the same seconds allowed. A burst as long as a run is interrupted as often as one.
#[derive(Clone, Copy)]
pub struct Bursts {
    loops: Loops,
    turns_per_s: f64,
}

/// The loop of one type of products.
#[derive(Clone, Copy)]
enum Loops {
    F32(F32),
    Bf16(Bf16),
}

impl Bursts {
    /// With the unit for such products or, where there is none, in f32; nothing when this processor does not have the
    /// instruction set.
    pub fn new(set: InstructionSet, products: DType) -> Option<Self> {
        let simd = Simd::new(set)?;
        let bf16 = Bf16::of(simd).filter(|_| products == DType::BF16);
        let loops = bf16.map_or(Loops::F32(F32::of(simd)), Loops::Bf16);
        Some(Bursts { loops, turns_per_s: turns_per_s(loops) })
    }

    /// A burst of about this length on the calling thread; gives the operations done.
    pub fn alone(self, length: Duration) -> f64 {
        self.loops.turns(turns_of(length, self.turns_per_s)) as f64
    }

    /// A burst of about this length on so many threads at once; gives the operations a second of them all.
    pub fn together(self, threads: usize, length: Duration) -> f64 {
        let turns = turns_of(length, self.turns_per_s);
        best(rates_of_rounds(threads, 1, || self.loops.bursts(turns)))
    }
}

impl Arithmetic for Loops {
    fn turns(self, turns: usize) -> usize {
        match self {
            Loops::F32(loops) => loops.turns(turns),
            Loops::Bf16(loops) => loops.turns(turns),
        }
    }
}

/// A thread's share of a buffer, in pieces of which it goes through one in a round.
#[derive(Clone, Copy)]
struct Memory {
    threads: usize,
    pieces: usize,
    piece_len: usize,
    rounds: usize,
}

impl Memory {
    fn new(threads: usize, effort: Effort) -> Self {
        let piece_len = effort.piece_bytes / size_of::<u64>();
        let pieces = (effort.buffer_bytes / threads / effort.piece_bytes).max(2);
        Memory { threads, pieces, piece_len, rounds: effort.passes * pieces }
    }

    fn read(self) -> f64 {
        best(self.reads())
    }

    fn reads(self) -> Vec<f64> {
        rates_of_rounds(self.threads, self.rounds, || {
            let (buffer, mut piece) = (vec![1u64; self.len()], self.pieces_in_turn());
            move || timed(self.piece_bytes(), || sum(black_box(&buffer[piece()])))
        })
    }

    fn copy(self) -> f64 {
        best(rates_of_rounds(self.threads, self.rounds, || {
            let (from, mut to) = (vec![1u64; self.len()], vec![0u64; self.len()]);
            let mut piece = self.pieces_in_turn();
            move || {
                let piece = piece();
                timed(2 * self.piece_bytes(), || {
                    to[piece.clone()].copy_from_slice(black_box(&from[piece.clone()]));
                    black_box(&mut to[piece]);
                })
            }
        }))
    }

    fn update(self) -> f64 {
        best(rates_of_rounds(self.threads, self.rounds, || {
            let (mut buffer, mut piece) = (vec![1u64; self.len()], self.pieces_in_turn());
            move || {
                let numbers = black_box(&mut buffer[piece()]);
                timed(2 * self.piece_bytes(), || numbers.iter_mut().for_each(|x| *x = x.wrapping_add(3)))
            }
        }))
    }

    fn len(self) -> usize {
        self.pieces * self.piece_len
    }

    fn piece_bytes(self) -> usize {
        self.piece_len * size_of::<u64>()
    }

    /// The pieces one after the other, round and round: by the time that one comes again, no cache has it.
    fn pieces_in_turn(self) -> impl FnMut() -> Range<usize> {
        let mut next = 0;
        move || {
            let piece = next % self.pieces;
            next += 1;
            piece * self.piece_len..(piece + 1) * self.piece_len
        }
    }
}

/// Work done, when it began and when it ended.
type Burst = (f64, Instant, Instant);

fn timed<T>(work: usize, body: impl FnOnce() -> T) -> Burst {
    let started = Instant::now();
    black_box(body());
    (work as f64, started, Instant::now())
}

/// Rounds that nobody disturbed.
fn best(rates: Vec<f64>) -> f64 {
    rates.into_iter().fold(0.0, f64::max)
}

/// What all threads together did a second in each round, from the first start to the last end.
fn rates_of_rounds<W: FnMut() -> Burst>(
    threads: usize,
    rounds: usize,
    worker: impl Fn() -> W + Sync,
) -> Vec<f64> {
    let start = Start { threads, arrived: AtomicUsize::new(0) };
    let life = || -> Vec<Burst> {
        let mut work = worker();
        // The first touches memory and wakes the wide units.
        work();
        (0..rounds)
            .map(|round| {
                start.wait(round);
                work()
            })
            .collect()
    };
    let lives: Vec<Vec<Burst>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(life)).collect();
        let mut lives = vec![life()];
        // A worker cannot panic; if one did, its share is missing and the figure is lower.
        lives.extend(others.into_iter().filter_map(|other| other.join().ok()));
        lives
    });
    let rate = |round: usize| {
        let bursts = lives.iter().map(|life| life[round]);
        let (first, last) =
            (bursts.clone().map(|burst| burst.1).min(), bursts.clone().map(|burst| burst.2).max());
        let seconds = first.zip(last).map_or(f64::INFINITY, |(first, last)| (last - first).as_secs_f64());
        bursts.map(|burst| burst.0).sum::<f64>() / seconds.max(1e-9)
    };
    (0..rounds).map(rate).collect()
}

/// Where threads wait for each other before a round. They spin, because a thread that is woken starts too late to work
/// beside the others for all of a short round.
struct Start {
    threads: usize,
    arrived: AtomicUsize,
}

impl Start {
    fn wait(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0u32;
        while self.arrived.load(Ordering::Acquire) < (round + 1) * self.threads {
            turns += 1;
            match turns.is_multiple_of(1 << 14) {
                // The one that is missing may be waiting for this very core.
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
    }
}

fn sum(buffer: &[u64]) -> u64 {
    // As many sums as fill two registers of any width, so that loads and not additions are waited for.
    let mut sums = [0u64; 16];
    for chunk in buffer.chunks_exact(16) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// A loop of multiplications and additions that depend on nothing but themselves.
trait Arithmetic: Copy + Sync {
    /// Does `turns` turns and gives the operations done.
    fn turns(self, turns: usize) -> usize;

    /// A thread's work in rounds of so many turns.
    fn bursts(self, turns: usize) -> impl FnMut() -> Burst {
        move || {
            let started = Instant::now();
            let operations = self.turns(turns);
            (operations as f64, started, Instant::now())
        }
    }
}

/// How many turns take so long at this rate.
fn turns_of(length: Duration, turns_per_s: f64) -> usize {
    ((turns_per_s * length.as_secs_f64()) as usize).max(1)
}

/// The rate of the quickest of a few tries.
fn turns_per_s(with: impl Arithmetic) -> f64 {
    const PROBE: usize = 2000;
    let probe = || {
        let (_, started, ended) = timed(0, || with.turns(PROBE));
        ended - started
    };
    let probe = (0..20).map(|_| probe()).min().unwrap_or_default();
    PROBE as f64 / probe.as_secs_f64().max(1e-9)
}

fn arithmetic(threads: usize, effort: Effort, with: impl Arithmetic) -> f64 {
    let turns = turns_of(effort.round, turns_per_s(with));
    patient(threads, effort, 0.95 * threads as f64, &|threads| {
        best(rates_of_rounds(threads, effort.rounds, || with.bursts(turns)))
    })
}

/// The best of all threads. When it is less than some times what one does alone, that may be the machine, or a neighbour who
/// was there in every round so far: it takes patience to tell.
fn patient(threads: usize, effort: Effort, hoped: f64, best: &dyn Fn(usize) -> f64) -> f64 {
    let alone = best(1);
    if threads == 1 {
        return alone;
    }
    let (began, mut together) = (Instant::now(), best(threads));
    while together < hoped * alone && began.elapsed() < effort.patience {
        together = together.max(best(threads));
    }
    together
}

/// Sums that a turn goes through: more than latency times throughput of any such unit, few enough for the registers.
#[cfg(target_arch = "x86_64")]
const SUMS: usize = 12;

#[derive(Clone, Copy)]
struct F32(Simd);

impl F32 {
    fn of(simd: Simd) -> Self {
        F32(simd)
    }
}

impl Arithmetic for F32 {
    fn turns(self, turns: usize) -> usize {
        match self.0.set() {
            InstructionSet::Portable => portable(turns),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the proof in `self` says that the processor has AVX2 and FMA.
            InstructionSet::Avx2 => unsafe { x86::avx2(turns) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every set wider than AVX2 includes AVX-512, and the proof in `self` says that the processor has it.
            _ => unsafe { x86::avx512(turns) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable(turns),
        }
    }
}

/// The unit for pairs of bf16, where there is one.
#[derive(Clone, Copy)]
struct Bf16(());

impl Bf16 {
    #[cfg(target_arch = "x86_64")]
    fn of(simd: Simd) -> Option<Self> {
        let is_wide = !matches!(simd.set(), InstructionSet::Portable | InstructionSet::Avx2);
        (is_wide && is_x86_feature_detected!("avx512bf16")).then_some(Bf16(()))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(_: Simd) -> Option<Self> {
        None
    }
}

impl Arithmetic for Bf16 {
    #[cfg(target_arch = "x86_64")]
    fn turns(self, turns: usize) -> usize {
        // SAFETY: a `Bf16` is made only where the processor has AVX-512 and its bf16 products.
        unsafe { x86::bf16(turns) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn turns(self, turns: usize) -> usize {
        portable(turns)
    }
}

fn portable(turns: usize) -> usize {
    // The shape of the portable kernel's tile, which is what every processor's compiler can keep in registers.
    const ROWS: usize = 4;
    const LANES: usize = 8;
    let (x, y) = black_box(([0.5f32; LANES], 0.001f32));
    let mut sums = [[0.0f32; LANES]; ROWS];
    for _ in 0..turns {
        for sums in &mut sums {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += x * y;
            }
        }
    }
    black_box(sums);
    2 * turns * ROWS * LANES
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{arch::x86_64::*, hint::black_box};

    use super::SUMS;

    /// # Safety
    /// The processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(turns: usize) -> usize {
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.001)));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(x, y, *sum);
            }
        }
        black_box(sums);
        2 * 16 * SUMS * turns
    }

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn avx2(turns: usize) -> usize {
        let (x, y) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.001)));
        let mut sums = [_mm256_setzero_ps(); SUMS];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(x, y, *sum);
            }
        }
        black_box(sums);
        2 * 8 * SUMS * turns
    }

    /// # Safety
    /// The processor has AVX-512 and its bf16 products.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn bf16(turns: usize) -> usize {
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.001)));
        let (x, y) = (_mm512_cvtne2ps_pbh(x, x), _mm512_cvtne2ps_pbh(y, y));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, y);
            }
        }
        black_box(sums);
        2 * 32 * SUMS * turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_count_what_they_do_on_any_threads() {
        for products in [DType::F32, DType::BF16] {
            let bursts = Bursts::new(InstructionSet::Portable, products).unwrap();
            assert!(bursts.alone(Duration::ZERO) > 0.0);
            let rate = bursts.together(2, Duration::from_micros(50));
            assert!(rate.is_finite() && rate > 1e6, "{rate}");
        }
        for set in InstructionSet::ALL {
            assert_eq!(Bursts::new(set, DType::BF16).is_some(), set.is_available());
        }
    }

    #[test]
    fn what_memory_gives_now_is_a_rate() {
        let rate = reading_now(2, 1 << 20);
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }

    #[test]
    fn every_instruction_set_that_is_there_has_a_peak() {
        for set in InstructionSet::ALL {
            let peak = Peak::measure(set, 2, Effort::glance());
            assert_eq!(peak.is_some(), set.is_available());
            if let Some(peak) = peak {
                let figures = [peak.f32_flops_per_s, peak.read_bytes_per_s, peak.copy_bytes_per_s];
                assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 1e6), "{peak:?}");
                assert!(
                    peak.bf16_flops_per_s.is_none_or(|figure| figure.is_finite() && figure > 1e6),
                    "{peak:?}"
                );
            }
        }
    }
}
