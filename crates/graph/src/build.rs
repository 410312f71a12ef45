//! The vocabulary a model is written in: one method an op, forward only.

use ironmill_compute::{Attention, DType, Draw, Kernel, LogProbabilities, LossShape, Mask, Op, TensorType};

use crate::{
    error::Result,
    graph::{Graph, StateId, Tensor},
    parameters::Parameter,
};

/// The inputs that dropout draws its numbers from.
#[derive(Clone, Copy, Debug)]
pub struct Randomness {
    /// The key and the step: `u32[3]`.
    pub key: Tensor,
    /// The global index of each sample: `u32[B]`.
    pub samples: Tensor,
}

/// The query and key heads of an attention, and which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads.
    pub keys: usize,
    /// Which keys a query may see.
    pub mask: Mask,
    /// How many keys a query sees at most to one side; 0 is no limit.
    pub window: usize,
}

impl Graph {
    /// A parameter: a view of the flat parameter buffer.
    pub fn parameter(&mut self, parameters: StateId, parameter: &Parameter) -> Tensor {
        let of = TensorType { shape: parameter.shape, dtype: DType::F32 };
        let tensor = self.state(parameters, parameter.offset, of);
        if parameter.trainable && !self.trainable.contains(&tensor) {
            self.trainable.push(tensor);
        }
        tensor
    }

    /// The rows of a table that ids name.
    pub fn embed(&mut self, table: Tensor, ids: Tensor) -> Result<Tensor> {
        self.op1(Op::Embed, &[table, ids])
    }

    /// x·wᵀ, plus a bias where there is one.
    pub fn linear(&mut self, x: Tensor, w: Tensor, bias: Option<Tensor>) -> Result<Tensor> {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        self.op1(Op::Linear { bias: bias.is_some(), products: DType::F32 }, &inputs)
    }

    /// Rows brought to mean 0 and variance 1, then scaled and shifted.
    pub fn layer_norm(&mut self, x: Tensor, gain: Tensor, shift: Option<Tensor>, eps: f32) -> Result<Tensor> {
        let mut inputs = vec![x, gain];
        inputs.extend(shift);
        self.op1(Op::LayerNorm { eps, bias: shift.is_some() }, &inputs)
    }

    /// Rows (or the groups of a row that the gain is long) divided by their root mean square, then scaled.
    pub fn rms_norm(&mut self, x: Tensor, gain: Tensor, eps: f32) -> Result<Tensor> {
        self.op1(Op::RmsNorm { eps }, &[x, gain])
    }

    /// Heads turned by the angles of their positions; the table is [`rope_table`]'s.
    pub fn rope(&mut self, x: Tensor, positions: Tensor, table: Tensor) -> Result<Tensor> {
        self.rope_before(0, x, positions, table)
    }

    /// The same of all heads but the last `still`.
    pub fn rope_before(
        &mut self,
        still: usize,
        x: Tensor,
        positions: Tensor,
        table: Tensor,
    ) -> Result<Tensor> {
        self.op1(Op::Rope { inverse: false, still }, &[x, positions, table])
    }

    /// The columns of x in parts.
    pub fn split(&mut self, x: Tensor, sizes: &[usize]) -> Result<Vec<Tensor>> {
        self.op(Op::Split { sizes: sizes.to_vec() }, &[x])
    }

    /// Attention of queries over the keys of the same positions; with borders, only inside each document.
    pub fn attention(
        &mut self,
        [q, k, v]: [Tensor; 3],
        borders: Option<Tensor>,
        heads: Heads,
    ) -> Result<Tensor> {
        let mut inputs = vec![q, k, v];
        inputs.extend(borders);
        let attention = Attention { borders: borders.is_some(), ..attention(heads, false) };
        self.op1(Op::Attention(attention), &inputs)
    }

    /// Appends rows to caches `[R,S,Hkv·D]` at each sample's own place, then attends over all that its row of them holds. Places
    /// are `u32[B,2]`: the row of the cache, and the position of the sample's first query.
    pub fn cached_attention(
        &mut self,
        [q, k, v]: [Tensor; 3],
        [k_cache, v_cache]: [Tensor; 2],
        places: Tensor,
        heads: Heads,
    ) -> Result<Tensor> {
        self.push(Kernel::CacheAppend, vec![k, places], vec![k_cache]);
        self.push(Kernel::CacheAppend, vec![v, places], vec![v_cache]);
        self.op1(Op::Attention(attention(heads, true)), &[q, k_cache, v_cache, places])
    }

