//! A look inside a model in training: the norms of its parts.

use std::ops::Range;

use ironmill_graph::{Layout, OptimiserState, Passes, ProgramId, Tensor, norms_program};

use super::trainer::Trainer;
use crate::error::Result;

/// The norms of a part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct PartNorms {
    /// `embedding`, `block 0` …, `head`.
    pub name: String,
    /// Of the gradient that the last step left, before clipping.
    pub gradient: f64,
    /// Of the weights.
    pub weight: f64,
}

/// The program, and which of its values are whose.
pub(super) struct Inside {
    program: ProgramId,
    parts: Vec<(String, [Tensor; 2])>,
}

impl Trainer {
    /// The norms of the model's parts after a step. The first call readies a program for it.
    ///
    /// # Panics
    /// While a step that was given ahead is under way, which is changing both.
    pub fn part_norms(&mut self) -> Result<Vec<PartNorms>> {
        assert!(!self.is_ahead(), "norms are of a step that has ended");
        if self.inside.is_none() {
            let OptimiserState { parameters, gradients, .. } = self.state.optimiser;
            let parts = parts(self.engine.model.layout());
            let ranges: Vec<Range<usize>> = parts.iter().map(|part| part.1.clone()).collect();
            let (graph, norms) = norms_program([gradients, parameters], &ranges);
            let program = self.engine.runtime.compile(graph, &Passes::ALL)?;
            let names = parts.into_iter().map(|part| part.0);
            self.inside = Some(Inside { program, parts: names.zip(norms).collect() });
        }
        let Some(Inside { program, parts }) = &self.inside else { unreachable!("it was just readied") };
        let runtime = &mut self.engine.runtime;
        runtime.run(*program)?;
        let unscale = (-f64::from(self.last_exponent)).exp2();
        let mut norms = Vec::with_capacity(parts.len());
        for (name, [gradient, weight]) in parts {
            let mut numbers = [[0.0]; 2];
            runtime.read(*program, *gradient, &mut numbers[0])?;
            runtime.read(*program, *weight, &mut numbers[1])?;
            let [gradient, weight] = numbers.map(|[number]| f64::from(number));
            norms.push(PartNorms { name: name.clone(), gradient: gradient * unscale, weight });
        }
        Ok(norms)
    }
}

/// The parts of a model and where they lie: what comes before its blocks, every block, and what comes behind them.
fn parts(layout: &Layout) -> Vec<(String, Range<usize>)> {
    let block = |name: &str| name.split('.').find_map(|part| part.parse::<usize>().ok());
    let mut parts: Vec<(String, Range<usize>)> = Vec::new();
    let mut has_blocks = false;
    for parameter in layout.parameters() {
        let name = match block(&parameter.name) {
            Some(index) => format!("block {index}"),
            None if has_blocks => "head".into(),
            None => "embedding".into(),
        };
        has_blocks |= name.starts_with("block");
        match parts.last_mut() {
            // What lies between two parameters is padding, and zero.
            Some(last) if last.0 == name => last.1.end = parameter.range().end,
            _ => parts.push((name, parameter.range())),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_blocks_and_what_lies_around_them() {
        let mut layout = Layout::default();
        for name in ["wte", "wpe", "h.0.a", "h.0.b", "h.1.a", "ln_f"] {
            layout.add(format!("transformer.{name}.weight"), &[10], true);
        }
        let names: Vec<(String, Range<usize>)> = parts(&layout);
        let expected =
            [("embedding", 0..74), ("block 0", 128..202), ("block 1", 256..266), ("head", 320..330)];
        assert_eq!(names, expected.map(|(name, range)| (name.to_string(), range)));
    }
}
