//! What architectures are put together from: norms, products, and how they are declared.

use ironmill_graph::{Graph, Layout, Parameter, Stage, Tensor};

use super::{DEVIATION, InGraph, Initial};
use crate::{config::Mlp, error::Result};

/// Declares parameters with their initial values. Matrices and embeddings decay, vectors do not.
#[derive(Default)]
pub(super) struct Declare {
    pub layout: Layout,
    pub initial: Vec<Initial>,
}

/// A norm: gain, and shift where there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    gain: usize,
    shift: Option<usize>,
}

/// A product: weight, and bias where there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    weight: usize,
    bias: Option<usize>,
    outputs: usize,
}

/// Products of one input that run as one where their weights lie side by side.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    parts: Vec<Linear>,
    whole: Option<(Parameter, Option<Parameter>)>,
}

impl Joined {
    /// The columns of every product's result.
    pub fn sizes(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.outputs).collect()
    }
}

impl Declare {
    pub fn embedding(&mut self, name: &str, rows: usize, columns: usize) -> usize {
        self.add(name, &[rows, columns], Initial::Normal(DEVIATION))
    }

    pub fn vector(&mut self, name: &str, columns: usize, initial: Initial) -> usize {
        self.add(name, &[columns], initial)
    }

    pub fn norm(&mut self, name: &str, columns: usize, bias: bool) -> Norm {
        let gain = self.vector(&format!("{name}.weight"), columns, Initial::Ones);
        let shift = bias.then(|| self.vector(&format!("{name}.bias"), columns, Initial::Zeros));
        Norm { gain, shift }
    }

    /// A norm whose gain is stored less 1.
    pub fn norm_less_one(&mut self, name: &str, columns: usize) -> Norm {
        let gain = self.vector(&format!("{name}.weight"), columns, Initial::Zeros);
        Norm { gain, shift: None }
    }

    pub fn linear(
        &mut self,
        name: &str,
        [outputs, inputs]: [usize; 2],
        deviation: f32,
        bias: bool,
    ) -> Linear {
        let weight = self.add(&format!("{name}.weight"), &[outputs, inputs], Initial::Normal(deviation));
        self.layout.parameters_mut()[weight].is_hidden = true;
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), outputs, Initial::Zeros));
        Linear { weight, bias, outputs }
    }

    /// Several products of one input: all weights first, then all biases, so that each kind can lie side by side.
    pub fn joined(&mut self, parts: &[(String, usize)], inputs: usize, deviation: f32, bias: bool) -> Joined {
        let mut linears: Vec<Linear> = parts
            .iter()
            .map(|(name, outputs)| self.linear(name, [*outputs, inputs], deviation, false))
            .collect();
        if bias {
            for (linear, (name, outputs)) in linears.iter_mut().zip(parts) {
                linear.bias = Some(self.vector(&format!("{name}.bias"), *outputs, Initial::Zeros));
            }
        }
        let side_by_side = |indices: Vec<usize>| self.layout.join(&indices);
        let weight = side_by_side(linears.iter().map(|linear| linear.weight).collect());
        let biases: Vec<usize> = linears.iter().filter_map(|linear| linear.bias).collect();
        let whole = match (weight, biases.is_empty()) {
            (Some(weight), true) => Some((weight, None)),
            (Some(weight), false) => side_by_side(biases).map(|bias| (weight, Some(bias))),
            (None, _) => None,
        };
        Joined { parts: linears, whole }
    }

    fn add(&mut self, name: &str, dims: &[usize], initial: Initial) -> usize {
        self.initial.push(initial);
        self.layout.add(name, dims, dims.len() > 1)
    }
}

impl InGraph<'_> {
    pub fn linear(&self, g: &mut Graph, x: Tensor, linear: Linear) -> Result<Tensor> {
        let weight = self.parameter(g, linear.weight);
        let bias = linear.bias.map(|bias| self.parameter(g, bias));
        Ok(g.linear(x, weight, bias)?)
    }

    /// The results of several products of one input.
    pub fn products(&self, g: &mut Graph, x: Tensor, joined: &Joined) -> Result<Vec<Tensor>> {
        match self.joint_product(g, x, joined)? {
            Some(y) => Ok(g.split(y, &joined.sizes())?),
            None => joined.parts.iter().map(|&part| self.linear(g, x, part)).collect(),
        }
    }

    /// The same side by side, where the weights lie so that they are one product.
    pub fn joint_product(&self, g: &mut Graph, x: Tensor, joined: &Joined) -> Result<Option<Tensor>> {
        let Some((weight, bias)) = &joined.whole else { return Ok(None) };
        let weight = self.joined(g, weight);
        let bias = bias.as_ref().map(|bias| self.joined(g, bias));
        Ok(Some(g.linear(x, weight, bias)?))
    }

    /// What the configured MLP makes of its widening products: the gate, where there is one, comes first.
    pub fn activate(&self, g: &mut Graph, up: &[Tensor]) -> Result<Tensor> {
        Ok(match (self.config().mlp, up) {
            (Mlp::SiluGate, [gate, up]) => g.silu_gate(*gate, *up)?,
            (Mlp::GeluGate, [gate, up]) => {
                let gate = g.gelu(*gate)?;
                g.mul(gate, *up)?
            }
            (Mlp::Gelu, [h]) => g.gelu(*h)?,
            (Mlp::GeluErf, [h]) => g.gelu_erf(*h)?,
            (Mlp::ReluSquared, [h]) => g.relu_squared(*h)?,
            (mlp, _) => unreachable!("{} with {} products is refused with the sizes", mlp.name(), up.len()),
        })
    }

    pub fn layer_norm(&self, g: &mut Graph, x: Tensor, norm: Norm) -> Result<Tensor> {
        let gain = self.parameter(g, norm.gain);
        let shift = norm.shift.map(|shift| self.parameter(g, shift));
        let stage = g.stage(Stage::Norm);
        let y = g.layer_norm(x, gain, shift, self.config().norm_eps)?;
        g.stage(stage);
        Ok(y)
    }

    pub fn rms_norm(&self, g: &mut Graph, x: Tensor, norm: Norm) -> Result<Tensor> {
        let mut gain = self.parameter(g, norm.gain);
        let stage = g.stage(Stage::Norm);
        if self.config().gemma.is_some() {
            gain = g.affine(gain, 1.0, 1.0)?;
        }
        let y = g.rms_norm(x, gain, self.config().norm_eps)?;
        g.stage(stage);
        Ok(y)
    }
}
