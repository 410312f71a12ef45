//! Weights of eight bits on a card: where they lie, how they get there, and what reads them.
//!
//! A frozen matrix takes the first part of its own place, as `kernels/int8.cuh` lays it out. A step of few rows and products of up to
//! [`MOST_ROWS`] rows read it as it lies. For all others it is widened in working memory first, where it stands in for the weight that
//! they know.

use std::collections::BTreeMap;

use super::{
    Cuda,
    alone::Alone,
    call::{Arg, Builder, Grid},
    linear::{self, Shaped},
    modules::Source,
    views::meet,
};
use crate::{
    device::{BufferId, Launch, View},
    error::{Error, Result},
    int8::GROUP,
    kernel::Kernel,
    op::Op,
    tensor::DType,
};

/// The numbers of `kernels/int8.cuh`.
const STEP: usize = 32;
const TILE: usize = 8;
pub(super) const CHUNK: usize = 4;
const ROW_BYTES: usize = CHUNK * STEP;
const ROW_SCALE_BYTES: usize = ROW_BYTES / GROUP * size_of::<f32>();
pub(super) const CHUNK_BYTES: usize = TILE * (ROW_BYTES + ROW_SCALE_BYTES);
/// The most rows whose products read eight bits: with more, rows take longer to read than a weight to widen.
const MOST_ROWS: usize = 8;
const THREADS: usize = 256;

/// The size of a frozen matrix, from which follows where its numbers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub rows: usize,
    pub columns: usize,
}

impl Sizes {
    pub fn of(view: &View) -> Self {
        Sizes { rows: view.of.shape.rows(), columns: view.of.shape.columns() }
    }

    fn tile_bytes(self) -> usize {
        self.columns.div_ceil(ROW_BYTES) * CHUNK_BYTES
    }

    /// Bytes of the whole matrix.
    pub fn bytes(self) -> usize {
        self.rows.div_ceil(TILE) * self.tile_bytes()
    }

    /// Where a number lies, and the scale of its group.
    fn places(self, row: usize, column: usize) -> [usize; 2] {
        let (step, place) = (column / STEP, row % TILE);
        let chunk = row / TILE * self.tile_bytes() + step / CHUNK * CHUNK_BYTES;
        let scales = chunk + TILE * ROW_BYTES + place * ROW_SCALE_BYTES;
        [
            chunk + place * ROW_BYTES + (step + place) % CHUNK * STEP + column % STEP,
            scales + column % ROW_BYTES / GROUP * size_of::<f32>(),
        ]
    }

    /// The numbers, row by row.
    pub fn take_apart(self, bytes: &[u8], mut give: impl FnMut(usize, f32)) {
        for row in 0..self.rows {
            for column in 0..self.columns {
                let [number, scale] = self.places(row, column);
                let scale = f32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[scale + byte]));
                give(row * self.columns + column, f32::from(bytes[number] as i8) * scale);
            }
        }
    }
}

/// The frozen matrices of a device, by the places that they had before.
#[derive(Default)]
pub(super) struct Matrices(BTreeMap<(BufferId, usize), View>);

impl Matrices {
    pub fn insert(&mut self, matrix: &View) {
        self.0.insert((matrix.buffer, matrix.offset_bytes), *matrix);
    }

    pub fn forget(&mut self, buffer: BufferId) {
        self.0.retain(|key, _| key.0 != buffer);
    }

    /// The matrix, where it is frozen.
    pub fn find(&self, view: &View) -> Option<Sizes> {
        let found = self.0.get(&(view.buffer, view.offset_bytes))?;
        (found.of == view.of).then(|| Sizes::of(found))
    }

    /// Those that have bytes in common with a view.
    pub fn overlapping<'a>(&'a self, view: &'a View) -> impl Iterator<Item = &'a View> {
        self.0
            .range((view.buffer, 0)..=(view.buffer, usize::MAX))
            .map(|(_, other)| other)
            .filter(|other| meet(view, other))
    }

    /// Refuses what would see numbers in an order that it does not know.
    pub fn check(&self, Launch { kernel, inputs, outputs }: &Launch) -> Result<()> {
        let fail = |what: &str, view: &View| {
            let detail =
                format!("{what} {} is frozen in eight bits, and this kernel needs it as it was", view.of);
            Err(Error::Binding { kernel: kernel.name(), detail })
        };
        for (index, view) in inputs.iter().enumerate() {
            let is_known = self.find(view).is_some() && read_by(kernel) == Some(index);
            if !is_known && self.overlapping(view).next().is_some() {
                return fail("input", view);
            }
        }
        match outputs.iter().find(|view| self.overlapping(view).next().is_some()) {
            Some(view) => fail("output", view),
            None => Ok(()),
        }
    }
}

