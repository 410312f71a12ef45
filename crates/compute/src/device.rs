//! What a backend promises: memory, transfers, and running a list of launches.

use std::{ops::Range, time::Duration};

use crate::{
    error::{Error, Result},
    kernel::Kernel,
    tensor::{DType, TensorType},
};

/// A piece of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub(crate) usize);

/// A list of launches that a device has bound to its memory and made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceId(pub(crate) usize);

/// A read of a few numbers that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadId(pub(crate) usize);

/// The most numbers of one read that is begun and ended.
pub const READ_NUMBERS: usize = 16;
/// How many such reads may be under way.
pub const READS: usize = 4;

/// A tensor at its place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer it lies in.
    pub buffer: BufferId,
    /// Where it starts.
    pub offset_bytes: usize,
    /// Its shape and element type.
    pub of: TensorType,
}

/// A kernel with the places of its operands. Outputs that are state may be read before they are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What to run.
    pub kernel: Kernel,
    /// What it reads.
    pub inputs: Vec<View>,
    /// What it writes. No output overlaps an input or another output.
    pub outputs: Vec<View>,
}

/// Elements on their way to a device, converted to what the view stores.
#[derive(Clone, Copy, Debug)]
pub enum HostData<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision, for checking derivatives on the reference backend.
    F64(&'a [f64]),
    /// Indices.
    U32(&'a [u32]),
}

impl HostData<'_> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            HostData::F32(data) => data.len(),
            HostData::F64(data) => data.len(),
            HostData::U32(data) => data.len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a matrix that is never written again is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// Every number as it was written.
    Exact,
    /// In eight bits, as [`int8`](crate::int8) says: every number moves by up to half a scale.
    Int8,
}

/// A backend: the only thing that knows where numbers live and how they are computed.
pub trait Device: Send {
    /// The backend's short name.
    fn name(&self) -> &'static str;

    /// One line for people: the processor, its instruction set and threads.
    fn describe(&self) -> String;

    /// Bytes an element of this type takes in this device's memory.
    fn element_bytes(&self, dtype: DType) -> usize;

    /// New memory, zeroed, aligned to 256 bytes.
    fn allocate(&mut self, bytes: usize) -> Result<BufferId>;

    /// Memory of which only parts may ever be needed. Only those that [`Device::back`] was asked for may be used; where a device can, it
    /// takes no memory for others.
    fn reserve(&mut self, bytes: usize) -> Result<BufferId> {
        self.allocate(bytes)
    }

    /// Makes sure that there is memory, zeroed at first, for these bytes of a reserved buffer. What is there stays as it is.
    fn back(&mut self, buffer: BufferId, bytes: Range<usize>) -> Result<()> {
        let _ = (buffer, bytes);
        Ok(())
    }

    /// Gives memory back. Sequences that name it can no longer be run.
    fn free(&mut self, buffer: BufferId);

