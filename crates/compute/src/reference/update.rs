//! State writes and the optimiser.

use super::Tensor;
use crate::draw::{self, Draw, Limits, LogProbabilities, Penalties};
use crate::kernel::{
    Adam, Descend, GUARD_STATISTICS, Guard, Judgement, NORMALISE_EPS, Observation, Sgd, average_decay,
};

pub(super) fn cache_append(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (new, places) = (inputs[0], inputs[1]);
    let [_, positions, columns] = *new.shape.dims() else { unreachable!("checked at bind") };
    let (rows, capacity) = (outputs[0].shape.dims()[0], outputs[0].shape.dims()[1]);
    for (b, new) in new.data.chunks_exact(positions * columns).enumerate() {
        // Padding behind a short row may reach past the cache's end; nothing ever reads it.
        let (row, start) = (places.index(2 * b), places.index(2 * b + 1).min(capacity));
        if row < rows {
            let kept = positions.min(capacity - start) * columns;
            outputs[0].data[(row * capacity + start) * columns..][..kept].copy_from_slice(&new[..kept]);
        }
    }
}

pub(super) fn cache_copy(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let moves = inputs[0];
    let [rows, capacity, columns] = *outputs[0].shape.dims() else { unreachable!("checked at bind") };
    for index in 0..moves.shape.dims()[0] {
        let [from, to, length] = [0, 1, 2].map(|part| moves.index(3 * index + part));
        if from < rows && to < rows {
            let first = from * capacity * columns;
            let source = first..first + length.min(capacity) * columns;
            outputs[0].data.copy_within(source, to * capacity * columns);
        }
    }
}

pub(super) fn adjust(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [logits, penalties, prompts, ids, lengths, bias] =
        [0, 1, 2, 3, 4, 5].map(|index: usize| inputs[index]);
    let vocabulary = logits.columns();
    let [seen, adjusted] = outputs else { unreachable!("checked at bind") };
    for row in 0..ids.data.len() {
        let [repetition, presence, frequency] = [0, 1, 2].map(|index| penalties.data[3 * row + index] as f32);
        let penalties = Penalties { repetition, presence, frequency };
        let [length, prompt] = [lengths.index(2 * row), prompts.index(row)].map(|x| x as u32);
        let last = row * vocabulary + ids.index(row);
        for at in row * vocabulary..(row + 1) * vocabulary {
            if at == last {
                seen.data[at] = draw::seen_again(seen.index(at) as u32, length, prompt).into();
            }
            let biased = (logits.data[at] + bias.data[at]) as f32;
            let written = seen.index(at).checked_sub(1);
            adjusted.data[at] = written.map_or(biased, |written| penalties.of(biased, written as u32)).into();
        }
    }
}

pub(super) fn draw(constants: Draw, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [logits, limits, keys] = [inputs[0], inputs[1], inputs[2]];
    let vocabulary = logits.columns();
    let [ids, positions, places, lengths, drawn] = outputs else { unreachable!("checked at bind") };
    let room = drawn.shape.columns();
    let mut order = vec![0; vocabulary];
    for (row, logits) in logits.data.chunks_exact(vocabulary).enumerate() {
        let [temperature, top_p, min_p] = [0, 1, 2].map(|index| limits.data[3 * row + index]);
        let [key0, key1, sample, top_k] = [0, 1, 2, 3].map(|index| keys.index(4 * row + index) as u32);
        let limits = Limits { temperature, top_p, min_p, top_k: top_k as usize };
        let counts = [0, 1].map(|index| lengths.index(2 * row + index) as u32);
        let id = draw::draw(|id| logits[id], &mut order, limits, [key0, key1], [counts[0], sample]);
        drawn.data[row * room + counts[1] as usize % room] = id.into();
        ids.data[row] = id.into();
        let [position, start] = [positions.index(row), places.index(2 * row + 1)].map(|x| x as u32);
        let next = constants.advance(position, start, counts).map(f64::from);
        positions.data[row] = next[0];
        places.data[2 * row + 1] = next[1];
        lengths.data[2 * row..2 * row + 2].copy_from_slice(&next[2..]);
    }
}

pub(super) fn log_probabilities(of: LogProbabilities, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [logits, ids, lengths] = [inputs[0], inputs[1], inputs[2]];
    let vocabulary = logits.columns();
    let [likeliest, values] = outputs else { unreachable!("checked at bind") };
    let room = likeliest.shape.columns() / of.count;
    let mut order = vec![0; vocabulary];
    for (row, logits) in logits.data.chunks_exact(vocabulary).enumerate() {
        let place = row * room + LogProbabilities::place(room, lengths.index(2 * row + 1) as u32);
        of.of(
            |id| logits[id],
            &mut order,
            ids.index(row) as u32,
            |at, id, value| {
                values.data[place * (of.count + 1) + at] = value;
                if let Some(rank) = at.checked_sub(1) {
                    likeliest.data[place * of.count + rank] = id.into();
                }
            },
        );
    }
}

