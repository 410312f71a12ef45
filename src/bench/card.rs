//! What a card can do at best: products and copies, measured through the same backend as everything else.

use super::precision::Precision;
use super::random::Random;
use crate::failure::Result;
use ironmill_compute::{DType, Device, HostData, Kernel, Launch, Op, TensorType, View};
use serde_json::{Value, json};
use std::time::Duration;

/// The measured limits of a card.
#[derive(Clone, Debug)]
pub struct CardLimits {
    /// What the card says of itself.
    pub description: String,
    /// Floating-point operations a second in a large product.
    pub flops_per_s: f64,
    /// Bytes read and written a second in a large copy.
    pub copy_bytes_per_s: f64,
}

impl CardLimits {
    /// Measures products in a precision, and copies. A quick measure is of less, yet of enough to keep the card busy: smaller products
    /// and copies would measure the launch and the caches.
    pub fn measure(device: &mut dyn Device, precision: Precision, quick: bool) -> Result<CardLimits> {
        let size = if quick { 4096 } else { 8192 };
        let dtype = precision.stored();
        let mut random = Random::new(3);
        // Random numbers: zeros run faster. They begin anew after a million, which no kernel can tell.
        let numbers: Vec<f32> = (0..1 << 20).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
        let place = |device: &mut dyn Device, dims: &[usize], dtype: DType| -> Result<View> {
            let of = TensorType::new(dims, dtype);
            let elements = of.shape.elements();
            let buffer = device.allocate(elements * dtype.bytes())?;
            let view = View { buffer, offset_bytes: 0, of };
            let repeated: Vec<f32> = numbers.iter().copied().cycle().take(elements).collect();
            device.upload(&view, HostData::F32(&repeated))?;
            Ok(view)
        };
        let square = [size, size];
        let [x, w, y] = [0, 1, 2].map(|_| place(device, &square, dtype));
        let (x, w, y) = (x?, w?, y?);
        let product = Launch {
            kernel: Kernel::Op(Op::Linear { bias: false, products: dtype }),
            inputs: vec![x, w],
            outputs: vec![y],
        };
        let flops_per_s = 2.0 * (size as f64).powi(3) / fastest(device, product)?;
        let elements = 4 * size * size;
        let [from, to] = [0, 1].map(|_| place(device, &[elements], DType::F32));
        let (from, to) = (from?, to?);
        let copy = Launch { kernel: Kernel::Cast, inputs: vec![from], outputs: vec![to] };
        let copy_bytes_per_s = 8.0 * elements as f64 / fastest(device, copy)?;
        for view in [x, w, y, from, to] {
            device.free(view.buffer);
        }
        Ok(CardLimits { description: device.describe(), flops_per_s, copy_bytes_per_s })
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{}: {:.1} TFLOP/s in a large product, {:.2} TB/s copied",
            self.description,
            self.flops_per_s / 1e12,
            self.copy_bytes_per_s / 1e12
        )
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "device": self.description,
            "flops_per_s": self.flops_per_s,
            "copy_bytes_per_s": self.copy_bytes_per_s,
        })
    }
}

/// The least seconds of a launch.
fn fastest(device: &mut dyn Device, launch: Launch) -> Result<f64> {
    let sequence = device.bind(&[launch])?;
    let mut least = f64::INFINITY;
    for _ in 0..12 {
        let mut times = [Duration::ZERO];
        device.run_timed(sequence, &mut times)?;
        least = least.min(times[0].as_secs_f64());
    }
    device.unbind(sequence);
    Ok(least)
}
