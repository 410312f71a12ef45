//! Copies part of a matrix into the order in which the inner loops read it.
//!
//! Both operands are packed alike: a panel takes up to `width` lines of the matrix (rows of A, columns of B) and stores, for
//! each step k of the sum, one number of every line.

use super::super::simd::{InstructionSet, Simd};

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
}

/// Packs lines into `out[k * width + i]`; lines that do not exist are zeros.
pub(super) fn pack(simd: Simd, lines: Lines<'_>, width: usize, out: &mut [f32]) {
    let Lines { data, count, depth, line_stride, k_stride } = lines;
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

/// Packs as many whole blocks of 8 lines by 8 steps as there are, where vector instructions can transpose them.
fn transpose_blocks(simd: Simd, lines: Lines<'_>, width: usize, out: &mut [f32]) -> Packed {
    let packed = Packed { lines: lines.count / 8 * 8, depth: lines.depth / 8 * 8 };
    if lines.k_stride != 1 || simd.set() == InstructionSet::Portable {
        return Packed { lines: 0, depth: 0 };
    }
    #[cfg(target_arch = "x86_64")]
    for i in (0..packed.lines).step_by(8) {
        assert!((i + 7) * lines.line_stride + packed.depth <= lines.data.len());
        assert!(i + 8 <= width && packed.depth * width <= out.len());
        // SAFETY: the set is not the portable one, so the processor has AVX2 at least. The assertions keep eight lines of
        // `packed.depth` elements inside the data, and as many groups of eight inside the output.
        unsafe {
            let from = lines.data.as_ptr().add(i * lines.line_stride);
            x86::transpose(from, lines.line_stride, packed.depth, out.as_mut_ptr().add(i), width);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (width, out);
    packed
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Writes `to[k * width + i] = from[i * stride + k]` for i below 8 and k below `depth`, a multiple of 8.
    ///
    /// # Safety
    /// The processor has AVX2; all those elements exist and nobody else uses the written ones.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose(from: *const f32, stride: usize, depth: usize, to: *mut f32, width: usize) {
        for k in (0..depth).step_by(8) {
            // SAFETY: i is below 8 and k + 7 below `depth`, so the elements exist by the caller's promise.
            unsafe {
                // The lines after these are packed next; several streams at once are more than the processor foresees.
                if k % 16 == 0 {
                    for i in 8..16 {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(i * stride + k).cast());
                    }
                }
                let line: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * stride + k)));
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
                for (step, (a, b)) in [(a0, b0), (a1, b1), (a2, b2), (a3, b3)].into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((k + step) * width), _mm256_permute2f128_ps::<0x20>(a, b));
                    _mm256_storeu_ps(to.add((k + step + 4) * width), _mm256_permute2f128_ps::<0x31>(a, b));
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
        for set in InstructionSet::ALL {
            let Some(simd) = Simd::new(set) else { continue };
            for (count, depth, width) in
                [(1, 1, 1), (8, 16, 8), (17, 19, 48), (48, 8, 48), (5, 33, 6), (0, 3, 8)]
            {
                for (line_stride, k_stride) in [(40, 1), (1, 50), (3, 150)] {
                    let data: Vec<f32> = (0..48 * 150).map(|i| i as f32).collect();
                    let mut out = vec![-1.0; depth * width];
                    pack(simd, Lines { data: &data, count, depth, line_stride, k_stride }, width, &mut out);
                    for (index, &value) in out.iter().enumerate() {
                        let (k, i) = (index / width, index % width);
                        let expected = if i < count { (i * line_stride + k * k_stride) as f32 } else { 0.0 };
                        assert_eq!(value, expected, "{set} {count} lines, k {k}, line {i}");
                    }
                }
            }
        }
    }
}
