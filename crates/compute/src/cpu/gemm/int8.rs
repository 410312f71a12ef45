//! Products with weights of eight bits that are never written again (see [`crate::int8`]).
//!
//! Sixteen lines of weights are a strip. For each group of terms it has the scales of its lines and then, for every two terms, two
//! bytes of each line; lines that do not exist are zeros. Strips lie one behind another at the front of the place that the matrix had,
//! of which they need little more than a quarter.
//!
//! Activations are rounded on their way into panels, group by group and row by row, to whole numbers of sixteen bits: less than half
//! a part in 65,000 of the group's largest, where bf16 rounds a number by up to a part in 512 of itself. A group's sum is then one
//! of whole numbers, exact in any order and on every instruction set: pairs of sixteen bits are what all of them multiply best. Groups are
//! scaled and added in order. So a row comes out the same bit for bit whatever the other rows are, on any processor.

use std::ops::Range;

use super::{Matrix, Product, cut, micro::Target, stream::STRIP};
use crate::{
    cpu::{
        Context, Needs,
        pool::Pool,
        shared::{Grid, Tile, for_tiles},
        simd::{InstructionSet, Simd},
    },
    int8::{GROUP, MOST_OF_WEIGHTS, Scale},
};

/// The largest whole number that an activation becomes. With weights of at most 127, a group's sum has 28 bits.
const MOST_OF_ACTIVATIONS: f32 = 32767.0;
/// Words of four bytes that two terms of a strip take.
const STEP_WORDS: usize = STRIP * 2 / 4;
/// Strips of a tile when there are several panels of rows, so that a panel serves more than one while it is in cache.
const TILE_STRIPS: usize = 4;
/// With one panel a tile has at most so many, which are read in less time than claiming tiles one by one takes note of, and every thread
/// at least so many tiles.
const MOST_STRIPS: usize = 8;
const LEAST_TILES: usize = 8;

/// The words of a strip: scales of all groups, and two bytes of each line for every two terms.
fn strip_words(depth: usize) -> usize {
    STRIP * depth.div_ceil(GROUP) + STEP_WORDS * depth.div_ceil(2)
}

/// The words that a matrix takes as strips.
pub(in super::super) fn words(lines: usize, depth: usize) -> usize {
    lines.div_ceil(STRIP) * strip_words(depth)
}

/// Lays a matrix out as strips at its own front, in which they must find room. Every thread has scratch for sixteen lines.
pub(in super::super) fn lay_out(pool: &mut Pool, matrix: &mut [f32], lines: usize) {
    let Some(depth) = matrix.len().checked_div(lines).filter(|depth| *depth > 0) else { return };
    assert!(words(lines, depth) <= matrix.len(), "strips take no more room than the matrix");
    let (unit, strip) = (STRIP * depth, strip_words(depth));
    let whole = lines / STRIP;
    for_tiles(pool, [Grid::elements(&mut matrix[..whole * unit], unit)], |[tile], scratch| {
        let (place, copy) = (tile.into_slice(), &mut scratch[..unit]);
        copy.copy_from_slice(place);
        quantise(copy, depth, &mut place[..strip]);
    });
    // A strip's place begins at or behind the end of those before it.
    for index in 1..whole {
        matrix.copy_within(index * unit..index * unit + strip, index * strip);
    }
    if !lines.is_multiple_of(STRIP) {
        let left = matrix[whole * unit..].to_vec();
        quantise(&left, depth, &mut matrix[whole * strip..][..strip]);
    }
}

/// Up to sixteen lines as a strip.
fn quantise(lines: &[f32], depth: usize, strip: &mut [f32]) {
    strip.fill(0.0);
    for (line, numbers) in lines.chunks_exact(depth).enumerate() {
        for (index, numbers) in numbers.chunks(GROUP).enumerate() {
            let scale = Scale::of(numbers, MOST_OF_WEIGHTS);
            let (scales, terms) = group_mut(strip, index).split_at_mut(STRIP);
            scales[line] = scale.size;
            let bytes: &mut [i8] = bytemuck::cast_slice_mut(terms);
            for (step, pair) in numbers.chunks(2).enumerate() {
                for (side, &x) in pair.iter().enumerate() {
                    bytes[(step * STRIP + line) * 2 + side] = scale.count(x) as i8;
                }
            }
        }
    }
}

/// Words from the beginning of a group to that of the next.
const GROUP_WORDS: usize = STRIP + STEP_WORDS * GROUP / 2;

fn group_mut(strip: &mut [f32], index: usize) -> &mut [f32] {
    let end = ((index + 1) * GROUP_WORDS).min(strip.len());
    &mut strip[index * GROUP_WORDS..end]
}

