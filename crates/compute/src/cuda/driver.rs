//! The driver: devices, memory, streams, events, graphs and kernels, as calls that give a `Result`.
//!
//! Handles are plain numbers and addresses are plain `u64`s; that they are valid is the business of [`super::Cuda`], which owns
//! every one of them and gives none out. Each call names itself in its error.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
};

mod pages;

use pages::{Access, Properties};

use super::{
    call::{Grid, Start},
    library::{self, Needed, Places},
    symbols::symbols,
};
use crate::{
    error::{Error, Result},
    tensor::DType,
};

symbols! {
    /// The driver's functions.
    Api {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuGetErrorName(error: c_int, name: *mut *const c_char);
        cuGetErrorString(error: c_int, text: *mut *const c_char);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut c_int, ordinal: c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
        cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
        cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint);
        cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int);
        cuDevicePrimaryCtxRelease_v2(device: c_int);
        cuCtxSetCurrent(context: usize);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemAlloc_v2(address: *mut u64, bytes: usize);
        cuMemFree_v2(address: u64);
        cuMemGetAllocationGranularity(bytes: *mut usize, of: *const Properties, which: c_int);
        cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64);
        cuMemAddressFree(address: u64, bytes: usize);
        cuMemCreate(handle: *mut u64, bytes: usize, of: *const Properties, flags: u64);
        cuMemRelease(handle: u64);
        cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
        cuMemUnmap(address: u64, bytes: usize);
        cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize);
        cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemFreeHost(address: *mut c_void);
        cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize);
        cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize);
        cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize);
        cuStreamCreate(stream: *mut usize, flags: c_uint);
        cuStreamDestroy_v2(stream: usize);
        cuStreamSynchronize(stream: usize);
        cuStreamQuery(stream: usize);
        cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint);
        cuStreamBeginCapture_v2(stream: usize, mode: c_uint);
        cuStreamEndCapture(stream: usize, graph: *mut usize);
        cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64);
        cuGraphLaunch(exec: usize, stream: usize);
        cuGraphExecDestroy(exec: usize);
        cuGraphDestroy(graph: usize);
        cuEventCreate(event: *mut usize, flags: c_uint);
        cuEventRecord(event: usize, stream: usize);
        cuEventSynchronize(event: usize);
        cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
        cuEventDestroy_v2(event: usize);
        cuModuleLoadData(module: *mut usize, image: *const c_void);
        cuModuleUnload(module: usize);
        cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
        cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: usize, threads: c_int, shared: usize,
        );
        cuLaunchKernelEx(
            config: *const LaunchConfig, function: usize, arguments: *mut *mut c_void, extra: *mut *mut c_void,
        );
        cuTensorMapEncodeTiled(
            map: *mut c_void, element: c_int, rank: c_uint, address: u64, sizes: *const u64, strides: *const u64,
            box_sizes: *const c_uint, element_strides: *const c_uint, interleave: c_int, swizzle: c_int,
            promotion: c_int, fill: c_int,
        );
    }
}

/// What is asked of a device.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    Multiprocessors = 16,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    /// Whether memory can be put behind addresses later.
    Pages = 102,
}

const OUT_OF_MEMORY: c_int = 2;
const NOT_READY: c_int = 600;
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
const NON_BLOCKING: c_uint = 1;
/// Whatever else the driver is asked for while a stream is captured is allowed, here and in other threads.
const CAPTURE_RELAXED: c_uint = 2;
const NO_TIMING: c_uint = 2;
/// Whoever waits for the event sleeps.
const BLOCKING_EVENT: c_uint = 1;

/// A kernel that can be launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    pub handle: usize,
    /// For errors.
    pub name: &'static str,
}

/// Heads of a tensor, as the copy engine sees them. Addresses and rows are multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRows {
    pub at: u64,
    pub real: DType,
    /// Elements of a head, a multiple of [`HeadRows::BOX`].
    pub size: usize,
    pub heads: usize,
    pub positions: usize,
    pub samples: usize,
    /// Elements from one position to the next.
    pub stride: usize,
}

impl HeadRows {
    /// What one copy moves: so many elements of so many rows, `BOX_ROWS` in `attention_warpgroup.cuh`.
    pub const BOX: usize = 64;
}