    /// Writes all elements of a view.
    fn upload(&mut self, to: &View, data: HostData<'_>) -> Result<()>;

    /// Says that a matrix, whose rows products multiply with rows of the same length, is never written again. A device may then
    /// keep it in another order, in which they read it faster: what is bound from now on finds it so, a download gives its
    /// numbers, and writing is refused. Sequences that were bound before and name it can no longer be run.
    ///
    /// `numbers` are those of the matrix in f32: itself, or what it is a copy of in another type, and then nobody reads the copy's own numbers
    /// again. In eight bits, a device that has such products rounds them first; a matrix of a few lines may take as much room as before.
    fn freeze(&mut self, matrix: &View, numbers: &View, how: Frozen) -> Result<()> {
        let _ = (matrix, numbers);
        match how {
            Frozen::Exact => Ok(()),
            Frozen::Int8 => Err(Error::NoInt8 { device: self.name() }),
        }
    }

    /// Reads all elements of a view as single precision.
    fn download(&self, from: &View, out: &mut [f32]) -> Result<()>;

    /// Reads all elements of a view as double precision.
    fn download_f64(&self, from: &View, out: &mut [f64]) -> Result<()>;

    /// Bytes of the device's memory that are in use since it was opened, where that is known.
    fn used_bytes(&self) -> Option<usize>;

    /// Whether gradients of products with GELU or a gate, with activations of this type, are faster with slopes, kept in place of what
    /// they are slopes at.
    fn keeps_slopes(&self, _activations: DType) -> bool {
        false
    }

    /// Whether `run` may return before the work is done, so that the caller can prepare what comes next meanwhile.
    fn runs_ahead(&self) -> bool;

    /// Begins to read f32 views of at most [`READ_NUMBERS`] numbers together, as they are when everything that was run so far
    /// has ended. Of the reads that are begun, the last [`READS`] can be ended.
    fn begin_read(&mut self, views: &[View]) -> Result<ReadId>;

    /// Waits for a read and gives its numbers.
    fn end_read(&mut self, read: ReadId, out: &mut [f32]) -> Result<()>;

    /// Checks launches against memory and makes them ready to run, in this order.
    fn bind(&mut self, launches: &[Launch]) -> Result<SequenceId>;

    /// The same where nobody looks at anything but state afterwards, so that a device may leave other values out.
    fn bind_for_state(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        self.bind(launches)
    }

    /// Forgets a bound sequence.
    fn unbind(&mut self, sequence: SequenceId);

    /// Runs a bound sequence to its end. Allocates nothing.
    fn run(&mut self, sequence: SequenceId) -> Result<()>;

    /// Runs a bound sequence so many times, one after the other.
    fn run_times(&mut self, sequence: SequenceId, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| self.run(sequence))
    }

    /// Does the same and says how long each launch took, from the end of the one before. `times` has a place for each.
    fn run_timed(&mut self, sequence: SequenceId, times: &mut [Duration]) -> Result<()>;
}

/// Numbers that were read at once, for devices that do not run ahead.
#[derive(Default)]
pub(crate) struct Reads {
    slots: [[f32; READ_NUMBERS]; READS],
    next: usize,
}

impl Reads {
    /// Reads views one behind the other with a device's own download.
    pub fn begin(
        &mut self,
        views: &[View],
        download: impl Fn(&View, &mut [f32]) -> Result<()>,
    ) -> Result<ReadId> {
        let read = ReadId(self.next);
        let slot = &mut self.slots[self.next % READS];
        let mut start = 0;
        for view in views {
            let end = start + view.of.shape.elements();
            download(view, check_read(slot, start, end)?)?;
            start = end;
        }
        self.next += 1;
        Ok(read)
    }

    /// The numbers of a read.
    pub fn end(&self, read: ReadId, out: &mut [f32]) -> Result<()> {
        let len = out.len();
        let mut slot = self.slots[read.0 % READS];
        out.copy_from_slice(check_read(&mut slot, 0, len)?);
        Ok(())
    }
}

/// A part of a read's numbers, if there are as many.
pub(crate) fn check_read(slot: &mut [f32; READ_NUMBERS], start: usize, end: usize) -> Result<&mut [f32]> {
    slot.get_mut(start..end).ok_or_else(|| Error::Binding {
        kernel: "read",
        detail: format!("{end} numbers where a read has at most {READ_NUMBERS}"),
    })
}

/// Refuses a list of times that does not have a place for every launch.
pub(crate) fn check_times(launches: usize, times: usize) -> Result<()> {
    if launches == times {
        return Ok(());
    }
    Err(Error::Binding { kernel: "run_timed", detail: format!("{times} times for {launches} launches") })
}

/// Whether the bytes of two views meet, on a device where elements take `bytes_a` and `bytes_b`.
pub(crate) fn overlap(a: &View, bytes_a: usize, b: &View, bytes_b: usize) -> bool {
    a.buffer == b.buffer
        && a.offset_bytes < b.offset_bytes + b.of.shape.elements() * bytes_b
        && b.offset_bytes < a.offset_bytes + a.of.shape.elements() * bytes_a
}