/// Copies the numbers of one line.
pub(in super::super) fn copy_line(strips: &[f32], line: usize, out: &mut [f32]) {
    let words = strip_words(out.len());
    let strip = &strips[line / STRIP * words..][..words];
    for (group, out) in strip.chunks(GROUP_WORDS).zip(out.chunks_mut(GROUP)) {
        let (scales, terms) = group.split_at(STRIP);
        let bytes: &[i8] = bytemuck::cast_slice(terms);
        for (term, out) in out.iter_mut().enumerate() {
            let at = (term / 2 * STRIP + line % STRIP) * 2 + term % 2;
            *out = f32::from(bytes[at]) * scales[line % STRIP];
        }
    }
}

/// The numbers of all lines.
pub(in super::super) fn take_apart(strips: &[f32], lines: usize, out: &mut [f32]) {
    let depth = out.len().checked_div(lines).unwrap_or(0);
    for (line, out) in out.chunks_exact_mut(depth.max(1)).enumerate() {
        copy_line(strips, line, out);
    }
}

/// The shared memory that [`multiply`] takes.
pub(in super::super) fn needs(simd: Simd, [m, _, k]: [usize; 3]) -> Needs {
    let panels = Panels::of(Kernels::of(simd), m, k);
    Needs { shared: panels.count() * panels.stride, ..Needs::default() }
}

/// Rows in panels of about equal size.
#[derive(Clone, Copy)]
struct Panels {
    rows: usize,
    /// Rows of a panel; the last may have fewer.
    most: usize,
    depth: usize,
    /// Words from one panel to the next.
    stride: usize,
}

impl Panels {
    fn of(kernels: Kernels, rows: usize, depth: usize) -> Self {
        let most = rows.div_ceil(rows.div_ceil(kernels.0.len()).max(1));
        // A scale for every group and a pair of whole numbers for every two terms.
        let words = most * (depth.div_ceil(GROUP) + depth.div_ceil(2));
        Panels { rows, most, depth, stride: words.next_multiple_of(16) }
    }

    fn count(self) -> usize {
        self.rows.div_ceil(self.most.max(1))
    }

    fn range(self, index: usize) -> Range<usize> {
        index * self.most..((index + 1) * self.most).min(self.rows)
    }

    /// Packs the rows of one panel: for every group their scales, then pairs of terms, row by row.
    fn pack(self, a: Matrix<'_>, index: usize, out: &mut [f32]) {
        let range = self.range(index);
        let count = range.len();
        let mut out = out;
        for terms in cut(0..self.depth, GROUP) {
            let (group, rest) = out.split_at_mut(count * (1 + terms.len().div_ceil(2)));
            let (scales, pairs) = group.split_at_mut(count);
            for (row, scale_of_row) in scales.iter_mut().enumerate() {
                let numbers = &a.data[(range.start + row) * a.row_stride..][terms.clone()];
                let scale = Scale::of(numbers, MOST_OF_ACTIVATIONS);
                *scale_of_row = scale.size;
                let pair = |pair: &[f32]| {
                    let [low, high] = [0, 1].map(|side| pair.get(side).map_or(0, |&x| scale.count(x)));
                    f32::from_bits(low as u32 & 0xFFFF | (high as u32) << 16)
                };
                let places = pairs[row..].iter_mut().step_by(count);
                places.zip(numbers.chunks(2)).for_each(|(place, numbers)| *place = pair(numbers));
            }
            out = rest;
        }
    }
}

