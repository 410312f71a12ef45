//! The inner loops of the matrix product: R rows by V vectors of C, in registers.
//!
//! A packed panel of A holds R units for each step, a panel of B holds V vectors of units for each step. A unit is a number
//! for one k, or a pair of bf16 for two. Every element of C is one chain of additions in the order of k, so it does not
//! depend on R, V or the place in the tile.

use super::{
    super::simd::{InstructionSet, Simd},
    stream::{self, Stream},
};
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
    /// Units from one vector of a group to the next.
    pub vector_stride: usize,
    /// The units of one column more, one for each step, where the call takes it.
    pub extra: *const f32,
    /// What a later call reads: a cache line of it is asked for every [`LINE_STEPS`] steps. Any address will do.
    pub ahead: *const f32,
    /// What later calls pack, some lines of which are asked for, too.
    pub upcoming: *mut Upcoming,
}

/// Cache lines of a matrix that a thread is likely to pack next, in runs at a stride. Memory answers while the thread
/// multiplies what it has.
#[derive(Clone, Copy)]
pub(super) struct Upcoming {
    next: *const f32,
    /// Lines of a run, and those left of the present one.
    lines: usize,
    lines_left: usize,
    runs_left: usize,
    /// From the last line of a run to the first one of the next.
    stride: usize,
}

impl Default for Upcoming {
    fn default() -> Self {
        Self::NONE
    }
}

impl Upcoming {
    /// Nothing.
    pub const NONE: Upcoming =
        Upcoming { next: std::ptr::null(), lines: 0, lines_left: 0, runs_left: 0, stride: 0 };

    /// Runs of `length` elements.
    pub fn new(from: *const f32, runs: usize, length: usize, stride: usize) -> Self {
        if length == 0 {
            return Upcoming::NONE;
        }
        // A run that starts inside a line may end in one more.
        let offset = if stride.is_multiple_of(16) { from.addr() / 4 % 16 } else { 15 };
        let lines = (offset + length).div_ceil(16);
        let back = (lines - 1) * 16;
        Upcoming { next: from, lines, lines_left: lines, runs_left: runs, stride: stride.wrapping_sub(back) }
    }

    /// Whether all of it has been asked for.
    pub fn is_over(&self) -> bool {
        self.runs_left == 0
    }

    /// Lines in all.
    pub fn lines(&self) -> usize {
        self.runs_left * self.lines
    }

    /// Lines that a call of so many steps asks for.
    pub fn lines_of_call(steps: usize) -> usize {
        steps / LINE_STEPS * UPCOMING_LINES
    }

    /// An address in the next line.
    #[inline(always)]
    fn line(&mut self) -> *const f32 {
        let line = self.next;
        self.lines_left -= 1;
        self.next = self.next.wrapping_add(16);
        if self.lines_left == 0 {
            self.lines_left = self.lines;
            self.runs_left -= 1;
            self.next = line.wrapping_add(self.stride);
        }
        line
    }
}

/// Steps after which a call asks for the next cache line of what follows: the twelve panels of rows of a large tile then
/// ask for the whole next panel of B.
pub(super) const LINE_STEPS: usize = 4;
/// Lines of what is packed later that a call asks for in as many steps.
const UPCOMING_LINES: usize = 3;

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

impl Target {
    /// Stores a sum, with the bias and what is there where they are wanted.
    ///
    /// # Safety
    /// C has the row and the column, which nobody else uses, and a bias has the column.
    #[inline(always)]
    pub unsafe fn put(self, row: usize, column: usize, sum: f32) {
        // SAFETY: row and column exist by the caller's promise.
        unsafe {
            let c = self.c.add(row * self.stride + column);
            let mut value = sum;
            if !self.bias.is_null() {
                value += *self.bias.add(column);
            }
            if self.add {
                value += *c;
            }
            *c = value;
        }
    }

    /// The same for a row of numbers, of which those of columns that do not exist are dropped.
    ///
    /// # Safety
    /// C has the row and all its columns, which nobody else uses, and a bias has as many.
    #[inline(always)]
    pub unsafe fn put_numbers(self, row: usize, sums: &[f32]) {
        for (column, &sum) in sums.iter().enumerate().take(self.columns) {
            // SAFETY: the column is one that exists, by the caller's promise.
            unsafe { self.put(row, column, sum) };
        }
    }

