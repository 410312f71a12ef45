//! What the machine reaches, measured for a moment each.

use crate::failure::{Code, Failure, Result};
use ironmill_compute::{DType, Device, HostData, Kernel, Launch, Op, TensorType, View};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each measurement goes on.
const TIME: Duration = Duration::from_millis(900);

/// Floating-point operations a second of the device's own matrix product: the best of as many as fit the time.
pub fn products(device: &mut dyn Device) -> Result<f64> {
    // As large as the products of a small model, and long enough to fill every thread.
    const SIZE: usize = 1024;
    let of = TensorType::new(&[SIZE, SIZE], DType::F32);
    let mut place = || -> Result<View> {
        let buffer = device.allocate(SIZE * SIZE * device.element_bytes(DType::F32))?;
        let view = View { buffer, offset_bytes: 0, of };
        device.upload(&view, HostData::F32(&vec![0.5; SIZE * SIZE]))?;
        Ok(view)
    };
    let (x, w, y) = (place()?, place()?, place()?);
    let product = Launch {
        kernel: Kernel::Op(Op::Linear { bias: false, products: DType::F32 }),
        inputs: vec![x, w],
        outputs: vec![y],
    };
    let sequence = device.bind(&[product])?;
    let mut best = f64::INFINITY;
    let started = Instant::now();
    while started.elapsed() < TIME {
        let began = Instant::now();
        device.run(sequence)?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    for view in [x, w, y] {
        device.free(view.buffer);
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best.max(1e-9))
}

/// Bytes a second that all threads together read from memory.
pub fn reading(threads: usize, available_bytes: u64) -> Result<f64> {
    // Larger than the caches of nearly any machine, and a small part of what is free.
    let all_words = (available_bytes / 8).clamp(16 << 20, 512 << 20) as usize / size_of::<u64>();
    let words = all_words.div_ceil(threads);
    let buffers: Vec<Vec<u64>> = (0..threads).map(|_| vec![1; words]).collect();
    let read = |buffer: &[u64]| {
        let began = Instant::now();
        let mut passes = 0;
        while began.elapsed() < TIME {
            black_box(black_box(buffer).iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
            passes += 1;
        }
        (passes * size_of_val(buffer)) as f64 / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for buffer in &buffers {
            let reader = std::thread::Builder::new().spawn_scoped(scope, move || read(buffer));
            readers.push(reader.map_err(ironmill_compute::Error::Threads)?);
        }
        let join = |reader: std::thread::ScopedJoinHandle<'_, f64>| {
            reader
                .join()
                .map_err(|_| Failure::new(Code::OurBug, "a measuring thread panicked: please report it"))
        };
        readers.into_iter().map(join).sum()
    })
}
