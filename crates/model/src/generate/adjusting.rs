//! Bias and penalties of rows that a device draws on its own: a table of every token for each row, which the device keeps up with what it
//! draws.

use std::array;

use ironmill_compute::{DType, HostData, Penalties, TensorType};
use ironmill_graph::{Graph, ProgramId, Runtime, StateId, Tensor};

use super::RequestId;
use crate::error::Result;

/// What is done to the logits of a row. Its text is that of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Adjusting {
    /// Whose they are.
    pub request: RequestId,
    /// What tokens of the text do to their own.
    pub penalties: Penalties,
    /// How many tokens of the text were given.
    pub prompt: usize,
    /// What is added.
    pub bias: Vec<(u32, f32)>,
}

impl Adjusting {
    /// What is added to the logit of every token.
    fn bias_of_all(&self, vocabulary: usize) -> Vec<f32> {
        let mut all = vec![0.0; vocabulary];
        for &(id, bias) in &self.bias {
            if let Some(sum) = all.get_mut(id as usize) {
                *sum += bias;
            }
        }
        all
    }

    /// Of every token whether the text has it, and how often it was written: see [`Penalties`]. The last token is left to the device, which
    /// reads it next.
    fn seen(&self, text: &[u32], vocabulary: usize) -> Vec<u32> {
        let mut seen = vec![0; vocabulary];
        let before = &text[..text.len().saturating_sub(1)];
        for (at, &id) in before.iter().enumerate() {
            let times: &mut u32 = &mut seen[id as usize];
            *times = (*times).max(1) + u32::from(at >= self.prompt);
        }
        seen
    }
}

/// The part of a program that adjusts logits.
pub(super) struct Adjust {
    vocabulary: usize,
    penalties: Tensor,
    prompts: Tensor,
    /// Bias, and what was seen.
    states: [StateId; 2],
    tables: [Tensor; 2],
}

impl Adjust {
    /// With tables for so many rows and tokens, which are to be written before a run.
    pub fn new(runtime: &mut Runtime, g: &mut Graph, [rows, vocabulary]: [usize; 2]) -> Result<Adjust> {
        let types = [DType::F32, DType::U32];
        let states = [
            runtime.add_state(types[0], rows * vocabulary)?,
            runtime.add_state(types[1], rows * vocabulary)?,
        ];
        let table = |index| g.state(states[index], 0, TensorType::new(&[rows, vocabulary], types[index]));
        let tables = array::from_fn(table);
        let penalties = g.input("penalties", &[rows, 3], DType::F32);
        let prompts = g.input("prompts", &[rows, 1], DType::U32);
        Ok(Adjust { vocabulary, penalties, prompts, states, tables })
    }

    /// The logits to draw from.
    pub fn add(&self, g: &mut Graph, [logits, ids, lengths]: [Tensor; 3]) -> Tensor {
        let [bias, seen] = self.tables;
        g.adjust([logits, self.penalties, self.prompts, ids, lengths, bias], seen)
    }

    /// The memory of the tables.
    pub fn states(&self) -> [StateId; 2] {
        self.states
    }

    /// Writes what is done to each row, whose texts are given. Tables of a row that is where the last run left it are true already.
    pub fn write(
        &self,
        runtime: &mut Runtime,
        program: ProgramId,
        rows: &[Option<&Adjusting>],
        texts: &[&[u32]],
        is_as_before: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let numbers = |row: &Option<&Adjusting>| {
            let Penalties { repetition, presence, frequency } =
                row.map_or(Penalties::default(), |row| row.penalties);
            [repetition, presence, frequency]
        };
        let penalties: Vec<f32> = rows.iter().flat_map(numbers).collect();
        let prompts: Vec<u32> = rows.iter().map(|row| row.map_or(0, |row| row.prompt as u32)).collect();
        runtime.write(program, self.penalties, HostData::F32(&penalties))?;
        runtime.write(program, self.prompts, HostData::U32(&prompts))?;
        for (index, (row, text)) in
            rows.iter().zip(texts).enumerate().filter(|(index, _)| !is_as_before(*index))
        {
            let of_row = index * self.vocabulary..(index + 1) * self.vocabulary;
            let bias = row.map_or(vec![0.0; self.vocabulary], |row| row.bias_of_all(self.vocabulary));
            let seen = row.map_or(vec![0; self.vocabulary], |row| row.seen(text, self.vocabulary));
            let [bias_table, seen_table] = self.states;
            runtime.write_state(bias_table, of_row.clone(), HostData::F32(&bias))?;
            runtime.write_state(seen_table, of_row, HostData::U32(&seen))?;
        }
        Ok(())
    }
}
