//! Copies part of a matrix into the order in which the inner loops read it.
//!
//! Both operands are packed alike: a panel takes up to `width` lines of the matrix (rows of A, columns of B) and stores, for
//! each step of the sum, one unit of every line: a number, a number rounded to 16 bits, or two numbers as a pair of bf16.

use super::{
    super::{
        shared::Tile,
        simd::{InstructionSet, Simd},
    },
    Matrix,
    micro::{Family, Form},
};
use crate::tensor::DType;

/// Lines of a matrix to pack: element k of line i is at `i * line_stride + k * k_stride`.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    /// The elements, from the first one on.
    pub data: &'a [f32],
    /// Lines that exist.
    pub count: usize,
    /// Elements of a line.
    pub depth: usize,
    /// From one line to the next.
    pub line_stride: usize,
    /// From one step to the next.
    pub k_stride: usize,
    /// Whether an element is two numbers of bf16, of which `depth` counts each; then it is even.
    pub is_paired: bool,
}

/// Packs lines into `out[step * width + i]` in the family's units; lines that do not exist are zeros, and so is what is
/// missing of a last pair.
pub(super) fn pack(simd: Simd, family: Family, lines: Lines<'_>, width: usize, out: &mut [f32]) {
    if lines.is_paired {
        return pack_stored_pairs(simd, family, lines, width, out);
    }
    match family.form {
        Form::F32 => pack_numbers(simd, lines, width, out),
        Form::Rounded(dtype) => {
            pack_numbers(simd, lines, width, out);
            out[..lines.depth * width].iter_mut().for_each(|x| *x = rounded(dtype, *x));
        }
        Form::Pairs => pack_pairs(simd, lines, width, out),
    }
}

/// Packs numbers that are pairs of bf16 already: as they are, or each on its own where pairs are not multiplied.
fn pack_stored_pairs(simd: Simd, family: Family, lines: Lines<'_>, width: usize, out: &mut [f32]) {
    if family.form == Form::Pairs {
        let units = Lines { depth: lines.depth.div_ceil(2), is_paired: false, ..lines };
        return pack_numbers(simd, units, width, out);
    }
    let Lines { data, count, depth, line_stride, k_stride, .. } = lines;
    for (k, out) in out.chunks_exact_mut(width).take(depth).enumerate() {
        for (i, out) in out[..count].iter_mut().enumerate() {
            let pair = data[i * line_stride + k / 2 * k_stride].to_bits();
            *out = f32::from_bits(if k % 2 == 0 { pair << 16 } else { pair & 0xFFFF_0000 });
        }
        out[count..].fill(0.0);
    }
}

/// Packs rows that lie beside each other into panels of 8 at a stride, all panels at once, which reads memory in order. Gives
/// back how many it packed: whole panels where the family's rows are 8 and there are several of them, else none.
pub(super) fn pack_adjacent_rows(
    simd: Simd,
    family: Family,
    lines: Lines<'_>,
    stride: usize,
    out: &mut [f32],
) -> usize {
    let lines = Lines { count: lines.count / 8 * 8, ..lines };
    let Lines { data, count, depth, line_stride, k_stride, .. } = lines;
    let is_known = line_stride == 1 && family.rows == 8 && !matches!(family.form, Form::Rounded(_));
    if !is_known || count <= 8 || depth == 0 {
        return 0;
    }
    let steps = family.units(depth);
    assert!(count - 1 + (depth - 1) * k_stride < data.len(), "the lines lie inside the matrix");
    assert!(out.len() >= (count / 8 - 1) * stride + 8 * steps, "the panels lie inside the output");
    #[cfg(target_arch = "x86_64")]
    if family.form == Form::Pairs && simd.set() == InstructionSet::Avx512Bf16 {
        // SAFETY: the set proves the instructions, and the assertions keep all elements inside the data and the output.
        unsafe { x86::pairs_of_adjacent_panels(lines, stride, out.as_mut_ptr()) };
        return count;
    }
    let _ = simd;
    if family.form == Form::Pairs {
        return 0;
    }
    for k in 0..depth {
        let (from, _) = data[k * k_stride..][..count].as_chunks::<8>();
        for (panel, from) in from.iter().enumerate() {
            let place = panel * stride + k * 8;
            out[place..place + 8].copy_from_slice(from);
        }
    }
    count
}

