//! Log-probabilities of tokens that a device draws on its own.

use std::ops::Range;

use ironmill_compute::{DType, TensorType};
use ironmill_graph::{Graph, Runtime, StateId, Tensor};

use super::caches::MOST_AHEAD;
use crate::{error::Result, sampling::LogProbability};

/// The most of the likeliest tokens that a device gives with every token.
pub(super) const MOST_LIKELIEST: usize = 20;

/// The part of a program that leaves probabilities beside the tokens that it draws: room for those of all steps of a flight.
pub(super) struct Telling {
    rows: usize,
    /// The likeliest tokens, and values: the drawn token's and theirs.
    states: [StateId; 2],
    tensors: [Tensor; 2],
}

/// Numbers that a token has of each.
const WIDTHS: [usize; 2] = [MOST_LIKELIEST, MOST_LIKELIEST + 1];

impl Telling {
    /// With room for so many rows.
    pub fn new(runtime: &mut Runtime, g: &mut Graph, rows: usize) -> Result<Telling> {
        let types = [DType::U32, DType::F32];
        let lengths = WIDTHS.map(|width| rows * MOST_AHEAD * width);
        let states = [runtime.add_state(types[0], lengths[0])?, runtime.add_state(types[1], lengths[1])?];
        let tensors = [0, 1].map(|index: usize| {
            g.state(states[index], 0, TensorType::new(&[rows, lengths[index] / rows], types[index]))
        });
        Ok(Telling { rows, states, tensors })
    }

    /// Behind a draw: probabilities by the logits of the model itself, whatever the draw was from.
    pub fn add(&self, g: &mut Graph, [logits, ids, lengths]: [Tensor; 3]) {
        g.log_probabilities([logits, ids, lengths], self.tensors, MOST_LIKELIEST);
    }

    /// The memory.
    pub fn states(&self) -> [StateId; 2] {
        self.states
    }

    /// Those of some steps, one row behind the other.
    pub fn read(
        &self,
        runtime: &Runtime,
        steps: Range<usize>,
        vocabulary: usize,
    ) -> Result<Vec<LogProbability>> {
        let [mut ids, mut values] = WIDTHS.map(|width| vec![0.0; self.rows * MOST_AHEAD * width]);
        runtime.read_state(self.states[0], 0..ids.len(), &mut ids)?;
        runtime.read_state(self.states[1], 0..values.len(), &mut values)?;
        let of = |row: usize, step: usize| {
            let place = row * MOST_AHEAD + step % MOST_AHEAD;
            let ids = &ids[place * WIDTHS[0]..][..MOST_LIKELIEST.min(vocabulary)];
            let values = &values[place * WIDTHS[1]..][..WIDTHS[1]];
            let likeliest = ids.iter().zip(&values[1..]).map(|(&id, &value)| (id as u32, value)).collect();
            LogProbability { chosen: values[0], likeliest }
        };
        Ok((0..self.rows)
            .flat_map(|row| steps.clone().map(move |step| (row, step)))
            .map(|(row, step)| of(row, step))
            .collect())
    }
}
