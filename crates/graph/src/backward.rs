//! The backward pass: walks the ops in reverse and appends their derivatives.
//!
//! Only what lies between the loss and a wanted tensor is visited, so frozen models, soft prefixes and adapters cost no
//! more than they must. The gradient of a parameter is written into its place in the flat gradient buffer as soon as it
//! is known; a parameter that is used twice is written once and then added to.

use std::ops::Range;

use ironmill_compute::{DType, Kernel, Op, TensorType};

use crate::{
    error::{Error, Result},
    graph::{Graph, Kind, Node, StateId, Tensor},
};

/// Where the gradients of trainable parameters go.
#[derive(Clone, Copy, Debug)]
pub struct Accumulate {
    /// The flat gradient buffer, laid out as the parameters are.
    pub gradients: StateId,
    /// Whether to add to what earlier micro-batches left there.
    pub add: bool,
}

impl Graph {
    /// Appends the backward of `loss`, whose own gradient is `seed`, for all trainable parameters below it.
    pub fn train(&mut self, loss: Tensor, seed: Tensor, into: Accumulate) -> Result<()> {
        let sinks = self.trainable.clone();
        let forward = self.nodes.len();
        self.derive(&[(loss, seed)], &[], &sinks, Some(into))?;
        // Derivatives are only emitted on the way to a parameter, so none means that no parameter is below the loss.
        if self.nodes.len() == forward { Err(Error::NothingToTrain) } else { Ok(()) }
    }

    /// Appends the gradients of some tensors, given the gradients of others. `None` where nothing flows.
    pub fn gradients(&mut self, seeds: &[(Tensor, Tensor)], of: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let gradients = self.derive(seeds, of, &[], None)?;
        Ok(of.iter().map(|tensor| gradients[tensor.0]).collect())
    }

    fn derive(
        &mut self,
        seeds: &[(Tensor, Tensor)],
        wanted: &[Tensor],
        sinks: &[Tensor],
        into: Option<Accumulate>,
    ) -> Result<Vec<Option<Tensor>>> {
        let forward = self.nodes.clone();
        let mut needed = vec![false; self.tensors.len()];
        wanted.iter().chain(sinks).for_each(|tensor| needed[tensor.0] = true);
        for node in &forward {
            if node.inputs.iter().any(|input| needed[input.0]) {
                node.outputs.iter().for_each(|output| needed[output.0] = true);
            }
        }

        let mut gradients: Vec<Option<Tensor>> = vec![None; self.tensors.len()];
        for &(tensor, seed) in seeds {
            gradients[tensor.0] = Some(seed);
        }
        let mut written = Vec::new();
        // For every value of a part that is computed again, the value that stands for it in the backward.
        let mut again: Vec<Option<Tensor>> = vec![None; self.tensors.len()];
        // A part inside another was built before it, and is computed again after it.
        let mut parts: Vec<Range<usize>> = self.recomputed.iter().rev().cloned().collect();
        let stage = self.current_stage;
        for (index, node) in forward.iter().enumerate().rev() {
            let d_outputs: Vec<Option<Tensor>> =
                node.outputs.iter().map(|output| gradients[output.0]).collect();
            let needs: Vec<bool> = node.inputs.iter().map(|input| needed[input.0]).collect();
            if d_outputs.iter().all(Option::is_none) || !needs.contains(&true) {
                continue;
            }
            for part in parts.extract_if(.., |part| part.contains(&index)) {
                self.emit_again(&forward[part], &mut again)?;
            }
            let stand_in = |tensor: &Tensor| again[tensor.0].unwrap_or(*tensor);
            let seen = Node {
                kernel: node.kernel.clone(),
                inputs: node.inputs.iter().map(stand_in).collect(),
                outputs: node.outputs.iter().map(stand_in).collect(),
                stage: node.stage,
            };
            self.stage(node.stage);
            let d_inputs = self.derivative(&seen, &d_outputs, &needs)?;
            for (&input, d_input) in node.inputs.iter().zip(d_inputs) {
                let Some(d_input) = d_input else { continue };
                match into {
                    Some(into) if sinks.contains(&input) => {
                        let add = into.add || written.contains(&input);
                        written.push(input);
                        let state = self.gradient_of(input, into.gradients);
                        self.write_state(d_input, state, add);
                    }
                    _ => {
                        gradients[input.0] = Some(match gradients[input.0] {
                            Some(earlier) => self.op1(Op::Add, &[earlier, d_input])?,
                            None => d_input,
                        });
                    }
                }
            }
        }
        self.stage(stage);
        Ok(gradients)
    }

