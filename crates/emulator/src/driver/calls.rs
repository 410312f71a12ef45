//! The driver's functions, by the names and with the types of the vendor's header.
//!
//! Callers promise what that header asks of them: that pointers point to what they say. Nothing else is believed.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr,
    sync::Arc,
    time::Instant,
};

use super::state::{
    Event, Function, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, Kernel, LAUNCH_FAILED, NOT_FOUND,
    NOT_SUPPORTED, OUT_OF_MEMORY, Status, Stream, TOTAL_BYTES, Work, act_all, fail, give, may_share, reason,
    state,
};
use crate::{
    error::Error,
    machine::{MOST_SHARED_BYTES, Region, Tensor},
    program::Program,
    ptx,
};

/// The driver's version that is claimed: CUDA 13.0.
const VERSION: c_int = 13_000;
const NAME: &CStr = c"Ironmill's emulator of a Hopper card";
/// Multiprocessors, unless the environment says another number: few, since blocks that stay run side by side.
const MULTIPROCESSORS: usize = 16;
/// Pieces in which memory is put behind addresses.
const PAGE_BYTES: usize = 2 << 20;
/// What one access moves at most.
const WIDEST_BYTES: usize = 16;

fn multiprocessors() -> usize {
    let asked = std::env::var("IRONMILL_EMULATOR_MULTIPROCESSORS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(MULTIPROCESSORS)
}

/// Writes what a caller asked for.
///
/// # Safety
/// `to` points to a place for it.
unsafe fn answer<T>(to: *mut T, value: T) -> Status {
    // SAFETY: the caller's promise.
    unsafe { ptr::write(to, value) };
    0
}

/// Declares functions of the interface: every one is exported by its name, and gives a status.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $of:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers point to what the vendor's header says of them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $of),*) -> Status $body
        )*
    };
}
pub(crate) use functions;