/// Whether [`sweep`] can pack this B.
pub(super) fn can_sweep(family: Family, b: &Matrix<'_>) -> bool {
    b.column_stride == 1 && b.is_single() && (family.form != Form::Pairs || cfg!(target_arch = "x86_64"))
}

/// Packs adjacent lines into panels of `panel` lines side by side: a row of the tile is a part of a panel, of as many steps.
/// Lines that a last panel lacks are zeros up to whole vectors.
pub(super) fn sweep(simd: Simd, family: Family, lines: Lines<'_>, panel: usize, out: &mut Tile<'_>) {
    let Lines { data, count, depth, line_stride, k_stride, .. } = lines;
    if depth == 0 {
        return;
    }
    let panels = count.div_ceil(panel);
    assert!(line_stride == 1 && count > 0 && count - 1 + (depth - 1) * k_stride < data.len());
    assert!(panels <= out.rows() && family.units(depth) * panel <= out.columns());
    #[cfg(target_arch = "x86_64")]
    if matches!(simd.set(), InstructionSet::Avx512 | InstructionSet::Avx512Bf16)
        && !matches!(family.form, Form::Rounded(_))
    {
        let (stride, to) = (out.stride(), out.as_mut_ptr());
        // SAFETY: pairs are only of the set with BF16, and the set proves the instructions. The assertions keep all elements
        // of the lines inside the data, and the units of all panels inside the tile.
        unsafe {
            match family.form {
                Form::Pairs => x86::pairs_of_rows(lines, panel, stride, to),
                Form::F32 | Form::Rounded(_) => x86::numbers_of_rows(lines, panel, stride, to),
            }
        }
        return;
    }
    let _ = simd;
    for panel_idx in 0..panels {
        let lines_of = panel_idx * panel..((panel_idx + 1) * panel).min(count);
        let out = out.row_mut(panel_idx);
        for (k, out) in out.chunks_exact_mut(panel).take(depth).enumerate() {
            let from = &data[k * k_stride..][lines_of.clone()];
            for (out, &x) in out.iter_mut().zip(from) {
                *out = if let Form::Rounded(dtype) = family.form { rounded(dtype, x) } else { x };
            }
            out[from.len()..].fill(0.0);
        }
    }
}

/// The nearest number of a type of 16 bits, ties to even.
fn rounded(dtype: DType, x: f32) -> f32 {
    if dtype == DType::F16 { half::f16::from_f32(x).to_f32() } else { rounded_to_bf16(x) }
}

/// The nearest bf16, ties to even; what is not a number stays so.
fn rounded_to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

fn pack_pairs(simd: Simd, lines: Lines<'_>, width: usize, out: &mut [f32]) {
    let Lines { data, count, depth, line_stride, k_stride, .. } = lines;
    let steps = depth.div_ceil(2);
    assert!(count <= width && out.len() >= steps * width);
    if count == 0 || depth == 0 {
        return out[..steps * width].fill(0.0);
    }
    assert!(
        (count - 1) * line_stride + (depth - 1) * k_stride < data.len(),
        "the lines lie inside the matrix"
    );
    #[cfg(target_arch = "x86_64")]
    if simd.set() == InstructionSet::Avx512Bf16 && (line_stride == 1 || k_stride == 1) {
        // SAFETY: the set proves the instructions. The assertions above keep every element of a line that exists inside the
        // data, and `steps` groups of `width` units inside the output.
        unsafe {
            if line_stride == 1 {
                x86::pairs_of_adjacent_lines(lines, width, out.as_mut_ptr());
            } else {
                x86::pairs_of_contiguous_lines(lines, width, out.as_mut_ptr());
            }
        }
        return;
    }
    let _ = simd;
    let half = |i: usize, k: usize| {
        let x = if i < count && k < depth { data[i * line_stride + k * k_stride] } else { 0.0 };
        rounded_to_bf16(x).to_bits() >> 16
    };
    for (step, out) in out.chunks_exact_mut(width).take(steps).enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = f32::from_bits(half(i, 2 * step) | half(i, 2 * step + 1) << 16);
        }
    }
}

