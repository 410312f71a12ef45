//! The inner loops of the matrix product: R rows by V vectors of C, in registers.
//!
//! A packed panel of A holds R units for each step, a panel of B holds V vectors of units for each step. A unit is a number
//! for one k, or a pair of bf16 for two. Every element of C is one chain of additions in the order of k, so it does not
//! depend on R, V or the place in the tile.

use super::super::simd::{InstructionSet, Simd};
use crate::tensor::DType;

/// Computes `rows × columns` of C from a panel of A and one of B of depth `k`.
pub(super) type Micro = unsafe fn(Panels, Target);

/// Packed operands of one call.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Steps along the sum.
    pub steps: usize,
    /// Groups of R units, one for each step.
    pub a: *const f32,
    /// Groups of at least V vectors, one for each step.
    pub b: *const f32,
    /// Units from one group of B to the next.
    pub b_stride: usize,
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

/// What a unit of a packed panel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A number as it is.
    F32,
    /// A number rounded to bf16.
    Rounded,
    /// Two consecutive numbers of a line as bf16, the first in the lower half.
    Pairs,
}

/// The shape of a family of inner loops.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// What it multiplies.
    pub form: Form,
    /// The most rows of a call.
    pub rows: usize,
    /// Numbers in a vector.
    pub lanes: usize,
    /// The most vectors of a call.
    pub vectors: usize,
    table: &'static [Micro],
}

impl Family {
    /// The family for an instruction set and the type that operands are rounded to.
    pub fn of(simd: Simd, products: DType) -> Self {
        let form = if products == DType::BF16 { Form::Rounded } else { Form::F32 };
        let portable = Family { form, rows: 4, lanes: 8, vectors: 1, table: &PORTABLE };
        match simd.set() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Bf16 if form == Form::Rounded => {
                Family { form: Form::Pairs, rows: 8, lanes: 16, vectors: 3, table: &x86::AVX512_BF16 }
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => {
                Family { form, rows: 8, lanes: 16, vectors: 3, table: &x86::AVX512 }
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Family { form, rows: 6, lanes: 8, vectors: 2, table: &x86::AVX2 },
            InstructionSet::Portable => portable,
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => portable,
        }
    }

    /// The units that `depth` numbers of a line take.
    pub fn units(self, depth: usize) -> usize {
        if self.form == Form::Pairs { depth.div_ceil(2) } else { depth }
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

static PORTABLE: [Micro; 4] = [portable::<1>, portable::<2>, portable::<3>, portable::<4>];

/// # Safety
/// Panels hold `steps` groups of `R` and of at least 8 numbers; C has `R` rows of `columns ≤ 8` elements at the stride, which nobody
/// else uses; the bias is null or has `columns` elements.
unsafe fn portable<const R: usize>(panels: Panels, to: Target) {
    const LANES: usize = 8;
    let mut sums = [[0.0f32; LANES]; R];
    for step in 0..panels.steps {
        // SAFETY: the step is below the panels' depth, so both groups lie inside them by the caller's promise.
        let (a, b) = unsafe {
            let b = panels.b.add(step * panels.b_stride).cast::<[f32; LANES]>();
            (&*panels.a.add(step * R).cast::<[f32; R]>(), &*b)
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
    pub static AVX512_BF16: [Micro; 24] = table!(avx512_bf16, 3 vectors, rows 1 2 3 4 5 6 7 8);
    pub static AVX2: [Micro; 12] = table!(avx2, 2 vectors, rows 1 2 3 4 5 6);

    /// sum + a·b, number by number.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_product(sum: __m512, a: __m512, b: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, sum)
    }

    /// sum + a·b, where every lane of a and b is a pair of bf16 and both products are added.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn add_pair_products(sum: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: both types are 512 bits of plain data.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512, __m512bh>(a),
                std::mem::transmute::<__m512, __m512bh>(b),
            )
        }
    }

    macro_rules! loops_of_512_bits {
        ($name:ident, $features:literal, $add_product:ident) => {
            /// # Safety
            /// The processor has the features. Panels hold `steps` groups of `R` and of at least 16·V units; C has `R` rows
            /// of `columns ≤ 16·V` elements at the stride, which nobody else uses; the bias is null or has `columns`
            /// elements.
            #[target_feature(enable = $features)]
            unsafe fn $name<const R: usize, const V: usize>(panels: Panels, to: Target) {
                let mut sums = [[_mm512_setzero_ps(); V]; R];
                let (mut a, mut b) = (panels.a, panels.b);
                for _ in 0..panels.steps {
                    // SAFETY: the loop runs `steps` times and each time reads and steps over one group of both panels. The
                    // last step over B may lead past its end, where nothing is read.
                    unsafe {
                        let vectors: [__m512; V] = std::array::from_fn(|v| _mm512_loadu_ps(b.add(v * 16)));
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let broadcast = _mm512_set1_ps(*a.add(row));
                            for (sum, vector) in sums.iter_mut().zip(vectors) {
                                *sum = $add_product(*sum, broadcast, vector);
                            }
                        }
                        a = a.add(R);
                        b = b.wrapping_add(panels.b_stride);
                    }
                }
                for v in 0..V {
                    let columns = to.columns.saturating_sub(v * 16).min(16);
                    let mask = (((1u32 << columns) - 1) & 0xFFFF) as __mmask16;
                    // SAFETY: the mask keeps every load and store to columns that exist, by the caller's promise; lanes
                    // that it hides are not accessed.
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
        };
    }

    loops_of_512_bits!(avx512, "avx512f", add_product);
    loops_of_512_bits!(avx512_bf16, "avx512f,avx512bf16", add_pair_products);

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
    /// The processor has AVX2 and FMA. Panels hold `steps` groups of `R` and of at least 8·V numbers; C has `R`
    /// rows of `columns ≤ 8·V` elements at the stride, which nobody else uses; the bias is null or has `columns` elements.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const R: usize, const V: usize>(panels: Panels, to: Target) {
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        let (mut a, mut b) = (panels.a, panels.b);
        for _ in 0..panels.steps {
            // SAFETY: the loop runs `steps` times and each time reads and steps over one group of both panels. The last
            // step over B may lead past its end, where nothing is read.
            unsafe {
                let vectors: [__m256; V] = std::array::from_fn(|v| _mm256_loadu_ps(b.add(v * 8)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let broadcast = _mm256_set1_ps(*a.add(row));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = _mm256_fmadd_ps(broadcast, vector, *sum);
                    }
                }
                a = a.add(R);
                b = b.wrapping_add(panels.b_stride);
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
