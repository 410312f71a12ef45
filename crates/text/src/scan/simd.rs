//! Windows in vector registers, and the scanning loop compiled for them.
//!
//! The unsafe code here is of two kinds: loads and stores of whole arrays, which the reference makes sound, and calls of
//! functions compiled for instructions that [`Instructions::detect`] or the test has found on this machine.

#![expect(unsafe_code, reason = "vector loads, and functions compiled for instructions found at run time")]

use super::window::{Masks, WINDOW, masks_portable};
use super::{Ends, Scanner, Vectors};

/// The instructions that the hot loops of scanning and encoding are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Everything that this machine has, the fastest last.
    pub(crate) fn available() -> Vec<Self> {
        let mut found = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let has_bits = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            if has_bits && is_x86_feature_detected!("avx2") {
                found.push(Self::Avx2);
                let has_avx512 = is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi2");
                if has_avx512 {
                    found.push(Self::Avx512);
                }
            }
        }
        found
    }

    /// The fastest that this machine has.
    pub(crate) fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }
}

/// [`Scanner::fill`] with the scanner's instructions.
pub(super) fn fill(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) {
    match scanner.instructions {
        Instructions::Portable => scanner.fill(text, from, ends, Portable),
        // SAFETY: a scanner is made only with instructions that `Instructions::available` has found.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { fill_avx2(scanner, text, from, ends) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { fill_avx512(scanner, text, from, ends) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn fill_avx2(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) {
    scanner.fill(text, from, ends, Avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn fill_avx512(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) {
    scanner.fill(text, from, ends, Avx512)
}

#[derive(Clone, Copy)]
struct Portable;

impl Vectors for Portable {
    fn masks(self, window: &[u8; WINDOW]) -> Masks {
        masks_portable(window)
    }

    #[inline(always)]
    fn write_places(self, room: &mut [usize; WINDOW], base: usize, bits: u64) {
        write_by_eights(room, base, bits);
    }
}

/// Only used by [`fill_avx2`], so that its instructions are there.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Vectors for Avx2 {
    #[inline(always)]
    fn masks(self, window: &[u8; WINDOW]) -> Masks {
        // SAFETY: only `fill_avx2` has such vectors.
        unsafe { masks_avx2(window) }
    }

    #[inline(always)]
    fn write_places(self, room: &mut [usize; WINDOW], base: usize, bits: u64) {
        write_by_eights(room, base, bits);
    }
}

/// Only used by [`fill_avx512`], so that its instructions are there.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Vectors for Avx512 {
    #[inline(always)]
    fn masks(self, window: &[u8; WINDOW]) -> Masks {
        // SAFETY: only `fill_avx512` has such vectors.
        unsafe { masks_avx512(window) }
    }

    #[inline(always)]
    fn write_places(self, room: &mut [usize; WINDOW], base: usize, bits: u64) {
        // SAFETY: as above.
        unsafe { write_avx512(room, base, bits) }
    }
}

/// Eight are written whether they are there or not, because a loop that ends after an unpredictable number of rounds costs
/// more than the rounds.
#[inline(always)]
fn write_by_eights(room: &mut [usize; WINDOW], base: usize, mut bits: u64) {
    for eight in room.chunks_exact_mut(8) {
        for place in eight {
            *place = base + bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
        }
        if bits == 0 {
            break;
        }
    }
}

/// The numbers of the set bits are gathered in one instruction and widened eight at a time, at least sixteen: more are rare.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
#[inline]
fn write_avx512(room: &mut [usize; WINDOW], base: usize, bits: u64) {
    use std::arch::x86_64::*;
    const NUMBERS: [u8; WINDOW] = {
        let mut numbers = [0; WINDOW];
        let mut number = 0;
        while number < WINDOW {
            numbers[number] = number as u8;
            number += 1;
        }
        numbers
    };
    // SAFETY: the load is of 64 bytes that are there, and needs no alignment.
    let numbers = unsafe { _mm512_loadu_si512(NUMBERS.as_ptr().cast()) };
    let found = _mm512_maskz_compress_epi8(bits, numbers);
    let base = _mm512_set1_epi64(base as i64);
    let (sixteens, _) = room.as_chunks_mut::<16>();
    let count = bits.count_ones() as usize;
    let write = |room: &mut [usize; 16], found: __m128i| {
        let [low, high] = [found, _mm_unpackhi_epi64(found, found)]
            .map(|eight| _mm512_add_epi64(base, _mm512_cvtepu8_epi64(eight)));
        // SAFETY: the stores are of the two halves of the array, and need no alignment.
        unsafe {
            _mm512_storeu_si512(room.as_mut_ptr().cast(), low);
            _mm512_storeu_si512(room.as_mut_ptr().add(8).cast(), high);
        }
    };
    let [first, second, third, fourth] = sixteens else { return };
    write(first, _mm512_castsi512_si128(found));
    if count > 16 {
        write(second, _mm512_extracti32x4_epi32::<1>(found));
        if count > 32 {
            write(third, _mm512_extracti32x4_epi32::<2>(found));
            write(fourth, _mm512_extracti32x4_epi32::<3>(found));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn masks_avx512(text: &[u8; WINDOW]) -> Masks {
    use std::arch::x86_64::*;
    // SAFETY: the reference is to 64 readable bytes, and the load needs no alignment.
    let bytes = unsafe { _mm512_loadu_si512(text.as_ptr().cast()) };
    let equal = |byte: u8| _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte as i8));
    let within = |first: u8, count: u8| {
        let offset = _mm512_sub_epi8(bytes, _mm512_set1_epi8(first as i8));
        _mm512_cmplt_epu8_mask(offset, _mm512_set1_epi8(count as i8))
    };
    let (upper, lower, blank) = (within(b'A', 26), within(b'a', 26), equal(b' '));
    Masks {
        letter: upper | lower,
        upper,
        lower,
        number: within(b'0', 10),
        space: blank | within(9, 5),
        blank,
        newline: equal(b'\n') | equal(b'\r'),
        apostrophe: equal(b'\''),
        slash: equal(b'/'),
        caseless: 0,
        mark: 0,
        wide: _mm512_movepi8_mask(bytes),
        inner: 0,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn masks_avx2(text: &[u8; WINDOW]) -> Masks {
    use std::arch::x86_64::*;
    // SAFETY: the reference is to 64 readable bytes, the two loads cover them, and they need no alignment.
    let halves = unsafe {
        [_mm256_loadu_si256(text.as_ptr().cast()), _mm256_loadu_si256(text.as_ptr().add(32).cast())]
    };
    let bits = |halves: [__m256i; 2]| {
        let [low, high] = halves.map(|half| u64::from(_mm256_movemask_epi8(half) as u32));
        low | high << 32
    };
    let equal = |byte: u8| bits(halves.map(|half| _mm256_cmpeq_epi8(half, _mm256_set1_epi8(byte as i8))));
    // There is no unsigned comparison of bytes; saturating subtraction leaves zero where the offset is small enough.
    let within = |first: u8, count: u8| {
        bits(halves.map(|half| {
            let offset = _mm256_sub_epi8(half, _mm256_set1_epi8(first as i8));
            let excess = _mm256_subs_epu8(offset, _mm256_set1_epi8((count - 1) as i8));
            _mm256_cmpeq_epi8(excess, _mm256_setzero_si256())
        }))
    };
    let (upper, lower, blank) = (within(b'A', 26), within(b'a', 26), equal(b' '));
    Masks {
        letter: upper | lower,
        upper,
        lower,
        number: within(b'0', 10),
        space: blank | within(9, 5),
        blank,
        newline: equal(b'\n') | equal(b'\r'),
        apostrophe: equal(b'\''),
        slash: equal(b'/'),
        caseless: 0,
        mark: 0,
        wide: bits(halves),
        inner: 0,
    }
}