pub(super) fn global_norm(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    outputs[0].data[0] = inputs[0].data.iter().map(|g| g * g).sum::<f64>().sqrt();
}

pub(super) fn guard(guard: &Guard, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let [norm, loss, targets, exponent] = [0, 1, 2, 3].map(|index: usize| inputs[index].data[0]);
    let [scale, report, state] = outputs else { unreachable!("checked at bind") };
    let mut statistics = [0.0; GUARD_STATISTICS];
    statistics.copy_from_slice(&state.data);
    let judgement = guard.judge(Observation { norm, loss, targets, exponent }, &mut statistics);
    state.data.copy_from_slice(&statistics);
    let Judgement { scale: factor, report: told } = judgement;
    scale.data[0] = factor;
    report.data.copy_from_slice(&told);
}

/// The learning rate and what gradients are multiplied with, or none when the step must not happen.
fn factors(inputs: &[&Tensor]) -> Option<(f64, f64)> {
    let (scale, rate) = (inputs[1].data[0], inputs[2].data[0]);
    (scale > 0.0).then_some((scale, rate))
}

pub(super) fn adam(adam: &Adam, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (gradients, Some((scale, rate))) = (inputs[0], factors(inputs)) else { return };
    let [parameters, first, second, counter, copies @ ..] = outputs else { unreachable!("checked at bind") };
    counter.data[0] += 1.0;
    let (beta1, beta2) = (f64::from(adam.beta1), f64::from(adam.beta2));
    let correction1 = 1.0 - beta1.powf(counter.data[0]);
    let correction2 = 1.0 - beta2.powf(counter.data[0]);
    for range in adam.ranges.iter() {
        let (decay, rate) = (f64::from(range.weight_decay), rate * f64::from(range.rate));
        for i in range.start..range.start + range.len {
            let mut gradient = gradients.data[i] * scale;
            if adam.decoupled {
                parameters.data[i] *= 1.0 - rate * decay;
            } else {
                gradient += decay * parameters.data[i];
            }
            first.data[i] = beta1 * first.data[i] + (1.0 - beta1) * gradient;
            second.data[i] = beta2 * second.data[i] + (1.0 - beta2) * gradient * gradient;
            let spread = (second.data[i] / correction2).sqrt() + f64::from(adam.eps);
            parameters.data[i] -= rate * (first.data[i] / correction1) / spread;
            copies.iter_mut().for_each(|copy| copy.data[i] = parameters.data[i]);
        }
    }
}

pub(super) fn sgd(sgd: &Sgd, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (gradients, Some((scale, rate))) = (inputs[0], factors(inputs)) else { return };
    let [parameters, momentum, counter] = outputs else { unreachable!("checked at bind") };
    counter.data[0] += 1.0;
    for range in sgd.ranges.iter() {
        let rate = rate * f64::from(range.rate);
        for i in range.start..range.start + range.len {
            let gradient = gradients.data[i] * scale + f64::from(range.weight_decay) * parameters.data[i];
            momentum.data[i] = f64::from(sgd.momentum) * momentum.data[i] + gradient;
            parameters.data[i] -= rate * momentum.data[i];
        }
    }
}

pub(super) fn momentum(decay: f32, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (gradients, scale, decay) = (inputs[0], inputs[1].data[0], f64::from(decay));
    let [momentum, ahead] = outputs else { return };
    for i in 0..gradients.data.len() {
        ahead.data[i] = 0.0;
        if scale > 0.0 {
            let gradient = gradients.data[i] * scale;
            momentum.data[i] = decay * momentum.data[i] + (1.0 - decay) * gradient;
            ahead.data[i] = decay * momentum.data[i] + (1.0 - decay) * gradient;
        }
    }
}

pub(super) fn normalise(inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let norm = inputs[1].data[0] + f64::from(NORMALISE_EPS);
    for (y, x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *y = x / norm;
    }
}

pub(super) fn combine([a, b]: [f32; 2], inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let pairs = inputs[0].data.iter().zip(&inputs[1].data);
    for (z, (x, y)) in outputs[0].data.iter_mut().zip(pairs) {
        *z = f64::from(a) * x + f64::from(b) * y;
    }
}

pub(super) fn descend(descend: &Descend, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let Some((_, rate)) = factors(inputs) else { return };
    let (length, decay) = (f64::from(descend.length), f64::from(descend.weight_decay));
    for (p, x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
        *p = *p * (1.0 - rate * decay) - rate * length * x;
    }
}

pub(super) fn average(decay: f32, inputs: &[&Tensor], outputs: &mut [Tensor]) {
    let (scale, updates) = (inputs[1].data[0], inputs[2].data[0]);
    let kept = average_decay(decay, updates);
    if scale > 0.0 {
        for (average, p) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
            *average = kept * *average + (1.0 - kept) * p;
        }
    }
}
