//! Tiny models against what PyTorch computed in double precision (`tools/make_golden.py`).

use std::{ops::ControlFlow, path::PathBuf};

use ironmill_compute::DType;
use ironmill_data::safetensors::{Dtype, SafeTensors};
use ironmill_graph::Parameter;
use ironmill_model::{
    Batch, Betas, Decay, Engine, GenerateOptions, Model, OptimizerOptions, Sampling, Schedule, TrainOptions,
    Trainer, checkpoint,
};

use crate::{backends, cuda, distance, objective, options, to_f64};

const MODELS: [&str; 4] = ["gpt2", "llama", "qwen3", "encoder"];

/// The golden files of one model.
struct Golden {
    folder: PathBuf,
    files: Vec<SafeTensors>,
}

impl Golden {
    fn open(model: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(model);
        let files = ["golden.safetensors", "optimisers.safetensors"]
            .map(|name| folder.join(name))
            .into_iter()
            .filter(|path| path.exists())
            .map(|path| SafeTensors::open(&path).expect("a golden file reads"))
            .collect();
        Golden { folder, files }
    }

    fn model(&self) -> (Model, Vec<f32>) {
        checkpoint::load_model(&self.folder).expect("the golden model loads")
    }

    fn contains(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.contains(name))
    }

    fn bytes(&self, name: &str) -> (Dtype, Vec<u8>) {
        let file = self.files.iter().find(|file| file.contains(name)).unwrap_or_else(|| panic!("no {name}"));
        let info = file.info(name).expect(name);
        let elements: u64 = info.shape.iter().product();
        let mut bytes = vec![0; (elements * info.dtype.bytes()) as usize];
        file.read_bytes(name, &mut bytes).expect(name);
        (info.dtype, bytes)
    }

    fn u32s(&self, name: &str) -> Vec<u32> {
        let (dtype, bytes) = self.bytes(name);
        assert_eq!(dtype, Dtype::U32, "{name}");
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    /// Numbers of either precision.
    fn reals(&self, name: &str) -> Vec<f64> {
        match self.bytes(name) {
            (Dtype::F64, bytes) => bytes
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes")))
                .collect(),
            (Dtype::F32, bytes) => bytes
                .chunks_exact(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four bytes"))))
                .collect(),
            (other, _) => panic!("{name} is {other:?}"),
        }
    }

    /// A tensor of the model, turned round where Hugging Face stores inputs first.
    fn parameter(&self, prefix: &str, parameter: &Parameter) -> Vec<f64> {
        let values = self.reals(&format!("{prefix}.{}", parameter.name));
        let (rows, columns) = (parameter.shape.rows(), parameter.shape.columns());
        let conv1d = parameter.name.contains(".c_") && parameter.name.ends_with(".weight");
        if !conv1d {
            return values;
        }
        let place = |i: usize| (i % columns) * rows + i / columns;
        (0..values.len()).map(|i| values[place(i)]).collect()
    }

    fn batch(&self, prefix: &str, index: usize) -> Batch {
        let take = |len: usize| index * len..(index + 1) * len;
        let weights = self.reals(&format!("{prefix}weights"));
        Batch {
            ids: self.u32s(&format!("{prefix}ids"))[take(33)].to_vec(),
            targets: self.u32s(&format!("{prefix}targets"))[take(33)].to_vec(),
            weights: weights[take(33)].iter().map(|&weight| weight as f32).collect(),
            samples: vec![0, 1, 2],
            ..Batch::new(3, 11)
        }
    }
}

fn golden_options(model: &Model, micro_rows: usize) -> TrainOptions {
    let schedule = Schedule { peak: 1e-2, floor: 1e-2, warmup: 0, steps: 10, decay: Decay::Constant };
    let objective = objective(model.config());
    TrainOptions { lengths: vec![11], objective, schedule, ..options(3, micro_rows) }
}

#[test]
fn logits_match_pytorch() {
    for golden in MODELS.map(Golden::open).iter().filter(|golden| golden.contains("greedy.prompt")) {
        let (ids, logits) = (golden.u32s("ids"), golden.reals("logits"));
        for (device, eps) in backends() {
            let (model, values) = golden.model();
            let vocabulary = model.config().vocab_size;
            let mut engine = Engine::new(device, model, &values).unwrap();
            for (row, ids) in ids.chunks_exact(11).enumerate() {
                for len in [1, 6, 11] {
                    let expected = &logits[(row * 11 + len - 1) * vocabulary..][..vocabulary];
                    let ours = to_f64(&engine.next_logits(&ids[..len]).unwrap());
                    // Logits are read back in single precision on every backend.
                    let bound = 100.0 * eps.max(f64::from(f32::EPSILON) / 10.0);
                    let difference = distance(&ours, expected);
                    assert!(difference < bound, "{:?} {difference}", golden.folder);
                }
            }
        }
    }
}

#[test]
fn loss_norm_and_every_gradient_match_pytorch() {
    for golden in MODELS.map(Golden::open) {
        for micro_rows in [1, 3] {
            for (device, eps) in backends() {
                let (model, values) = golden.model();
                let layout = model.layout().clone();
                let options = golden_options(&model, micro_rows);
                let mut trainer = Trainer::new(device, model, options, &values).unwrap();
                let batch = golden.batch("", 0);
                assert_eq!(batch.counted() as u32, golden.u32s("counts")[0]);
                let report = trainer.step_on(&batch).unwrap();
                let norm = golden.reals("grad_norm")[0];
                // Loss, norm and the seed of the gradient are single precision on every backend; rotary angles too.
                let bound = 200.0 * eps.max(f64::from(f32::EPSILON) / 100.0) * norm.max(1.0);
                assert!((report.loss - golden.reals("loss")[0]).abs() < bound, "{:?}", golden.folder);
                assert!((report.norm - norm).abs() < bound, "{:?} {}", golden.folder, report.norm);
                let gradients = trainer.gradients().unwrap();
                for parameter in layout.parameters() {
                    let expected = golden.parameter("grad", parameter);
                    let difference = distance(&gradients[parameter.range()], &expected);
                    assert!(difference < bound, "{:?} {}: {difference}", golden.folder, parameter.name);
                }
            }
        }
    }
}

#[test]
fn ten_steps_of_every_optimiser_match_pytorch() {
    let betas = Betas::default();
    for (optimizer, rate) in [
        (OptimizerOptions::AdamW(betas), 1e-2),
        (OptimizerOptions::Adam(betas), 1e-2),
        (OptimizerOptions::Sgd { momentum: 0.9 }, 1e-1),
    ] {
        for golden in MODELS.map(Golden::open) {
            // The first golden file has AdamW alone and does not name it.
            let named = format!("train.{}.losses", optimizer.name());
            let prefix =
                if golden.contains(&named) { format!("train.{}", optimizer.name()) } else { "train".into() };
            for ((device, _), slack) in backends().into_iter().zip([1.0, 10.0, 10.0]) {
                check_ten_steps(&golden, &prefix, (optimizer, rate), device, slack);
            }
        }
    }
}

fn check_ten_steps(
    golden: &Golden,
    prefix: &str,
    (optimizer, rate): (OptimizerOptions, f64),
    device: Box<dyn ironmill_compute::Device>,
    slack: f64,
) {
    let (model, values) = golden.model();
    let layout = model.layout().clone();
    let mut options = golden_options(&model, 3);
    options.optimizer = optimizer;
    options.schedule.peak = rate;
    let mut trainer = Trainer::new(device, model, options, &values).unwrap();
    let (losses, norms) =
        (golden.reals(&format!("{prefix}.losses")), golden.reals(&format!("{prefix}.grad_norms")));
    for step in 0..10 {
        let report = trainer.step_on(&golden.batch("train.", step)).unwrap();
        // Settings such as the rate and the betas are single precision on every backend. Where a gradient is next to
        // nothing, Adam turns its rounding error into a step of full size, so an f32 backend is ten times further away.
        let place = format!("{:?} {prefix} step {step}", golden.folder);
        assert!(
            (report.loss - losses[step]).abs() < 5e-6 * slack,
            "{place}: {} {}",
            report.loss,
            losses[step]
        );
        assert!((report.norm - norms[step]).abs() < 5e-5 * slack, "{place}: {} {}", report.norm, norms[step]);
    }
    let parameters = to_f64(&trainer.engine().parameters().unwrap());
    let mut compared = 0;
    for parameter in layout.parameters() {
        if !golden.contains(&format!("{prefix}.param.{}", parameter.name)) {
            continue;
        }
        compared += 1;
        let mut expected = golden.parameter(&format!("{prefix}.param"), parameter);
        let mut ours = parameters[parameter.range()].to_vec();
        // Keys shifted by a constant change nothing, so their bias has a gradient of pure rounding, which Adam magnifies.
        if parameter.name.ends_with("attn.c_attn.bias") {
            expected.drain(24..48);
            ours.drain(24..48);
        } else if parameter.name.ends_with("attention.self.key.bias") {
            continue;
        }
        let difference = distance(&ours, &expected);
        assert!(difference < 2e-5 * slack, "{:?} {prefix} {}: {difference}", golden.folder, parameter.name);
    }
    assert!(compared >= 2, "{prefix}");
}

#[test]
fn sixteen_bits_on_a_card_stay_near_pytorch() {
    for (golden, dtype) in
        MODELS.map(Golden::open).iter().flat_map(|golden| [(golden, DType::BF16), (golden, DType::F16)])
    {
        let Some(device) = cuda() else { return };
        let (model, values) = golden.model();
        let layout = model.layout().clone();
        let options = TrainOptions { working: Some(dtype), ..golden_options(&model, 3) };
        let mut trainer = Trainer::new(device, model, options, &values).unwrap();
        let report = trainer.step_on(&golden.batch("", 0)).unwrap();
        let norm = golden.reals("grad_norm")[0];
        let eps = dtype.epsilon();
        assert!(
            (report.loss - golden.reals("loss")[0]).abs() < 2.0 * eps,
            "{:?} {dtype} {}",
            golden.folder,
            report.loss
        );
        assert!(
            (report.norm - norm).abs() < 8.0 * eps * norm,
            "{:?} {dtype} {} {norm}",
            golden.folder,
            report.norm
        );
        let gradients = trainer.gradients().unwrap();
        for parameter in layout.parameters() {
            let expected = golden.parameter("grad", parameter);
            let difference = distance(&gradients[parameter.range()], &expected);
            assert!(
                difference < 16.0 * eps * norm,
                "{:?} {dtype} {}: {difference}",
                golden.folder,
                parameter.name
            );
        }
    }
}

#[test]
fn greedy_generation_matches_transformers() {
    for golden in MODELS.map(Golden::open).iter().filter(|golden| golden.contains("greedy.prompt")) {
        let (prompt, expected) = (golden.u32s("greedy.prompt"), golden.u32s("greedy.ids"));
        for (device, _) in backends() {
            let (model, values) = golden.model();
            let mut engine = Engine::new(device, model, &values).unwrap();
            let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 10, stop: vec![] };
            let samples = engine
                .generate(std::slice::from_ref(&prompt), &options, &mut |_, _| ControlFlow::Continue(()))
                .unwrap();
            assert_eq!(samples[0].ids, expected);
        }
    }
}