/// A matrix whose rows follow each other, as the copy engine sees it. Addresses and rows are multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixBoxes {
    pub at: u64,
    pub real: DType,
    pub rows: usize,
    pub columns: usize,
    /// Rows that one copy moves, of 128 bytes each.
    pub box_rows: usize,
}

/// A factor of eight bits of which one copy moves [`FactorBoxes::ROWS`] rows of 128 terms. Its rows come into shared memory in
/// another order, which `gelu_eight.cu` tells of.
#[derive(Clone, Copy, Debug)]
pub(super) struct FactorBoxes {
    pub at: u64,
    pub of: DType,
    /// A multiple of 16.
    pub rows: usize,
    pub terms: usize,
    pub side: Side,
}

impl FactorBoxes {
    pub const ROWS: usize = 128;
}

/// Which factor of a product something is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Left,
    Right,
}

/// Bytes of a row of a box, which is what is swizzled.
const BOX_ROW_BYTES: usize = 128;

/// What tells the copy engine about a tensor.
#[repr(C, align(64))]
pub(super) struct TensorMap([u8; 128]);

/// What a kernel is launched with.
pub(super) struct Arguments {
    /// They come first.
    pub maps: Vec<TensorMap>,
    /// Every other argument fills eight bytes, of which the driver reads as many as the kernel declares.
    pub words: Vec<u64>,
}

impl Arguments {
    /// Where the driver finds them.
    fn places(&self, kernel: &'static str) -> [*mut c_void; MAX_ARGUMENTS] {
        let mut places = [ptr::null_mut::<c_void>(); MAX_ARGUMENTS];
        let Arguments { maps, words } = self;
        assert!(maps.len() + words.len() <= MAX_ARGUMENTS, "{kernel} has too many arguments");
        let addresses = maps.iter().map(|map| ptr::from_ref(map).cast::<c_void>());
        let addresses = addresses.chain(words.iter().map(|word| ptr::from_ref(word).cast()));
        for (place, address) in places.iter_mut().zip(addresses) {
            *place = address.cast_mut();
        }
        places
    }
}

/// The driver, opened.
pub(super) struct Driver {
    api: Api,
}

impl Driver {
    /// Opens the driver and initialises it.
    pub fn open(places: &Places) -> Result<Self> {
        let found = library::open(Needed::Driver, places)
            .ok_or_else(|| missing(Needed::Driver, "it was not found"))?;
        let api = Api::load(found.library)
            .map_err(|symbol| missing(Needed::Driver, &format!("the one found has no {symbol}")))?;
        let driver = Driver { api };
        // SAFETY: no arguments to get wrong.
        driver.check("cuInit", unsafe { (driver.api.cuInit)(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        Err(Error::Cuda { call, detail: self.describe(status), advice: advice(status) })
    }

    fn describe(&self, status: c_int) -> String {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> i32| {
            let mut text: *const c_char = ptr::null();
            // SAFETY: the driver writes the address of a constant of its own, or leaves null.
            unsafe {
                function(status, &mut text);
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            }
        };
        format!("{} ({})", text(self.api.cuGetErrorString), text(self.api.cuGetErrorName))
    }

    /// The newest CUDA version that the driver runs, as 1000·major + 10·minor.
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: the driver writes one int.
        self.check("cuDriverGetVersion", unsafe { (self.api.cuDriverGetVersion)(&mut version) })?;
        Ok(version as u32)
    }

    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the driver writes one int.
        self.check("cuDeviceGetCount", unsafe { (self.api.cuDeviceGetCount)(&mut count) })?;
        Ok(count as usize)
    }

    pub fn device(&self, ordinal: usize) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: the driver writes one int.
        self.check("cuDeviceGet", unsafe { (self.api.cuDeviceGet)(&mut device, ordinal as c_int) })?;
        Ok(device)
    }

