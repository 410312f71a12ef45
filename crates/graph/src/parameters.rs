//! Flat parameters: all of a model's weights in one buffer, in declared order, each at an aligned place.
//!
//! Gradients and moments have the same layout in buffers of their own, so the optimiser works on ranges and a tensor is a
//! view. What is between two parameters is padding that nothing reads or updates.

use std::sync::Arc;

use ironmill_compute::{DType, Shape, UpdateRange};

use crate::graph::StateId;

/// Elements between possible starts: 256 bytes of f32.
const ALIGNMENT: usize = 64;

/// A named part of the flat parameter buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name, as checkpoints spell it.
    pub name: String,
    /// The dimensions.
    pub shape: Shape,
    /// First element in the flat buffers.
    pub offset: usize,
    /// Whether weight decay applies.
    pub decays: bool,
    /// Whether training changes it.
    pub trainable: bool,
}

impl Parameter {
    /// The elements in the flat buffers.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.shape.elements()
    }
}

/// All parameters of a model.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    parameters: Vec<Parameter>,
    len: usize,
}

impl Layout {
    /// Adds a trainable parameter behind the others and returns its index.
    pub fn add(&mut self, name: impl Into<String>, dims: &[usize], decays: bool) -> usize {
        let shape = Shape::new(dims);
        let parameter = Parameter { name: name.into(), shape, offset: self.len, decays, trainable: true };
        self.len = (self.len + shape.elements()).next_multiple_of(ALIGNMENT);
        self.parameters.push(parameter);
        self.parameters.len() - 1
    }

    /// The parameters in declared order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The same, to freeze some.
    pub fn parameters_mut(&mut self) -> &mut [Parameter] {
        &mut self.parameters
    }

    /// Elements of a flat buffer, padding included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no parameter.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// How many numbers the model has.
    pub fn count(&self) -> usize {
        self.parameters.iter().map(|p| p.shape.elements()).sum()
    }

    /// The segment table of the optimiser: what it updates and with which decay.
    pub fn update_ranges(&self, weight_decay: f32) -> Arc<[UpdateRange]> {
        self.parameters
            .iter()
            .filter(|p| p.trainable)
            .map(|p| UpdateRange {
                start: p.offset,
                len: p.shape.elements(),
                weight_decay: if p.decays { weight_decay } else { 0.0 },
            })
            .collect()
    }
}

/// The persistent buffers of a run, declared before memory is taken.
#[derive(Clone, Debug, Default)]
pub struct States {
    pub(crate) specs: Vec<StateSpec>,
}

/// A persistent buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// What it holds, for listings.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its elements.
    pub len: usize,
}

impl States {
    /// Declares a buffer, zero at first.
    pub fn declare(&mut self, name: impl Into<String>, dtype: DType, len: usize) -> StateId {
        self.specs.push(StateSpec { name: name.into(), dtype, len });
        StateId(self.specs.len() - 1)
    }

    /// What was declared.
    pub fn specs(&self) -> &[StateSpec] {
        &self.specs
    }

    /// Bytes of all buffers, as a device stores them that keeps types as they are.
    pub fn bytes(&self) -> usize {
        self.specs.iter().map(|spec| spec.len * spec.dtype.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_start_at_aligned_places_and_never_overlap() {
        let mut layout = Layout::default();
        layout.add("a", &[3, 5], true);
        layout.add("b", &[64], false);
        layout.add("c", &[1], false);
        let starts: Vec<usize> = layout.parameters().iter().map(|p| p.offset).collect();
        assert_eq!(starts, [0, 64, 128]);
        assert_eq!((layout.count(), layout.len()), (80, 192));
    }

    #[test]
    fn frozen_parameters_are_not_updated_and_biases_do_not_decay() {
        let mut layout = Layout::default();
        layout.add("weight", &[2, 2], true);
        layout.add("bias", &[2], false);
        layout.add("frozen", &[2], true);
        layout.parameters_mut()[2].trainable = false;
        let ranges = layout.update_ranges(0.1);
        assert_eq!(
            ranges.iter().map(|r| (r.start, r.weight_decay)).collect::<Vec<_>>(),
            [(0, 0.1), (64, 0.0)]
        );
    }
}
