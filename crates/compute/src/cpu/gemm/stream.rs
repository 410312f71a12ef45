//! Products of few rows with lines that are read once: decoding, which is bound by memory.
//!
//! Sixteen lines at a time are read where they lie, sixteen units of each; a transposition in registers turns them into the
//! vectors that the inner loops of packed panels multiply. So every element is the same chain of additions as theirs, bit for
//! bit, and nothing is written on the way. The next sixteen lines are asked for meanwhile, because the processor foresees fewer
//! streams than there are lines: in the order of memory where they follow each other, else at the same place of each.

use super::{Matrix, cut, micro::Family, micro::Panels, micro::Target, micro::Upcoming};
use crate::{
    cpu::{shared::Tile, simd::Simd},
    tensor::DType,
};

/// Lines of a strip: the lanes of a vector.
pub(super) const STRIP: usize = 16;

/// Multiplies R rows with a strip of lines.
pub(super) type Stream = unsafe fn(Strip, Target);

/// Operands of one call.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// Steps along the sum.
    pub steps: usize,
    /// Groups of R units, one for each step.
    pub a: *const f32,
    /// The first unit of the first line.
    pub lines: *const f32,
    /// Units from one line to the next.
    pub stride: usize,
    /// Lines that exist.
    pub count: usize,
    /// The first unit of what is read next, as many lines at the same stride. Any address will do.
    pub ahead: *const f32,
    /// In which order that is asked for.
    pub order: Order,
}

/// Units from one cache line that is asked for to the next, of the sixteen that a block asks for, and from block to block.
#[derive(Clone, Copy)]
pub(super) struct Order {
    line: usize,
    step: usize,
}

impl Order {
    /// The order for lines of so many units at a stride.
    pub fn of(length: usize, stride: usize) -> Self {
        if length == stride { Order { line: 16, step: 16 } } else { Order { line: stride, step: 1 } }
    }

    /// Where a block asks for its first cache line, from the first unit on.
    pub fn place(&self, step: usize) -> usize {
        step * self.step
    }
}

/// Few rows, packed, to be multiplied on the calling thread with matrices that lie where they are.
pub(in super::super) struct FewRows {
    family: Family,
    rows: usize,
}

impl FewRows {
    /// So many rows, where the processor has loops for them.
    pub fn new(simd: Simd, products: DType, rows: usize) -> Option<Self> {
        let family = Family::of(simd, products);
        family.stream(rows).map(|_| FewRows { family, rows })
    }

    /// The most rows.
    pub const MOST: usize = 8;

    /// Writes rows of numbers, one behind the other, in the order in which the loops read them.
    pub fn pack(&self, rows: &[f32], out: &mut [f32]) {
        let depth = rows.len() / self.rows;
        for (row, numbers) in rows.chunks_exact(depth.max(1)).enumerate() {
            for (out, number) in out[row..].iter_mut().step_by(self.rows).zip(numbers) {
                *out = *number;
            }
        }
    }

    /// C ← A·Bᵀ: every packed row with every row of B, whose numbers follow each other.
    pub fn times_rows(&self, a: &[f32], b: Matrix<'_>, c: &mut Tile<'_>) {
        let stream = self.family.stream(self.rows).unwrap_or_else(|| unreachable!("checked when made"));
        assert!(b.column_stride == 1 && b.columns * self.rows <= a.len(), "the rows are packed");
        assert!((c.rows(), c.columns()) == (self.rows, b.rows), "the matrices fit each other");
        assert!(b.rows == 0 || (b.rows - 1) * b.row_stride + b.columns <= b.data.len(), "B lies inside");
        let (c_stride, base) = (c.stride(), c.as_mut_ptr());
        for lines in cut(0..b.rows, STRIP) {
            let from = b.data.as_ptr().wrapping_add(lines.start * b.row_stride);
            let ahead = from.wrapping_add(STRIP * b.row_stride);
            let (steps, count, stride) = (b.columns, lines.len(), b.row_stride);
            let order = Order::of(steps, stride);
            let strip = Strip { steps, a: a.as_ptr(), lines: from, stride, count, ahead, order };
            // SAFETY: `stream` belongs to an instruction set that a `Simd` proves. The assertions keep the packed rows, the lines
            // of the strip and the columns of the tile, which is this thread's own, inside their slices.
            unsafe {
                let c = base.add(lines.start);
                let bias = std::ptr::null();
                stream(strip, Target { c, stride: c_stride, columns: count, bias, add: false });
            }
        }
    }

    /// Whether [`FewRows::times`] can read rows of so many columns where they lie: in whole vectors.
    pub fn suits_columns(&self, columns: usize) -> bool {
        columns.is_multiple_of(self.family.lanes)
    }