    pub fn device_name(&self, device: c_int) -> Result<String> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes at most the 256 characters that it is told of, with a zero at the end.
        unsafe {
            self.check("cuDeviceGetName", (self.api.cuDeviceGetName)(name.as_mut_ptr(), 256, device))?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// The card's place on the bus, by which other libraries know it.
    pub fn bus_id(&self, device: c_int) -> Result<String> {
        let mut name = [0 as c_char; 32];
        // SAFETY: the driver writes at most the 32 characters that it is told of, with a zero at the end.
        unsafe {
            self.check("cuDeviceGetPCIBusId", (self.api.cuDeviceGetPCIBusId)(name.as_mut_ptr(), 32, device))?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    pub fn attribute(&self, device: c_int, attribute: Attribute) -> Result<usize> {
        let mut value = 0;
        // SAFETY: the driver writes one int.
        let status = unsafe { (self.api.cuDeviceGetAttribute)(&mut value, attribute as c_int, device) };
        self.check("cuDeviceGetAttribute", status)?;
        Ok(value as usize)
    }

    pub fn total_memory(&self, device: c_int) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the driver writes one size.
        self.check("cuDeviceTotalMem", unsafe { (self.api.cuDeviceTotalMem_v2)(&mut bytes, device) })?;
        Ok(bytes)
    }

    pub fn retain_context(&self, device: c_int) -> Result<usize> {
        /// A thread that waits for the card sleeps, so that the processor is free for the data of the next step.
        const BLOCKING_WAIT: c_uint = 4;
        let mut context = 0;
        // SAFETY: a number and a flag.
        let status = unsafe { (self.api.cuDevicePrimaryCtxSetFlags_v2)(device, BLOCKING_WAIT) };
        self.check("cuDevicePrimaryCtxSetFlags", status)?;
        // SAFETY: the driver writes one handle.
        let status = unsafe { (self.api.cuDevicePrimaryCtxRetain)(&mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(context)
    }

    pub fn release_context(&self, device: c_int) {
        // SAFETY: releasing what was retained; nothing can be done about an error while ending.
        unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) };
    }

    /// Makes a context the calling thread's.
    pub fn make_current(&self, context: usize) -> Result<()> {
        // SAFETY: the context is one that this process retains.
        self.check("cuCtxSetCurrent", unsafe { (self.api.cuCtxSetCurrent)(context) })
    }

    /// Bytes of the device's memory that nobody uses.
    pub fn free_memory(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two sizes.
        self.check("cuMemGetInfo", unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok(free)
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the driver writes one address.
        let status = unsafe { (self.api.cuMemAlloc_v2)(&mut address, bytes.max(1)) };
        if status == OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { device: super::DEVICE, bytes });
        }
        self.check("cuMemAlloc", status)?;
        Ok(address)
    }

    pub fn free(&self, address: u64) {
        // SAFETY: the caller owns the address and forgets it; the driver waits for work that uses it.
        unsafe { (self.api.cuMemFree_v2)(address) };
    }

    /// Host memory that the device can read and write by itself.
    pub fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: the driver writes one address.
        let status = unsafe { (self.api.cuMemHostAlloc)(&mut address, bytes, 0) };
        self.check("cuMemHostAlloc", status)?;
        Ok(address.cast())
    }

    pub fn free_pinned(&self, address: *mut u8) {
        // SAFETY: the caller owns the address and forgets it.
        unsafe { (self.api.cuMemFreeHost)(address.cast()) };
    }

