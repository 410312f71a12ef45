//! Build a program of ops, derive its backward, fuse, plan its memory, run it.
//!
//! A model is written forward only. A training step is two programs: `micro` runs forward and backward and adds to the
//! gradients, once per micro-batch; `update` takes the global norm and moves the parameters. Passes run in a fixed order:
//! build → backward ([`Graph::train`]) → precision → fuse → plan → bind ([`Runtime::compile`]).
//!
//! ```
//! use ironmill_compute::{Adam, DType, GUARD_STATISTICS, Guard, HostData, LossShape, Reference};
//! use ironmill_graph::{
//!     Accumulate, Graph, Layout, Optimiser, OptimiserState, Passes, Runtime, States, update_program,
//! };
//!
//! // One parameter: a 5 × 4 table that is both the embedding and the head.
//! let mut layout = Layout::default();
//! layout.add("table", &[5, 4], true);
//! let mut states = States::default();
//! let mut flat = |name| states.declare(name, DType::F32, layout.len());
//! let (parameters, gradients) = (flat("parameters"), flat("gradients"));
//! let (first_moment, second_moment) = (flat("first moment"), Some(flat("second moment")));
//! let counter = states.declare("counter", DType::U32, 1);
//! let loss_sum = states.declare("loss", DType::F32, 1);
//! let guard = states.declare("guard", DType::F32, GUARD_STATISTICS);
//!
//! let mut g = Graph::new();
//! let table = g.parameter(parameters, &layout.parameters()[0]);
//! let ids = g.input("ids", &[1, 3], DType::U32);
//! let targets = g.input("targets", &[1, 3], DType::U32);
//! let weights = g.input("weights", &[1, 3], DType::F32);
//! let seed = g.input("seed", &[1], DType::F32);
//! let x = g.embed(table, ids)?;
//! let logits = g.linear(x, table, None)?;
//! let losses = g.cross_entropy(logits, targets, weights, LossShape::default())?;
//! let loss = g.sum(losses)?;
//! g.keep(loss);
//! g.train(loss, seed, Accumulate { gradients, add: false })?;
//!
//! let mut runtime = Runtime::new(Box::new(Reference::exact()), &states)?;
//! let micro = runtime.compile(g, &Passes::ALL)?;
//! let len = layout.len();
//! let state =
//!     OptimiserState { parameters, gradients, first_moment, second_moment, counter, loss: loss_sum, guard, average: None, working: None, len };
//! let ranges = layout.update_ranges(0.0);
//! let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true, ranges };
//! let guard = Guard { clip: 1.0, loss_outlier: 0.0, norm_outlier: 0.0, warmup: 0, holds: true };
//! let step = update_program(state, guard, Optimiser::Adam(adam));
//! let update = runtime.compile(step.graph, &Passes::ALL)?;
//!
//! let values: Vec<f32> = (0..layout.len()).map(|i| (i as f32).sin()).collect();
//! runtime.write_state(parameters, 0..layout.len(), HostData::F32(&values))?;
//! runtime.write(micro, ids, HostData::U32(&[0, 1, 2]))?;
//! runtime.write(micro, targets, HostData::U32(&[1, 2, 3]))?;
//! runtime.write(micro, weights, HostData::F32(&[1.0; 3]))?;
//! runtime.write(micro, seed, HostData::F32(&[1.0 / 3.0]))?;
//! runtime.write(update, step.learning_rate, HostData::F32(&[0.1]))?;
//! let mut sums = Vec::new();
//! for _ in 0..20 {
//!     runtime.run(micro)?;
//!     let mut sum = [0.0];
//!     runtime.read(micro, loss, &mut sum)?;
//!     runtime.run(update)?;
//!     sums.push(sum[0]);
//! }
//! assert!(sums[19] < 0.3 * sums[0], "{sums:?}");
//! # Ok::<(), ironmill_graph::Error>(())
//! ```

mod backward;
mod build;
mod error;
mod fuse;
mod graph;
mod norms;
mod parameters;
mod plan;
mod precision;
mod quantise;
mod runtime;
mod stage;
mod update;

pub use backward::Accumulate;
pub use build::{Heads, Randomness, rope_table};
pub use error::{Error, Result};
pub use graph::{Graph, Kind, Node, StateId, Tensor, TensorInfo};
pub use norms::norms_program;
pub use parameters::{Layout, Parameter, StateSpec, States};
pub use plan::Plan;
pub use precision::{Precision, refresh_program};
pub use quantise::EightBits;
pub use runtime::{LaunchTime, Passes, ProgramId, Runtime, dry_run};
pub use stage::Stage;
pub use update::{Muon, MuonMatrix, Optimiser, OptimiserState, Update, update_program};
