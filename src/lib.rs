//! Raw text to a trained language model: the rooms of Ironmill behind one door.
//!
//! - [`text`]: pre-tokenise, count, train BPE, encode, decode
//! - [`data`]: documents in, shards out; manifest, order, loader
//! - [`compute`]: buffers, kernels and the backends that run them
//! - [`graph`]: programs of ops, their derivatives, their memory
//! - [`model`]: architectures, trainer, checkpoints, generation

pub use ironmill_compute as compute;
pub use ironmill_data as data;
pub use ironmill_graph as graph;
pub use ironmill_model as model;
pub use ironmill_text as text;