/// Packs lines into `out[k * width + i]`; lines that do not exist are zeros.
fn pack_numbers(simd: Simd, lines: Lines<'_>, width: usize, out: &mut [f32]) {
    let Lines { data, count, depth, line_stride, k_stride, .. } = lines;
    assert!(count <= width && out.len() >= depth * width);
    if count == 0 || depth == 0 {
        return out[..depth * width].fill(0.0);
    }
    assert!(
        (count - 1) * line_stride + (depth - 1) * k_stride < data.len(),
        "the lines lie inside the matrix"
    );
    if line_stride == 1 {
        // Full panels have few widths, and a copy of known length is a few vector moves rather than a call.
        match (count == width, width) {
            (true, 48) => return copy::<48>(lines, out),
            (true, 32) => return copy::<32>(lines, out),
            (true, 16) => return copy::<16>(lines, out),
            (true, 8) => return copy::<8>(lines, out),
            (true, 6) => return copy::<6>(lines, out),
            (true, 4) => return copy::<4>(lines, out),
            _ => {}
        }
        for (k, out) in out.chunks_exact_mut(width).take(depth).enumerate() {
            out[..count].copy_from_slice(&data[k * k_stride..][..count]);
            out[count..].fill(0.0);
        }
        return;
    }
    if width == 1 {
        for (k, out) in out[..depth].iter_mut().enumerate() {
            *out = data[k * k_stride];
        }
        return;
    }
    let transposed = transpose_blocks(simd, lines, width, out);
    let groups = out[..depth * width].chunks_exact_mut(width).enumerate();
    // Whole blocks are the usual case, and then there is nothing left to visit.
    let is_done = transposed.lines == width;
    for (k, out) in groups.skip(if is_done { transposed.depth } else { 0 }) {
        let done = if k < transposed.depth { transposed.lines } else { 0 };
        for (i, out) in out[..count].iter_mut().enumerate().skip(done) {
            *out = data[i * line_stride + k * k_stride];
        }
        out[count..].fill(0.0);
    }
}

/// Packs exactly W adjacent lines.
fn copy<const W: usize>(lines: Lines<'_>, out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<W>();
    for (k, out) in out.iter_mut().take(lines.depth).enumerate() {
        if let Some(from) = lines.data[k * lines.k_stride..].first_chunk::<W>() {
            *out = *from;
        }
    }
}

/// The part of a panel that is already packed.
struct Packed {
    lines: usize,
    depth: usize,
}

