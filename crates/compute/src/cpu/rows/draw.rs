//! Drawing tokens. A processor's host is the processor, which draws with more choice and less work; this is for programs that
//! draw on the device.

use super::super::{
    Context,
    memory::Operands,
    shared::{Grid, for_tiles},
};
use crate::draw::{self, Draw, Limits, LogProbabilities, Penalties};

/// Row by row.
pub(in super::super) fn adjust(operands: &mut Operands<'_>) {
    let (logits, penalties, bias) = (operands.input(0), operands.input(1), operands.input(5));
    let (prompts, ids, lengths) = (operands.indices(2), operands.indices(3), operands.indices(4));
    let vocabulary = operands.input_type(0).shape.columns();
    let (seen, adjusted) = (operands.output_indices(0), operands.output(1));
    for (row, &id) in ids.iter().enumerate() {
        let of_row = row * vocabulary..(row + 1) * vocabulary;
        let seen = &mut seen[of_row.clone()];
        if let Some(seen) = seen.get_mut(id as usize) {
            *seen = draw::seen_again(*seen, lengths[2 * row], prompts[row]);
        }
        let [repetition, presence, frequency] = [0, 1, 2].map(|index| penalties[3 * row + index]);
        let penalties = Penalties { repetition, presence, frequency };
        let operands = logits[of_row.clone()].iter().zip(&bias[of_row.clone()]).zip(&*seen);
        for (adjusted, ((logit, bias), &seen)) in adjusted[of_row].iter_mut().zip(operands) {
            let biased = logit + bias;
            *adjusted = if seen == 0 { biased } else { penalties.of(biased, seen - 1) };
        }
    }
}

/// One task per row.
pub(in super::super) fn draw(context: &mut Context<'_>, operands: &mut Operands<'_>, of: Draw) {
    let (logits, limits, keys) = (operands.input(0), operands.input(1), operands.indices(2));
    let vocabulary = operands.input_type(0).shape.columns();
    let room = operands.output_type(4).shape.columns();
    let grids = [(0, 1), (1, 1), (2, 2), (3, 2), (4, room)]
        .map(|(index, columns)| Grid::rows(operands.output_indices(index), columns, 1));
    for_tiles(
        context.pool,
        grids,
        |[mut ids, mut positions, mut places, mut lengths, mut drawn], scratch| {
            let row = ids.row;
            let logits = &logits[row * vocabulary..][..vocabulary];
            let order = &mut bytemuck::cast_slice_mut::<f32, u32>(scratch)[..vocabulary];
            let [temperature, top_p, min_p] = [0, 1, 2].map(|index| f64::from(limits[3 * row + index]));
            let [key0, key1, sample, top_k] = [0, 1, 2, 3].map(|index| keys[4 * row + index]);
            let limits = Limits { temperature, top_p, min_p, top_k: top_k as usize };
            let lengths = lengths.row_mut(0);
            let counts = [lengths[0], lengths[1]];
            let id = draw::draw(|id| logits[id].into(), order, limits, [key0, key1], [counts[0], sample]);
            drawn.row_mut(0)[counts[1] as usize % room] = id;
            ids.row_mut(0)[0] = id;
            let (position, start) = (&mut positions.row_mut(0)[0], &mut places.row_mut(0)[1]);
            [*position, *start, lengths[0], lengths[1]] = of.advance(*position, *start, counts);
        },
    );
}

/// One task per row.
pub(in super::super) fn log_probabilities(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    of: LogProbabilities,
) {
    let (logits, ids, lengths) = (operands.input(0), operands.indices(1), operands.indices(2));
    let vocabulary = operands.input_type(0).shape.columns();
    let room = operands.output_type(0).shape.columns() / of.count;
    let (likeliest, values) = (operands.output(0), operands.output(1));
    let grids = [(likeliest, of.count), (values, of.count + 1)]
        .map(|(output, each)| Grid::rows(output, room * each, 1));
    for_tiles(context.pool, grids, |[mut likeliest, mut values], scratch| {
        let row = values.row;
        let logits = &logits[row * vocabulary..][..vocabulary];
        let order = &mut bytemuck::cast_slice_mut::<f32, u32>(scratch)[..vocabulary];
        let place = LogProbabilities::place(room, lengths[2 * row + 1]);
        let likeliest = &mut bytemuck::cast_slice_mut::<f32, u32>(likeliest.row_mut(0))[place * of.count..];
        let values = &mut values.row_mut(0)[place * (of.count + 1)..];
        of.of(
            |id| logits[id].into(),
            order,
            ids[row],
            |at, id, value| {
                values[at] = value as f32;
                if let Some(rank) = at.checked_sub(1) {
                    likeliest[rank] = id;
                }
            },
        );
    });
}
