//! Everything that moves more memory than it calculates: from a launch to the kernels that run it.
//!
//! One module per kernel file. A launcher reads shapes and element types off the operands, chooses between wide and narrow
//! accesses by length and alignment, and sizes the grid. Loops over the work are sized by the card; sums are not, so that
//! their order depends on shapes alone.

pub(super) mod copy;
mod draw;
mod embed;
mod loss;
mod muon;
mod norm;
mod pointwise;
mod reduce;
mod update;

pub(super) use loss::{HeadRows, add_head_losses, add_head_rows, kept_row_bytes, row_threads};
pub(super) use norm::add_embedded;
pub(super) use reduce::finish_columns;

use super::call::{Arg, Builder, Grid};
use crate::{
    device::View,
    error::{Error, Result},
    kernel::Kernel,
    op::Op,
    tensor::DType,
};
use norm::Before;

/// Threads of a block wherever a kernel does not ask for another number.
const THREADS: usize = 256;
/// Bytes of a wide access.
const WIDE_BYTES: usize = 16;

/// A launch whose calls are to be added.
#[derive(Clone, Copy)]
struct Launch<'a> {
    name: &'static str,
    inputs: &'a [View],
    outputs: &'a [View],
}

/// Adds the calls of one launch; false for products, attention and the head, which others know.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let launch = Launch { name: kernel.name(), inputs, outputs };
    match kernel {
        Kernel::Op(op) => return add_op(builder, op, launch, false),
        Kernel::OpInto { op, add } => return add_op(builder, op, launch, *add),
        Kernel::Cast => copy::convert(builder, launch, false)?,
        Kernel::StateWrite { add } => copy::convert(builder, launch, *add)?,
        Kernel::CacheAppend => copy::cache_append(builder, launch)?,
        Kernel::CacheCopy => copy::cache_copy(builder, launch)?,
        Kernel::Adjust => draw::adjust(builder, launch)?,
        Kernel::Draw(of) => draw::draw(builder, launch, *of)?,
        Kernel::LogProbabilities(of) => draw::log_probabilities(builder, launch, *of)?,
        Kernel::AddLayerNorm { eps, .. } => norm::layer_norm(builder, launch, *eps, Before::Sum)?,
        Kernel::AddBiasedLayerNorm { eps, .. } => {
            norm::layer_norm(builder, launch, *eps, Before::BiasedSum)?;
        }
        Kernel::AddRmsNorm { eps } => norm::rms_norm(builder, launch, *eps, true)?,
        Kernel::LayerNormGradAdd => norm::layer_norm_grad(builder, launch)?,
        Kernel::RmsNormGradAdd => norm::rms_norm_grad(builder, launch)?,
        Kernel::NormGrads(of) => norm::grads(builder, launch, *of)?,
        Kernel::JointSiluGate => pointwise::joint_gate(builder, launch, &inputs[0])?,
        Kernel::JointSiluGateGrad => pointwise::joint_gate(builder, launch, &inputs[0])?,
        Kernel::GlobalNorm => reduce::global_norm(builder, launch)?,
        Kernel::Guard(of) => update::guard(builder, launch, of)?,
        Kernel::Adam(of) => update::adam(builder, launch, of)?,
        Kernel::Sgd(of) => update::sgd(builder, launch, of)?,
        Kernel::Momentum { decay } => muon::momentum(builder, launch, *decay)?,
        Kernel::Normalise => muon::normalise(builder, launch)?,
        Kernel::Combine(factors) => muon::combine(builder, launch, *factors)?,
        Kernel::Descend(of) => muon::descend(builder, launch, of)?,
        Kernel::Average { decay } => muon::average(builder, launch, *decay)?,
        Kernel::LinearGelu { .. }
        | Kernel::LinearGradGelu { .. }
        | Kernel::LinearGradGelus { .. }
        | Kernel::LinearGate { .. }
        | Kernel::LinearGradGate { .. }
        | Kernel::JointAttention(_)
        | Kernel::JointAttentionGrad(_)
        | Kernel::JointAttentionGrads { .. }
        | Kernel::CachedAttention(_)
        | Kernel::Quantise(_)
        | Kernel::QuantiseWeights(_)
        | Kernel::RoundTargets
        | Kernel::QuantisedNorm(_)
        | Kernel::QuantisedNormGrads(_)
        | Kernel::QuantisedAttentionGrad(_)
        | Kernel::ScaledProduct { .. }
        | Kernel::GeluProduct(_)
        | Kernel::HeadLoss(_) => return Ok(false),
    }
    Ok(true)
}

/// A gate's slopes in place of its operands, which lie side by side, the first output, and its result, the second.
pub(super) fn gate_slopes(builder: &mut Builder<'_>, outputs: &[View]) -> Result<()> {
    let launch = Launch { name: "joint_silu_gate_slopes", inputs: &[], outputs };
    pointwise::joint_gate(builder, launch, &outputs[0])
}

/// Either half of a gate's slopes times the gradient of its result, which lies where the first half goes.
pub(super) fn times_gate_slopes(builder: &mut Builder<'_>, slopes: &View, out: &View) -> Result<()> {
    let (inputs, outputs) = (std::slice::from_ref(slopes), std::slice::from_ref(out));
    pointwise::joint_gate(builder, Launch { name: "times_joint_slopes", inputs, outputs }, out)
}

/// GELU's slope in place of its argument.
pub(super) fn gelu_slope(builder: &mut Builder<'_>, view: &View) -> Result<()> {
    let views = std::slice::from_ref(view);
    pointwise::map(builder, Launch { name: "gelu_slope", inputs: views, outputs: views }, "gelu_slope")
}

