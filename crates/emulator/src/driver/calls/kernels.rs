//! Kernels and what they are launched with.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::Arc,
};

use super::{answer, functions};
use crate::{
    driver::state::{
        Function, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, Kernel, NOT_FOUND, NOT_SUPPORTED, Status,
        Work, fail, give, may_share, state,
    },
    error::Error,
    machine::{MOST_SHARED_BYTES, Tensor},
    program::Program,
    ptx,
};

functions! {
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
