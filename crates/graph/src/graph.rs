//! A program before it is compiled: tensors, and the kernels that connect them, in the order they run.

use ironmill_compute::{DType, Kernel, Op, Shape, TensorType};

use crate::{error::Result, stage::Stage};

/// A handle to a tensor of one graph. It stays valid through all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tensor(pub(crate) usize);

/// A persistent buffer that programs of a run share; see [`crate::States`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub(crate) usize);

/// Where a tensor comes from and how long it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Written by the host before each run.
    Input {
        /// The name in errors.
        name: String,
    },
    /// Written once by a kernel; lives in the arena until its last use.
    Value,
    /// Part of a persistent buffer, written in place: parameters, gradients, moments, caches.
    State {
        /// The buffer.
        state: StateId,
        /// First element.
        offset: usize,
    },
}

/// What is known of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Shape and element type.
    pub of: TensorType,
    /// Where it lives.
    pub kind: Kind,
}

/// A kernel and its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What runs.
    pub kernel: Kernel,
    /// What it reads.
    pub inputs: Vec<Tensor>,
    /// What it writes.
    pub outputs: Vec<Tensor>,
    /// The part of the model that it belongs to.
    pub stage: Stage,
}

/// A program under construction. Writes to state happen in node order, which no pass changes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) kept: Vec<Tensor>,
    /// Trainable parameters: the tensors that a backward pass wants gradients of.
    pub(crate) trainable: Vec<Tensor>,
    /// The input that the host never writes, once a derivative has needed zeros.
    pub(crate) zero: Option<Tensor>,
    /// Ranges of nodes whose values are not kept for the backward but computed again there.
    pub(crate) recomputed: Vec<std::ops::Range<usize>>,
    /// The stage of the nodes that follow.
    pub(crate) current_stage: Stage,
    dropouts: u32,
}

impl Graph {
    /// A program that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The nodes, in the order they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What is known of a tensor.
    pub fn info(&self, tensor: Tensor) -> &TensorInfo {
        &self.tensors[tensor.0]
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: Tensor) -> Shape {
        self.tensors[tensor.0].of.shape
    }

    /// A tensor that the host writes before each run.
    pub fn input(&mut self, name: &str, dims: &[usize], dtype: DType) -> Tensor {
        self.tensor(TensorInfo { of: TensorType::new(dims, dtype), kind: Kind::Input { name: name.into() } })
    }

    /// A view of a persistent buffer. The same view asked for twice is the same tensor.
    pub fn state(&mut self, state: StateId, offset: usize, of: TensorType) -> Tensor {
        let info = TensorInfo { of, kind: Kind::State { state, offset } };
        match self.tensors.iter().position(|known| *known == info) {
            Some(index) => Tensor(index),
            None => self.tensor(info),
        }
    }

    /// Keeps a value until the end of the run, so that the host can read it.
    pub fn keep(&mut self, tensor: Tensor) {
        if !self.kept.contains(&tensor) {
            self.kept.push(tensor);
        }
    }

    /// Builds a part of the forward whose values the backward computes again instead of keeping them: memory for time.
    /// Only what the part reads from outside and what others read of it stays alive in between.
    pub fn recompute<T, E>(
        &mut self,
        part: impl FnOnce(&mut Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let start = self.nodes.len();
        let result = part(self)?;
        self.recomputed.push(start..self.nodes.len());
        Ok(result)
    }

    /// Appends an op; its outputs are new values.
    pub fn op(&mut self, op: Op, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let types: Vec<TensorType> = inputs.iter().map(|&t| self.tensors[t.0].of).collect();
        let outputs = op.outputs(&types)?.into_iter().map(|of| self.value(of)).collect::<Vec<_>>();
        self.push(Kernel::Op(op), inputs.to_vec(), outputs.clone());
        Ok(outputs)
    }

    /// Appends an op of which only the first output is wanted.
    pub(crate) fn op1(&mut self, op: Op, inputs: &[Tensor]) -> Result<Tensor> {
        Ok(self.op(op, inputs)?[0])
    }

    /// Appends a write of a value into state, over what is there or added to it.
    pub fn write_state(&mut self, value: Tensor, state: Tensor, add: bool) {
        debug_assert!(matches!(self.info(state).kind, Kind::State { .. }));
        debug_assert_eq!(self.shape(value).elements(), self.shape(state).elements());
        self.push(Kernel::StateWrite { add }, vec![value], vec![state]);
    }

    pub(crate) fn value(&mut self, of: TensorType) -> Tensor {
        self.tensor(TensorInfo { of, kind: Kind::Value })
    }

    pub(crate) fn push(&mut self, kernel: Kernel, inputs: Vec<Tensor>, outputs: Vec<Tensor>) {
        self.nodes.push(Node { kernel, inputs, outputs, stage: self.current_stage });
    }

    pub(crate) fn next_dropout(&mut self) -> u32 {
        self.dropouts += 1;
        self.dropouts - 1
    }

    pub(crate) fn is_value(&self, tensor: Tensor) -> bool {
        self.tensors[tensor.0].kind == Kind::Value
    }

    /// For every tensor, the nodes that read it.
    pub(crate) fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.tensors.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for input in &node.inputs {
                if readers[input.0].last() != Some(&index) {
                    readers[input.0].push(index);
                }
            }
        }
        readers
    }

    fn tensor(&mut self, info: TensorInfo) -> Tensor {
        self.tensors.push(info);
        Tensor(self.tensors.len() - 1)
    }
}
