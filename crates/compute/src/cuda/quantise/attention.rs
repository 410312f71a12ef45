//! The gradient of an attention in eight bits: by `attention_hopper.cu` at once, or one after the other.

use super::{Copies, Sampled, quantise};
use crate::{
    cuda::{
        attention::{self, Heads, InBytes},
        call::Builder,
    },
    device::View,
    error::Result,
    quantise::QuantisedAttentionGrad,
};

/// See [`QuantisedAttentionGrad`] for the operands.
pub(super) fn add(
    builder: &mut Builder<'_>,
    of: &QuantisedAttentionGrad,
    inputs: &[View],
    outputs: &[View],
) -> Result<()> {
    let (d_out, qkv) = (&inputs[0], &inputs[1]);
    let heads = Heads::joint(&of.of, qkv, "quantise_attention_grad")?;
    let copies = of.copies(heads.positions());
    if !heads.suits_warpgroups(builder, inputs.iter().chain(outputs)) {
        let gradient = builder.scratch(qkv.of.shape.elements() * qkv.of.dtype.bytes());
        attention::backward_joint(builder, &heads, inputs, gradient)?;
        let operands = [(gradient, qkv), (builder.pointer(d_out), d_out)];
        let operands = operands.map(|(at, view)| (at, view.of.shape.columns()));
        return quantise(builder, &copies, (&operands, qkv.of), outputs);
    }
    let of_out = Sampled::stored(builder.pointer(d_out), d_out.of.dtype, d_out.of.shape.rows());
    let partials = of_out.largest(builder, d_out.of.shape.columns())?;
    let Copies { unit, as_it_is: Some(rows), transposed: Some(transposed), .. } =
        Copies::new(builder, &copies, outputs)
    else {
        unreachable!("both copies are wanted");
    };
    let bytes = InBytes { rows, transposed, partials, unit, top: copies.top().1 as u32 };
    let sums = of.sums.map(|adds| (&outputs[outputs.len() - 1..], adds));
    attention::backward_in_bytes(builder, &heads, inputs, bytes, sums)
}
