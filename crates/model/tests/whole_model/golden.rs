//! A tiny GPT-2 against what PyTorch computed in double precision (`tools/make_golden.py`).

use std::{ops::ControlFlow, path::PathBuf};

use ironmill_data::safetensors::{Dtype, SafeTensors};
use ironmill_graph::Parameter;
use ironmill_model::{
    Batch, Decay, Engine, GenerateOptions, Model, Sampling, Schedule, TrainOptions, Trainer, checkpoint,
};

use crate::{backends, distance, options, to_f64};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gpt2")
}

struct Golden(SafeTensors);

impl Golden {
    fn open() -> Self {
        Golden(SafeTensors::open(&folder().join("golden.safetensors")).expect("the golden file is there"))
    }

    fn bytes(&self, name: &str, dtype: Dtype) -> Vec<u8> {
        let info = self.0.info(name).expect(name);
        assert_eq!(info.dtype, dtype, "{name}");
        let elements: u64 = info.shape.iter().product();
        let mut bytes = vec![0; (elements * dtype.bytes()) as usize];
        self.0.read_bytes(name, &mut bytes).expect(name);
        bytes
    }

    fn u32s(&self, name: &str) -> Vec<u32> {
        let bytes = self.bytes(name, Dtype::U32);
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name, Dtype::F32);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        let bytes = self.bytes(name, Dtype::F64);
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
    }

    /// A tensor of the model, turned round where Hugging Face stores inputs first.
    fn parameter(&self, prefix: &str, parameter: &Parameter) -> Vec<f64> {
        let values = self.f64s(&format!("{prefix}.{}", parameter.name));
        let (rows, columns) = (parameter.shape.rows(), parameter.shape.columns());
        let conv1d = parameter.name.contains(".c_") && parameter.name.ends_with(".weight");
        if !conv1d {
            return values;
        }
        (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .map(|(row, column)| values[column * rows + row])
            .collect()
    }

    fn batch(&self, prefix: &str, index: usize) -> Batch {
        let take = |len: usize| index * len..(index + 1) * len;
        Batch {
            ids: self.u32s(&format!("{prefix}ids"))[take(33)].to_vec(),
            targets: self.u32s(&format!("{prefix}targets"))[take(33)].to_vec(),
            weights: self.f32s(&format!("{prefix}weights"))[take(33)].to_vec(),
            samples: vec![0, 1, 2],
            ..Batch::new(3, 11)
        }
    }
}

fn golden_options(micro_rows: usize) -> TrainOptions {
    let schedule = Schedule { peak: 1e-2, floor: 1e-2, warmup: 0, steps: 10, decay: Decay::Constant };
    TrainOptions { lengths: vec![11], schedule, ..options(3, micro_rows) }
}

fn load() -> (Model, Vec<f32>) {
    checkpoint::load_model(&folder()).expect("the golden model loads")
}

#[test]
fn logits_match_pytorch() {
    let golden = Golden::open();
    let (ids, logits) = (golden.u32s("ids"), golden.f64s("logits"));
    for (device, eps) in backends() {
        let (model, values) = load();
        let vocabulary = model.config().vocab_size;
        let mut engine = Engine::new(device, model, &values).unwrap();
        for (row, ids) in ids.chunks_exact(11).enumerate() {
            for len in [1, 6, 11] {
                let expected = &logits[(row * 11 + len - 1) * vocabulary..][..vocabulary];
                let ours = to_f64(&engine.next_logits(&ids[..len]).unwrap());
                // Logits are read back in single precision on every backend.
                let bound = 100.0 * eps.max(f64::from(f32::EPSILON) / 10.0);
                assert!(distance(&ours, expected) < bound, "{} {len}", engine.describe_device());
            }
        }
    }
}

#[test]
fn loss_norm_and_every_gradient_match_pytorch() {
    let golden = Golden::open();
    for micro_rows in [1, 3] {
        for (device, eps) in backends() {
            let (model, values) = load();
            let layout = model.layout().clone();
            let mut trainer = Trainer::new(device, model, golden_options(micro_rows), &values).unwrap();
            let batch = golden.batch("", 0);
            assert_eq!(batch.counted() as u32, golden.u32s("counts")[0]);
            let report = trainer.step_on(&batch).unwrap();
            let bound = 200.0 * eps.max(f64::from(f32::EPSILON) / 100.0);
            assert!((report.loss - golden.f64s("loss")[0]).abs() < bound, "{}", report.loss);
            // The norm is reported in single precision.
            assert!((report.norm - golden.f64s("grad_norm")[0]).abs() < bound.max(1e-6), "{}", report.norm);
            let gradients = trainer.gradients().unwrap();
            for parameter in layout.parameters() {
                let expected = golden.parameter("grad", parameter);
                let difference = distance(&gradients[parameter.range()], &expected);
                // The seed, 1 / counted targets, is single precision on every backend.
                assert!(difference < bound, "{}: {difference}", parameter.name);
            }
        }
    }
}

#[test]
fn ten_adamw_steps_match_pytorch() {
    let golden = Golden::open();
    let (losses, norms) = (golden.f64s("train.losses"), golden.f64s("train.grad_norms"));
    for (device, _) in backends() {
        let (model, values) = load();
        let layout = model.layout().clone();
        let mut trainer = Trainer::new(device, model, golden_options(3), &values).unwrap();
        for step in 0..10 {
            let report = trainer.step_on(&golden.batch("train.", step)).unwrap();
            // Settings such as the rate and the betas are single precision: PyTorch's own f32 run is as far away.
            assert!(
                (report.loss - losses[step]).abs() < 1e-5,
                "step {step}: {} {}",
                report.loss,
                losses[step]
            );
            assert!((report.norm - norms[step]).abs() < 5e-5, "step {step}: {} {}", report.norm, norms[step]);
        }
        let parameters = to_f64(&trainer.engine().parameters().unwrap());
        for parameter in layout.parameters() {
            let mut expected = golden.parameter("train.param", parameter);
            let mut ours = parameters[parameter.range()].to_vec();
            if parameter.name.ends_with("attn.c_attn.bias") {
                // Keys shifted by a constant change nothing, so this gradient is pure rounding, which Adam magnifies.
                expected.drain(24..48);
                ours.drain(24..48);
            }
            let difference = distance(&ours, &expected);
            assert!(difference < 1e-4, "{}: {difference}", parameter.name);
        }
    }
}

#[test]
fn greedy_generation_matches_transformers() {
    let golden = Golden::open();
    let (prompt, expected) = (golden.u32s("greedy.prompt"), golden.u32s("greedy.ids"));
    for (device, _) in backends() {
        let (model, values) = load();
        let mut engine = Engine::new(device, model, &values).unwrap();
        let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 10, stop: vec![] };
        let samples =
            engine.generate(&[prompt.clone()], &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(samples[0].ids, expected);
    }
}
