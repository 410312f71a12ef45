//! Buffers, kernels and the backends that run them.
//!
//! This crate is the only one that knows devices. It has three layers: [`op`] says which mathematical operations there
//! are and how their shapes follow from each other; [`kernel`] says what a backend runs, which is an op or a fused group;
//! [`device`] says what a backend promises. Three backends keep the promise: [`mod@reference`], textbook loops in double
//! precision, which is the meaning of every kernel and the oracle of all tests; [`cpu`], blocked and threaded; and [`cuda`],
//! for NVIDIA cards that are found at run time.
//!
//! ```
//! use ironmill_compute::{DType, Device, HostData, Kernel, Launch, Op, Reference, TensorType, View};
//!
//! let mut device = Reference::exact();
//! let of = TensorType::new(&[3], DType::F32);
//! let mut place = || -> ironmill_compute::Result<View> {
//!     let buffer = device.allocate(3 * device.element_bytes(DType::F32))?;
//!     Ok(View { buffer, offset_bytes: 0, of })
//! };
//! let (a, b, sum) = (place()?, place()?, place()?);
//! device.upload(&a, HostData::F32(&[1.0, 2.0, 3.0]))?;
//! device.upload(&b, HostData::F32(&[0.5, 0.5, 0.5]))?;
//!
//! let add = Launch { kernel: Kernel::Op(Op::Add), inputs: vec![a, b], outputs: vec![sum] };
//! let sequence = device.bind(&[add])?;
//! device.run(sequence)?;
//!
//! let mut out = [0.0; 3];
//! device.download(&sum, &mut out)?;
//! assert_eq!(out, [1.5, 2.5, 3.5]);
//! # Ok::<(), ironmill_compute::Error>(())
//! ```

mod check;
pub mod cpu;
pub mod cuda;
pub mod device;
mod draw;
mod error;
pub mod int8;
pub mod kernel;
pub mod op;
pub mod philox;
pub mod quantise;
pub mod reference;
mod tensor;

pub use cpu::Cpu;
pub use cuda::{AttentionBy, Cuda, CudaOptions};
pub use device::{BufferId, Device, Frozen, HostData, Launch, ReadId, SequenceId, View};
pub use draw::{Draw, LogProbabilities, Penalties};
pub use error::{Error, Result};
pub use kernel::{
    Adam, Descend, Expansion, GUARD_REPORT, GUARD_STATISTICS, Guard, HeadLoss, Kernel, NormGrads, Operand,
    Sgd, UpdateRange, Verdict,
};
pub use op::{Attention, IGNORED, LossShape, Mask, Op};
pub use quantise::{GeluProduct, Quantise, QuantisedAttentionGrad, QuantisedNorm, QuantisedNormGrads};
pub use reference::Reference;
pub use tensor::{DType, Shape, TensorType};
