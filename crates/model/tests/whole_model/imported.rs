//! A tiny model of every kind that can be imported, against what `transformers` computed (`tools/make_golden_models.py`).

use std::{ops::ControlFlow, path::PathBuf};

use ironmill_data::safetensors::SafeTensors;
use ironmill_model::{
    Batch, Decay, Engine, GenerateOptions, Pooling, Sampling, Schedule, Stored, TrainOptions, Trainer,
};

use crate::{backends, distance, options, to_f64};

const CAUSAL: [&str; 6] = ["llama2", "llama-linear", "smollm2", "mistral", "qwen2", "gemma3"];
const LENGTH: usize = 13;
/// How far f32 may be from the numbers of transformers.
const BOUND: f64 = 1e-4;

struct Golden {
    folder: PathBuf,
    file: SafeTensors,
}

impl Golden {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models").join(name);
        let file = SafeTensors::open(&folder.join("golden.safetensors")).unwrap();
        Golden { folder, file }
    }

    fn stored(&self) -> Stored {
        Stored::open(&self.folder).unwrap()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let elements: u64 = self.file.shape(name).unwrap().iter().product();
        let mut bytes = vec![0; 4 * elements as usize];
        self.file.read_bytes(name, &mut bytes).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let elements: u64 = self.file.shape(name).unwrap().iter().product();
        let mut values = vec![0.0; elements as usize];
        self.file.read_f32(name, &mut values).unwrap();
        to_f64(&values)
    }
}

#[test]
fn logits_of_every_kind_match_transformers() {
    for golden in CAUSAL.map(Golden::open) {
        let (ids, logits) = (golden.ids("ids"), golden.numbers("logits"));
        for (device, _) in backends() {
            let mut engine = Engine::open(device, golden.stored()).unwrap();
            let vocabulary = engine.model().config().vocab_size;
            for (ids, logits) in ids.chunks_exact(LENGTH).zip(logits.chunks_exact(LENGTH * vocabulary)) {
                for (last, expected) in logits.chunks_exact(vocabulary).enumerate() {
                    let ours = to_f64(&engine.next_logits(&ids[..=last]).unwrap());
                    let difference = distance(&ours, expected);
                    assert!(difference < BOUND, "{:?} {last}: {difference}", golden.folder);
                }
            }
        }
    }
}

#[test]
fn loss_and_every_gradient_of_every_kind_match_transformers() {
    for golden in CAUSAL.map(Golden::open) {
        for (device, _) in backends() {
            let stored = golden.stored();
            let values = stored.values().unwrap();
            let layout = stored.model().layout().clone();
            let schedule = Schedule { peak: 1e-2, floor: 1e-2, warmup: 0, steps: 10, decay: Decay::Constant };
            let options = TrainOptions { lengths: vec![LENGTH], schedule, ..options(2, 1) };
            let mut trainer = Trainer::new(device, stored.into_model(), options, &values).unwrap();
            let batch = Batch {
                ids: golden.ids("ids"),
                targets: golden.ids("targets"),
                weights: vec![1.0; 2 * LENGTH],
                samples: vec![0, 1],
                ..Batch::new(2, LENGTH)
            };
            let report = trainer.step_on(&batch).unwrap();
            assert!((report.loss - golden.numbers("loss")[0]).abs() < BOUND, "{:?}", golden.folder);
            let gradients = trainer.gradients().unwrap();
            for parameter in layout.parameters() {
                let expected = golden.numbers(&format!("grad.{}", parameter.name));
                let difference = distance(&gradients[parameter.range()], &expected);
                assert!(difference < BOUND, "{:?} {}: {difference}", golden.folder, parameter.name);
            }
        }
    }
}

#[test]
fn greedy_tokens_of_every_kind_match_transformers() {
    for golden in CAUSAL.map(Golden::open) {
        let expected = golden.ids("greedy.ids");
        for (device, _) in backends() {
            let mut engine = Engine::open(device, golden.stored()).unwrap();
            let options =
                GenerateOptions { sampling: Sampling::GREEDY, max_tokens: expected.len(), stop: vec![] };
            let prompt = golden.ids("ids")[..4].to_vec();
            let made = engine.generate(&[prompt], &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!(made[0].ids, expected, "{:?}", golden.folder);
        }
    }
}

#[test]
fn sentences_of_a_bare_encoder_match_transformers() {
    let golden = Golden::open("minilm");
    let (ids, lengths) = (golden.ids("ids"), golden.ids("lengths"));
    let texts: Vec<Vec<u32>> = ids
        .chunks_exact(LENGTH)
        .zip(&lengths)
        .map(|(ids, &length)| ids[..length as usize].to_vec())
        .collect();
    let expected = golden.numbers("sentences");
    let width = expected.len() / texts.len();
    for (device, _) in backends() {
        let mut engine = Engine::open(device, golden.stored()).unwrap();
        let vectors = engine.embed(&texts, Pooling::Mean).unwrap();
        let first = engine.embed(&texts, Pooling::First).unwrap();
        for (row, vector) in vectors.iter().enumerate() {
            let vector = to_f64(vector);
            let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            let unit: Vec<f64> = vector.iter().map(|x| x / norm).collect();
            assert!(distance(&unit, &expected[row * width..][..width]) < BOUND);
            let hidden = &golden.numbers("hidden")[row * LENGTH * width..][..width];
            assert!(distance(&to_f64(&first[row]), hidden) < BOUND);
        }
        assert!(engine.next_logits(&texts[0]).is_err(), "it has no head");
    }
}
