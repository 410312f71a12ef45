//! Moves and conversions.

use super::{
    super::{
        call::{Arg, Builder},
        modules::Source,
    },
    Launch, all_aligned, count, flag, is_aligned, looping, width,
};
use crate::{device::View, error::Result, tensor::DType};

/// The largest unit that all addresses and lengths in bytes are a multiple of, with the names of its kernels.
fn unit(addresses: &[Arg], lengths: &[usize]) -> Unit {
    let fits = |bytes: usize| {
        addresses.iter().all(|&at| is_aligned(at, bytes))
            && lengths.iter().all(|length| length.is_multiple_of(bytes))
    };
    UNITS.into_iter().find(|unit| fits(unit.bytes)).unwrap_or(UNITS[UNITS.len() - 1])
}

#[derive(Clone, Copy)]
struct Unit {
    bytes: usize,
    copy_columns: &'static str,
    cache_append: &'static str,
    cache_copy: &'static str,
}

const UNITS: [Unit; 4] = [
    Unit {
        bytes: 16,
        copy_columns: "copy_columns_16",
        cache_append: "cache_append_16",
        cache_copy: "cache_copy_16",
    },
    Unit {
        bytes: 8,
        copy_columns: "copy_columns_8",
        cache_append: "cache_append_8",
        cache_copy: "cache_copy_8",
    },
    Unit {
        bytes: 4,
        copy_columns: "copy_columns_4",
        cache_append: "cache_append_4",
        cache_copy: "cache_copy_4",
    },
    Unit {
        bytes: 2,
        copy_columns: "copy_columns_2",
        cache_append: "cache_append_2",
        cache_copy: "cache_copy_2",
    },
];

/// Some columns of rows, in bytes.
#[derive(Clone, Copy)]
struct Columns {
    at: Arg,
    stride: usize,
}

/// Copies `length` bytes of each row.
fn copy_columns(
    builder: &mut Builder<'_>,
    from: Columns,
    to: Columns,
    rows: usize,
    length: usize,
) -> Result<()> {
    if rows * length == 0 {
        return Ok(());
    }
    let unit = unit(&[from.at, to.at], &[from.stride, to.stride, length]);
    let units = |bytes: usize| bytes / unit.bytes;
    let grid = looping(builder, rows * units(length));
    let arguments = [
        from.at,
        to.at,
        count(rows),
        units(length).into(),
        count(units(from.stride)),
        count(units(to.stride)),
    ];
    builder.kernel(Source::Copy, unit.copy_columns, DType::F32, &[], grid, &arguments)
}

fn row_bytes(view: &View) -> usize {
    view.of.shape.columns() * view.of.dtype.bytes()
}

pub(super) fn split(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    launch.real(launch.inputs.iter().chain(launch.outputs))?;
    let whole = &launch.inputs[0];
    let (mut at, stride) = (builder.pointer(whole), row_bytes(whole));
    for part in launch.outputs {
        let length = row_bytes(part);
        let to = Columns { at: builder.pointer(part), stride: length };
        copy_columns(builder, Columns { at, stride }, to, whole.of.shape.rows(), length)?;
        at = at.plus(length);
    }
    Ok(())
}

pub(super) fn concat(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    launch.real(launch.inputs.iter().chain(launch.outputs))?;
    let whole = &launch.outputs[0];
    let (mut at, stride) = (builder.pointer(whole), row_bytes(whole));
    for part in launch.inputs {
        let length = row_bytes(part);
        let from = Columns { at: builder.pointer(part), stride: length };
        copy_columns(builder, from, Columns { at, stride }, whole.of.shape.rows(), length)?;
        at = at.plus(length);
    }
    Ok(())
}

pub(super) fn cache_append(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let (new, cache) = (&launch.inputs[0], &launch.outputs[0]);
    launch.real([new, cache])?;
    append_columns(builder, (new, builder.pointer(new)), &launch.inputs[1], cache)
}

/// Takes columns of `new` into a cache, from an address on, as many as the cache has.
pub(in super::super) fn append_columns(
    builder: &mut Builder<'_>,
    (new, from): (&View, Arg),
    places: &View,
    cache: &View,
) -> Result<()> {
    let dims = |view: &View| [0, 1].map(|axis| view.of.shape.dims()[axis]);
    let ([samples, positions], [rows, capacity]) = (dims(new), dims(cache));
    let (to, places) = (builder.pointer(cache), builder.pointer(places));
    let unit = unit(&[from, to], &[row_bytes(new), row_bytes(cache)]);
    let (stride, length) = (row_bytes(new) / unit.bytes, row_bytes(cache) / unit.bytes);
    let grid = looping(builder, samples * positions * length);
    let arguments = [
        from,
        places,
        to,
        samples.into(),
        positions.into(),
        rows.into(),
        capacity.into(),
        length.into(),
        stride.into(),
    ];
    builder.kernel(Source::Copy, unit.cache_append, DType::F32, &[], grid, &arguments)
}

pub(super) fn cache_copy(builder: &mut Builder<'_>, launch: Launch<'_>) -> Result<()> {
    let cache = &launch.outputs[0];
    launch.real([cache])?;
    let &[rows, capacity, _] = cache.of.shape.dims() else { unreachable!("checked at bind") };
    let moves = launch.inputs[0].of.shape.dims()[0];
    if moves == 0 || cache.of.shape.elements() == 0 {
        return Ok(());
    }
    let at = builder.pointer(cache);
    let unit = unit(&[at], &[row_bytes(cache)]);
    let length = row_bytes(cache) / unit.bytes;
    let mut grid = looping(builder, capacity * length);
    grid.blocks[1] = u32::try_from(moves).expect("a grid's blocks");
    let arguments = [launch.input(builder, 0), at, rows.into(), capacity.into(), length.into()];
    builder.kernel(Source::Copy, unit.cache_copy, DType::F32, &[], grid, &arguments)
}

/// Writes an input of any type into an output of any type, or adds it.
pub(super) fn convert(builder: &mut Builder<'_>, launch: Launch<'_>, adds: bool) -> Result<()> {
    use DType::{BF16, E4M3, E5M2, F16, F32, U32};
    let (from, to) = (launch.inputs[0].of.dtype, launch.outputs[0].of.dtype);
    let elements = launch.outputs[0].of.shape.elements();
    let (x, y) = (launch.input(builder, 0), launch.output(builder, 0));
    let name = match (from, to) {
        (F32, F32) => "convert_f32_f32",
        (F32, BF16) => "convert_f32_bf16",
        (F32, F16) => "convert_f32_f16",
        (BF16, F32) => "convert_bf16_f32",
        (BF16, BF16) => "convert_bf16_bf16",
        (BF16, F16) => "convert_bf16_f16",
        (F16, F32) => "convert_f16_f32",
        (F16, BF16) => "convert_f16_bf16",
        (F16, F16) => "convert_f16_f16",
        (U32, U32) if !adds => {
            let bytes = elements * U32.bytes();
            let whole = |at| Columns { at, stride: bytes };
            return copy_columns(builder, whole(x), whole(y), 1, bytes);
        }
        (U32 | E4M3 | E5M2, _) => return Err(launch.unsupported(from)),
        (_, U32 | E4M3 | E5M2) => return Err(launch.unsupported(to)),
    };
    let is_wide = all_aligned(&[x, y]);
    let pack = if is_wide { width(from).max(width(to)) } else { 1 };
    let grid = looping(builder, elements.div_ceil(pack));
    let arguments = [x, y, count(elements), flag(adds), flag(is_wide)];
    builder.kernel(Source::Copy, name, DType::F32, &[], grid, &arguments)
}
