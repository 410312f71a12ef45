//! Buffers of a device, and the slices that kernels see of them.
//!
//! Inputs and outputs of a launch usually lie in one arena, so a launch needs shared and exclusive slices of one buffer at
//! a time. [`Operation`] is the permit: it can only be made by [`Memory::check`], which refuses operands that overlap, so
//! [`Operands`] can hand out each output once and every input freely.
#![expect(unsafe_code, reason = "inputs and outputs of a launch are disjoint slices of one buffer")]

use std::{alloc::Layout, marker::PhantomData, ops::Range, ptr::NonNull};

use bytemuck::{Pod, Zeroable};

use crate::{
    check,
    device::{BufferId, Frozen, Launch, View},
    error::{Error, Result},
    tensor::{DType, TensorType},
};

/// The device's name in errors.
pub(super) const DEVICE: &str = "cpu";

/// The unit of allocation: 256 bytes at a multiple of 256, so that every view may start on a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(256))]
struct Line([f32; LINE_FLOATS]);

const LINE_FLOATS: usize = 64;

fn out_of_memory(bytes: usize) -> Error {
    Error::OutOfMemory { device: DEVICE, bytes }
}

/// Zeros that begin at a multiple of 256 bytes. A system hands out pages of zeros when they are first touched, so what nobody has
/// written yet takes no memory: a cache takes what its texts have filled.
struct Zeros {
    /// What the system gave, and as what.
    allocation: NonNull<u8>,
    layout: Layout,
    /// Its first line.
    start: *mut f32,
}

// SAFETY: it is the only owner of its memory, which is not bound to a thread.
unsafe impl Send for Zeros {}

impl Zeros {
    fn new(bytes: usize) -> Result<Self> {
        // Systems zero what must begin elsewhere than at their own borders, and touch all of it; so some bytes more are asked for.
        let layout = bytes.checked_add(2 * size_of::<Line>());
        let layout = layout.and_then(|all| Layout::from_size_align(all, align_of::<f32>()).ok());
        let layout = layout.ok_or_else(|| out_of_memory(bytes))?;
        // SAFETY: the layout has a size.
        let allocation = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let allocation = allocation.ok_or_else(|| out_of_memory(bytes))?;
        ask_for_large_pages(allocation.as_ptr(), layout.size());
        let skipped = allocation.as_ptr().align_offset(align_of::<Line>());
        assert!(skipped < size_of::<Line>(), "the next border is within a line");
        // SAFETY: the allocation is longer than what is skipped.
        let start = unsafe { allocation.as_ptr().add(skipped) }.cast();
        Ok(Zeros { allocation, layout, start })
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: it was allocated as this, and is freed once.
        unsafe { std::alloc::dealloc(self.allocation.as_ptr(), self.layout) };
    }
}

/// Bytes of a large page.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 2 << 20;

/// Asks for large pages where whole ones lie inside some memory, before anything is written to it: one page of 2 MiB needs one
/// translation of addresses instead of 512, and weights that are read from end to end arrive up to a fifth sooner.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(start: *mut u8, bytes: usize) {
    // SAFETY: the advice changes no content.
    unsafe { advise_large_pages(start, bytes, rustix::mm::Advice::LinuxHugepage) };
}

/// Gives the whole large pages inside some memory, whose content is no longer needed, back to the system. They read as zeros
/// afterwards, and pages that are in use stay large.
#[cfg(target_os = "linux")]
fn give_back(start: *mut u8, bytes: usize) {
    // SAFETY: nobody needs the content.
    unsafe { advise_large_pages(start, bytes, rustix::mm::Advice::LinuxDontNeed) };
}

