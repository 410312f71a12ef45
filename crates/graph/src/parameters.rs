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
    /// Whether it is a matrix that hidden states are multiplied with, rather than an embedding, a head or a vector.
    pub is_hidden: bool,
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
        let parameter = Parameter {
            name: name.into(),
            shape,
            offset: self.len,
            decays,
            is_hidden: false,
            trainable: true,
        };
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

    /// Matrices with rows of one length, or vectors, that lie side by side, as one parameter; none if they do not.
    pub fn join(&self, indices: &[usize]) -> Option<Parameter> {
        let parts: Vec<&Parameter> = indices.iter().map(|&index| &self.parameters[index]).collect();
        let first = parts.first()?;
        let adjacent = parts.windows(2).all(|pair| pair[0].range().end == pair[1].offset);
        let alike = |part: &&Parameter| {
            let rows_alike = first.shape.dims().len() == 1 || part.shape.columns() == first.shape.columns();
            part.shape.dims().len() == first.shape.dims().len()
                && rows_alike
                && part.trainable == first.trainable
        };
        if !adjacent || !parts.iter().all(alike) {
            return None;
        }
        let dims = match first.shape.dims() {
            [_] => vec![parts.iter().map(|part| part.shape.elements()).sum()],
            [_, columns] => vec![parts.iter().map(|part| part.shape.rows()).sum(), *columns],
            _ => return None,
        };
        let name = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(" + ");
        Some(Parameter { name, shape: Shape::new(&dims), ..(*first).clone() })
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

    /// The segment table of an optimiser: what it updates and with which decay.
    pub fn update_ranges(&self, weight_decay: f32) -> Arc<[UpdateRange]> {
        self.update_ranges_by(|p| Some((if p.decays { weight_decay } else { 0.0 }, 1.0)))
    }

    /// The same by a rule that gives a parameter's weight decay and what the learning rate is multiplied with for it, or leaves
    /// it out.
    pub fn update_ranges_by(&self, rule: impl Fn(&Parameter) -> Option<(f32, f32)>) -> Arc<[UpdateRange]> {
        let range = |p: &Parameter| {
            let (weight_decay, rate) = rule(p)?;
            Some(UpdateRange { start: p.offset, len: p.shape.elements(), weight_decay, rate })
        };
        self.parameters.iter().filter(|p| p.trainable).filter_map(range).collect()
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
    fn parameters_join_only_where_nothing_lies_between() {
        let mut layout = Layout::default();
        let [a, b] = [("a", 8), ("b", 24)].map(|(name, rows)| layout.add(name, &[rows, 8], true));
        let [c, d] = [("c", 3), ("d", 5)].map(|(name, rows)| layout.add(name, &[rows, 8], true));
        let joined = layout.join(&[a, b]).unwrap();
        assert_eq!((joined.shape.dims(), joined.offset), (&[32, 8][..], 0));
        assert!(layout.join(&[c, d]).is_none(), "padding lies between");
        assert!(layout.join(&[b, a]).is_none());
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
