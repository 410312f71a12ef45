//! Texts as single vectors: the hidden states of a text's tokens, taken together.

use ironmill_compute::{DType, HostData};
use ironmill_graph::{Graph, Passes, ProgramId, Tensor};

use crate::{
    architecture::{Attend, Tokens},
    engine::Engine,
    error::{Error, Result},
};

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one, as BERT's `[CLS]`.
    First,
    /// The last one.
    Last,
}

/// Texts are padded to a power of two, at least this, so that few programs serve all lengths.
const SHORTEST: usize = 16;

/// The program that reads some texts of one padded length.
#[derive(Clone, Copy)]
pub(crate) struct EmbedProgram {
    rows: usize,
    length: usize,
    program: ProgramId,
    ids: Tensor,
    borders: Tensor,
    hidden: Tensor,
}

impl Engine {
    /// A vector for each text, all of which run at once. Texts longer than the context are refused.
    pub fn embed(&mut self, texts: &[Vec<u32>], pooling: Pooling) -> Result<Vec<Vec<f32>>> {
        let (context, width) = (self.model.config().context, self.model.config().width);
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        if texts.iter().any(Vec::is_empty) {
            return Err(Error::Prompt("a text without tokens has no vector; leave it out".into()));
        }
        if longest > context {
            return Err(Error::Prompt(format!(
                "a text has {longest} tokens, and the model takes at most {context}; shorten it"
            )));
        }
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let length = longest.next_power_of_two().max(SHORTEST).min(context);
        let EmbedProgram { program, ids, borders, hidden, .. } = self.embed_program(texts.len(), length)?;
        let mut all_ids = vec![0; texts.len() * length];
        // What pads a text is a document of its own, which the text does not see.
        let mut all_borders = vec![0; texts.len() * length];
        for (row, text) in texts.iter().enumerate() {
            all_ids[row * length..][..text.len()].copy_from_slice(text);
            all_borders[row * length..][text.len()..length].fill(text.len() as u32);
        }
        self.runtime.write(program, ids, HostData::U32(&all_ids))?;
        self.runtime.write(program, borders, HostData::U32(&all_borders))?;
        self.runtime.run(program)?;
        let mut states = vec![0.0; texts.len() * length * width];
        self.runtime.read(program, hidden, &mut states)?;
        let pooled = texts.iter().zip(states.chunks_exact(length * width));
        Ok(pooled.map(|(text, states)| pool(&states[..text.len() * width], width, pooling)).collect())
    }

    fn embed_program(&mut self, rows: usize, length: usize) -> Result<EmbedProgram> {
        let made = |known: &&EmbedProgram| (known.rows, known.length) == (rows, length);
        if let Some(known) = self.embedders.iter().find(made) {
            return Ok(*known);
        }
        let mut g = Graph::new();
        let dims = [rows, length];
        let ids = g.input("ids", &dims, DType::U32);
        let positions = g.input("positions", &dims, DType::U32);
        let borders = g.input("borders", &dims, DType::U32);
        let attend = Attend::Whole { borders: Some(borders), randomness: None };
        let tokens = Tokens { ids, positions, attend, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens)?;
        g.keep(hidden);
        let program = self.runtime.compile(g, &Passes::ALL)?;
        let counting: Vec<u32> = (0..rows).flat_map(|_| 0..length as u32).collect();
        self.runtime.write(program, positions, HostData::U32(&counting))?;
        let made = EmbedProgram { rows, length, program, ids, borders, hidden };
        self.embedders.push(made);
        Ok(made)
    }
}

fn pool(states: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let rows = states.chunks_exact(width);
    match pooling {
        Pooling::First => rows.take(1).flatten().copied().collect(),
        Pooling::Last => rows.last().unwrap_or_default().to_vec(),
        Pooling::Mean => {
            let mut sums = vec![0.0f64; width];
            let count = rows.len() as f64;
            for row in rows {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            sums.iter().map(|sum| (sum / count) as f32).collect()
        }
    }
}
