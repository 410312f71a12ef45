//! Attention and its gradient: which kernels run, on which grid, with which operands.
//!
//! bf16 and f16 run on the matrix units (`attention.cu`), f32 and wide heads without them (`attention_f32.cu`; both [`tiles`]), a single query
//! over a cache in a kernel of its own (`attention_decode.cu`, [`decode`]), and plain attention over whole heads on Hopper's own units
//! (`attention_hopper.cu`, [`warpgroups`], and gradients of enough heads by `attention_whole_heads.cu`, [`whole_heads`]). All of them take
//! a pointer to the first element and the length of a row, or a map that says the same, so that heads inside one tensor and heads
//! apart are the same to them ([`Heads`]).

mod decode;
mod heads;
mod tiles;
mod warpgroups;
mod whole_heads;

use super::{
    call::{Arg, Builder},
    rows,
};
use crate::{device::View, error::Result, kernel::Kernel, op::Op};

pub(super) use decode::ahead;
pub(super) use heads::{Heads, NO_WINDOW};
use warpgroups::Gradients;
pub(super) use warpgroups::InBytes;

/// Adds the calls of an attention or of its gradient; false for any other kernel.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    match kernel {
        Kernel::Op(Op::Attention(attention)) => {
            let heads = Heads::apart(attention, &inputs[0], &inputs[1], kernel.name())?;
            let parts = [&inputs[0], &inputs[1], &inputs[2]].map(|view| builder.pointer(view));
            forward(builder, &heads, parts, [inputs, outputs], &inputs[3..])?;
        }
        Kernel::JointAttention(attention) => {
            let heads = Heads::joint(attention, &inputs[0], kernel.name())?;
            let parts = heads.parts(builder.pointer(&inputs[0]));
            forward(builder, &heads, parts, [inputs, outputs], &inputs[1..])?;
        }
        Kernel::CachedAttention(attention) => {
            let [qkv, caches] = [&inputs[0], &outputs[2]];
            let heads = Heads::beside_cache(attention, qkv, caches, kernel.name())?;
            let [q, new_k, new_v] = heads.parts(builder.pointer(qkv));
            let [k, v] = [&outputs[2], &outputs[3]].map(|view| builder.pointer(view));
            let operands = [inputs, outputs];
            if heads.queries == 1 && !heads.is_empty() {
                let defines = heads.defines(inputs.iter().chain(outputs));
                let [out, log_sum_exp] = [&outputs[0], &outputs[1]].map(|view| builder.pointer(view));
                let places = builder.pointer(&inputs[1]);
                let arguments = [q, k, v, new_k, new_v, out, log_sum_exp, places];
                decode::add(builder, &heads, &defines, arguments, [&inputs[1], &outputs[2], &outputs[3]])?;
            } else {
                for (from, to) in [(new_k, &outputs[2]), (new_v, &outputs[3])] {
                    rows::copy::append_columns(builder, (qkv, from), &inputs[1], to)?;
                }
                forward(builder, &heads, [q, k, v], operands, &inputs[1..])?;
            }
        }
        Kernel::Op(Op::AttentionGrad(attention)) => {
            let heads = Heads::apart(attention, &inputs[1], &inputs[2], kernel.name())?;
            let parts = [&inputs[1], &inputs[2], &inputs[3]].map(|view| builder.pointer(view));
            let gradients = [&outputs[0], &outputs[1], &outputs[2]].map(|view| builder.pointer(view));
            backward(builder, &heads, [parts, gradients], [inputs, outputs], &inputs[4..], None)?;
        }
        Kernel::JointAttentionGrad(attention) | Kernel::JointAttentionGrads { of: attention, .. } => {
            let heads = Heads::joint(attention, &inputs[1], kernel.name())?;
            let parts = heads.parts(builder.pointer(&inputs[1]));
            let gradients = heads.parts(builder.pointer(&outputs[0]));
            let adds = match kernel {
                Kernel::JointAttentionGrads { add, .. } => Some(*add),
                _ => None,
            };
            backward(builder, &heads, [parts, gradients], [inputs, outputs], &inputs[2..], adds)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// `[inputs, outputs]` are all operands; `extras` those behind queries, keys and values: places, then borders.
fn forward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    [q, k, v]: [Arg; 3],
    [inputs, outputs]: [&[View]; 2],
    extras: &[View],
) -> Result<()> {
    if heads.is_empty() {
        return Ok(());
    }
    let attention = &heads.attention;
    let defines = heads.defines(inputs.iter().chain(outputs));
    let [out, log_sum_exp] = [&outputs[0], &outputs[1]].map(|view| builder.pointer(view));
    let places = if attention.cached { builder.pointer(&extras[0]) } else { Arg::Pointer(0) };
    if heads.suits_warpgroups(builder, inputs.iter().chain(outputs)) {
        return warpgroups::forward(builder, heads, [q, k, v], [out, log_sum_exp]);
    }
    if attention.cached && heads.queries == 1 {
        let nothing = Arg::Pointer(0);
        let arguments = [q, k, v, nothing, nothing, out, log_sum_exp, places];
        return decode::add(builder, heads, &defines, arguments, [&extras[0], &inputs[1], &inputs[2]]);
    }
    tiles::forward(builder, heads, &defines, [q, k, v, out, log_sum_exp, places], extras.last())
}

/// `[inputs, outputs]` are all operands, the first of them the gradient of the output; `extras` those behind queries, keys and
/// values: the output, its log-sum-exp, then borders. With `adds` the second output takes the sums of the rows of the first, or they
/// are added to it.
fn backward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [[Arg; 3]; 2],
    operands: [&[View]; 2],
    extras: &[View],
    adds: Option<bool>,
) -> Result<()> {
    let [inputs, outputs] = operands;
    if heads.suits_warpgroups(builder, inputs.iter().chain(outputs)) && !heads.is_empty() {
        let [d_out, out, log_sum_exp] =
            [&inputs[0], &extras[0], &extras[1]].map(|view| builder.pointer(view));
        let sums = adds.map(|adds| (&outputs[1..], adds));
        let [parts, gradients] = parts;
        return warpgroups::backward(
            builder,
            heads,
            parts,
            [d_out, out, log_sum_exp],
            Gradients::Halves(gradients),
            sums,
        );
    }
    tiles::backward(builder, heads, parts, operands, extras)?;
    if let Some(add) = adds {
        let sum = Kernel::OpInto { op: Op::LinearGradBias, add };
        rows::add(builder, &sum, &outputs[..1], &outputs[1..])?;
    }
    Ok(())
}

/// The gradient of heads side by side, `(d_out, qkv, out, log-sum-exp)`, into working memory.
pub(super) fn backward_joint(
    builder: &mut Builder<'_>,
    heads: &Heads,
    inputs: &[View],
    gradient: Arg,
) -> Result<()> {
    let parts = [builder.pointer(&inputs[1]), gradient].map(|qkv| heads.parts(qkv));
    backward(builder, heads, parts, [inputs, &[]], &inputs[2..], None)
}

/// The same in eight bits, by warpgroups.
pub(super) fn backward_in_bytes(
    builder: &mut Builder<'_>,
    heads: &Heads,
    inputs: &[View],
    to: InBytes,
    sums: Option<(&[View], bool)>,
) -> Result<()> {
    let parts = heads.parts(builder.pointer(&inputs[1]));
    let known = [0, 2, 3].map(|index| builder.pointer(&inputs[index]));
    warpgroups::backward(builder, heads, parts, known, Gradients::Bytes(to), sums)
}