/// The input that a kernel reads as it lies in eight bits, or widened.
fn read_by(kernel: &Kernel) -> Option<usize> {
    match kernel {
        Kernel::Op(Op::Embed) => Some(0),
        Kernel::Op(Op::Linear { .. }) | Kernel::LinearGelu { .. } => Some(1),
        Kernel::HeadLoss(of) if !of.has_gradient() && !of.products.is_eight_bits() => Some(1),
        _ => None,
    }
}

fn looping(builder: &Builder<'_>, threads_wanted: usize) -> Grid {
    const BLOCKS_EACH: usize = 16;
    let most = BLOCKS_EACH * builder.multiprocessors().max(1);
    Grid::new(threads_wanted.div_ceil(THREADS).clamp(1, most), THREADS as u32)
}

impl Cuda {
    /// Gives the numbers of all frozen matrices inside a view, with their places among its own.
    pub(super) fn read_frozen(&self, from: &View, mut give: impl FnMut(usize, f32)) -> Result<()> {
        let unit = from.of.dtype.bytes();
        for matrix in self.frozen.overlapping(from) {
            let (start, elements) = (matrix.offset_bytes, matrix.of.shape.elements());
            let is_inside = start >= from.offset_bytes
                && start + elements * unit <= from.offset_bytes + from.of.shape.elements() * unit
                && matrix.of.dtype == from.of.dtype;
            if !is_inside {
                let detail = format!("a part of {}, which is frozen", matrix.of);
                return Err(Error::Binding { kernel: "download", detail });
            }
            let sizes = Sizes::of(matrix);
            let mut bytes = Vec::with_capacity(sizes.bytes());
            let address = self.memory("download", matrix)?;
            self.staging
                .borrow_mut()
                .download(address, sizes.bytes(), 1, |_, piece| bytes.extend_from_slice(piece))?;
            let first = (start - from.offset_bytes) / unit;
            sizes.take_apart(&bytes, |index, value| give(first + index, value));
        }
        Ok(())
    }

    /// Puts a matrix into eight bits in its own place, or rounds it to what they would stand for where they need more room.
    pub(super) fn freeze_in_int8(&mut self, matrix: &View, numbers: &View) -> Result<()> {
        self.driver.make_current(self.context)?;
        let (place, source) = (self.memory("freeze", matrix)?, self.memory("freeze", numbers)?);
        let (sizes, room) = (Sizes::of(matrix), matrix.of.shape.elements() * matrix.of.dtype.bytes());
        if self.frozen.find(matrix).is_some() {
            return Ok(());
        }
        if numbers.of.dtype != DType::F32 || numbers.of.shape != matrix.of.shape {
            let detail = format!("{} from {}", matrix.of, numbers.of);
            return Err(Error::Binding { kernel: "freeze", detail });
        }
        self.staging.get_mut().deliver()?;
        let fits = sizes.bytes() <= room && place.is_multiple_of(16);
        // What is read and written at once goes through memory of its own.
        let beside = if fits && place == source { Some(self.driver.allocate(sizes.bytes())?) } else { None };
        let frozen = self.run_once(|builder| match fits {
            true => freeze(builder, numbers, Arg::Pointer(beside.unwrap_or(place))),
            false => round(builder, numbers, matrix),
        });
        let moved = match beside {
            Some(from) => frozen.and_then(|()| self.driver.copy(place, from, sizes.bytes(), self.stream)),
            None => frozen,
        };
        let ended = moved.and_then(|()| self.driver.synchronize(self.stream));
        self.driver.free(beside.unwrap_or(0));
        ended?;
        self.forget_sequences(matrix.buffer);
        if fits {
            self.frozen.insert(matrix);
        }
        Ok(())
    }