    /// Copies the first positions of rows of a cache to others; moves are `u32[N,3]`: from, to and how many positions.
    pub fn cache_copy(&mut self, cache: Tensor, moves: Tensor) {
        self.push(Kernel::CacheCopy, vec![moves], vec![cache]);
    }

    /// What to draw from after bias and penalties: see [`Penalties`](ironmill_compute::Penalties) for the operands.
    pub fn adjust(&mut self, inputs: [Tensor; 6], seen: Tensor) -> Tensor {
        let adjusted = self.value(TensorType { shape: self.shape(inputs[0]), dtype: DType::F32 });
        self.push(Kernel::Adjust, inputs.to_vec(), vec![seen, adjusted]);
        adjusted
    }

    /// Draws a token from the logits of every row and moves the rows on: see [`Draw`] for the five states.
    pub fn draw(&mut self, [logits, limits, keys]: [Tensor; 3], states: [Tensor; 5], context: usize) {
        self.push(Kernel::Draw(Draw { context }), vec![logits, limits, keys], states.to_vec());
    }

    /// Behind a draw of so many places: how likely its token and the likeliest ones are by some logits. Inputs are those and the draw's ids
    /// and lengths; see [`LogProbabilities`] for the two states.
    pub fn log_probabilities(&mut self, inputs: [Tensor; 3], states: [Tensor; 2], count: usize) {
        self.push(Kernel::LogProbabilities(LogProbabilities { count }), inputs.to_vec(), states.to_vec());
    }

    /// GPT-2's smooth step.
    pub fn gelu(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::Gelu, &[x])
    }

    /// BERT's form of the same, by the error function.
    pub fn gelu_erf(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::GeluErf, &[x])
    }

    /// max(x, 0)².
    pub fn relu_squared(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::ReluSquared, &[x])
    }

    /// gate·σ(gate)·up.
    pub fn silu_gate(&mut self, gate: Tensor, up: Tensor) -> Result<Tensor> {
        self.op1(Op::SiluGate, &[gate, up])
    }

    /// a + b.
    pub fn add(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.op1(Op::Add, &[a, b])
    }

    /// a·b, element by element.
    pub fn mul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.op1(Op::Mul, &[a, b])
    }

    /// factor·x + offset.
    pub fn affine(&mut self, x: Tensor, factor: f32, offset: f32) -> Result<Tensor> {
        self.op1(Op::Affine { factor, offset }, &[x])
    }

    /// Zeroes a share of x at random; x itself when the share is 0.
    pub fn dropout(&mut self, x: Tensor, probability: f32, from: Randomness) -> Result<Tensor> {
        // The number is taken even when nothing is dropped, so that a mask does not depend on other layers' settings.
        let number = self.next_dropout();
        if probability == 0.0 {
            return Ok(x);
        }
        self.op1(Op::Dropout { probability, number }, &[x, from.key, from.samples])
    }

    /// The weighted loss of each target in nats; 0 for ignored ones.
    pub fn cross_entropy(
        &mut self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor,
        shape: LossShape,
    ) -> Result<Tensor> {
        self.op1(Op::CrossEntropy(shape), &[logits, targets, weights])
    }

    /// The sum of all elements.
    pub fn sum(&mut self, x: Tensor) -> Result<Tensor> {
        self.op1(Op::Sum, &[x])
    }
}

fn attention(heads: Heads, cached: bool) -> Attention {
    let Heads { queries, keys, mask, window } = heads;
    Attention { heads: queries, kv_heads: keys, mask, cached, borders: false, window, products: DType::F32 }
}

/// The cosines and sines of rotary positions: row p of `[positions, 2·frequencies]` holds cos(p·f) for each frequency, then
/// sin(p·f).
pub fn rope_table(positions: usize, frequencies: &[f64]) -> Vec<f32> {
    let mut table = Vec::with_capacity(positions * 2 * frequencies.len());
    for position in 0..positions {
        let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
        table.extend(angles.clone().map(|angle| angle.cos() as f32));
        table.extend(angles.map(|angle| angle.sin() as f32));
    }
    table
}
