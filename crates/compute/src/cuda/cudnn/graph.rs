//! Attention and its gradient as graphs of products, reductions and pointwise operations, in the order in which the library knows
//! them again and runs each as one kernel.
//!
//! Tensors are [B, H, T, D], wherever their heads lie; B are the samples of one run, T the queries, S the keys. Tensors between
//! operations are virtual: they are f32 except where an operand of a product is rounded.

use std::{ffi::c_int, sync::Arc};

use super::{Descriptor, Kind, Library, Plan, Problem, attribute};
use crate::{
    error::{Error, Result},
    op::{Attention, Mask},
    tensor::DType,
};

/// The library's number for f32; those of other types are in [`code`].
const F32: c_int = 0;
const I32: c_int = 4;
const BOOLEAN: c_int = 11;

/// Pointwise operations by the library's numbers.
#[derive(Clone, Copy)]
enum Pointwise {
    Add = 0,
    Multiply = 1,
    Divide = 6,
    Subtract = 9,
    Exp = 13,
    Log = 15,
    IsAtLeast = 303,
    Index = 501,
    Select = 601,
}

/// Reductions by the library's numbers.
#[derive(Clone, Copy)]
enum Reduce {
    Sum = 0,
    Max = 3,
}

/// The engine's own word for results that change from run to run.
const NOTE_NONDETERMINISTIC: c_int = 4;
/// The heuristic that knows all engines.
const HEURISTIC: c_int = 3;
/// How many of the library's proposals are tried.
const PROPOSALS: usize = 8;

/// A tensor of a graph.
#[derive(Clone, Copy)]
struct Tensor {
    raw: usize,
    id: i64,
    dimensions: [i64; 4],
    strides: [i64; 4],
}

/// Where a tensor lives.
#[derive(Clone, Copy, PartialEq)]
enum Lives {
    /// In memory that a run names.
    Memory,
    /// Nowhere outside the kernel.
    Inside,
    /// In one number that a run is given.
    Value,
}

/// A graph in the making.
struct Graph<'a> {
    library: &'a Arc<Library>,
    parts: Vec<Descriptor>,
    operations: Vec<usize>,
    values: Vec<(i64, f32)>,
    last_id: i64,
}

/// Makes a plan of an attention over that many samples.
pub(super) fn plan(library: &Arc<Library>, problem: &Problem, samples: usize) -> Result<Plan> {
    let mut graph =
        Graph { library, parts: Vec::new(), operations: Vec::new(), values: Vec::new(), last_id: 0 };
    let sizes = Sizes::new(problem, samples);
    let operands = if problem.is_gradient {
        graph.backward(&sizes, &problem.attention)?
    } else {
        graph.forward(&sizes, &problem.attention)?
    };
    graph.finish(samples, operands)
}

/// Sizes and strides of an attention's tensors.
struct Sizes {
    real: c_int,
    b: i64,
    h: i64,
    h_kv: i64,
    t: i64,
    d: i64,
    q_row: i64,
    kv_row: i64,
    scale: f32,
}

impl Sizes {
    fn new(problem: &Problem, samples: usize) -> Self {
        let Attention { heads, kv_heads, .. } = problem.attention;
        let [q_row, kv_row] = problem.rows.map(|row| row as i64);
        Sizes {
            real: code(problem.real),
            b: samples as i64,
            h: heads as i64,
            h_kv: kv_heads as i64,
            t: problem.positions as i64,
            d: problem.size as i64,
            q_row,
            kv_row,
            scale: (1.0 / (problem.size as f64).sqrt()) as f32,
        }
    }
}