    /// C ← A·B with the rows of B where they lie; their columns suit.
    pub fn times(&self, a: &[f32], b: Matrix<'_>, c: &mut Tile<'_>) {
        assert!(b.column_stride == 1 && b.rows * self.rows <= a.len(), "the rows are packed");
        assert!((c.rows(), c.columns()) == (self.rows, b.columns), "the matrices fit each other");
        assert!(self.suits_columns(b.columns), "columns are whole vectors");
        assert!(b.rows == 0 || (b.rows - 1) * b.row_stride + b.columns <= b.data.len(), "B lies inside");
        let (stride, base) = (c.stride(), c.as_mut_ptr());
        let mut upcoming = Upcoming::NONE;
        for columns in cut(0..b.columns, self.family.columns()) {
            let micro = self.family.micro(self.rows, columns.len(), false);
            let from = b.data.as_ptr().wrapping_add(columns.start);
            // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. The assertions keep the packed rows, whole vectors
            // of every row of B and the columns of the tile, which is this thread's own, inside their slices.
            unsafe {
                let panels = Panels {
                    steps: b.rows,
                    a: a.as_ptr(),
                    b: from,
                    b_stride: b.row_stride,
                    vector_stride: self.family.lanes,
                    extra: std::ptr::null(),
                    ahead: from,
                    upcoming: &raw mut upcoming,
                };
                let c = base.add(columns.start);
                let target = Target { c, stride, columns: columns.len(), bias: std::ptr::null(), add: false };
                micro(panels, target);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::{super::micro::Target, STRIP, Stream, Strip};

    pub static AVX512: [Stream; 8] = [
        numbers::<1>,
        numbers::<2>,
        numbers::<3>,
        numbers::<4>,
        numbers::<5>,
        numbers::<6>,
        numbers::<7>,
        numbers::<8>,
    ];
    pub static AVX512_BF16: [Stream; 8] =
        [pairs::<1>, pairs::<2>, pairs::<3>, pairs::<4>, pairs::<5>, pairs::<6>, pairs::<7>, pairs::<8>];

    /// Sixteen vectors of sixteen units as the columns that they are the rows of.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transposed(line: [__m512; 16]) -> [__m512; 16] {
        // Pairs, then fours change places inside each quarter of a vector; then whole quarters do.
        let pair: [__m512; 16] = std::array::from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_ps(line[i], line[i + 1]),
            _ => _mm512_unpackhi_ps(line[i - 1], line[i]),
        });
        let four: [__m512; 16] = std::array::from_fn(|i| {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (_mm512_castps_pd(pair[first]), _mm512_castps_pd(pair[first + 2]));
            _mm512_castpd_ps(match i % 2 {
                0 => _mm512_unpacklo_pd(a, b),
                _ => _mm512_unpackhi_pd(a, b),
            })
        });
        let mut columns = [_mm512_setzero_ps(); 16];
        for j in 0..4 {
            let [a, b, c, d] = [four[j], four[j + 4], four[j + 8], four[j + 12]];
            let (even_ab, odd_ab) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b));
            let (even_cd, odd_cd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xDD>(c, d));
            columns[j] = _mm512_shuffle_f32x4::<0x88>(even_ab, even_cd);
            columns[j + 4] = _mm512_shuffle_f32x4::<0x88>(odd_ab, odd_cd);
            columns[j + 8] = _mm512_shuffle_f32x4::<0xDD>(even_ab, even_cd);
            columns[j + 12] = _mm512_shuffle_f32x4::<0xDD>(odd_ab, odd_cd);
        }
        columns
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add_product(sum: __m512, a: __m512, b: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, sum)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn add_pair_products(sum: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: both types are 512 bits of plain data.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512, __m512bh>(a),
                std::mem::transmute::<__m512, __m512bh>(b),
            )
        }
    }

    macro_rules! streams {
        ($name:ident, $features:literal, $add_product:ident) => {
            /// # Safety
            /// The processor has the features. `a` holds `steps` groups of R units; `count`, at most 16, lines of `steps` units
            /// exist at the stride; C has R rows of `count = columns` elements at its stride, which nobody else uses; the
            /// bias is null or has as many elements.
            #[target_feature(enable = $features)]
            unsafe fn $name<const R: usize>(strip: Strip, to: Target) {
                let Strip { steps, a, lines, stride, count, ahead, order } = strip;
                let mut sums = [_mm512_setzero_ps(); R];
                let ask_ahead = |step: usize| {
                    let ahead = ahead.wrapping_add(order.place(step));
                    for line in 0..STRIP {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * order.line).cast());
                    }
                };
                // Whole blocks apart, because questions after every step would fill the processor's view of what is to come.
                let whole = if count == STRIP { steps / 16 * 16 } else { 0 };
                for step in (0..whole).step_by(16) {
                    ask_ahead(step);
                    // SAFETY: whole vectors of all sixteen lines exist, by the caller's promise.
                    let columns = transposed(std::array::from_fn(|line| unsafe {
                        _mm512_loadu_ps(lines.add(line * stride + step))
                    }));
                    for (k, column) in columns.into_iter().enumerate() {
                        for (row, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: the step is below `steps`, whose groups `a` holds by the caller's promise.
                            let broadcast = unsafe { _mm512_set1_ps(*a.add((step + k) * R + row)) };
                            *sum = $add_product(*sum, broadcast, column);
                        }
                    }
                }
                for step in (whole..steps).step_by(16) {
                    ask_ahead(step);
                    let left = (steps - step).min(16);
                    let mask = ((1u32 << left) - 1) as __mmask16;
                    let columns = transposed(std::array::from_fn(|line| {
                        let exists = if line < count { mask } else { 0 };
                        // SAFETY: the mask keeps the load to lines and units that exist, by the caller's promise.
                        unsafe { _mm512_maskz_loadu_ps(exists, lines.wrapping_add(line * stride + step)) }
                    }));
                    for (k, column) in columns.into_iter().enumerate().take(left) {
                        for (row, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: the step is below `steps`, whose groups `a` holds by the caller's promise.
                            let broadcast = unsafe { _mm512_set1_ps(*a.add((step + k) * R + row)) };
                            *sum = $add_product(*sum, broadcast, column);
                        }
                    }
                }
                for (row, sum) in sums.into_iter().enumerate() {
                    // SAFETY: the row and its columns, of which there are `count`, exist by the caller's promise.
                    unsafe { to.put_vector(row, sum) };
                }
            }
        };
    }

    streams!(numbers, "avx512f", add_product);
    streams!(pairs, "avx512f,avx512bf16", add_pair_products);
}