functions! {
    /// Begins.
    fn cuInit(_flags: c_uint) { 0 }

    /// The version of CUDA that the driver runs.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(version, VERSION) }
    }

    /// A status by its name.
    fn cuGetErrorName(error: c_int, name: *mut *const c_char) {
        let text = match error {
            0 => c"CUDA_SUCCESS",
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
            INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
            NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
            LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
            _ => c"CUDA_ERROR_UNKNOWN",
        };
        // SAFETY: the caller's promise.
        unsafe { answer(name, text.as_ptr()) }
    }

    /// What a status means; of a kernel that failed, what it did.
    fn cuGetErrorString(error: c_int, text: *mut *const c_char) {
        let said = match error {
            INVALID_VALUE | INVALID_IMAGE | LAUNCH_FAILED => reason(),
            OUT_OF_MEMORY => "out of memory".into(),
            other => format!("status {other}"),
        };
        // Whoever asks keeps the text as long as they like.
        let said = CString::new(said.replace('\0', " ")).unwrap_or_default().into_raw();
        // SAFETY: the caller's promise.
        unsafe { answer(text, said.cast_const()) }
    }

    /// One card.
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(count, 1) }
    }

    /// The card by its number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if ordinal != 0 {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's promise.
        unsafe { answer(device, 0) }
    }

    /// Its name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { put_text(name, len, NAME) }
    }

    /// Its place on the bus.
    fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { put_text(name, len, c"0000:00:00.0") }
    }

    /// What the card has.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        let found = match attribute {
            16 => multiprocessors() as c_int,
            75 => 9,
            76 => 0,
            97 => MOST_SHARED_BYTES as c_int,
            102 => 1,
            _ => return INVALID_VALUE,
        };
        // SAFETY: the caller's promise.
        unsafe { answer(value, found) }
    }

    /// Its memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(bytes, TOTAL_BYTES) }
    }

    /// How its context behaves, which is always the same.
    fn cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) { 0 }

    /// The one context.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(context, 1) }
    }

    /// Gives it back.
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { 0 }

    /// Makes it the thread's.
    fn cuCtxSetCurrent(_context: usize) { 0 }

    /// Memory that is free, and all of it.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used = state().used_bytes;
        // SAFETY: the caller's promise.
        unsafe {
            answer(free, TOTAL_BYTES.saturating_sub(used));
            answer(total, TOTAL_BYTES)
        }
    }

    /// Memory with addresses.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let mut all = state();
        if all.used_bytes + bytes > TOTAL_BYTES {
            return OUT_OF_MEMORY;
        }
        // A card gives whole packs of the widest access, and more: what a kernel reads of the last one behind its end is poison.
        let bytes = bytes.next_multiple_of(WIDEST_BYTES);
        let region = Region::new(bytes);
        let at = region.address();
        all.used_bytes += bytes;
        all.change_table(|table| table.add(at, bytes));
        all.regions.insert(at, region);
        // SAFETY: the caller's promise.
        unsafe { answer(address, at) }
    }

    /// Gives it back.
    fn cuMemFree_v2(address: u64) {
        let mut all = state();
        let Some(region) = all.regions.remove(&address) else { return INVALID_VALUE };
        all.used_bytes -= region.bytes();
        all.change_table(|table| table.remove(address));
        0
    }

    /// The pieces in which memory is put behind addresses.
    fn cuMemGetAllocationGranularity(bytes: *mut usize, _of: *const c_void, _which: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(bytes, PAGE_BYTES) }
    }

    /// Addresses without memory.
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, _alignment: usize, _wanted: u64, _flags: u64) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new addresses that nobody has.
        match unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) } {
            // SAFETY: the caller's promise.
            Ok(at) => unsafe { answer(address, at as u64) },
            Err(_) => OUT_OF_MEMORY,
        }
    }

    /// Forgets them.
    fn cuMemAddressFree(address: u64, bytes: usize) {
        // SAFETY: the caller reserved these addresses and forgets them.
        match unsafe { rustix::mm::munmap(address as *mut c_void, bytes) } {
            Ok(()) => 0,
            Err(_) => INVALID_VALUE,
        }
    }

    /// Memory without addresses.
    fn cuMemCreate(handle: *mut u64, bytes: usize, _of: *const c_void, _flags: u64) {
        let mut all = state();
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return INVALID_VALUE;
        }
        if all.used_bytes + bytes > TOTAL_BYTES {
            return OUT_OF_MEMORY;
        }
        all.used_bytes += bytes;
        let number = all.handle() as u64;
        all.pieces.insert(number, bytes);
        // SAFETY: the caller's promise.
        unsafe { answer(handle, number) }
    }

    /// Gives it back.
    fn cuMemRelease(handle: u64) {
        let mut all = state();
        let Some(bytes) = all.pieces.remove(&handle) else { return INVALID_VALUE };
        all.used_bytes -= bytes;
        0
    }

    /// Puts it behind addresses.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) {
        let mut all = state();
        if all.pieces.get(&handle) != Some(&bytes) || offset != 0 {
            return INVALID_VALUE;
        }
        let both = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the caller reserved these addresses; nobody has used them.
        if unsafe { rustix::mm::mprotect(address as *mut c_void, bytes, both) }.is_err() {
            return INVALID_VALUE;
        }
        all.change_table(|table| table.add(address, bytes));
        0
    }

    /// Takes it away from there.
    fn cuMemUnmap(address: u64, bytes: usize) {
        let mut all = state();
        all.change_table(|table| table.remove(address));
        let none = rustix::mm::MprotectFlags::empty();
        // SAFETY: the caller mapped memory there and uses it no more.
        match unsafe { rustix::mm::mprotect(address as *mut c_void, bytes, none) } {
            Ok(()) => 0,
            Err(_) => INVALID_VALUE,
        }
    }

    /// Everyone may use what there is.
    fn cuMemSetAccess(_address: u64, _bytes: usize, _access: *const c_void, _count: usize) { 0 }

    /// Memory of the host's that the card can use.
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let region = Region::new(bytes);
        let at = region.address();
        let mut all = state();
        all.change_table(|table| table.add(at, bytes));
        all.regions.insert(at, region);
        // SAFETY: the caller's promise.
        unsafe { answer(address, at as *mut c_void) }
    }

    /// Gives it back.
    fn cuMemFreeHost(address: *mut c_void) {
        let mut all = state();
        all.change_table(|table| table.remove(address as u64));
        if all.regions.remove(&(address as u64)).is_some() { 0 } else { INVALID_VALUE }
    }

    /// Copies to the card.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) {
        if !exists(to, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to, from: from as u64, bytes })
    }

    /// Copies from the card.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) {
        if !exists(from, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to: to as u64, from, bytes })
    }

    /// Copies on the card.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        if !exists(to, bytes) || !exists(from, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Copy { to, from, bytes })
    }

    /// Fills bytes.
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) {
        if !exists(to, bytes) {
            return INVALID_VALUE;
        }
        give(stream, Work::Fill { to, value, bytes })
    }

    /// A stream.
    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) {
        let mut all = state();
        let handle = all.handle();
        all.streams.insert(handle, Stream::default());
        // SAFETY: the caller's promise.
        unsafe { answer(stream, handle) }
    }

    /// Gives it back.
    fn cuStreamDestroy_v2(stream: usize) {
        if state().streams.remove(&stream).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// Everything has been done already.
    fn cuStreamSynchronize(stream: usize) {
        if state().streams.contains_key(&stream) { 0 } else { INVALID_HANDLE }
    }

    /// Everything has been done already.
    fn cuStreamQuery(stream: usize) {
        if state().streams.contains_key(&stream) { 0 } else { INVALID_HANDLE }
    }

    /// Whoever waits for what is being captured is captured as well.
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let mut all = state();
        let Some(Event { capture, behind, .. }) = all.events.get(&event).cloned() else { return INVALID_HANDLE };
        let is_open = capture.is_some_and(|capture| all.captures.contains_key(&capture));
        match all.streams.get_mut(&stream) {
            Some(stream) if is_open && stream.capture == capture => stream.waits_for.extend(behind),
            Some(stream) if is_open => *stream = Stream { capture, last: None, waits_for: behind },
            Some(_) => (),
            None => return INVALID_HANDLE,
        }
        0
    }

    /// Begins to capture what a stream is given.
    fn cuStreamBeginCapture_v2(stream: usize, _mode: c_uint) {
        let mut all = state();
        let capture = all.handle();
        match all.streams.get_mut(&stream) {
            Some(stream) if stream.capture.is_none() => {
                *stream = Stream { capture: Some(capture), ..Stream::default() };
            }
            _ => return INVALID_HANDLE,
        }
        all.captures.insert(capture, Vec::new());
        0
    }

    /// Ends it.
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let mut all = state();
        let Some(capture) = all.streams.get(&stream).and_then(|stream| stream.capture) else {
            return INVALID_HANDLE;
        };
        let captured = all.captures.remove(&capture).unwrap_or_default();
        for stream in all.streams.values_mut().filter(|stream| stream.capture == Some(capture)) {
            stream.capture = None;
        }
        let handle = all.handle();
        all.graphs.insert(handle, Arc::new(captured));
        // SAFETY: the caller's promise.
        unsafe { answer(graph, handle) }
    }

    /// A graph that can be launched.
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        let mut all = state();
        let Some(captured) = all.graphs.get(&graph).cloned() else { return INVALID_HANDLE };
        let handle = all.handle();
        all.graphs.insert(handle, captured);
        // SAFETY: the caller's promise.
        unsafe { answer(exec, handle) }
    }

    /// Launches one.
    fn cuGraphLaunch(exec: usize, _stream: usize) {
        let all = state();
        let (table, Some(graph)) = (Arc::clone(&all.table), all.graphs.get(&exec).cloned()) else {
            return INVALID_HANDLE;
        };
        drop(all);
        act_all(&graph, &table)
    }

    /// Gives one back.
    fn cuGraphExecDestroy(exec: usize) {
        if state().graphs.remove(&exec).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// Gives one back.
    fn cuGraphDestroy(graph: usize) {
        if state().graphs.remove(&graph).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// An event.
    fn cuEventCreate(event: *mut usize, _flags: c_uint) {
        let mut all = state();
        let handle = all.handle();
        all.events.insert(handle, Event::default());
        // SAFETY: the caller's promise.
        unsafe { answer(event, handle) }
    }

    /// Marks where a stream is.
    fn cuEventRecord(event: usize, stream: usize) {
        let mut all = state();
        let Some(stream) = all.streams.get(&stream) else { return INVALID_HANDLE };
        let recorded =
            Event { recorded: Some(Instant::now()), capture: stream.capture, behind: stream.behind() };
        if all.events.insert(event, recorded).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// It has passed.
    fn cuEventSynchronize(event: usize) {
        if state().events.contains_key(&event) { 0 } else { INVALID_HANDLE }
    }

    /// Time between two of them.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let all = state();
        let at = |event: usize| all.events.get(&event).and_then(|event| event.recorded);
        let (Some(start), Some(end)) = (at(start), at(end)) else { return INVALID_HANDLE };
        // SAFETY: the caller's promise.
        unsafe { answer(milliseconds, (end - start).as_secs_f32() * 1e3) }
    }

    /// Gives one back.
    fn cuEventDestroy_v2(event: usize) {
        if state().events.remove(&event).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// Kernels, as assembly that ends with a zero.
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) {
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let parsed = match text.to_str() {
            Ok(text) if text.contains(".version") => ptx::parse(text),
            _ => Err(Error::Text { line: 0, detail: "the image is no assembly".into() }),
        };
        match parsed {
            Ok(source) => {
                let mut all = state();
                let handle = all.handle();
                all.modules.insert(handle, Arc::new(source));
                // SAFETY: the caller's promise.
                unsafe { answer(module, handle) }
            }
            Err(error) => fail(&error, INVALID_IMAGE),
        }
    }

    /// Gives them back.
    fn cuModuleUnload(module: usize) {
        let mut all = state();
        all.functions.retain(|_, function| function.module != module);
        if all.modules.remove(&module).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// A kernel by its name.
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let mut all = state();
        let Some(source) = all.modules.get(&module).cloned() else { return INVALID_HANDLE };
        let known = all.functions.iter().find(|(_, known)| known.module == module && known.program.name == name);
        if let Some((&handle, _)) = known {
            // SAFETY: the caller's promise.
            return unsafe { answer(function, handle) };
        }
        let Some(text) = source.functions.get(name.as_ref()) else { return NOT_FOUND };
        match Program::new(&source, text) {
            Ok(program) => {
                let handle = all.handle();
                let found = Function { program: Arc::new(program), module, shared_bytes: 0 };
                all.functions.insert(handle, found);
                // SAFETY: the caller's promise.
                unsafe { answer(function, handle) }
            }
            Err(error) => fail(&error, INVALID_IMAGE),
        }
    }

    /// What a kernel may have: more dynamic shared memory.
    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
        let mut all = state();
        let Some(function) = all.functions.get_mut(&function) else { return INVALID_HANDLE };
        let own = function.program.shared.own_bytes;
        match usize::try_from(value) {
            Ok(bytes) if attribute == MAX_DYNAMIC_SHARED_BYTES && own + bytes <= MOST_SHARED_BYTES => {
                function.shared_bytes = bytes;
                0
            }
            _ => INVALID_VALUE,
        }
    }

    /// Blocks that a multiprocessor has room for; registers are not counted.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: usize, threads: c_int, shared: usize,
    ) {
        const THREADS: usize = 2048;
        const MOST_BLOCKS: usize = 32;
        const RESERVED_BYTES: usize = 1024;
        let all = state();
        let Some(function) = all.functions.get(&function) else { return INVALID_HANDLE };
        let bytes = function.program.shared.own_bytes + shared + RESERVED_BYTES;
        let by_shared = (MOST_SHARED_BYTES + RESERVED_BYTES) / bytes;
        let most = by_shared.min(THREADS / (threads.max(1) as usize)).min(MOST_BLOCKS);
        // SAFETY: the caller's promise.
        unsafe { answer(blocks, most as c_int) }
    }

    /// Launches a kernel.
    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: usize, arguments: *mut *mut c_void, _extra: *mut *mut c_void,
    ) {
        // SAFETY: the caller's promise.
        let config = unsafe { &*config };
        let Some(function) = state().functions.get(&function).cloned() else { return INVALID_HANDLE };
        let program = Arc::clone(&function.program);
        let refuse = |detail: String| fail(&Error::Launch { kernel: program.name.clone(), detail }, INVALID_VALUE);
        let (mut cluster, mut together, mut early) = (program.cluster.unwrap_or(1) as usize, false, false);
        for index in 0..config.count as usize {
            // SAFETY: there are as many attributes as the caller says.
            let attribute = unsafe { &*config.attributes.add(index) };
            match attribute.number {
                TOGETHER => together = attribute.value[0] as u32 != 0,
                CLUSTER => cluster = attribute.value[0] as u32 as usize,
                EARLY => early = attribute.value[0] as u32 != 0,
                other => return refuse(format!("the attribute {other}")),
            }
        }
        if config.threads[1] != 1 || config.threads[2] != 1 {
            return refuse("blocks of several directions".into());
        }
        if !may_share(&function, config.shared_bytes as usize) {
            return refuse(format!("{} bytes of shared memory that nobody asked for", config.shared_bytes));
        }
        let mut parameters = vec![0u8; program.parameter_bytes()];
        for (index, &(offset, bytes)) in program.parameters.iter().enumerate() {
            // SAFETY: there is a pointer for every parameter, to as many bytes as the kernel declares.
            unsafe {
                let from = (*arguments.add(index)).cast::<u8>();
                ptr::copy_nonoverlapping(from, parameters[offset..].as_mut_ptr(), bytes);
            }
        }
        let kernel = Kernel {
            program,
            grid: config.blocks,
            threads: config.threads[0] as usize,
            cluster,
            shared_bytes: config.shared_bytes as usize,
            together,
            early,
            parameters,
        };
        give(config.stream, Work::Kernel(Box::new(kernel)))
    }

    /// Describes a tensor for the copy engine: rows of 128 bytes, mixed, as all that this card knows.
    fn cuTensorMapEncodeTiled(
        map: *mut c_void, element: c_int, rank: c_uint, address: u64, sizes: *const u64, strides: *const u64,
        box_sizes: *const c_uint, element_strides: *const c_uint, interleave: c_int, swizzle: c_int,
        _promotion: c_int, fill: c_int,
    ) {
        const SWIZZLE_128_BYTES: c_int = 3;
        let bytes = match element {
            0 => 1,
            1 | 6 | 9 => 2,
            2 | 3 | 7 => 4,
            _ => return NOT_SUPPORTED,
        };
        let rank = rank as usize;
        if !(2..=5).contains(&rank) || swizzle != SWIZZLE_128_BYTES || interleave != 0 || fill != 0 {
            return NOT_SUPPORTED;
        }
        let mut tensor = Tensor { address, bytes, rank, ..Tensor::default() };
        for dimension in 0..rank {
            // SAFETY: lists have as many numbers as there are dimensions, strides one less.
            unsafe {
                tensor.sizes[dimension] = *sizes.add(dimension);
                tensor.boxes[dimension] = *box_sizes.add(dimension);
                tensor.strides[dimension] = match dimension {
                    0 => bytes as u64,
                    _ => *strides.add(dimension - 1),
                };
                if *element_strides.add(dimension) != 1 {
                    return NOT_SUPPORTED;
                }
            }
        }
        let is_bad = |dimension: usize| {
            let is_far = dimension > 0 && !tensor.strides[dimension].is_multiple_of(16);
            is_far || tensor.sizes[dimension] == 0 || !(1..=256).contains(&tensor.boxes[dimension])
        };
        if !address.is_multiple_of(16) || (0..rank).any(is_bad) || !(map as usize).is_multiple_of(64) {
            return INVALID_VALUE;
        }
        tensor.write(map as u64);
        0
    }
}

const TOGETHER: c_uint = 2;
const CLUSTER: c_uint = 4;
const EARLY: c_uint = 6;

/// How a kernel is launched, as the vendor's header declares it.
#[repr(C)]
pub struct LaunchConfig {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// One more thing about a launch.
#[repr(C)]
pub struct LaunchAttribute {
    number: c_uint,
    unused: c_uint,
    value: [u64; 8],
}

/// Whether memory of the card is there.
fn exists(address: u64, bytes: usize) -> bool {
    let span = state().table.find(address);
    span.is_some_and(|(_, end)| address + bytes as u64 <= end)
}

/// # Safety
/// `to` has room for `room` characters.
unsafe fn put_text(to: *mut c_char, room: c_int, text: &CStr) -> Status {
    let bytes = text.to_bytes_with_nul();
    if bytes.len() > room as usize {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    0
}