/// The same for an op; `adds` is only ever set for those that can add to their outputs.
fn add_op(builder: &mut Builder<'_>, op: &Op, launch: Launch<'_>, adds: bool) -> Result<bool> {
    match op {
        Op::Embed => embed::embed(builder, launch)?,
        Op::LayerNorm { eps, .. } => norm::layer_norm(builder, launch, *eps, Before::Nothing)?,
        Op::RmsNorm { eps } => norm::rms_norm(builder, launch, *eps, false)?,
        Op::Rope { inverse, still } => embed::rope(builder, launch, *inverse, *still)?,
        Op::Split { .. } => copy::split(builder, launch)?,
        Op::Concat => copy::concat(builder, launch)?,
        Op::Gelu => pointwise::map(builder, launch, "gelu")?,
        Op::GeluErf => pointwise::map(builder, launch, "gelu_erf")?,
        Op::ReluSquared => pointwise::map(builder, launch, "relu_squared")?,
        Op::SiluGate => pointwise::map(builder, launch, "silu_gate")?,
        Op::Add => pointwise::map(builder, launch, "add")?,
        Op::Mul => pointwise::map(builder, launch, "mul")?,
        Op::Affine { factor, offset } => pointwise::affine(builder, launch, *factor, *offset)?,
        Op::Dropout { probability, number } => pointwise::dropout(builder, launch, *probability, *number)?,
        Op::CrossEntropy(shape) => loss::cross_entropy(builder, launch, shape)?,
        Op::Sum => reduce::sum(builder, launch)?,
        Op::Broadcast { .. } => pointwise::broadcast(builder, launch)?,
        Op::EmbedGrad { .. } => embed::embed_grad(builder, launch, adds)?,
        Op::LinearGradBias => reduce::bias(builder, launch, adds)?,
        Op::LayerNormGradInput => norm::layer_norm_grad(builder, launch)?,
        Op::LayerNormGradParams { .. } => reduce::layer_norm_params(builder, launch, adds)?,
        Op::RmsNormGradInput => norm::rms_norm_grad(builder, launch)?,
        Op::RmsNormGradGain { columns } => reduce::rms_norm_gain(builder, launch, *columns, adds)?,
        Op::GeluGrad => pointwise::map(builder, launch, "gelu_grad")?,
        Op::GeluErfGrad => pointwise::map(builder, launch, "gelu_erf_grad")?,
        Op::ReluSquaredGrad => pointwise::map(builder, launch, "relu_squared_grad")?,
        Op::SiluGateGrad => pointwise::map(builder, launch, "silu_gate_grad")?,
        Op::CrossEntropyGrad(shape) => loss::cross_entropy_grad(builder, launch, shape)?,
        Op::Linear { .. }
        | Op::LinearGradInput { .. }
        | Op::LinearGradWeight { .. }
        | Op::Attention(_)
        | Op::AttentionGrad(_) => return Ok(false),
    }
    Ok(true)
}

impl Launch<'_> {
    /// The one element type of these operands.
    fn real<'v>(&self, views: impl IntoIterator<Item = &'v View>) -> Result<DType> {
        let mut common = None;
        for view in views {
            let dtype = view.of.dtype;
            if !dtype.is_real() || common.is_some_and(|common| common != dtype) {
                return Err(self.unsupported(dtype));
            }
            common = Some(dtype);
        }
        Ok(common.unwrap_or(DType::F32))
    }

    /// Refuses operands that are not f32.
    fn ensure_f32<'v>(&self, views: impl IntoIterator<Item = &'v View>) -> Result<()> {
        match self.real(views)? {
            DType::F32 => Ok(()),
            other => Err(self.unsupported(other)),
        }
    }

    fn unsupported(&self, dtype: DType) -> Error {
        Error::Unsupported { device: "cuda", kernel: self.name, dtype }
    }

    fn input(&self, builder: &Builder<'_>, index: usize) -> Arg {
        builder.pointer(&self.inputs[index])
    }

    fn output(&self, builder: &Builder<'_>, index: usize) -> Arg {
        builder.pointer(&self.outputs[index])
    }
}

/// Whether an address may be accessed in units of this many bytes. Working memory is aligned to 256.
fn is_aligned(at: Arg, bytes: usize) -> bool {
    match at {
        Arg::Pointer(address) => address.is_multiple_of(bytes as u64),
        Arg::Scratch(offset) | Arg::Constant(offset) | Arg::Kept(offset) => offset.is_multiple_of(bytes),
        Arg::Fault | Arg::U32(_) | Arg::U64(_) | Arg::F32(_) => false,
    }
}

/// Whether all addresses allow wide accesses.
fn all_aligned(addresses: &[Arg]) -> bool {
    addresses.iter().all(|&at| is_aligned(at, WIDE_BYTES))
}

/// Elements of this type that a wide access moves.
fn width(real: DType) -> usize {
    WIDE_BYTES / real.bytes()
}

/// A flag or a flat count as kernels take it.
fn flag(is_set: bool) -> Arg {
    Arg::U32(u32::from(is_set))
}

fn count(elements: usize) -> Arg {
    Arg::U64(elements as u64)
}

/// The most blocks of a loop over the work. A multiprocessor runs four to eight at a time, so what the last of them leave idle
/// is a small part of the whole.
fn most_blocks(builder: &Builder<'_>) -> usize {
    64 * builder.multiprocessors().max(1)
}

/// Blocks of [`THREADS`] for a loop over the work.
fn looping(builder: &Builder<'_>, threads_wanted: usize) -> Grid {
    Grid::new(threads_wanted.div_ceil(THREADS).clamp(1, most_blocks(builder)), THREADS as u32)
}