    /// The same for a vector, whose row has up to 16 columns.
    ///
    /// # Safety
    /// The processor has AVX-512. C has the row and all its columns, at most 16, which nobody else uses, and a bias has as many.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn put_vector(self, row: usize, sums: std::arch::x86_64::__m512) {
        use std::arch::x86_64::*;
        let mask = ((1u32 << self.columns) - 1) as __mmask16;
        // SAFETY: the mask keeps every load and store to columns that exist, by the caller's promise.
        unsafe {
            let c = self.c.wrapping_add(row * self.stride);
            let mut value = sums;
            if !self.bias.is_null() {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, self.bias));
            }
            if self.add {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, c));
            }
            _mm512_mask_storeu_ps(c, mask, value);
        }
    }
}

/// What a unit of a packed panel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A number as it is.
    F32,
    /// A number rounded to a type of 16 bits.
    Rounded(DType),
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
    /// Whether a call takes one column more than its vectors hold.
    has_extra: bool,
    table: &'static [Micro],
    /// Loops over lines where they lie, by rows; empty where there are none.
    streams: &'static [Stream],
}

impl Family {
    /// The family for an instruction set and the type that operands are rounded to.
    pub fn of(simd: Simd, products: DType) -> Self {
        let form = match products {
            DType::BF16 | DType::F16 => Form::Rounded(products),
            _ => Form::F32,
        };
        let portable =
            Family { form, rows: 4, lanes: 8, vectors: 1, has_extra: false, table: &PORTABLE, streams: &[] };
        match simd.set() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Bf16 if products == DType::BF16 => {
                let streams = &stream::x86::AVX512_BF16;
                Family { form: Form::Pairs, table: &x86::AVX512_BF16, streams, ..x86::FAMILY_OF_512_BITS }
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => {
                // Lines that are read where they lie cannot be rounded on the way.
                let streams: &[Stream] = if form == Form::F32 { &stream::x86::AVX512 } else { &[] };
                Family { form, streams, ..x86::FAMILY_OF_512_BITS }
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => {
                let (table, streams) = (&x86::AVX2, &[]);
                Family { form, rows: 6, lanes: 8, vectors: 2, has_extra: false, table, streams }
            }
            InstructionSet::Portable => portable,
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => portable,
        }
    }

    /// The units that `depth` numbers of a line take.
    pub fn units(self, depth: usize) -> usize {
        if self.form == Form::Pairs { depth.div_ceil(2) } else { depth }
    }

    /// The most numbers of a line that take so many units.
    pub fn elements(self, units: usize) -> usize {
        if self.form == Form::Pairs { 2 * units } else { units }
    }

    /// Columns of a full panel of B.
    pub fn columns(self) -> usize {
        self.lanes * self.vectors
    }

    /// Columns that a panel of B takes in packed form when `columns` exist.
    pub fn padded(self, columns: usize) -> usize {
        columns.next_multiple_of(self.lanes)
    }

    /// Whether the last of some columns is best taken along by the loop of those before it: a vector of its own would be
    /// all but empty.
    pub fn takes_extra(self, columns: usize) -> bool {
        self.has_extra && columns > self.lanes && columns % self.lanes == 1
    }

    /// The columns of equally wide panels of B: sums of a narrow last one would be too few to keep the processor busy.
    pub fn panel_columns(self, columns: usize) -> usize {
        let vectors = columns.div_ceil(self.lanes).max(1);
        vectors.div_ceil(vectors.div_ceil(self.vectors)) * self.lanes
    }

    /// Units from one panel to the next. A cache line apart from a multiple of the page size, because panels are written
    /// side by side, and the first cache holds few lines at equal places of pages.
    pub fn panel_units(self, width: usize, steps: usize) -> usize {
        (width * steps).next_multiple_of(16) + 16
    }

    /// The loop of this many rows over lines where they lie, if there is one.
    pub fn stream(self, rows: usize) -> Option<Stream> {
        self.streams.get(rows.checked_sub(1)?).copied()
    }

    /// The loop for this many rows and columns, and for one column more if there is an extra one.
    pub fn micro(self, rows: usize, columns: usize, has_extra: bool) -> Micro {
        let vectors = columns.div_ceil(self.lanes);
        assert!((1..=self.rows).contains(&rows) && (1..=self.vectors).contains(&vectors));
        assert!(!has_extra || self.has_extra && columns == vectors * self.lanes);
        self.table[(usize::from(has_extra) * self.rows + rows - 1) * self.vectors + vectors - 1]
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
        // SAFETY: the row is below R, and it and its columns exist by the caller's promise.
        unsafe { to.put_numbers(row, sums) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Family, Form, LINE_STEPS, Micro, Panels, Target, UPCOMING_LINES};

    /// Entry (R − 1)·V + (V − 1), as `Family::micro` looks it up; those with one more column follow.
    macro_rules! table {
        ($function:ident, 3 vectors, rows $($rows:literal)*) => {
            [
                $($function::<$rows, 1, 0>, $function::<$rows, 2, 0>, $function::<$rows, 3, 0>,)*
                $($function::<$rows, 1, 1>, $function::<$rows, 2, 1>, $function::<$rows, 3, 1>,)*
            ]
        };
        ($function:ident, 2 vectors, rows $($rows:literal)*) => {
            [$($function::<$rows, 1>, $function::<$rows, 2>),*]
        };
    }

    static AVX512: [Micro; 48] = table!(avx512, 3 vectors, rows 1 2 3 4 5 6 7 8);
    pub static AVX512_BF16: [Micro; 48] = table!(avx512_bf16, 3 vectors, rows 1 2 3 4 5 6 7 8);
    pub static AVX2: [Micro; 12] = table!(avx2, 2 vectors, rows 1 2 3 4 5 6);

    /// 24 sums, three vectors of B and a number of A, and with one more column 26 and 5, fill the 32 registers.
    pub const FAMILY_OF_512_BITS: Family = Family {
        form: Form::F32,
        rows: 8,
        lanes: 16,
        vectors: 3,
        has_extra: true,
        table: &AVX512,
        streams: &[],
    };

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
            /// R rows by V vectors, and by E columns more: none or one, whose sums lie in the lanes of one vector, row by row.
            ///
            /// # Safety
            /// The processor has the features. Panels hold `steps` groups of `R` and of at least 16·V units, and `steps`
            /// units of E columns more; C has `R` rows of `columns ≤ 16·V` elements at the stride, which nobody else uses,
            /// `columns = 16·V` and one element more if E is one; the bias is null or has as many elements as a row.
            #[target_feature(enable = $features)]
            unsafe fn $name<const R: usize, const V: usize, const E: usize>(panels: Panels, to: Target) {
                let mut sums = [[_mm512_setzero_ps(); V]; R];
                let mut extra = _mm512_setzero_ps();
                let (mut a, mut b, mut ahead) = (panels.a, panels.b, panels.ahead);
                let mut step = 0;
                macro_rules! step {
                    () => {
                        // SAFETY: this runs `steps` times in all and each time reads and steps over one group of both
                        // panels; the mask keeps the load of a group of A to its R units. The last step over B may lead
                        // past its end, where nothing is read.
                        unsafe {
                            let vectors: [__m512; V] =
                                std::array::from_fn(|v| _mm512_loadu_ps(b.add(v * panels.vector_stride)));
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let broadcast = _mm512_set1_ps(*a.add(row));
                                for (sum, vector) in sums.iter_mut().zip(vectors) {
                                    *sum = $add_product(*sum, broadcast, vector);
                                }
                            }
                            if E == 1 {
                                let rows = _mm512_maskz_loadu_ps(((1u32 << R) - 1) as __mmask16, a);
                                let column = _mm512_set1_ps(*panels.extra.add(step));
                                extra = $add_product(extra, rows, column);
                            }
                            a = a.add(R);
                            b = b.wrapping_add(panels.b_stride);
                        }
                        step += 1;
                    };
                }
                let mut c_line = 0;
                // SAFETY: the caller lends it.
                let mut upcoming = unsafe { *panels.upcoming };
                for _ in 0..panels.steps / LINE_STEPS {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    ahead = ahead.wrapping_add(16);
                    // Elements of C are seldom in cache. They are asked for a few at a time, because the processor waits for
                    // few lines at once and needs some of those for its panels.
                    for _ in 0..3 {
                        if c_line < R * V {
                            let c = to.c.wrapping_add(c_line / V * to.stride + c_line % V * 16);
                            _mm_prefetch::<_MM_HINT_ET0>(c.cast());
                            c_line += 1;
                        }
                    }
                    for _ in 0..UPCOMING_LINES {
                        if upcoming.runs_left > 0 {
                            _mm_prefetch::<_MM_HINT_T1>(upcoming.line().cast());
                        }
                    }
                    for _ in 0..LINE_STEPS {
                        step!();
                    }
                }
                // SAFETY: the caller lends it.
                unsafe { *panels.upcoming = upcoming };
                for _ in 0..panels.steps % LINE_STEPS {
                    step!();
                }
                let _ = step;
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
                if E == 1 {
                    let mut column = [0.0f32; 16];
                    // SAFETY: the array holds the vector; every row has the column after the vectors' by the caller's
                    // promise, and so has the bias.
                    unsafe {
                        _mm512_storeu_ps(column.as_mut_ptr(), extra);
                        for (row, &sum) in column.iter().enumerate().take(R) {
                            to.put(row, V * 16, sum);
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
                let vectors: [__m256; V] =
                    std::array::from_fn(|v| _mm256_loadu_ps(b.add(v * panels.vector_stride)));
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
