//! Documents packed into one sample must train as they would one by one.

use ironmill_compute::IGNORED;
use ironmill_model::{Batch, ModelConfig, TrainOptions, Trainer};

use crate::{backends, distance, kinds, model, objective, options};

const DOCUMENTS: [&[u32]; 3] = [&[3, 1, 4, 1, 5], &[9, 2], &[6, 5, 3, 5, 8]];

/// A batch of the documents in one row, or in a row each with padding behind.
fn batch(packed: bool, masked: bool) -> Batch {
    let rows = if packed { 1 } else { DOCUMENTS.len() };
    let mut batch = Batch::new(rows, 12);
    batch.targets.fill(IGNORED);
    let mut packed_start = 0;
    for (row, document) in DOCUMENTS.into_iter().enumerate() {
        let start = if packed { packed_start } else { row * 12 };
        for (i, &id) in document.iter().enumerate() {
            let at = start + i;
            batch.ids[at] = id;
            batch.positions[at] = i as u32;
            batch.borders[at] = if packed { start as u32 } else { 0 };
            batch.targets[at] = match masked {
                true => {
                    if i % 2 == 0 {
                        id
                    } else {
                        IGNORED
                    }
                }
                false => document.get(i + 1).copied().unwrap_or(IGNORED),
            };
        }
        if !packed {
            for i in document.len()..12 {
                batch.borders[start + i] = document.len() as u32;
            }
        }
        packed_start += document.len();
    }
    batch
}

fn gradients(config: &ModelConfig, index: usize, batch: &Batch) -> (f64, Vec<f64>) {
    let rows = batch.samples.len();
    let options = TrainOptions { borders: true, objective: objective(config), ..options(rows, rows) };
    let model = model(config.clone());
    let values: Vec<f32> = model.initial_values(2).iter().map(|x| x * 10.0).collect();
    let mut trainer = Trainer::new(backends().remove(index).0, model, options, &values).unwrap();
    let report = trainer.step_on(batch).unwrap();
    (report.loss, trainer.gradients().unwrap())
}

#[test]
fn packed_documents_train_as_they_do_one_by_one() {
    for config in kinds() {
        let masked = !config.architecture.is_causal();
        for (index, (_, eps)) in backends().into_iter().enumerate() {
            let together = gradients(&config, index, &batch(true, masked));
            let apart = gradients(&config, index, &batch(false, masked));
            let scale = apart.1.iter().fold(1.0f64, |max, g| max.max(g.abs()));
            // The loss is read in single precision on every backend.
            assert!((together.0 - apart.0).abs() < 1e-5, "{config:?}: {} {}", together.0, apart.0);
            let difference = distance(&together.1, &apart.1);
            assert!(difference < 200.0 * eps * scale, "{config:?}: {difference} of {scale}");
        }
    }
}

#[test]
fn a_document_does_not_see_its_neighbours() {
    for config in kinds() {
        let masked = !config.architecture.is_causal();
        let mut changed = batch(true, masked);
        let plain = gradients(&config, 1, &changed);
        // Only the first document's tokens change, and none of its targets count: nothing may be different.
        changed.targets[..5].fill(IGNORED);
        let without = gradients(&config, 1, &changed);
        for id in &mut changed.ids[..5] {
            *id = 30;
        }
        let replaced = gradients(&config, 1, &changed);
        assert_eq!(without.0, replaced.0, "{config:?}");
        assert_ne!(plain.0, without.0);
    }
}
