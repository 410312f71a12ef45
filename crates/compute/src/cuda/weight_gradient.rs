//! Gradients of weights by our own kernel on Hopper's matrix units: `weight_gradient.cu`, which says how it works.

use super::{
    call::{Arg, Builder, Grid},
    modules::Source,
    warpgroups::{MOST_SHARED_BYTES, RING_BYTES, boxes, suitable},
};
use crate::{device::View, error::Result, tensor::DType};

/// Columns of one factor in a tile.
const WIDE: usize = 256;
/// Those of the other that the kernel has products for.
const LEAST_COLUMNS: usize = 128;
const MOST_COLUMNS: usize = 200;
const COLUMNS_STEP: usize = 8;
/// Rows and columns of what one copy brings, and its bytes.
const SHEET: usize = 64;
const SHEET_BYTES: usize = SHEET * SHEET * 2;
/// Blocks side by side that share the wide columns.
const CLUSTER: usize = 2;
/// How many of a hundred multiprocessors' turns must be spent on results: the library's tiles leave less than that unused otherwise.
const LEAST_USED: usize = 90;

/// How a weight's gradient is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Whether the wide columns are those of `x`, so the columns of the weight, and not those of `d_y`.
    is_turned: bool,
    columns: usize,
}

impl Tiles {
    /// Those by which so many multiprocessors are done first with a weight of such rows and columns, if they are kept busy.
    fn of(weight: [usize; 2], multiprocessors: usize) -> Option<Self> {
        let clusters = multiprocessors / CLUSTER;
        let ways = [false, true].into_iter().flat_map(|is_turned| {
            (LEAST_COLUMNS..=MOST_COLUMNS)
                .step_by(COLUMNS_STEP)
                .map(move |columns| Tiles { is_turned, columns })
        });
        let turns = |tiles: &Tiles| tiles.units(weight).div_ceil(clusters) * tiles.columns;
        let best = ways.min_by_key(turns)?;
        let paid = turns(&best) * clusters * CLUSTER * WIDE;
        (100 * weight[0] * weight[1] >= LEAST_USED * paid).then_some(best)
    }

    /// Pairs of tiles that a weight has.
    fn units(self, [rows, columns]: [usize; 2]) -> usize {
        let [wide, other] = if self.is_turned { [columns, rows] } else { [rows, columns] };
        wide.div_ceil(WIDE) * other.div_ceil(CLUSTER * self.columns)
    }

    fn shared_bytes(self) -> usize {
        let stage = (WIDE / SHEET + self.columns.div_ceil(SHEET)) * SHEET_BYTES;
        RING_BYTES + (MOST_SHARED_BYTES - RING_BYTES) / stage * stage
    }
}

/// The type of `(d_y, x)` and the tiles of `d_yᵀ·x`, where there is a kernel for it.
pub(super) fn suited(builder: &Builder<'_>, inputs: &[View], outputs: &[View]) -> Option<(DType, Tiles)> {
    let of = outputs[0].of;
    let is_possible = of.dtype == DType::F32 && outputs[0].offset_bytes.is_multiple_of(size_of::<[f32; 2]>());
    let real = suitable(builder, inputs).filter(|_| is_possible)?;
    Some((real, Tiles::of([of.shape.rows(), of.shape.columns()], builder.multiprocessors())?))
}

/// `(d_y, x) → d_yᵀ·x`, or that added to what is there; false where there is no kernel for it.
pub(super) fn add(builder: &mut Builder<'_>, inputs: &[View], outputs: &[View], adds: bool) -> Result<bool> {
    const THREADS: u32 = 384;
    let Some((real, tiles)) = suited(builder, inputs, outputs) else { return Ok(false) };
    let (d_y, x, d_w) = (&inputs[0], &inputs[1], &outputs[0]);
    let weight = [d_w.of.shape.rows(), d_w.of.shape.columns()];
    let (name, wide, other) =
        if tiles.is_turned { ("weight_gradient_turned", x, d_y) } else { ("weight_gradient", d_y, x) };
    let maps = [wide, other].map(|view| boxes(builder, view, SHEET));
    let blocks = CLUSTER * tiles.units(weight).min(builder.multiprocessors() / CLUSTER);
    let shared_bytes = u32::try_from(tiles.shared_bytes()).expect("a block's shared memory");
    let grid = Grid { shared_bytes, ..Grid::new(blocks, THREADS) };
    let columns = [wide, other].map(|view| Arg::from(view.of.shape.columns()));
    let arguments =
        [builder.pointer(d_w), columns[0], columns[1], d_y.of.shape.rows().into(), usize::from(adds).into()];
    builder.give_matrix_maps(&maps)?;
    let settings = [("COLUMNS", tiles.columns), ("CLUSTER", CLUSTER)];
    builder.kernel(Source::WeightGradient, name, real, &settings, grid, &arguments)?;
    builder.start_early(CLUSTER);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: usize = 132;

    #[test]
    fn tiles_fill_the_turns_of_a_card() {
        // One turn each for the products of a model 1280 wide, two for those of one 1600 wide.
        let turned = |columns| Some(Tiles { is_turned: true, columns });
        assert_eq!(Tiles::of([5120, 1280], HOPPER), turned(200));
        assert_eq!(Tiles::of([1280, 5120], HOPPER), Some(Tiles { is_turned: false, columns: 200 }));
        assert_eq!(Tiles::of([3840, 1280], HOPPER), turned(152));
        assert_eq!(Tiles::of([6400, 1600], HOPPER), Some(Tiles { is_turned: false, columns: 160 }));
        for weight in [[5120, 1280], [3840, 1280]] {
            assert!(Tiles::of(weight, HOPPER).unwrap().units(weight) <= HOPPER / CLUSTER);
        }
    }

    #[test]
    fn weights_that_would_leave_the_card_idle_have_none() {
        for weight in [[768, 768], [1, 1], [1600, 1600], [3072, 768]] {
            assert_eq!(Tiles::of(weight, HOPPER), None, "{weight:?}");
        }
    }

    #[test]
    fn stages_fit_into_a_block() {
        let [narrow, widest] = [128, 200].map(|columns| Tiles { is_turned: false, columns }.shared_bytes());
        assert_eq!([narrow, widest], [4 * 6 * 8192 + 256, 3 * 8 * 8192 + 256]);
    }
}
