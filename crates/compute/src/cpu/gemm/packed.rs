//! A right operand that is packed once and multiplied with many rows, on the calling thread.

use std::ops::Range;

use super::{
    Matrix, cut,
    micro::{Family, Panels, Target, Upcoming},
    pack::pack,
};
use crate::{
    cpu::{shared::Tile, simd::Simd},
    tensor::DType,
};

/// Matrices that the thread reads after some products, asked for one after another while those are computed.
pub(in super::super) struct Requests([Upcoming; Requests::MOST]);

impl Requests {
    /// The most matrices.
    const MOST: usize = 5;

    /// Whole matrices, rows one by one.
    pub fn of(matrices: &[Matrix<'_>]) -> Self {
        let mut requests = [Upcoming::NONE; Requests::MOST];
        for (request, matrix) in requests.iter_mut().zip(matrices) {
            *request = matrix.upcoming(0..matrix.rows, 0..matrix.columns);
        }
        Requests(requests)
    }

    /// What is asked for next.
    fn current(&mut self) -> &mut Upcoming {
        let index = self.0.iter().position(|request| !request.is_over()).unwrap_or(0);
        &mut self.0[index]
    }
}

/// Where in a packed matrix a product begins: as many of its rows from `first` on as the other operand has columns, and
/// some of its columns.
#[derive(Clone)]
pub(in super::super) struct Place {
    /// The first row, [`Packed::aligned`].
    pub first: usize,
    /// The columns, the first of them aligned, too.
    pub columns: Range<usize>,
}

/// K × N, packed in panels of columns.
pub(in super::super) struct Packed<'a> {
    simd: Simd,
    family: Family,
    depth: usize,
    columns: usize,
    /// Columns of a panel; the last one may have fewer.
    panel: usize,
    data: &'a [f32],
}

impl<'a> Packed<'a> {
    /// The elements of scratch that a packed K × N takes.
    pub fn elements(simd: Simd, products: DType, [n, k]: [usize; 2]) -> usize {
        let family = Family::of(simd, products);
        family.units(k) * family.padded(n)
    }

    /// The elements of scratch that a product with sums of `k` terms takes for its rows.
    pub fn row_elements(simd: Simd, products: DType, k: usize) -> usize {
        let family = Family::of(simd, products);
        family.units(k) * family.rows
    }

    /// Rows that are best multiplied at a time.
    pub fn rows(simd: Simd, products: DType) -> usize {
        Family::of(simd, products).rows
    }

    /// Packs a matrix into the front of some scratch, and gives back what is left of it.
    pub fn new(simd: Simd, products: DType, b: Matrix<'_>, scratch: &'a mut [f32]) -> (Self, &'a mut [f32]) {
        let family = Family::of(simd, products);
        let steps = family.units(b.rows);
        // Panels of equal width: a narrow last one would keep the processor waiting for its sums.
        let vectors = b.columns.div_ceil(family.lanes);
        let panels = vectors.div_ceil(family.vectors).max(1);
        let panel = vectors.div_ceil(panels).max(1) * family.lanes;
        let (data, rest) = scratch.split_at_mut(steps * family.padded(b.columns));
        for columns in cut(0..b.columns, panel) {
            let width = family.padded(columns.len());
            let out = &mut data[columns.start * steps..][..width * steps];
            pack(simd, family, b.column_lines(0..b.rows, columns), width, out);
        }
        (Packed { simd, family, depth: b.rows, columns: b.columns, panel, data }, rest)
    }

    /// The nearest column or row at or before this one where a part of the product may begin.
    pub fn aligned(&self, column: usize) -> usize {
        column / self.family.lanes * self.family.lanes
    }

    /// C ← A·B or C ← C + A·B with a part of B; `scratch` is as [`Packed::row_elements`] says.
    pub fn multiply(
        &self,
        a: Matrix<'_>,
        place: Place,
        c: &mut Tile<'_>,
        add: bool,
        requests: &mut Requests,
        scratch: &mut [f32],
    ) {
        let Place { first, columns } = place;
        let Packed { simd, family, panel, .. } = *self;
        let stride = c.stride();
        assert!(a.rows == c.rows() && columns.len() == c.columns(), "the matrices fit each other");
        assert!(first + a.columns <= self.depth && columns.end <= self.columns, "the part lies inside");
        assert!(first == self.aligned(first) && columns.start == self.aligned(columns.start));
        let (all_steps, steps) = (family.units(self.depth), family.units(a.columns));
        for rows in cut(0..a.rows, family.rows) {
            let packed_a = &mut scratch[..steps * rows.len()];
            pack(simd, family, a.row_lines(rows.clone(), 0..a.columns), rows.len(), packed_a);
            let mut start = columns.start;
            while start < columns.end {
                let in_panel = start / panel * panel;
                let end = (in_panel + panel).min(columns.end);
                let width = family.padded(panel.min(self.columns - in_panel));
                let place = in_panel * all_steps + family.units(first) * width + (start - in_panel);
                let micro = family.micro(rows.len(), end - start, false);
                // The last vector of the last step that is read.
                let last = place + (steps.max(1) - 1) * width + family.padded(end - start);
                assert!(last <= self.data.len(), "the panel holds the part");
                // SAFETY: `micro` belongs to an instruction set that a `Simd` proves. A was packed for these rows and steps.
                // The assertion keeps the vectors of all steps inside the packed columns. Rows and columns lie inside the
                // tile, whose elements are this thread's own.
                unsafe {
                    let b = self.data.as_ptr().add(place);
                    let (a, extra) = (packed_a.as_ptr(), std::ptr::null());
                    let panels = Panels {
                        steps,
                        a,
                        b,
                        b_stride: width,
                        vector_stride: family.lanes,
                        extra,
                        ahead: b,
                        upcoming: requests.current(),
                    };
                    let target = Target {
                        c: c.as_mut_ptr().add(rows.start * stride + start - columns.start),
                        stride,
                        columns: end - start,
                        bias: std::ptr::null(),
                        add,
                    };
                    micro(panels, target);
                }
                start = end;
            }
        }
    }
}