    /// Puts calls on the stream that need no working memory and run once.
    fn run_once(&mut self, fill: impl FnOnce(&mut Builder<'_>) -> Result<()>) -> Result<()> {
        let _alone = Alone::take();
        let buffers = std::mem::take(&mut self.buffers);
        let address = |id: BufferId| match buffers.get(id.0) {
            Some(Some(buffer)) => buffer.address,
            _ => 0,
        };
        let mut builder = self.builder(&address);
        let calls = fill(&mut builder).and_then(|()| builder.finish(0, 0));
        self.buffers = buffers;
        calls?.every_run.iter().try_for_each(|call| self.issue(call))
    }
}

/// Adds what makes a matrix of eight bits at `to` from its numbers in f32.
fn freeze(builder: &mut Builder<'_>, numbers: &View, to: Arg) -> Result<()> {
    let Sizes { rows, columns } = Sizes::of(numbers);
    let arguments = [builder.pointer(numbers), to, rows.into(), columns.into()];
    let grid = looping(builder, rows.next_multiple_of(TILE) * columns.div_ceil(GROUP) * 32);
    builder.kernel(Source::Int8, "to_int8", DType::F32, &[], grid, &arguments)
}

/// Adds what rounds a matrix to the numbers that eight bits would stand for and leaves it in its type.
fn round(builder: &mut Builder<'_>, numbers: &View, matrix: &View) -> Result<()> {
    let Sizes { rows, columns } = Sizes::of(numbers);
    let arguments = [builder.pointer(numbers), builder.pointer(matrix), rows.into(), columns.into()];
    let grid = looping(builder, rows * columns.div_ceil(GROUP) * 32);
    builder.kernel(Source::Int8, "round_to_int8", matrix.of.dtype, &[], grid, &arguments)
}

/// Adds the calls of a launch that reads a frozen matrix; false for any other.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let Some(index) = read_by(kernel) else { return Ok(false) };
    let matrix = &inputs[index];
    let Some(sizes) = builder.int8(matrix) else { return Ok(false) };
    match kernel {
        Kernel::Op(Op::Embed) => embed(builder, sizes, inputs, outputs)?,
        &Kernel::Op(Op::Linear { bias, products }) | &Kernel::LinearGelu { bias, products, slope: false }
            if few_rows(builder, [inputs, outputs], bias, products)? => {}
        _ => {
            let wide = widen(builder, matrix, sizes)?;
            builder.stand_in(matrix, wide);
            let is_added = linear::add(builder, kernel, inputs, outputs);
            builder.end_stand_in();
            return is_added;
        }
    }
    Ok(true)
}

fn embed(builder: &mut Builder<'_>, sizes: Sizes, inputs: &[View], outputs: &[View]) -> Result<()> {
    let rows = inputs[1].of.shape.elements();
    let arguments = [
        builder.pointer(&inputs[0]),
        builder.pointer(&inputs[1]),
        builder.pointer(&outputs[0]),
        Arg::U64(rows as u64),
        sizes.columns.into(),
        sizes.rows.into(),
        Arg::Fault,
    ];
    let grid = looping(builder, 32 * rows);
    builder.kernel(Source::Int8, "embed_int8", outputs[0].of.dtype, &[], grid, &arguments)
}

/// A product of few rows; false where it needs the weight widened.
fn few_rows(builder: &mut Builder<'_>, views: [&[View]; 2], bias: bool, products: DType) -> Result<bool> {
    let Some(Shaped { real, operands, sizes }) = linear::shaped(builder, views, bias, products) else {
        return Ok(false);
    };
    let [rows, _, depth] = sizes;
    // A lane has eight numbers of a row.
    if rows > MOST_ROWS || !depth.is_multiple_of(8) {
        return Ok(false);
    }
    linear::few_rows(builder, real, operands, sizes, true).map(|()| true)
}

/// Adds the widening of a matrix to its type, and says where it is then.
fn widen(builder: &mut Builder<'_>, matrix: &View, Sizes { rows, columns }: Sizes) -> Result<Arg> {
    let real = matrix.of.dtype;
    let wide = builder.scratch(rows * columns * real.bytes());
    let arguments = [builder.pointer(matrix), wide, rows.into(), columns.into()];
    let grid = looping(builder, rows * columns.div_ceil(8));
    builder.kernel(Source::Int8, "from_int8", real, &[], grid, &arguments)?;
    Ok(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own_and_shares_its_scale_with_its_group() {
        for (rows, columns) in [(8, 256), (17, 768), (3, 1600), (9, 100), (1, 1)] {
            let sizes = Sizes { rows, columns };
            let mut owners = vec![None; sizes.bytes()];
            for row in 0..rows {
                for column in 0..columns {
                    let [number, scale] = sizes.places(row, column);
                    assert!(owners[number].replace((row, column, false)).is_none());
                    assert!(scale.is_multiple_of(size_of::<f32>()));
                    let group = (row, column / GROUP, true);
                    for byte in &mut owners[scale..scale + size_of::<f32>()] {
                        assert!(byte.is_none_or(|other| other == group), "{row}, {column}");
                        *byte = Some(group);
                    }
                }
            }
        }
    }

    #[test]
    fn a_number_takes_eight_and_a_half_bits() {
        assert_eq!(Sizes { rows: 768, columns: 768 }.bytes(), 768 * 768 * 17 / 16);
        // Chunks that are begun are whole.
        assert_eq!(Sizes { rows: 8, columns: 1600 }.bytes(), Sizes { rows: 7, columns: 1664 }.bytes());
    }
}