    /// Appends a part of the forward once more. Random numbers are functions of the op, so masks come out the same.
    fn emit_again(&mut self, part: &[Node], again: &mut [Option<Tensor>]) -> Result<()> {
        for node in part {
            let Kernel::Op(op) = &node.kernel else {
                return Err(Error::NotDifferentiable { op: node.kernel.name() });
            };
            let inputs: Vec<Tensor> =
                node.inputs.iter().map(|input| again[input.0].unwrap_or(*input)).collect();
            self.stage(node.stage);
            let outputs = self.op(op.clone(), &inputs)?;
            for (output, value) in node.outputs.iter().zip(outputs) {
                again[output.0] = Some(value);
            }
        }
        Ok(())
    }

    /// The place of a parameter's gradient: where the parameter is, in the gradient buffer.
    fn gradient_of(&mut self, parameter: Tensor, gradients: StateId) -> Tensor {
        let info = self.info(parameter);
        let offset = match info.kind {
            Kind::State { offset, .. } => offset,
            Kind::Input { .. } | Kind::Value => unreachable!("only parameters, which are state, are sinks"),
        };
        let of = TensorType { shape: info.of.shape, dtype: DType::F32 };
        self.state(gradients, offset, of)
    }

    /// The derivative rule of a node: gradients of its inputs (where needed) from those of its outputs.
    fn derivative(
        &mut self,
        node: &Node,
        d_outputs: &[Option<Tensor>],
        needs: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let Kernel::Op(op) = &node.kernel else {
            return Err(Error::NotDifferentiable { op: node.kernel.name() });
        };
        let mut d_inputs = vec![None; node.inputs.len()];
        let (inputs, outputs) = (&node.inputs, &node.outputs);
        let refuse = || Err(Error::NotDifferentiable { op: op.name() });
        let main = d_outputs[0];
        match op {
            Op::Embed => {
                if let (Some(d_y), true) = (main, needs[0]) {
                    let [rows, _] = *self.shape(inputs[0]).dims() else { return refuse() };
                    d_inputs[0] = Some(self.op1(Op::EmbedGrad { rows }, &[inputs[1], d_y])?);
                }
            }
            Op::Linear { bias, products } => {
                let products = *products;
                let Some(d_y) = main else { return refuse() };
                if needs[0] {
                    d_inputs[0] = Some(self.op1(Op::LinearGradInput { products }, &[d_y, inputs[1]])?);
                }
                if needs[1] {
                    d_inputs[1] = Some(self.op1(Op::LinearGradWeight { products }, &[d_y, inputs[0]])?);
                }
                if *bias && needs[2] {
                    d_inputs[2] = Some(self.op1(Op::LinearGradBias, &[d_y])?);
                }
            }
            Op::LayerNorm { bias, .. } => {
                let (Some(d_y), [None, None]) = (main, &d_outputs[1..]) else {
                    return refuse();
                };
                let (x, gain, mean, rstd) = (inputs[0], inputs[1], outputs[1], outputs[2]);
                if needs[0] {
                    d_inputs[0] = Some(self.op1(Op::LayerNormGradInput, &[d_y, x, gain, mean, rstd])?);
                }
                if needs[1..].contains(&true) {
                    let d = self.op(Op::LayerNormGradParams { bias: *bias }, &[d_y, x, mean, rstd])?;
                    for (index, d) in d.into_iter().enumerate() {
                        d_inputs[1 + index] = needs[1 + index].then_some(d);
                    }
                }
            }
            Op::RmsNorm { .. } => {
                let (Some(d_y), [None]) = (main, &d_outputs[1..]) else { return refuse() };
                let (x, gain, rstd) = (inputs[0], inputs[1], outputs[1]);
                if needs[0] {
                    d_inputs[0] = Some(self.op1(Op::RmsNormGradInput, &[d_y, x, gain, rstd])?);
                }
                if needs[1] {
                    let columns = self.shape(gain).columns();
                    d_inputs[1] = Some(self.op1(Op::RmsNormGradGain { columns }, &[d_y, x, rstd])?);
                }
            }
            &Op::Rope { inverse, still } => {
                // The table is data; asking for its gradient is refused rather than answered with nothing.
                let (Some(d_y), false) = (main, needs[2]) else { return refuse() };
                d_inputs[0] =
                    Some(self.op1(Op::Rope { inverse: !inverse, still }, &[d_y, inputs[1], inputs[2]])?);
            }
            Op::Split { .. } => {
                let mut parts = Vec::with_capacity(outputs.len());
                for (&part, d) in outputs.iter().zip(d_outputs) {
                    parts.push(match d {
                        Some(d) => *d,
                        None => self.zeros_like(part)?,
                    });
                }
                d_inputs[0] = Some(self.op1(Op::Concat, &parts)?);
            }
            Op::Concat => {
                let Some(d_y) = main else { return refuse() };
                let sizes = inputs.iter().map(|&part| self.shape(part).columns()).collect();
                let parts = self.op(Op::Split { sizes }, &[d_y])?;
                d_inputs = parts.into_iter().map(Some).collect();
            }
            Op::Attention(attention) => {
                let (Some(d_out), [None], false) = (main, &d_outputs[1..], attention.cached) else {
                    return refuse();
                };
                let mut operands = vec![d_out, inputs[0], inputs[1], inputs[2], outputs[0], outputs[1]];
                operands.extend_from_slice(&inputs[3..]);
                for (d_input, d) in
                    d_inputs.iter_mut().zip(self.op(Op::AttentionGrad(*attention), &operands)?)
                {
                    *d_input = Some(d);
                }
            }
            Op::Gelu => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(self.op1(Op::GeluGrad, &[inputs[0], d_y])?);
            }
            Op::GeluErf => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(self.op1(Op::GeluErfGrad, &[inputs[0], d_y])?);
            }
            Op::ReluSquared => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(self.op1(Op::ReluSquaredGrad, &[inputs[0], d_y])?);
            }
            Op::SiluGate => {
                let Some(d_y) = main else { return refuse() };
                let d = self.op(Op::SiluGateGrad, &[inputs[0], inputs[1], d_y])?;
                d_inputs = d.into_iter().map(Some).collect();
            }
            Op::Add => {
                d_inputs = vec![main, main];
            }
            Op::Mul => {
                let Some(d_y) = main else { return refuse() };
                for (index, other) in [(0, inputs[1]), (1, inputs[0])] {
                    if needs[index] {
                        d_inputs[index] = Some(self.op1(Op::Mul, &[d_y, other])?);
                    }
                }
            }
            &Op::Affine { factor, .. } => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(match factor {
                    1.0 => d_y,
                    factor => self.op1(Op::Affine { factor, offset: 0.0 }, &[d_y])?,
                });
            }
            Op::Dropout { .. } => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(self.op1(op.clone(), &[d_y, inputs[1], inputs[2]])?);
            }
            Op::CrossEntropy(shape) => {
                // The weights are data; asking for their gradient is refused rather than answered with nothing.
                let (Some(d_losses), [None], false) = (main, &d_outputs[1..], needs[2]) else {
                    return refuse();
                };
                let operands = [inputs[0], inputs[1], inputs[2], outputs[1], d_losses];
                d_inputs[0] = Some(self.op1(Op::CrossEntropyGrad(*shape), &operands)?);
            }
            Op::Sum => {
                let Some(d_y) = main else { return refuse() };
                let shape = self.shape(inputs[0]);
                d_inputs[0] = Some(self.op1(Op::Broadcast { shape }, &[d_y])?);
            }
            Op::Broadcast { .. } => {
                let Some(d_y) = main else { return refuse() };
                d_inputs[0] = Some(self.op1(Op::Sum, &[d_y])?);
            }
            Op::EmbedGrad { .. }
            | Op::LinearGradInput { .. }
            | Op::LinearGradWeight { .. }
            | Op::LinearGradBias
            | Op::LayerNormGradInput
            | Op::LayerNormGradParams { .. }
            | Op::AttentionGrad(_)
            | Op::RmsNormGradInput
            | Op::RmsNormGradGain { .. }
            | Op::GeluGrad
            | Op::GeluErfGrad
            | Op::ReluSquaredGrad
            | Op::SiluGateGrad
            | Op::CrossEntropyGrad(_) => return refuse(),
        }
        for (d_input, &needed) in d_inputs.iter_mut().zip(needs) {
            if !needed {
                *d_input = None;
            }
        }
        Ok(d_inputs)
    }

    /// A value of zeros with the shape of another: the gradient of an output that the loss does not use.
    fn zeros_like(&mut self, tensor: Tensor) -> Result<Tensor> {
        let zero = self.input_zero();
        let shape = self.shape(tensor);
        self.op1(Op::Broadcast { shape }, &[zero])
    }

    /// An input that the host never writes: device memory starts as zero.
    fn input_zero(&mut self) -> Tensor {
        let zero = self.zero.unwrap_or_else(|| self.input("zero", &[1], DType::F32));
        self.zero = Some(zero);
        zero
    }
}
