//! What our products by Hopper's warpgroups have in common: the operands that they take, and the memory of a block.

use super::{
    call::{Arg, Builder},
    driver::MatrixBoxes,
};
use crate::{device::View, tensor::DType};

/// Shared memory that a block may have, and what its barriers take of it: see `turns.cuh`.
pub(super) const MOST_SHARED_BYTES: usize = 232_448;
pub(super) const RING_BYTES: usize = 256;

/// The one type of a product's operands, where our kernels can take it: halves whose rows begin at multiples of 16 bytes.
pub(super) fn suitable<'a>(
    builder: &Builder<'_>,
    views: impl IntoIterator<Item = &'a View> + Clone,
) -> Option<DType> {
    let real = views.clone().into_iter().next()?.of.dtype;
    let suits = |view: &View| {
        let of = view.of;
        let is_there = of.shape.elements() > 0;
        let is_aligned = view.offset_bytes.is_multiple_of(16) && of.shape.columns().is_multiple_of(8);
        // Maps of the copy engine are made before working memory has an address.
        of.dtype == real && is_there && is_aligned && !builder.is_widened(view)
    };
    let is_half = real == DType::BF16 || real == DType::F16;
    (builder.has_warpgroup_products() && is_half && views.into_iter().all(suits)).then_some(real)
}

/// Boxes of so many rows of a view.
pub(super) fn boxes(builder: &Builder<'_>, view: &View, box_rows: usize) -> MatrixBoxes {
    let Arg::Pointer(at) = builder.pointer(view) else { unreachable!("operands have addresses") };
    let (rows, columns) = (view.of.shape.rows(), view.of.shape.columns());
    MatrixBoxes { at, real: view.of.dtype, rows, columns, box_rows }
}