    /// # Safety
    /// `from` must stay as it is for `bytes` until the stream has passed this point.
    pub unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, stream) };
        self.check("cuMemcpyHtoDAsync", status)
    }

    /// Copies to the device and waits until it is done.
    pub fn copy_in_and_wait(&self, to: u64, from: &[u8], stream: usize) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes are borrowed until the stream has passed the copy.
        unsafe { self.copy_in(to, from.as_ptr(), from.len(), stream)? };
        self.synchronize(stream)
    }

    /// # Safety
    /// `to` must have room for `bytes` and not be touched until the stream has passed this point.
    pub unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.api.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, stream) };
        self.check("cuMemcpyDtoHAsync", status)
    }

    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: usize) -> Result<()> {
        // SAFETY: both lie in memory that the device owns; a wrong address is an error of the device, not of this process.
        let status = unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync", status)
    }

    pub fn clear(&self, to: u64, bytes: usize, stream: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as for `copy`.
        self.check("cuMemsetD8Async", unsafe { (self.api.cuMemsetD8Async)(to, 0, bytes, stream) })
    }

    pub fn create_stream(&self) -> Result<usize> {
        let mut stream = 0;
        // SAFETY: the driver writes one handle.
        self.check("cuStreamCreate", unsafe { (self.api.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    pub fn destroy_stream(&self, stream: usize) {
        // SAFETY: the caller owns the handle and forgets it.
        unsafe { (self.api.cuStreamDestroy_v2)(stream) };
    }

    pub fn synchronize(&self, stream: usize) -> Result<()> {
        // SAFETY: the handle is a living stream.
        self.check("cuStreamSynchronize", unsafe { (self.api.cuStreamSynchronize)(stream) })
    }

    pub fn wait(&self, stream: usize, event: usize) -> Result<()> {
        // SAFETY: both handles are alive.
        self.check("cuStreamWaitEvent", unsafe { (self.api.cuStreamWaitEvent)(stream, event, 0) })
    }

    /// Whether a stream has done everything that it was given; an error of its work comes to light here.
    pub fn is_idle(&self, stream: usize) -> Result<bool> {
        // SAFETY: the handle is a living stream.
        match unsafe { (self.api.cuStreamQuery)(stream) } {
            NOT_READY => Ok(false),
            status => self.check("cuStreamQuery", status).map(|()| true),
        }
    }

    pub fn begin_capture(&self, stream: usize) -> Result<()> {
        // SAFETY: the handle is a living stream.
        let status = unsafe { (self.api.cuStreamBeginCapture_v2)(stream, CAPTURE_RELAXED) };
        self.check("cuStreamBeginCapture", status)
    }

    /// Ends a capture and gives what can be launched.
    pub fn end_capture(&self, stream: usize) -> Result<usize> {
        let (mut graph, mut exec) = (0, 0);
        // SAFETY: the driver writes one handle each; the graph is not needed once it is instantiated.
        unsafe {
            self.check("cuStreamEndCapture", (self.api.cuStreamEndCapture)(stream, &mut graph))?;
            let status = (self.api.cuGraphInstantiateWithFlags)(&mut exec, graph, 0);
            (self.api.cuGraphDestroy)(graph);
            self.check("cuGraphInstantiate", status)?;
        }
        Ok(exec)
    }

    pub fn launch_graph(&self, exec: usize, stream: usize) -> Result<()> {
        // SAFETY: both handles are alive.
        self.check("cuGraphLaunch", unsafe { (self.api.cuGraphLaunch)(exec, stream) })
    }

    pub fn destroy_graph(&self, exec: usize) {
        // SAFETY: the caller owns the handle and forgets it.
        unsafe { (self.api.cuGraphExecDestroy)(exec) };
    }

    pub fn create_event(&self, timed: bool) -> Result<usize> {
        let mut event = 0;
        let flags = if timed { BLOCKING_EVENT } else { NO_TIMING };
        // SAFETY: the driver writes one handle.
        self.check("cuEventCreate", unsafe { (self.api.cuEventCreate)(&mut event, flags) })?;
        Ok(event)
    }

    pub fn record(&self, event: usize, stream: usize) -> Result<()> {
        // SAFETY: both handles are alive.
        self.check("cuEventRecord", unsafe { (self.api.cuEventRecord)(event, stream) })
    }

    pub fn synchronize_event(&self, event: usize) -> Result<()> {
        // SAFETY: the handle is alive.
        self.check("cuEventSynchronize", unsafe { (self.api.cuEventSynchronize)(event) })
    }

    /// Seconds between two events that have passed.
    pub fn seconds_between(&self, start: usize, end: usize) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles are alive; the driver writes one float.
        let status = unsafe { (self.api.cuEventElapsedTime)(&mut milliseconds, start, end) };
        self.check("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    pub fn destroy_event(&self, event: usize) {
        // SAFETY: the caller owns the handle and forgets it.
        unsafe { (self.api.cuEventDestroy_v2)(event) };
    }

    pub fn load_module(&self, image: &[u8]) -> Result<usize> {
        let mut module = 0;
        // SAFETY: the image is a whole cubin, which says its own length.
        let status = unsafe { (self.api.cuModuleLoadData)(&mut module, image.as_ptr().cast()) };
        self.check("cuModuleLoadData", status)?;
        Ok(module)
    }

    pub fn unload_module(&self, module: usize) {
        // SAFETY: the caller owns the handle and forgets it.
        unsafe { (self.api.cuModuleUnload)(module) };
    }

    pub fn function(&self, module: usize, name: &'static str) -> Result<Function> {
        let mut handle = 0;
        let spelled = format!("{name}\0");
        // SAFETY: the name ends with a zero; the driver writes one handle.
        let status = unsafe { (self.api.cuModuleGetFunction)(&mut handle, module, spelled.as_ptr().cast()) };
        self.check("cuModuleGetFunction", status).map_err(|error| in_kernel(error, name))?;
        Ok(Function { handle, name })
    }

    /// Lets a kernel use more dynamic shared memory than it may by default.
    pub fn allow_shared(&self, function: Function, bytes: u32) -> Result<()> {
        // SAFETY: the handle is that of a loaded kernel.
        let status = unsafe {
            (self.api.cuFuncSetAttribute)(function.handle, MAX_DYNAMIC_SHARED_BYTES, bytes as c_int)
        };
        self.check("cuFuncSetAttribute", status).map_err(|error| in_kernel(error, function.name))
    }

    /// Blocks of a kernel that a multiprocessor runs at once, which may be none.
    pub fn blocks_at_once(&self, function: Function, grid: &super::call::Grid) -> Result<usize> {
        let mut blocks = 0;
        let (threads, shared) = (grid.threads as c_int, grid.shared_bytes as usize);
        // SAFETY: the driver writes one number.
        let status = unsafe {
            (self.api.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                function.handle,
                threads,
                shared,
            )
        };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", status)
            .map_err(|error| in_kernel(error, function.name))?;
        Ok(usize::try_from(blocks).unwrap_or(0))
    }

    /// A map by which the copy engine brings boxes of heads into shared memory, with pieces of 16 bytes where a swizzle of 128
    /// bytes puts them, and zeroes where there are no rows.
    pub fn tensor_map(&self, rows: &HeadRows) -> Result<TensorMap> {
        let sizes = [rows.size, rows.heads, rows.positions, rows.samples];
        let strides = [rows.size, rows.stride, rows.stride * rows.positions];
        self.encode_map((rows.at, rows.real), sizes, &strides, [HeadRows::BOX, 1, HeadRows::BOX, 1])
    }

    /// The same for boxes of a matrix.
    pub fn matrix_map(&self, matrix: &MatrixBoxes) -> Result<TensorMap> {
        let MatrixBoxes { at, real, rows, columns, box_rows } = *matrix;
        let box_columns = BOX_ROW_BYTES / real.bytes();
        self.encode_map((at, real), [columns, rows], &[columns], [box_columns, box_rows])
    }

    /// The same for a factor of eight bits. Its rows are several dimensions, in the order in which they come.
    pub fn factor_map(&self, factor: &FactorBoxes) -> Result<TensorMap> {
        let FactorBoxes { at, of, rows, terms, side } = *factor;
        let (sixteens, boxes) = (rows / 16, FactorBoxes::ROWS / 16);
        match side {
            // Of sixteen rows the even ones, then the odd ones.
            Side::Left => self.encode_map(
                (at, of),
                [terms, 8, 2, sixteens],
                &[2 * terms, terms, 16 * terms],
                [BOX_ROW_BYTES, 8, 2, boxes],
            ),
            // Of sixteen rows the first two of every four, then the last two.
            Side::Right => self.encode_map(
                (at, of),
                [terms, 2, 4, 2, sixteens],
                &[terms, 4 * terms, 2 * terms, 16 * terms],
                [BOX_ROW_BYTES, 2, 4, 2, boxes],
            ),
        }
    }

    /// A map of a tensor of D dimensions, the innermost first, whose elements follow each other; strides are those of the others.
    fn encode_map<const D: usize>(
        &self,
        (at, real): (u64, DType),
        sizes: [usize; D],
        strides: &[usize],
        boxes: [usize; D],
    ) -> Result<TensorMap> {
        const SWIZZLE_128_BYTES: c_int = 3;
        const PROMOTE_256_BYTES: c_int = 3;
        let element = match real {
            // Bytes, whatever their bits mean.
            DType::E4M3 | DType::E5M2 => 0,
            DType::F16 => 6,
            DType::BF16 => 9,
            DType::F32 | DType::U32 => unreachable!("products of warpgroups are of halves or of eight bits"),
        };
        assert_eq!(strides.len(), D - 1, "a stride for every dimension but the innermost");
        let sizes = sizes.map(|size| size as u64);
        let strides: Vec<u64> = strides.iter().map(|elements| (elements * real.bytes()) as u64).collect();
        let (boxes, steps) = (boxes.map(|size| size as c_uint), [1 as c_uint; D]);
        let mut map = TensorMap([0; 128]);
        // SAFETY: the driver writes the 128 bytes of a map, which lies at a multiple of 64, and reads D sizes of each kind and one
        // stride less.
        let status = unsafe {
            (self.api.cuTensorMapEncodeTiled)(
                ptr::from_mut(&mut map).cast(),
                element,
                D as c_uint,
                at,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                0,
                SWIZZLE_128_BYTES,
                PROMOTE_256_BYTES,
                0,
            )
        };
        self.check("cuTensorMapEncodeTiled", status)?;
        Ok(map)
    }

    /// Puts a kernel on a stream whose one argument is a struct of so many words.
    pub fn launch_with<const N: usize>(
        &self,
        function: Function,
        grid: &Grid,
        words: &[u64; N],
        stream: usize,
    ) -> Result<()> {
        let mut places = [ptr::from_ref(words).cast::<c_void>().cast_mut()];
        self.launch_places(function, grid, Start::InTurn, &mut places, stream)
    }

    /// Puts a kernel on a stream.
    pub fn launch(
        &self,
        function: Function,
        grid: &Grid,
        start: Start,
        arguments: &Arguments,
        stream: usize,
    ) -> Result<()> {
        self.launch_places(function, grid, start, &mut arguments.places(function.name), stream)
    }

    fn launch_places(
        &self,
        function: Function,
        grid: &Grid,
        start: Start,
        places: &mut [*mut c_void],
        stream: usize,
    ) -> Result<()> {
        let (mut attributes, count) = match start {
            Start::InTurn => ([LaunchAttribute::default(); 2], 0),
            Start::Together => ([LaunchAttribute::new(TOGETHER, 1); 2], 1),
            Start::Early { cluster } => {
                ([LaunchAttribute::new(EARLY, 1), LaunchAttribute::new(CLUSTER, cluster)], 2)
            }
            Start::Clusters { cluster } => ([LaunchAttribute::new(CLUSTER, cluster); 2], 1),
        };
        let config = LaunchConfig {
            blocks: grid.blocks,
            threads: [grid.threads, 1, 1],
            shared_bytes: grid.shared_bytes,
            stream,
            attributes: attributes.as_mut_ptr(),
            count,
        };
        // SAFETY: the driver copies attributes and arguments before it returns; each place holds a map, the one struct that the kernel
        // declares, or eight bytes, as many as any other declared argument reads.
        let status = unsafe {
            (self.api.cuLaunchKernelEx)(&config, function.handle, places.as_mut_ptr(), ptr::null_mut())
        };
        self.check("cuLaunchKernelEx", status).map_err(|error| in_kernel(error, function.name))
    }
}

/// How a kernel is launched, as the driver's header declares it.
#[repr(C)]
struct LaunchConfig {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *mut LaunchAttribute,
    count: c_uint,
}

/// One more thing about a launch: which, and up to 64 bytes that say how.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct LaunchAttribute {
    number: c_uint,
    unused: c_uint,
    value: [u64; 8],
}

/// All blocks run at once.
const TOGETHER: c_uint = 2;
/// Blocks of a cluster along each of the three directions.
const CLUSTER: c_uint = 4;
/// The kernel may begin before the one before it has ended.
const EARLY: c_uint = 6;

impl LaunchAttribute {
    /// An attribute with a number of 32 bits; behind it come ones, which only the cluster's other directions read.
    fn new(number: c_uint, value: u32) -> Self {
        LaunchAttribute { number, unused: 0, value: [u64::from(value) | 1 << 32, 1, 0, 0, 0, 0, 0, 0] }
    }
}

/// The most arguments that a kernel of ours has.
const MAX_ARGUMENTS: usize = 40;

fn in_kernel(error: Error, name: &'static str) -> Error {
    match error {
        Error::Cuda { call, detail, advice } => {
            Error::Cuda { call, detail: format!("{detail}, in the kernel {name}"), advice }
        }
        other => other,
    }
}

/// What to do about a status of the driver.
fn advice(status: c_int) -> &'static str {
    match status {
        100 => "no card is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu",
        35 | 803 | 804 => "the driver is older than the libraries: update NVIDIA's driver",
        999 | 46 => "the card is busy or its driver is in a bad state: check nvidia-smi",
        214 | 719 | 700 | 716 | 717 | 718 => {
            "the card stopped: continue the run from its last checkpoint, and report this if it happens again"
        }
        _ => "this is a bug in Ironmill or a fault of the card: check nvidia-smi, then report it",
    }
}

pub(super) fn missing(needed: Needed, detail: &str) -> Error {
    Error::LibraryMissing { library: needed.name(), detail: detail.into(), advice: needed.advice() }
}
