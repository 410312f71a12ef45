//! Numbers between the host's types and the stored ones.

use super::quantise;
use crate::{
    device::{HostData, View},
    error::{Error, Result},
    tensor::DType,
};

pub(super) fn check_length(view: &View, host: usize) -> Result<()> {
    let elements = view.of.shape.elements();
    if elements == host {
        return Ok(());
    }
    let detail = format!("{host} elements for a view of {elements}");
    Err(Error::Binding { kernel: "download", detail })
}

/// Writes elements of host data from index `first` on as the device stores them.
pub(super) fn encode(dtype: DType, data: HostData<'_>, first: usize, out: &mut [u8]) {
    // What is stored as it comes is copied in one go.
    match (dtype, data) {
        (DType::F32, HostData::F32(data)) => {
            return out.copy_from_slice(&bytemuck::cast_slice(&data[first..])[..out.len()]);
        }
        (DType::U32, HostData::U32(data)) => {
            return out.copy_from_slice(&bytemuck::cast_slice(&data[first..])[..out.len()]);
        }
        _ => {}
    }
    fn each<A: Copy, const N: usize>(data: &[A], out: &mut [u8], convert: impl Fn(A) -> [u8; N]) {
        for (to, &from) in out.chunks_exact_mut(N).zip(data) {
            to.copy_from_slice(&convert(from));
        }
    }
    fn real<A: Copy>(
        dtype: DType,
        data: &[A],
        out: &mut [u8],
        single: impl Fn(A) -> f32,
        index: impl Fn(A) -> u32,
    ) {
        match dtype {
            DType::F32 => each(data, out, |x| single(x).to_le_bytes()),
            DType::BF16 => each(data, out, |x| half::bf16::from_f32(single(x)).to_le_bytes()),
            DType::F16 => each(data, out, |x| half::f16::from_f32(single(x)).to_le_bytes()),
            DType::E4M3 | DType::E5M2 => each(data, out, |x| [quantise::encode(dtype, single(x))]),
            DType::U32 => each(data, out, |x| index(x).to_le_bytes()),
        }
    }
    match data {
        HostData::F32(data) => real(dtype, &data[first..], out, |x| x, |x| x as u32),
        HostData::F64(data) => real(dtype, &data[first..], out, |x| x as f32, |x| x as u32),
        HostData::U32(data) => real(dtype, &data[first..], out, |x| x as f32, |x| x),
    }
}

/// Gives every stored element with its index.
pub(super) fn decode(dtype: DType, bytes: &[u8], mut give: impl FnMut(usize, f64)) {
    let four = |piece: &[u8]| [piece[0], piece[1], piece[2], piece[3]];
    let two = |piece: &[u8]| [piece[0], piece[1]];
    for (index, piece) in bytes.chunks_exact(dtype.bytes()).enumerate() {
        let value = match dtype {
            DType::F32 => f64::from(f32::from_le_bytes(four(piece))),
            DType::U32 => f64::from(u32::from_le_bytes(four(piece))),
            DType::BF16 => half::bf16::from_le_bytes(two(piece)).to_f64(),
            DType::F16 => half::f16::from_le_bytes(two(piece)).to_f64(),
            DType::E4M3 | DType::E5M2 => quantise::decode(dtype, piece[0]),
        };
        give(index, value);
    }
}