impl Graph<'_> {
    /// Queries, keys, values → output, log-sum-exp: the operands in this order.
    fn forward(&mut self, sizes: &Sizes, attention: &Attention) -> Result<Vec<Tensor>> {
        let q = self.heads(sizes, sizes.h, sizes.q_row)?;
        let k = self.transposed_heads(sizes, sizes.h_kv, sizes.kv_row)?;
        let v = self.heads(sizes, sizes.h_kv, sizes.kv_row)?;
        let out = self.heads(sizes, sizes.h, sizes.h * sizes.d)?;
        let log_sum_exp = self.per_query(sizes, Lives::Memory)?;

        let scores = self.scaled_scores(sizes, q, k)?;
        let scores = if attention.mask == Mask::Causal { self.causal(scores)? } else { scores };
        let largest = self.per_query(sizes, Lives::Inside)?;
        self.reduce(Reduce::Max, scores, largest)?;
        let shifted = self.binary(Pointwise::Subtract, scores, largest)?;
        let exp = self.unary(Pointwise::Exp, shifted)?;
        let sum = self.per_query(sizes, Lives::Inside)?;
        self.reduce(Reduce::Sum, exp, sum)?;
        let log = self.unary(Pointwise::Log, sum)?;
        self.pointwise(Pointwise::Add, F32, [Some(largest), Some(log), None], log_sum_exp)?;
        let probabilities = self.like(exp, sizes.real)?;
        self.pointwise(Pointwise::Divide, F32, [Some(exp), Some(sum), None], probabilities)?;
        self.product(probabilities, v, out)?;
        Ok(vec![q, k, v, out, log_sum_exp])
    }

    /// Gradient of the output, queries, keys, values, output, log-sum-exp → gradients of queries, keys and values: the operands in
    /// this order, then memory for a sum per query.
    ///
    /// The gradient of the queries is one product over all keys. Adding up products over parts of the keys instead is the
    /// library's faster way, in an order that changes from run to run.
    fn backward(&mut self, sizes: &Sizes, attention: &Attention) -> Result<Vec<Tensor>> {
        let Sizes { real, b, h, h_kv, t, d, q_row, kv_row, .. } = *sizes;
        let d_out = self.heads(sizes, h, h * d)?;
        let q = self.heads(sizes, h, q_row)?;
        let k = self.transposed_heads(sizes, h_kv, kv_row)?;
        let v = self.transposed_heads(sizes, h_kv, kv_row)?;
        let out = self.heads(sizes, h, h * d)?;
        let log_sum_exp = self.per_query(sizes, Lives::Memory)?;
        let d_q = self.heads(sizes, h, q_row)?;
        let [d_k, d_v] = [self.heads(sizes, h_kv, kv_row)?, self.heads(sizes, h_kv, kv_row)?];

        let agreement = self.tensor([b, h, t, d], [h * t * d, t * d, d, 1], F32, Lives::Inside)?;
        self.pointwise(Pointwise::Multiply, F32, [Some(d_out), Some(out), None], agreement)?;
        let sum = self.per_query(sizes, Lives::Inside)?;
        self.reduce(Reduce::Sum, agreement, sum)?;
        // The library knows the graph only with the factor that dropout would have here.
        let kept = self.value(1.0)?;
        let delta = self.per_query(sizes, Lives::Memory)?;
        self.pointwise(Pointwise::Multiply, F32, [Some(sum), Some(kept), None], delta)?;

        let scores = self.scaled_scores(sizes, q, k)?;
        let shifted = self.binary(Pointwise::Subtract, scores, log_sum_exp)?;
        let shifted = if attention.mask == Mask::Causal { self.causal(shifted)? } else { shifted };
        let probabilities = self.unary(Pointwise::Exp, shifted)?;
        let by_key = [[b, h, t, t], [h * t * t, t * t, 1, t]];
        let turned = self.tensor(by_key[0], by_key[1], real, Lives::Inside)?;
        self.reshape(probabilities, turned)?;
        self.product_per_key(sizes, turned, d_out, d_v)?;

        let d_probabilities = self.scores(sizes)?;
        self.product(d_out, v, d_probabilities)?;
        let difference = self.binary(Pointwise::Subtract, d_probabilities, delta)?;
        let unscaled = self.binary(Pointwise::Multiply, difference, probabilities)?;
        let scale = self.value(sizes.scale)?;
        let d_scores = self.binary(Pointwise::Multiply, unscaled, scale)?;
        let turned = self.tensor(by_key[0], by_key[1], real, Lives::Inside)?;
        self.reshape(d_scores, turned)?;
        self.product_per_key(sizes, turned, q, d_k)?;

        let keys = self.tensor([b, h_kv, t, d], [t * kv_row, d, kv_row, 1], real, Lives::Inside)?;
        self.reshape(k, keys)?;
        self.product(d_scores, keys, d_q)?;
        Ok(vec![d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v, delta])
    }

    /// Heads at the beginning of rows of some length.
    fn heads(&mut self, sizes: &Sizes, heads: i64, row: i64) -> Result<Tensor> {
        let Sizes { real, b, t, d, .. } = *sizes;
        self.tensor([b, heads, t, d], [t * row, d, row, 1], real, Lives::Memory)
    }

    /// The same as [B, H, D, T].
    fn transposed_heads(&mut self, sizes: &Sizes, heads: i64, row: i64) -> Result<Tensor> {
        let Sizes { real, b, t, d, .. } = *sizes;
        self.tensor([b, heads, d, t], [t * row, d, 1, row], real, Lives::Memory)
    }

    /// One number per query and head.
    fn per_query(&mut self, sizes: &Sizes, lives: Lives) -> Result<Tensor> {
        let Sizes { b, h, t, .. } = *sizes;
        self.tensor([b, h, t, 1], [h * t, t, 1, 1], F32, lives)
    }

    /// One number per query, key and head.
    fn scores(&mut self, sizes: &Sizes) -> Result<Tensor> {
        let Sizes { b, h, t, .. } = *sizes;
        self.tensor([b, h, t, t], [h * t * t, t * t, t, 1], F32, Lives::Inside)
    }

    fn scaled_scores(&mut self, sizes: &Sizes, q: Tensor, k: Tensor) -> Result<Tensor> {
        let scores = self.scores(sizes)?;
        self.product(q, k, scores)?;
        let scale = self.value(sizes.scale)?;
        self.binary(Pointwise::Multiply, scores, scale)
    }

    /// −∞ where the key comes after the query.
    fn causal(&mut self, scores: Tensor) -> Result<Tensor> {
        let [query, key] = [self.like(scores, I32)?, self.like(scores, I32)?];
        self.index(scores, 2, query)?;
        self.index(scores, 3, key)?;
        let is_seen = self.like(scores, BOOLEAN)?;
        self.pointwise(Pointwise::IsAtLeast, BOOLEAN, [Some(query), Some(key), None], is_seen)?;
        let unseen = self.value(f32::NEG_INFINITY)?;
        let masked = self.like(scores, F32)?;
        self.pointwise(Pointwise::Select, F32, [Some(scores), Some(unseen), Some(is_seen)], masked)?;
        Ok(masked)
    }

    /// A product whose rows are keys; where query heads share them, the sum over those heads.
    fn product_per_key(&mut self, sizes: &Sizes, a: Tensor, b: Tensor, to: Tensor) -> Result<()> {
        if sizes.h == sizes.h_kv {
            return self.product(a, b, to);
        }
        let Sizes { real, h, t, d, .. } = *sizes;
        let apart = self.tensor([sizes.b, h, t, d], [h * t * d, t * d, d, 1], real, Lives::Inside)?;
        self.product(a, b, apart)?;
        self.reduce(Reduce::Sum, apart, to)
    }

    fn tensor(&mut self, dimensions: [i64; 4], strides: [i64; 4], of: c_int, lives: Lives) -> Result<Tensor> {
        self.last_id += 1;
        let tensor = self.library.descriptor(Kind::Tensor)?;
        tensor.set(attribute::TENSOR_TYPE, &[of])?;
        tensor.set(attribute::TENSOR_DIMENSIONS, &dimensions)?;
        tensor.set(attribute::TENSOR_STRIDES, &strides)?;
        tensor.set(attribute::TENSOR_ID, &[self.last_id])?;
        tensor.set(attribute::TENSOR_ALIGNMENT, &[16])?;
        match lives {
            Lives::Memory => (),
            Lives::Inside => tensor.set(attribute::TENSOR_IS_VIRTUAL, &[true])?,
            Lives::Value => tensor.set(attribute::TENSOR_IS_BY_VALUE, &[true])?,
        }
        let raw = self.keep(tensor)?;
        Ok(Tensor { raw, id: self.last_id, dimensions, strides })
    }

    fn like(&mut self, tensor: Tensor, of: c_int) -> Result<Tensor> {
        self.tensor(tensor.dimensions, tensor.strides, of, Lives::Inside)
    }

    fn value(&mut self, value: f32) -> Result<Tensor> {
        let tensor = self.tensor([1; 4], [1; 4], F32, Lives::Value)?;
        self.values.push((tensor.id, value));
        Ok(tensor)
    }

    fn unary(&mut self, mode: Pointwise, x: Tensor) -> Result<Tensor> {
        let y = self.like(x, F32)?;
        self.pointwise(mode, F32, [Some(x), None, None], y)?;
        Ok(y)
    }

    /// Of a tensor and one that is like it or is repeated to be.
    fn binary(&mut self, mode: Pointwise, x: Tensor, b: Tensor) -> Result<Tensor> {
        let y = self.like(x, F32)?;
        self.pointwise(mode, F32, [Some(x), Some(b), None], y)?;
        Ok(y)
    }

    fn pointwise(
        &mut self,
        mode: Pointwise,
        precision: c_int,
        operands: [Option<Tensor>; 3],
        y: Tensor,
    ) -> Result<()> {
        let settings = self.pointwise_settings(mode, precision)?;
        let settings = self.keep(settings)?;
        self.pointwise_operation(settings, operands, y)
    }

    /// The index of every element along an axis.
    fn index(&mut self, x: Tensor, axis: i64, y: Tensor) -> Result<()> {
        let settings = self.pointwise_settings(Pointwise::Index, F32)?;
        settings.set(attribute::POINTWISE_AXIS, &[axis])?;
        let settings = self.keep(settings)?;
        self.pointwise_operation(settings, [Some(x), None, None], y)
    }

    fn pointwise_settings(&self, mode: Pointwise, precision: c_int) -> Result<Descriptor> {
        let settings = self.library.descriptor(Kind::Pointwise)?;
        settings.set(attribute::POINTWISE_MODE, &[mode as c_int])?;
        settings.set(attribute::POINTWISE_PRECISION, &[precision])?;
        Ok(settings)
    }

    fn pointwise_operation(
        &mut self,
        settings: usize,
        operands: [Option<Tensor>; 3],
        y: Tensor,
    ) -> Result<()> {
        let operation = self.library.descriptor(Kind::PointwiseOperation)?;
        operation.set(attribute::POINTWISE_SETTINGS, &[settings])?;
        let places = [attribute::POINTWISE_X, attribute::POINTWISE_B, attribute::POINTWISE_T];
        for (place, operand) in places.into_iter().zip(operands) {
            if let Some(operand) = operand {
                operation.set(place, &[operand.raw])?;
            }
        }
        operation.set(attribute::POINTWISE_Y, &[y.raw])?;
        self.operate(operation)
    }

    /// Over the dimensions in which the result has one element.
    fn reduce(&mut self, operator: Reduce, x: Tensor, y: Tensor) -> Result<()> {
        let settings = self.library.descriptor(Kind::Reduction)?;
        settings.set(attribute::REDUCTION_OPERATOR, &[operator as c_int])?;
        settings.set(attribute::REDUCTION_PRECISION, &[F32])?;
        let settings = self.keep(settings)?;
        let operation = self.library.descriptor(Kind::ReductionOperation)?;
        operation.set(attribute::REDUCTION_SETTINGS, &[settings])?;
        operation.set(attribute::REDUCTION_X, &[x.raw])?;
        operation.set(attribute::REDUCTION_Y, &[y.raw])?;
        self.operate(operation)
    }

    fn product(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<()> {
        let settings = self.library.descriptor(Kind::Matmul)?;
        settings.set(attribute::MATMUL_PRECISION, &[F32])?;
        let settings = self.keep(settings)?;
        let operation = self.library.descriptor(Kind::MatmulOperation)?;
        operation.set(attribute::MATMUL_SETTINGS, &[settings])?;
        operation.set(attribute::MATMUL_A, &[a.raw])?;
        operation.set(attribute::MATMUL_B, &[b.raw])?;
        operation.set(attribute::MATMUL_C, &[c.raw])?;
        self.operate(operation)
    }

    /// The same elements with other dimensions.
    fn reshape(&mut self, x: Tensor, y: Tensor) -> Result<()> {
        let operation = self.library.descriptor(Kind::ReshapeOperation)?;
        operation.set(attribute::RESHAPE_X, &[x.raw])?;
        operation.set(attribute::RESHAPE_Y, &[y.raw])?;
        self.operate(operation)
    }

    fn operate(&mut self, operation: Descriptor) -> Result<()> {
        let raw = self.keep(operation)?;
        self.operations.push(raw);
        Ok(())
    }

    /// Finalizes a descriptor and keeps it as long as the graph.
    fn keep(&mut self, descriptor: Descriptor) -> Result<usize> {
        descriptor.finalize()?;
        let raw = descriptor.raw;
        self.parts.push(descriptor);
        Ok(raw)
    }

    /// The first of the library's proposals that is deterministic and can be made ready.
    fn finish(mut self, samples: usize, operands: Vec<Tensor>) -> Result<Plan> {
        let handle = self.library.handle;
        let graph = self.library.descriptor(Kind::OperationGraph)?;
        graph.set(attribute::GRAPH_HANDLE, &[handle])?;
        graph.set(attribute::GRAPH_OPERATIONS, &self.operations)?;
        let graph = self.keep(graph)?;
        let heuristics = self.library.descriptor(Kind::Heuristics)?;
        heuristics.set(attribute::HEURISTICS_GRAPH, &[graph])?;
        heuristics.set(attribute::HEURISTICS_MODE, &[HEURISTIC])?;
        heuristics.finalize()?;
        let proposals = (0..PROPOSALS)
            .map(|_| self.library.descriptor(Kind::EngineConfig))
            .collect::<Result<Vec<Descriptor>>>()?;
        let mut raw: Vec<usize> = proposals.iter().map(|proposal| proposal.raw).collect();
        let found = heuristics.get(attribute::HEURISTICS_RESULTS, &mut raw)?;

        let mut refusal = Error::Cuda {
            call: "cudnnBackendFinalize",
            detail: "no engine for such an attention".into(),
            advice: "leave it to our own kernels",
        };
        for proposal in proposals.into_iter().take(found) {
            match self.ready(&proposal) {
                Ok(None) => (),
                Ok(Some((plan, workspace_bytes))) => {
                    self.parts.extend([heuristics, proposal]);
                    return Ok(Plan {
                        plan,
                        samples,
                        ids: operands.iter().map(|operand| operand.id).collect(),
                        values: self.values,
                        workspace_bytes,
                        _parts: self.parts,
                    });
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// A plan by a proposed engine and the bytes that it works in; nothing where its results change from run to run.
    fn ready(&self, proposal: &Descriptor) -> Result<Option<(Descriptor, usize)>> {
        let engine = self.library.descriptor(Kind::Engine)?;
        proposal.get(attribute::CONFIG_ENGINE, &mut [engine.raw])?;
        let mut notes = [0; 16];
        let count = engine.get(attribute::ENGINE_NUMERICAL_NOTES, &mut notes)?;
        if notes.iter().take(count).any(|&note| note == NOTE_NONDETERMINISTIC) {
            return Ok(None);
        }
        let plan = self.library.descriptor(Kind::ExecutionPlan)?;
        plan.set(attribute::PLAN_HANDLE, &[self.library.handle])?;
        plan.set(attribute::PLAN_CONFIG, &[proposal.raw])?;
        plan.finalize()?;
        let mut workspace_bytes = [0];
        plan.get(attribute::PLAN_WORKSPACE_BYTES, &mut workspace_bytes)?;
        Ok(Some((plan, workspace_bytes[0] as usize)))
    }
}

/// The library's number for an element type.
fn code(of: DType) -> c_int {
    match of {
        DType::F32 | DType::E4M3 | DType::E5M2 | DType::U32 => F32,
        DType::F16 => 2,
        DType::BF16 => 9,
    }
}
