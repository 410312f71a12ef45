//! The inner loops of the matrix product: R rows by V vectors of C, in registers.
//!
//! A packed panel of A holds R numbers for each k, a panel of B holds V vectors for each k. Every element of C is one
//! chain of additions in the order of k, so it does not depend on R, V or the place in the tile.

use super::super::simd::{InstructionSet, Simd};

/// Computes `rows × columns` of C from a panel of A and one of B of depth `k`.
pub(super) type Micro = unsafe fn(Panels, Target);

/// Packed operands of one call.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Steps along the sum.
    pub k: usize,
    /// `k` groups of R numbers.
    pub a: *const f32,
    /// `k` groups of V vectors.
    pub b: *const f32,
}

/// Where and how the result is stored.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The first element.
    pub c: *mut f32,
    /// Elements from one row of C to the next.
    pub stride: usize,
    /// Columns that exist; the vectors' other lanes are dropped.
    pub columns: usize,
    /// Numbers to add to every row, or null.
    pub bias: *const f32,
    /// Whether to add to what is there.
    pub add: bool,
}

/// The shape of a family of inner loops.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// The most rows of a call.
    pub rows: usize,
    /// Numbers in a vector.
    pub lanes: usize,
    /// The most vectors of a call.
    pub vectors: usize,
    table: &'static [Micro],
}

impl Family {
    /// The family for an instruction set.
    pub fn of(simd: Simd) -> Self {
        match simd.set() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Family { rows: 8, lanes: 16, vectors: 3, table: &x86::AVX512 },
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Family { rows: 6, lanes: 8, vectors: 2, table: &x86::AVX2 },
            InstructionSet::Portable => PORTABLE_FAMILY,
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 => PORTABLE_FAMILY,
        }
    }

    /// Columns of a full panel of B.
    pub fn columns(self) -> usize {
        self.lanes * self.vectors
    }

    /// Columns that a panel of B takes in packed form when `columns` exist.
    pub fn padded(self, columns: usize) -> usize {
        columns.next_multiple_of(self.lanes)
    }

    /// The loop for this many rows and columns.
    pub fn micro(self, rows: usize, columns: usize) -> Micro {
        let vectors = columns.div_ceil(self.lanes);
        assert!((1..=self.rows).contains(&rows) && (1..=self.vectors).contains(&vectors));
        self.table[(rows - 1) * self.vectors + vectors - 1]
    }
}

const PORTABLE_FAMILY: Family = Family { rows: 4, lanes: 8, vectors: 1, table: &PORTABLE };
static PORTABLE: [Micro; 4] = [portable::<1>, portable::<2>, portable::<3>, portable::<4>];