/// Advises the system of the whole large pages inside memory that the caller owns. One that does not take the advice goes on as before.
///
/// # Safety
/// The caller can bear what the advice does to the content.
#[cfg(target_os = "linux")]
unsafe fn advise_large_pages(start: *mut u8, bytes: usize, advice: rustix::mm::Advice) {
    let skipped = start.align_offset(LARGE_PAGE);
    let whole = bytes.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
    if whole > 0 {
        // SAFETY: the range lies inside memory that the caller owns, and its content may change by the caller's promise.
        let _ = unsafe { rustix::mm::madvise(start.wrapping_add(skipped).cast(), whole, advice) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: *mut u8, _: usize) {}

#[cfg(not(target_os = "linux"))]
fn give_back(_: *mut u8, _: usize) {}

/// Working memory of kernels: aligned numbers of arbitrary content.
#[derive(Default)]
pub(super) struct Scratch(Vec<Line>);

impl Scratch {
    /// Makes room for at least `floats` numbers.
    pub fn reserve(&mut self, floats: usize) -> Result<()> {
        if self.0.len() * LINE_FLOATS < floats {
            // Freed first, so that old and new do not exist at once.
            self.0 = Vec::new();
            let count = floats.div_ceil(LINE_FLOATS);
            let reserved = self.0.try_reserve_exact(count);
            reserved.map_err(|_| out_of_memory(floats.saturating_mul(size_of::<f32>())))?;
            let room = self.0.spare_capacity_mut();
            ask_for_large_pages(room.as_mut_ptr().cast(), size_of_val(room));
            self.0.resize_with(count, Line::zeroed);
        }
        Ok(())
    }

    /// All of it.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// All buffers of a device. An id is never used twice.
#[derive(Default)]
pub(super) struct Memory {
    buffers: Vec<Option<Buffer>>,
    /// Matrices that are never written again and lie in an order of their own.
    frozen: Vec<Place>,
}

struct Buffer {
    /// Not a slice, because a launch writes one part while it reads another.
    zeros: Zeros,
    bytes: usize,
}

/// A view that was found to lie inside its buffer, in elements of four bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    buffer: BufferId,
    start: usize,
    of: TensorType,
    frozen: Option<Frozen>,
}

impl Place {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.words()
    }

    fn overlaps(&self, other: &Place) -> bool {
        let (own, others) = (self.range(), other.range());
        self.buffer == other.buffer && own.start < others.end && others.start < own.end
    }

    fn is_same(&self, other: &Place) -> bool {
        (self.buffer, self.start, self.of) == (other.buffer, other.start, other.of)
    }

    /// The elements of four bytes that it takes.
    fn words(&self) -> usize {
        self.of.shape.elements() * self.of.dtype.bytes() / size_of::<f32>()
    }
}

/// A frozen matrix inside a view.
pub(super) struct FrozenWords {
    /// The words of the view.
    pub words: Range<usize>,
    /// Rows of the matrix.
    pub rows: usize,
    /// Their order.
    pub how: Frozen,
}

/// The operands of a launch that [`Memory::check`] has found disjoint.
#[derive(Debug)]
pub(super) struct Operation {
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

impl Operation {
    /// Whether an operand lies in this buffer.
    pub fn names(&self, buffer: BufferId) -> bool {
        self.inputs.iter().chain(&self.outputs).any(|place| place.buffer == buffer)
    }

    /// Whether an operand has memory in common with a place.
    pub fn overlaps(&self, place: &Place) -> bool {
        self.inputs.iter().chain(&self.outputs).any(|operand| operand.overlaps(place))
    }

    /// How an input is frozen, if it is.
    pub fn frozen(&self, input: usize) -> Option<Frozen> {
        self.inputs[input].frozen
    }
}

impl Memory {
    /// A new buffer of zeros.
    pub fn allocate(&mut self, bytes: usize) -> Result<BufferId> {
        self.buffers.push(Some(Buffer { zeros: Zeros::new(bytes)?, bytes }));
        Ok(BufferId(self.buffers.len() - 1))
    }

    /// Remembers that a matrix lies in such an order from now on.
    pub fn freeze(&mut self, matrix: &View, how: Frozen) -> Result<Place> {
        let place = Place { frozen: Some(how), ..self.writable("freeze", matrix)? };
        self.frozen.push(place);
        Ok(place)
    }

    /// Gives memory behind the first words of a frozen matrix back to the system, as far as whole large pages are free there.
    pub fn keep_words(&mut self, matrix: &Place, words: usize) {
        let free = matrix.words().saturating_sub(words);
        give_back(self.pointer(matrix).wrapping_add(matrix.words() - free).cast(), free * size_of::<f32>());
    }

    /// Whether exactly this matrix is frozen.
    pub fn is_frozen(&self, matrix: &View) -> Result<bool> {
        Ok(self.place("freeze", matrix)?.frozen.is_some())
    }

    /// The words of a view that frozen matrices take, and how many rows of each lie there in which order.
    pub fn frozen_inside(&self, kernel: &'static str, view: &View) -> Result<Vec<FrozenWords>> {
        let whole = self.inside(kernel, view)?;
        let mut found = Vec::new();
        for frozen in self.frozen.iter().filter(|frozen| frozen.overlaps(&whole)) {
            let (inner, outer) = (frozen.range(), whole.range());
            if inner.start < outer.start || inner.end > outer.end {
                return Err(part_of_frozen(kernel, view));
            }
            let Some(how) = frozen.frozen else { continue };
            let words = inner.start - outer.start..inner.end - outer.start;
            found.push(FrozenWords { words, rows: frozen.of.shape.rows(), how });
        }
        Ok(found)
    }

    /// Gives a buffer back.
    pub fn free(&mut self, buffer: BufferId) {
        if let Some(slot) = self.buffers.get_mut(buffer.0) {
            *slot = None;
        }
        self.frozen.retain(|frozen| frozen.buffer != buffer);
    }

    /// The elements of a view, as the numbers they are stored as; frozen matrices in their own order.
    pub fn read(&self, kernel: &'static str, view: &View) -> Result<&[f32]> {
        let place = self.inside(kernel, view)?;
        let pointer = self.pointer(&place);
        // SAFETY: `pointer` has found the place inside its live buffer; writers need `&mut self`, which the returned
        // borrow of `self` excludes.
        Ok(unsafe { std::slice::from_raw_parts(pointer, place.words()) })
    }

    /// The elements of a view, to be written.
    pub fn write(&mut self, kernel: &'static str, view: &View) -> Result<&mut [f32]> {
        let place = self.writable(kernel, view)?;
        let pointer = self.pointer(&place);
        // SAFETY: `pointer` has found the place inside its live buffer, and `&mut self` excludes every other slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, place.words()) })
    }

    /// Checks that the operands of a launch lie in memory and that no output overlaps another operand.
    pub fn check(&self, launch: &Launch) -> Result<Operation> {
        let kernel = launch.kernel.name();
        check::disjoint(launch)?;
        let inputs = launch.inputs.iter().map(|view| self.place(kernel, view)).collect::<Result<_>>()?;
        let outputs = launch.outputs.iter().map(|view| self.writable(kernel, view)).collect::<Result<_>>()?;
        Ok(Operation { inputs, outputs })
    }

    /// The slices of a launch. They borrow the memory exclusively, so launches cannot run into each other.
    pub fn operands<'a>(&'a mut self, operation: &'a Operation) -> Operands<'a> {
        Operands { memory: self, operation, taken: 0, exclusive: PhantomData }
    }

    /// The place of a view, which is a frozen matrix or touches none.
    fn place(&self, kernel: &'static str, view: &View) -> Result<Place> {
        let place = self.inside(kernel, view)?;
        match self.frozen.iter().find(|frozen| frozen.overlaps(&place)) {
            None => Ok(place),
            Some(frozen) if frozen.is_same(&place) => Ok(*frozen),
            Some(_) => Err(part_of_frozen(kernel, view)),
        }
    }

    /// The place of a view that touches no frozen matrix.
    fn writable(&self, kernel: &'static str, view: &View) -> Result<Place> {
        let place = self.place(kernel, view)?;
        if place.frozen.is_some() {
            let detail = format!("a frozen matrix ({}) is only read", view.of);
            return Err(Error::Binding { kernel, detail });
        }
        Ok(place)
    }

    /// The place of a view that lies in memory, whatever it holds.
    fn inside(&self, kernel: &'static str, view: &View) -> Result<Place> {
        let wrong = |what: String| Error::Binding { kernel, detail: format!("{what} ({})", view.of) };
        // Two numbers of bf16 share a word, so there must be an even number of them.
        let bytes_each = view.of.dtype.bytes();
        let is_known = bytes_each == size_of::<f32>()
            || view.of.dtype == DType::BF16 && view.of.shape.elements().is_multiple_of(2);
        if !is_known {
            return Err(Error::Unsupported { device: DEVICE, kernel, dtype: view.of.dtype });
        }
        let Some(Some(buffer)) = self.buffers.get(view.buffer.0) else {
            return Err(wrong("an operand's buffer does not exist or was freed".into()));
        };
        if !view.offset_bytes.is_multiple_of(size_of::<f32>()) {
            return Err(wrong(format!("an operand starts at byte {}, inside an element", view.offset_bytes)));
        }
        let bytes = view.of.shape.elements().checked_mul(bytes_each);
        if bytes.and_then(|bytes| bytes.checked_add(view.offset_bytes)).is_none_or(|end| end > buffer.bytes) {
            let detail = format!(
                "an operand starts at byte {} and ends past its buffer of {}",
                view.offset_bytes, buffer.bytes
            );
            return Err(wrong(detail));
        }
        let start = view.offset_bytes / size_of::<f32>();
        Ok(Place { buffer: view.buffer, start, of: view.of, frozen: None })
    }

    /// Where a place starts.
    ///
    /// # Panics
    /// When the place does not lie in a living buffer: a sequence was run on memory it was not bound to.
    fn pointer(&self, place: &Place) -> *mut f32 {
        let buffer = self.buffers.get(place.buffer.0).and_then(Option::as_ref);
        let buffer =
            buffer.unwrap_or_else(|| panic!("buffer {:?} was freed before its sequence ran", place.buffer));
        assert!((place.start + place.words()) * size_of::<f32>() <= buffer.bytes);
        // SAFETY: the assertion keeps the result inside the buffer or at its end.
        unsafe { buffer.zeros.start.add(place.start) }
    }
}

/// The order of numbers inside a frozen matrix is the device's own, so it is seen whole or not at all.
fn part_of_frozen(kernel: &'static str, view: &View) -> Error {
    Error::Binding { kernel, detail: format!("an operand ({}) is part of a frozen matrix", view.of) }
}

/// The slices of one launch.
pub(super) struct Operands<'a> {
    memory: &'a Memory,
    operation: &'a Operation,
    /// A bit per output that was handed out.
    taken: u64,
    exclusive: PhantomData<&'a mut Memory>,
}

impl<'a> Operands<'a> {
    /// The numbers of an input; of bf16, two to an element.
    pub fn input(&self, index: usize) -> &'a [f32] {
        let place = &self.operation.inputs[index];
        // SAFETY: `pointer` has found the place inside its live buffer. The memory is borrowed exclusively for 'a, and
        // within the launch only outputs are written, which `Memory::check` found disjoint from every input.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(place), place.words()) }
    }

    /// The indices of an input.
    pub fn indices(&self, index: usize) -> &'a [u32] {
        assert_eq!(self.operation.inputs[index].of.dtype, DType::U32, "checked at bind");
        bytemuck::cast_slice(self.input(index))
    }

    /// The numbers of an output, to read and write; of bf16, two to an element.
    ///
    /// # Panics
    /// When asked for the second time.
    pub fn output(&mut self, index: usize) -> &'a mut [f32] {
        assert!(index < 64 && self.taken >> index & 1 == 0, "output {index} is handed out once");
        self.taken |= 1 << index;
        let place = &self.operation.outputs[index];
        // SAFETY: `pointer` has found the place inside its live buffer. The memory is borrowed exclusively for 'a, no
        // other operand overlaps this output (`Memory::check`), and `taken` keeps this slice the only one of it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer(place), place.words()) }
    }

    /// The indices of an output.
    pub fn output_indices(&mut self, index: usize) -> &'a mut [u32] {
        assert_eq!(self.operation.outputs[index].of.dtype, DType::U32, "checked at bind");
        bytemuck::cast_slice_mut(self.output(index))
    }

    /// How many inputs there are.
    pub fn input_count(&self) -> usize {
        self.operation.inputs.len()
    }

    /// How many outputs there are.
    pub fn output_count(&self) -> usize {
        self.operation.outputs.len()
    }

    /// How an input is frozen, if it is.
    pub fn frozen(&self, index: usize) -> Option<Frozen> {
        self.operation.frozen(index)
    }

    /// The type of an input.
    pub fn input_type(&self, index: usize) -> TensorType {
        self.operation.inputs[index].of
    }

    /// The type of an output.
    pub fn output_type(&self, index: usize) -> TensorType {
        self.operation.outputs[index].of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel::Kernel, op::Op};

    fn view(buffer: BufferId, offset_bytes: usize, len: usize) -> View {
        View { buffer, offset_bytes, of: TensorType::new(&[len], DType::F32) }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let mut memory = Memory::default();
        let buffer = memory.allocate(100).unwrap();
        let check = |inputs: Vec<View>, output: View| {
            memory.check(&Launch { kernel: Kernel::Op(Op::Gelu), inputs, outputs: vec![output] }).map(drop)
        };
        check(vec![view(buffer, 0, 10)], view(buffer, 40, 10)).unwrap();
        check(vec![view(buffer, 0, 10)], view(buffer, 36, 10)).unwrap_err();
        check(vec![view(buffer, 0, 10)], view(buffer, 64, 10)).unwrap_err();
        check(vec![view(buffer, 2, 10)], view(buffer, 60, 10)).unwrap_err();
        check(vec![view(BufferId(7), 0, 10)], view(buffer, 60, 10)).unwrap_err();
    }

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        let mut memory = Memory::default();
        for bytes in [1, 4, 1000] {
            let buffer = memory.allocate(bytes).unwrap();
            let all = view(buffer, 0, bytes / 4);
            let slice = memory.read("test", &all).unwrap();
            assert_eq!(slice.as_ptr() as usize % 256, 0);
            assert!(slice.iter().all(|&x| x == 0.0));
        }
        assert!(matches!(memory.allocate(usize::MAX / 2), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_nobody_has_touched_takes_none() {
        // The second number is how many pages of memory the process has in use.
        let pages = || {
            let counts = std::fs::read_to_string("/proc/self/statm").unwrap();
            counts.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        let (bytes, before) = (1 << 30, pages());
        let mut memory = Memory::default();
        let buffer = memory.allocate(bytes).unwrap();
        let end = view(buffer, bytes - 4096, 1024);
        memory.write("test", &end).unwrap().fill(1.0);
        assert!(pages().saturating_sub(before) * 4096 < bytes / 4);
    }

    #[test]
    #[should_panic = "handed out once"]
    fn an_output_is_handed_out_once() {
        let mut memory = Memory::default();
        let buffer = memory.allocate(100).unwrap();
        let launch = Launch {
            kernel: Kernel::Op(Op::Gelu),
            inputs: vec![view(buffer, 0, 4)],
            outputs: vec![view(buffer, 16, 4)],
        };
        let operation = memory.check(&launch).unwrap();
        let mut operands = memory.operands(&operation);
        let _first = operands.output(0);
        let _second = operands.output(0);
    }
}