/// Computes products as [`super::multiply_then`] does, for a B whose columns are strips of eight bits.
pub(super) fn multiply<const N: usize>(
    context: &mut Context<'_>,
    product: Product<'_>,
    outputs: [&mut [f32]; N],
    then: impl Fn(&mut [Tile<'_>; N], usize) + Sync,
) {
    let Context { simd, pool, shared, .. } = context;
    let kernels = Kernels::of(*simd);
    let Product { a, b, bias, add, .. } = product;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert!(a.is_single() && a.column_stride == 1, "rows of A are numbers behind each other");
    let panels = Panels::of(kernels, m, k);
    let packed = &mut shared.as_mut_slice()[..panels.count() * panels.stride];
    if panels.count() == 1 {
        // So little that waking other threads would take longer.
        panels.pack(a, 0, packed);
    } else {
        for_tiles(pool, [Grid::elements(&mut *packed, panels.stride)], |[tile], _| {
            panels.pack(a, tile.column / panels.stride, tile.into_slice());
        });
    }
    let packed = &*packed;
    let strip = strip_words(k);
    let strips = &b.data[..words(n, k)];
    let tile_strips = match panels.count() {
        1 => (n.div_ceil(STRIP) / (LEAST_TILES * pool.threads())).clamp(1, MOST_STRIPS),
        _ => TILE_STRIPS,
    };
    let tile_columns = tile_strips * STRIP;
    let grids = outputs.map(|output| Grid::new(output, [1, m, n], [m, tile_columns]));
    for_tiles(pool, grids, |mut tiles, _| {
        let columns = tiles[0].column_range();
        for (index, packed) in packed.chunks_exact(panels.stride).enumerate() {
            let rows = panels.range(index);
            for columns in cut(columns.clone(), STRIP) {
                let strip = &strips[columns.start / STRIP * strip..][..strip];
                let bias = bias.map(|bias| &bias[columns.clone()]);
                let inside = columns.start - tiles[0].column..columns.end - tiles[0].column;
                let mut part = tiles[0].part(rows.clone(), inside);
                kernels.multiply(Operands { depth: k, strip, packed }, &mut part, bias, add);
            }
        }
        then(&mut tiles, columns.start);
    });
}

/// What one call multiplies: a strip and a panel of rows.
#[derive(Clone, Copy)]
struct Operands<'a> {
    depth: usize,
    strip: &'a [f32],
    packed: &'a [f32],
}

/// Multiplies R rows with a strip.
type Kernel = unsafe fn(Operands<'_>, Target);

/// Inner loops of an instruction set, by rows.
#[derive(Clone, Copy)]
struct Kernels(&'static [Kernel]);

impl Kernels {
    fn of(simd: Simd) -> Self {
        match simd.set() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Bf16 if is_x86_feature_detected!("avx512vnni") => {
                Kernels(&x86::AVX512_VNNI)
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 | InstructionSet::Avx512Bf16 if is_x86_feature_detected!("avx512bw") => {
                Kernels(&x86::AVX512)
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => Kernels(&x86::AVX2),
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => Kernels(&PORTABLE),
            InstructionSet::Portable => Kernels(&PORTABLE),
        }
    }

    /// C ← A·B or C ← C + A·B for one strip, with a bias.
    fn multiply(self, of: Operands<'_>, c: &mut Tile<'_>, bias: Option<&[f32]>, add: bool) {
        let (rows, columns, stride) = (c.rows(), c.columns(), c.stride());
        assert!(columns <= STRIP && of.strip.len() == strip_words(of.depth), "a whole strip");
        let steps = of.depth.div_ceil(GROUP) + of.depth.div_ceil(2);
        assert!(rows * steps <= of.packed.len(), "the panel holds these rows");
        let bias = bias.map_or(std::ptr::null(), |bias| bias[..columns].as_ptr());
        let to = Target { c: c.as_mut_ptr(), stride, columns, bias, add };
        // SAFETY: the loop is of an instruction set that the processor has: a `Simd` or the feature's own test says so. The
        // assertions keep both operands inside their slices, and the tile is this thread's own.
        unsafe { self.0[rows - 1](of, to) }
    }
}

static PORTABLE: [Kernel; 4] = [portable::<1>, portable::<2>, portable::<3>, portable::<4>];

/// # Safety
/// The strip and the panel of R rows hold the depth; C has R rows of `columns ≤ 16` elements at the stride, which nobody else uses;
/// the bias is null or has as many.
unsafe fn portable<const R: usize>(of: Operands<'_>, to: Target) {
    let mut sums = [[0.0f32; STRIP]; R];
    let (mut strip, mut packed) = (of.strip, of.packed);
    for terms in cut(0..of.depth, GROUP) {
        let steps = terms.len().div_ceil(2);
        let (scales, rest) = strip.split_at(STRIP);
        let (bytes, rest) = rest.split_at(steps * STEP_WORDS);
        let bytes: &[[[i8; 2]; STRIP]] = bytemuck::cast_slice(bytes);
        strip = rest;
        let (scales_of_rows, rest) = packed.split_at(R);
        let (pairs, rest) = rest.split_at(steps * R);
        packed = rest;
        let mut totals = [[0i32; STRIP]; R];
        for (weights, pairs) in bytes.iter().zip(pairs.as_chunks::<R>().0) {
            for (totals, pair) in totals.iter_mut().zip(pairs) {
                let [low, high] = [pair.to_bits() as i16, (pair.to_bits() >> 16) as i16].map(i32::from);
                for (total, &[first, second]) in totals.iter_mut().zip(weights) {
                    *total += low * i32::from(first) + high * i32::from(second);
                }
            }
        }
        for ((sums, totals), scale_of_row) in sums.iter_mut().zip(&totals).zip(scales_of_rows) {
            for ((sum, &total), scale) in sums.iter_mut().zip(totals).zip(scales) {
                *sum += total as f32 * scale * scale_of_row;
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: the row is below R, and it and its columns exist by the caller's promise.
        unsafe { to.put_numbers(row, sums) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{GROUP, Kernel, Operands, STEP_WORDS, STRIP, Target};

    macro_rules! table {
        ($function:ident, rows $($rows:literal)*) => { [$($function::<$rows>),*] };
    }

    pub static AVX512_VNNI: [Kernel; 8] = table!(avx512_vnni, rows 1 2 3 4 5 6 7 8);
    pub static AVX512: [Kernel; 8] = table!(avx512, rows 1 2 3 4 5 6 7 8);
    pub static AVX2: [Kernel; 4] = table!(avx2, rows 1 2 3 4);

    /// sum + a·b, where every lane of a and b is a pair of sixteen bits and both products are added.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn add_dot_products(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpwssd_epi32(sum, a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn add_products(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
    }

    macro_rules! loops_of_512_bits {
        ($name:ident, $features:literal, $add_products:ident) => {
            /// # Safety
            /// The processor has the features. The strip and the panel of R rows hold the depth; C has R rows of
            /// `columns ≤ 16` elements at the stride, which nobody else uses; the bias is null or has as many.
            #[target_feature(enable = $features)]
            unsafe fn $name<const R: usize>(of: Operands<'_>, to: Target) {
                let mut sums = [_mm512_setzero_ps(); R];
                let (mut b, mut a) = (of.strip.as_ptr(), of.packed.as_ptr());
                let mut steps_left = of.depth.div_ceil(2);
                while steps_left > 0 {
                    let steps = steps_left.min(GROUP / 2);
                    steps_left -= steps;
                    // Two chains of sums, because one would wait for itself.
                    let mut totals = [[_mm512_setzero_si512(); R]; 2];
                    // SAFETY: groups and their steps are gone through once each, in the order in which both operands hold
                    // them.
                    unsafe {
                        let (scales, scales_of_rows) = (_mm512_loadu_ps(b), a);
                        (b, a) = (b.add(STRIP), a.add(R));
                        macro_rules! step {
                            ($chain:expr) => {
                                let weights = _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.cast()));
                                for (row, total) in totals[$chain].iter_mut().enumerate() {
                                    let pair = _mm512_set1_epi32(a.add(row).cast::<i32>().read());
                                    *total = $add_products(*total, pair, weights);
                                }
                                (b, a) = (b.add(STEP_WORDS), a.add(R));
                            };
                        }
                        for _ in 0..steps / 2 {
                            step!(0);
                            step!(1);
                        }
                        if steps % 2 == 1 {
                            step!(0);
                        }
                        for (row, sum) in sums.iter_mut().enumerate() {
                            let total = _mm512_add_epi32(totals[0][row], totals[1][row]);
                            let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(total), scales);
                            let scale_of_row = _mm512_set1_ps(*scales_of_rows.add(row));
                            *sum = _mm512_add_ps(*sum, _mm512_mul_ps(scaled, scale_of_row));
                        }
                    }
                }
                for (row, sum) in sums.into_iter().enumerate() {
                    // SAFETY: the row and its columns exist by the caller's promise.
                    unsafe { to.put_vector(row, sum) };
                }
            }
        };
    }

    loops_of_512_bits!(avx512_vnni, "avx512f,avx512bw,avx512vnni", add_dot_products);
    loops_of_512_bits!(avx512, "avx512f,avx512bw", add_products);

    /// # Safety
    /// The processor has AVX2. Otherwise as the loops of 512 bits.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2<const R: usize>(of: Operands<'_>, to: Target) {
        // Eight lines each.
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        let (mut b, mut a) = (of.strip.as_ptr(), of.packed.as_ptr());
        let mut steps_left = of.depth.div_ceil(2);
        while steps_left > 0 {
            let steps = steps_left.min(GROUP / 2);
            steps_left -= steps;
            let mut totals = [[_mm256_setzero_si256(); 2]; R];
            // SAFETY: groups and their steps are gone through once each, in the order in which both operands hold them.
            unsafe {
                let scales = [0, 8].map(|lane| _mm256_loadu_ps(b.add(lane)));
                let scales_of_rows = a;
                (b, a) = (b.add(STRIP), a.add(R));
                for _ in 0..steps {
                    let weights = [0, STEP_WORDS / 2]
                        .map(|word| _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(word).cast())));
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let pair = _mm256_set1_epi32(a.add(row).cast::<i32>().read());
                        for (total, weights) in totals.iter_mut().zip(weights) {
                            *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pair, weights));
                        }
                    }
                    (b, a) = (b.add(STEP_WORDS), a.add(R));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let scale_of_row = _mm256_set1_ps(*scales_of_rows.add(row));
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[row][half]), scales[half]);
                        *sum = _mm256_add_ps(*sum, _mm256_mul_ps(scaled, scale_of_row));
                    }
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            let mut numbers = [0.0f32; STRIP];
            // SAFETY: the array holds both halves; the row and its columns exist by the caller's promise.
            unsafe {
                for (half, sum) in sums.into_iter().enumerate() {
                    _mm256_storeu_ps(numbers.as_mut_ptr().add(half * 8), sum);
                }
                to.put_numbers(row, &numbers);
            }
        }
    }
}