/// # Safety
/// Panels hold `k` groups of `R` and of 8 numbers; C has `R` rows of `columns ≤ 8` elements at the stride, which nobody
/// else uses; the bias is null or has `columns` elements.
unsafe fn portable<const R: usize>(panels: Panels, to: Target) {
    const LANES: usize = 8;
    let mut sums = [[0.0f32; LANES]; R];
    for k in 0..panels.k {
        // SAFETY: k is below the panels' depth, so both groups lie inside them by the caller's promise.
        let (a, b) = unsafe {
            (&*panels.a.add(k * R).cast::<[f32; R]>(), &*panels.b.add(k * LANES).cast::<[f32; LANES]>())
        };
        for (sums, a) in sums.iter_mut().zip(a) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (column, &sum) in sums.iter().enumerate().take(to.columns) {
            // SAFETY: the row is below R and the column below `columns`, which exist by the caller's promise.
            unsafe {
                let c = to.c.add(row * to.stride + column);
                let mut value = sum;
                if !to.bias.is_null() {
                    value += *to.bias.add(column);
                }
                if to.add {
                    value += *c;
                }
                *c = value;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Micro, Panels, Target};

    /// Entry (R − 1)·V + (V − 1), as `Family::micro` looks it up.
    macro_rules! table {
        ($function:ident, 3 vectors, rows $($rows:literal)*) => {
            [$($function::<$rows, 1>, $function::<$rows, 2>, $function::<$rows, 3>),*]
        };
        ($function:ident, 2 vectors, rows $($rows:literal)*) => {
            [$($function::<$rows, 1>, $function::<$rows, 2>),*]
        };
    }

    pub static AVX512: [Micro; 24] = table!(avx512, 3 vectors, rows 1 2 3 4 5 6 7 8);
    pub static AVX2: [Micro; 12] = table!(avx2, 2 vectors, rows 1 2 3 4 5 6);

    /// # Safety
    /// The processor has AVX-512. Panels hold `k` groups of `R` and of 16·V numbers; C has `R` rows of `columns ≤ 16·V`
    /// elements at the stride, which nobody else uses; the bias is null or has `columns` elements.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const R: usize, const V: usize>(panels: Panels, to: Target) {
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        let (mut a, mut b) = (panels.a, panels.b);
        for _ in 0..panels.k {
            // SAFETY: the loop runs k times and each time reads and steps over one group of both panels.
            unsafe {
                let vectors: [__m512; V] = std::array::from_fn(|v| _mm512_loadu_ps(b.add(v * 16)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let broadcast = _mm512_set1_ps(*a.add(row));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = _mm512_fmadd_ps(broadcast, vector, *sum);
                    }
                }
                a = a.add(R);
                b = b.add(16 * V);
            }
        }
        for v in 0..V {
            let columns = to.columns.saturating_sub(v * 16).min(16);
            let mask = (((1u32 << columns) - 1) & 0xFFFF) as __mmask16;
            // SAFETY: the mask keeps every load and store to columns that exist, by the caller's promise; lanes that it
            // hides are not accessed.
            unsafe {
                let bias = match to.bias.is_null() {
                    true => _mm512_setzero_ps(),
                    false => _mm512_maskz_loadu_ps(mask, to.bias.wrapping_add(v * 16)),
                };
                for (row, sums) in sums.iter().enumerate() {
                    let c = to.c.wrapping_add(row * to.stride + v * 16);
                    let mut value = sums[v];
                    if !to.bias.is_null() {
                        value = _mm512_add_ps(value, bias);
                    }
                    if to.add {
                        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, c));
                    }
                    _mm512_mask_storeu_ps(c, mask, value);
                }
            }
        }
    }

    /// The masks that let the first n of 8 lanes through.
    static MASKS: [[i32; 8]; 9] = {
        let mut masks = [[0; 8]; 9];
        let mut columns = 0;
        while columns <= 8 {
            let mut lane = 0;
            while lane < columns {
                masks[columns][lane] = -1;
                lane += 1;
            }
            columns += 1;
        }
        masks
    };

    /// # Safety
    /// The processor has AVX2 and FMA. Panels hold `k` groups of `R` and of 8·V numbers; C has `R` rows of
    /// `columns ≤ 8·V` elements at the stride, which nobody else uses; the bias is null or has `columns` elements.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const R: usize, const V: usize>(panels: Panels, to: Target) {
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        let (mut a, mut b) = (panels.a, panels.b);
        for _ in 0..panels.k {
            // SAFETY: the loop runs k times and each time reads and steps over one group of both panels.
            unsafe {
                let vectors: [__m256; V] = std::array::from_fn(|v| _mm256_loadu_ps(b.add(v * 8)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let broadcast = _mm256_set1_ps(*a.add(row));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = _mm256_fmadd_ps(broadcast, vector, *sum);
                    }
                }
                a = a.add(R);
                b = b.add(8 * V);
            }
        }
        for v in 0..V {
            let columns = to.columns.saturating_sub(v * 8).min(8);
            // SAFETY: the mask keeps every load and store to columns that exist, by the caller's promise; lanes that it
            // hides are not accessed.
            unsafe {
                let mask = _mm256_loadu_si256(MASKS[columns].as_ptr().cast());
                let bias = match to.bias.is_null() {
                    true => _mm256_setzero_ps(),
                    false => _mm256_maskload_ps(to.bias.wrapping_add(v * 8), mask),
                };
                for (row, sums) in sums.iter().enumerate() {
                    let c = to.c.wrapping_add(row * to.stride + v * 8);
                    let mut value = sums[v];
                    if !to.bias.is_null() {
                        value = _mm256_add_ps(value, bias);
                    }
                    if to.add {
                        value = _mm256_add_ps(value, _mm256_maskload_ps(c, mask));
                    }
                    _mm256_maskstore_ps(c, mask, value);
                }
            }
        }
    }
}