/// Packs as many whole blocks of 8 lines by 8 steps as there are, where vector instructions can transpose them; or of 6 lines,
/// which is as many rows as loops of 256 bits take.
fn transpose_blocks(simd: Simd, lines: Lines<'_>, width: usize, out: &mut [f32]) -> Packed {
    let packed = Packed { lines: lines.count / 8 * 8, depth: lines.depth / 8 * 8 };
    if lines.k_stride != 1 || simd.set() == InstructionSet::Portable {
        return Packed { lines: 0, depth: 0 };
    }
    #[cfg(target_arch = "x86_64")]
    if lines.count == 6 && width == 6 {
        // Groups are stored as vectors of 8, so behind the last one there is room for 2 numbers more.
        let depth = lines.depth.min((out.len().max(2) - 2) / 6) / 8 * 8;
        assert!(5 * lines.line_stride + depth <= lines.data.len());
        // SAFETY: the set is not the portable one, so the processor has AVX2 at least. The assertion keeps six lines of
        // `depth` elements inside the data, and the minimum as many groups of six and two numbers inside the output.
        unsafe { x86::transpose::<6>(lines.data.as_ptr(), lines.line_stride, depth, out.as_mut_ptr(), 6) };
        return Packed { lines: 6, depth };
    }
    #[cfg(target_arch = "x86_64")]
    for i in (0..packed.lines).step_by(8) {
        assert!((i + 7) * lines.line_stride + packed.depth <= lines.data.len());
        assert!(i + 8 <= width && packed.depth * width <= out.len());
        // SAFETY: the set is not the portable one, so the processor has AVX2 at least. The assertions keep eight lines of
        // `packed.depth` elements inside the data, and as many groups of eight inside the output.
        unsafe {
            let from = lines.data.as_ptr().add(i * lines.line_stride);
            x86::transpose::<8>(from, lines.line_stride, packed.depth, out.as_mut_ptr().add(i), width);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (width, out);
    packed
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lines;

    /// Eight vectors of eight units as the columns that they are the rows of.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transposed(line: [__m256; 8]) -> [__m256; 8] {
        // Pairs, then fours, then halves change places.
        let pair: [__m256; 8] = std::array::from_fn(|i| match i % 2 {
            0 => _mm256_unpacklo_ps(line[i], line[i + 1]),
            _ => _mm256_unpackhi_ps(line[i - 1], line[i]),
        });
        let four = |i: usize, j: usize| {
            (_mm256_shuffle_ps::<0x44>(pair[i], pair[j]), _mm256_shuffle_ps::<0xEE>(pair[i], pair[j]))
        };
        let ((a0, a1), (a2, a3)) = (four(0, 2), four(1, 3));
        let ((b0, b1), (b2, b3)) = (four(4, 6), four(5, 7));
        let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
        let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
        [
            low(a0, b0),
            low(a1, b1),
            low(a2, b2),
            low(a3, b3),
            high(a0, b0),
            high(a1, b1),
            high(a2, b2),
            high(a3, b3),
        ]
    }

    /// The mask of the first `lanes` of 16.
    fn first(lanes: usize) -> __mmask16 {
        if lanes >= 16 { 0xFFFF } else { (1 << lanes) - 1 }
    }

    /// Packs pairs of lines whose elements follow each other.
    ///
    /// # Safety
    /// The processor has AVX-512 with BW, VL and BF16; all elements of the lines that exist lie inside their data, `to` has
    /// room for `width` units for each two of them, and nobody else uses it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pairs_of_contiguous_lines(lines: Lines<'_>, width: usize, to: *mut f32) {
        let Lines { data, count, depth, line_stride, .. } = lines;
        for i in (0..width).step_by(8) {
            let (existing, lanes) = (count.saturating_sub(i).min(8), (width - i).min(8));
            let from = data.as_ptr().wrapping_add(i * line_stride);
            // Whole blocks of 8 lines by 32 numbers.
            let whole = if existing == 8 { depth / 32 * 32 } else { 0 };
            for k in (0..whole).step_by(32) {
                // SAFETY: the eight lines exist and have 32 numbers from k on, and the output has 16 groups with room for their
                // units.
                unsafe { pairs_of_block(from.add(k), line_stride, to.add(k / 2 * width + i), width) };
            }
            for k in (whole..depth).step_by(16) {
                let left = (depth - k).min(16);
                if left <= 2 && existing == 8 {
                    // SAFETY: the eight lines exist and have `left` numbers from k on, and the group has room for their units.
                    unsafe { last_pairs(from.add(k), line_stride, left, to.add(k / 2 * width + i)) };
                    continue;
                }
                // SAFETY: masks keep loads to lines and elements that exist, and stores to lanes of groups that do.
                unsafe {
                    // The lines after these are packed next; several streams at once are more than the processor foresees.
                    for line in 8..16 {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line * line_stride + k).cast());
                    }
                    let line = |line: usize| {
                        let mask = if line < existing { first(left) } else { 0 };
                        let x = _mm512_maskz_loadu_ps(mask, from.wrapping_add(line * line_stride + k));
                        std::mem::transmute::<__m256bh, __m256>(_mm512_cvtneps_pbh(x))
                    };
                    let groups = transposed(std::array::from_fn(line));
                    let to = to.add(k / 2 * width + i);
                    if left == 16 && lanes == 8 {
                        for (step, group) in groups.into_iter().enumerate() {
                            _mm256_storeu_ps(to.add(step * width), group);
                        }
                    } else {
                        for (step, group) in groups.into_iter().enumerate().take(left.div_ceil(2)) {
                            _mm256_mask_storeu_ps(to.add(step * width), first(lanes) as __mmask8, group);
                        }
                    }
                }
            }
        }
    }

    /// Packs the last pair of 8 lines, of which the second number may be missing.
    ///
    /// # Safety
    /// The processor has AVX-512 with VL and BF16; the lines have one or two numbers as `left` says, `to` has room for 8 units,
    /// and nobody else uses it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn last_pairs(from: *const f32, line_stride: usize, left: usize, to: *mut f32) {
        // SAFETY: the caller promises the numbers of all eight lines.
        let numbers = |k: usize| unsafe {
            let line = |i: usize| *from.add(i * line_stride + k);
            _mm256_set_ps(line(7), line(6), line(5), line(4), line(3), line(2), line(1), line(0))
        };
        let second = if left == 2 { numbers(1) } else { _mm256_setzero_ps() };
        // SAFETY: both types are 128 bits of plain data.
        let halves = |x: __m256| unsafe { std::mem::transmute::<__m128bh, __m128i>(_mm256_cvtneps_pbh(x)) };
        let (low, high) = (_mm256_cvtepu16_epi32(halves(numbers(0))), _mm256_cvtepu16_epi32(halves(second)));
        let pairs = _mm256_or_si256(low, _mm256_slli_epi32::<16>(high));
        // SAFETY: the caller promises room for 8 units.
        unsafe { _mm256_storeu_ps(to, _mm256_castsi256_ps(pairs)) };
    }

    /// Packs pairs of 8 lines by 32 numbers: 8 units of each of 16 groups that are `width` units apart.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16; the numbers of the lines exist, `to` has room for the units, and nobody else uses it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn pairs_of_block(from: *const f32, line_stride: usize, to: *mut f32, width: usize) {
        let line: [__m512; 8] = std::array::from_fn(|i| {
            let from = from.wrapping_add(i * line_stride);
            // The lines after these are packed next; several streams at once are more than the processor foresees.
            let next = from.wrapping_add(8 * line_stride);
            _mm_prefetch::<_MM_HINT_T0>(next.cast());
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(16).cast());
            // SAFETY: the caller promises 32 numbers of each of the eight lines; both types are 512 bits of plain data.
            unsafe {
                let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.wrapping_add(16)));
                std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low))
            }
        });
        // Pairs, then fours change places inside each quarter of a vector: quarter q of `four[j]` is step 4q + j of the first
        // four lines, that of `four[j + 4]` of the others.
        let pair: [__m512; 8] = std::array::from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_ps(line[i], line[i + 1]),
            _ => _mm512_unpackhi_ps(line[i - 1], line[i]),
        });
        let four: [__m512; 8] = std::array::from_fn(|i| {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (_mm512_castps_pd(pair[first]), _mm512_castps_pd(pair[first + 2]));
            _mm512_castpd_ps(match i % 2 {
                0 => _mm512_unpacklo_pd(a, b),
                _ => _mm512_unpackhi_pd(a, b),
            })
        });
        // Two steps make a vector: quarters q of the halves of step 4q + j, then of step 4q + j + 1.
        for j in [0, 2] {
            let [a, b, c, d] = [four[j], four[j + 4], four[j + 1], four[j + 5]];
            let (low_ab, high_ab) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let (low_cd, high_cd) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            let quarters = [
                _mm512_shuffle_f32x4::<0x88>(low_ab, low_cd),
                _mm512_shuffle_f32x4::<0xDD>(low_ab, low_cd),
                _mm512_shuffle_f32x4::<0x88>(high_ab, high_cd),
                _mm512_shuffle_f32x4::<0xDD>(high_ab, high_cd),
            ];
            for (q, steps) in quarters.into_iter().enumerate() {
                // SAFETY: groups 4q + j and the one after it are of the 16 that the caller promises room for.
                unsafe {
                    let to = to.add((4 * q + j) * width);
                    if width == 8 {
                        _mm512_storeu_ps(to, steps);
                    } else {
                        _mm256_storeu_ps(to, _mm512_castps512_ps256(steps));
                        let second = _mm512_shuffle_f32x4::<0b11_10_11_10>(steps, steps);
                        _mm256_storeu_ps(to.add(width), _mm512_castps512_ps256(second));
                    }
                }
            }
        }
    }

    /// Number i of the first half, then number i of the second.
    const INTERLEAVED: [i16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + 16 * (i % 2)) as i16;
            i += 1;
        }
        order
    };

    /// Two vectors of consecutive numbers of two lines as pairs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    fn pairs(low: __m512, high: __m512, interleaved: __m512i) -> __m512 {
        // SAFETY: both types are 512 bits of plain data.
        let halves = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        _mm512_castsi512_ps(_mm512_permutexvar_epi16(interleaved, halves))
    }

    /// Packs pairs of lines that lie beside each other into panels of 8 at a stride.
    ///
    /// # Safety
    /// As for [`pairs_of_contiguous_lines`]; the lines are a multiple of 8.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pairs_of_adjacent_panels(lines: Lines<'_>, stride: usize, to: *mut f32) {
        let Lines { data, count, depth, k_stride, .. } = lines;
        // SAFETY: the array is 512 bits.
        let interleaved = unsafe { _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()) };
        for k in (0..depth).step_by(2) {
            let from = data.as_ptr().wrapping_add(k * k_stride);
            for i in (0..count).step_by(16) {
                let mask = first(count - i);
                let second_mask = if k + 1 < depth { mask } else { 0 };
                // SAFETY: masks keep loads to lines and elements that exist; both panels lie inside the output.
                unsafe {
                    let low = _mm512_maskz_loadu_ps(mask, from.wrapping_add(i));
                    let high = _mm512_maskz_loadu_ps(second_mask, from.wrapping_add(k_stride + i));
                    let pairs = pairs(low, high, interleaved);
                    let to = to.add(i / 8 * stride + k * 4);
                    _mm256_storeu_ps(to, _mm512_castps512_ps256(pairs));
                    if count - i >= 16 {
                        let upper = _mm512_shuffle_f32x4::<0b11_10_11_10>(pairs, pairs);
                        _mm256_storeu_ps(to.add(stride), _mm512_castps512_ps256(upper));
                    }
                }
            }
        }
    }

    /// Packs pairs of adjacent lines into panels of `panel` lines at a stride, zeros up to whole vectors.
    ///
    /// # Safety
    /// The processor has AVX-512 with BW, VL and BF16; all elements of the lines lie inside their data, `to` has room for
    /// `panel` units, a multiple of 16, for each two of them in every panel, and nobody else uses it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pairs_of_rows(lines: Lines<'_>, panel: usize, stride: usize, to: *mut f32) {
        let Lines { data, count, depth, k_stride, .. } = lines;
        // SAFETY: the array is 512 bits.
        let interleaved = unsafe { _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()) };
        for k in (0..depth).step_by(2) {
            let from = data.as_ptr().wrapping_add(k * k_stride);
            let second = if k + 1 < depth { 0xFFFF } else { 0 };
            let mut to = to.wrapping_add(k / 2 * panel);
            for start in (0..count).step_by(panel) {
                for i in (start..(start + panel).min(count)).step_by(16) {
                    let mask = first(count - i);
                    // SAFETY: masks keep loads to lines and elements that exist; the vector lies inside the panel.
                    unsafe {
                        let low = _mm512_maskz_loadu_ps(mask, from.wrapping_add(i));
                        let high = _mm512_maskz_loadu_ps(mask & second, from.wrapping_add(k_stride + i));
                        _mm512_storeu_ps(to.wrapping_add(i - start), pairs(low, high, interleaved));
                    }
                }
                to = to.wrapping_add(stride);
            }
        }
    }

    /// Packs numbers of adjacent lines into panels of `panel` lines at a stride, zeros up to whole vectors.
    ///
    /// # Safety
    /// The processor has AVX-512; all elements of the lines lie inside their data, `to` has room for `panel` numbers, a
    /// multiple of 16, for each of them in every panel, and nobody else uses it.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn numbers_of_rows(lines: Lines<'_>, panel: usize, stride: usize, to: *mut f32) {
        let Lines { data, count, depth, k_stride, .. } = lines;
        for k in 0..depth {
            let from = data.as_ptr().wrapping_add(k * k_stride);
            let mut to = to.wrapping_add(k * panel);
            for start in (0..count).step_by(panel) {
                for i in (start..(start + panel).min(count)).step_by(16) {
                    // SAFETY: the mask keeps the load to lines that exist; the vector lies inside the panel.
                    unsafe {
                        let x = _mm512_maskz_loadu_ps(first(count - i), from.wrapping_add(i));
                        _mm512_storeu_ps(to.wrapping_add(i - start), x);
                    }
                }
                to = to.wrapping_add(stride);
            }
        }
    }

    /// Packs pairs of lines that lie beside each other.
    ///
    /// # Safety
    /// As for [`pairs_of_contiguous_lines`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pairs_of_adjacent_lines(lines: Lines<'_>, width: usize, to: *mut f32) {
        let Lines { data, count, depth, k_stride, .. } = lines;
        // SAFETY: the array is 512 bits.
        let interleaved = unsafe { _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()) };
        for k in (0..depth).step_by(2) {
            let from = data.as_ptr().wrapping_add(k * k_stride);
            for i in (0..width).step_by(16) {
                let mask = first(count.saturating_sub(i));
                let second_mask = if k + 1 < depth { mask } else { 0 };
                // SAFETY: masks keep loads to lines and elements that exist, and stores to units of the group.
                unsafe {
                    let low = _mm512_maskz_loadu_ps(mask, from.wrapping_add(i));
                    let high = _mm512_maskz_loadu_ps(second_mask, from.wrapping_add(k_stride + i));
                    let pairs = pairs(low, high, interleaved);
                    let to = to.add(k / 2 * width + i);
                    if width - i >= 16 {
                        _mm512_storeu_ps(to, pairs);
                    } else if width - i == 8 {
                        _mm256_storeu_ps(to, _mm512_castps512_ps256(pairs));
                    } else {
                        _mm512_mask_storeu_ps(to, first(width - i), pairs);
                    }
                }
            }
        }
    }

    /// Writes `to[k * width + i] = from[i * stride + k]` for i below L and k below `depth`, a multiple of 8. L is at most 8, and
    /// what follows up to `to[k * width + 7]` is overwritten with anything, before the next k is written.
    ///
    /// # Safety
    /// The processor has AVX2; all those elements exist and nobody else uses the written ones.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose<const L: usize>(
        from: *const f32,
        stride: usize,
        depth: usize,
        to: *mut f32,
        width: usize,
    ) {
        for k in (0..depth).step_by(8) {
            // SAFETY: i is below L and k + 7 below `depth`, so the elements exist by the caller's promise.
            unsafe {
                // The lines after these are packed next; several streams at once are more than the processor foresees.
                if k % 16 == 0 {
                    for i in L..2 * L {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(i * stride + k).cast());
                    }
                }
                let line: [__m256; 8] =
                    std::array::from_fn(|i| _mm256_loadu_ps(from.add(i.min(L - 1) * stride + k)));
                for (step, group) in transposed(line).into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((k + step) * width), group);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_holds_every_line_in_step_order() {
        let data: Vec<f32> = (0..48 * 250).map(|i| (i as f32).sin()).collect();
        for (set, products) in InstructionSet::ALL
            .into_iter()
            .flat_map(|set| [DType::F32, DType::BF16, DType::F16].map(|of| (set, of)))
        {
            let Some(simd) = Simd::new(set) else { continue };
            let family = Family::of(simd, products);
            for (count, depth, width) in [
                (1, 1, 1),
                (8, 16, 8),
                (17, 19, 48),
                (48, 8, 48),
                (5, 33, 6),
                (6, 40, 6),
                (6, 35, 6),
                (0, 3, 8),
                (8, 31, 8),
                (8, 67, 8),
                (33, 34, 48),
            ] {
                for (line_stride, k_stride) in [(40, 1), (1, 50), (3, 150)] {
                    let mut out = vec![-1.0; family.units(depth) * width];
                    let is_paired = false;
                    let lines = Lines { data: &data, count, depth, line_stride, k_stride, is_paired };
                    pack(simd, family, lines, width, &mut out);
                    let expected = |i: usize, k: usize| {
                        if i < count && k < depth { data[i * line_stride + k * k_stride] } else { 0.0 }
                    };
                    let rounded = |i, k| products.round(expected(i, k).into()) as f32;
                    for (index, &unit) in out.iter().enumerate() {
                        let (step, i) = (index / width, index % width);
                        let place = format!("{set} {:?} {count} lines, step {step}, line {i}", family.form);
                        match family.form {
                            Form::F32 => assert_eq!(unit, expected(i, step), "{place}"),
                            Form::Rounded(_) => assert_eq!(unit, rounded(i, step), "{place}"),
                            Form::Pairs => {
                                let bits = unit.to_bits();
                                let pair = [f32::from_bits(bits << 16), f32::from_bits(bits & 0xFFFF_0000)];
                                assert_eq!(pair, [rounded(i, 2 * step), rounded(i, 2 * step + 1)], "{place}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn stored_pairs_are_packed_as_the_numbers_that_they_are() {
        let numbers: Vec<f32> = (0..48 * 34).map(|i| rounded_to_bf16((i as f32).sin())).collect();
        let halves = |pair: &[f32]| f32::from_bits(pair[0].to_bits() >> 16 | pair[1].to_bits());
        let stored: Vec<f32> = numbers.chunks_exact(2).map(halves).collect();
        for set in InstructionSet::ALL {
            let Some(simd) = Simd::new(set) else { continue };
            let family = Family::of(simd, DType::BF16);
            for (count, width) in [(48, 48), (17, 48), (5, 6), (1, 1)] {
                let plain = Lines {
                    data: &numbers,
                    count,
                    depth: 34,
                    line_stride: 34,
                    k_stride: 1,
                    is_paired: false,
                };
                let paired = Lines { data: &stored, line_stride: 17, is_paired: true, ..plain };
                let [mut expected, mut packed] = [(); 2].map(|()| vec![0.0f32; family.units(34) * width]);
                pack(simd, family, plain, width, &mut expected);
                pack(simd, family, paired, width, &mut packed);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&packed), bits(&expected), "{set}, {count} lines");
            }
        }
    }

    #[test]
    fn rounding_to_bf16_keeps_what_is_not_finite() {
        for x in [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, 1.003_906_2, 1.011_718_8] {
            assert_eq!(rounded_to_bf16(x), half::bf16::from_f32(x).to_f32());
        }
        assert!(rounded_to_bf16(f32::NAN).is_nan());
    }
}
