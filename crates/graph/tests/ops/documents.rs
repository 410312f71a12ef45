//! Attention inside documents: nothing crosses a border, and each document is attended to as if it were alone.

use std::ops::Range;

use ironmill_compute::{Attention, Cpu, DType, Device, Mask, cpu::InstructionSet};

use crate::{
    cases::{Case, PLAIN, attention_case, borders},
    harness::{Results, exact, operand_values, run, run_seeded, seed_values},
    tolerance::{compare, largest, relative},
};

const SAMPLES: usize = 2;
const POSITIONS: usize = 131;
const HEAD_DIM: usize = 5;

/// Documents of odd lengths, of one token, with borders inside tiles and on them, and one that fills the sample.
const PACKINGS: [&[usize]; 5] = [&[37, 1, 93], &[64, 3, 64], &[3, 1, 7], &[1], &[131]];

/// Every mask, with and without a window, and with heads that share keys.
fn attentions() -> [Attention; 5] {
    let shared = Attention { heads: 4, kv_heads: 2, ..PLAIN };
    let full = Attention { mask: Mask::Full, ..shared };
    [
        Attention { heads: 2, kv_heads: 2, ..PLAIN },
        shared,
        full,
        Attention { window: 3, ..shared },
        Attention { window: 40, ..full },
    ]
}

/// The reference and the CPU with everything it can do.
fn devices() -> Vec<Box<dyn Device>> {
    let sets = InstructionSet::ALL.into_iter().filter_map(|set| Cpu::with_instruction_set(2, set));
    let cpus = sets.map(|cpu| -> Box<dyn Device> { Box::new(cpu.unwrap()) });
    std::iter::once(exact()).chain(cpus).collect()
}

/// The documents of all samples: sample and positions.
fn documents(lengths: &[usize]) -> Vec<(usize, Range<usize>)> {
    let of_sample = |sample| {
        let starts = borders(sample, POSITIONS, lengths);
        let document = move |start: usize| {
            let length = starts[start..].iter().take_while(|&&other| other == starts[start]).count();
            (starts[start] == start).then_some((sample, start..start + length))
        };
        (0..POSITIONS).filter_map(document)
    };
    (0..SAMPLES).flat_map(of_sample).collect()
}

/// The elements of a [B,T,C] tensor that belong to a document.
fn rows_of((sample, positions): &(usize, Range<usize>), columns: usize) -> Range<usize> {
    let first = sample * POSITIONS;
    (first + positions.start) * columns..(first + positions.end) * columns
}

/// For every result: its name, its elements, and those that belong to a document, in the order of the document alone.
fn parts<'a>(
    results: &'a Results,
    heads: usize,
    document: &(usize, Range<usize>),
) -> Vec<(String, &'a Vec<f64>, Vec<usize>)> {
    let (sample, positions) = document;
    let part = |(name, values): (String, &'a Vec<f64>)| {
        let elements = match name.as_str() {
            // Statistics are [B,H,T].
            "output 1" => (0..heads)
                .flat_map(|h| positions.clone().map(move |t| (sample * heads + h) * POSITIONS + t))
                .collect(),
            _ => rows_of(document, values.len() / (SAMPLES * POSITIONS)).collect(),
        };
        (name, values, elements)
    };
    results.all().map(part).collect()
}

#[test]
fn changing_a_document_changes_no_bit_of_another() {
    for lengths in PACKINGS {
        let documents = documents(lengths);
        let chosen = [0, 1, documents.len() / 2, documents.len() - 1].map(|i| &documents[i]);
        for attention in attentions() {
            let case = attention_case("packed", [SAMPLES, POSITIONS, HEAD_DIM], attention, lengths);
            let operands = operand_values(&case);
            let before: Vec<Results> =
                devices().into_iter().map(|device| run(&case, device, &operands)).collect();
            for document in chosen {
                let mut changed = operands.clone();
                for values in &mut changed[..3] {
                    let rows = rows_of(document, values.len() / (SAMPLES * POSITIONS));
                    values[rows].iter_mut().for_each(|x| *x = f64::from((1.0 - 2.5 * *x) as f32));
                }
                for (device, before) in devices().into_iter().zip(&before) {
                    let at = format!("{document:?} of {lengths:?}, {attention:?}, {}", device.describe());
                    let after = run(&case, device, &changed);
                    check_others(&at, attention.heads, document, before, &after);
                }
            }
        }
    }
}

fn check_others(at: &str, heads: usize, document: &(usize, Range<usize>), before: &Results, after: &Results) {
    assert_ne!(before.outputs[0], after.outputs[0], "{at}: the change must be seen in the document itself");
    let parts = parts(before, heads, document).into_iter().zip(after.all());
    for ((name, before, own), (_, after)) in parts {
        let mut is_own = vec![false; before.len()];
        own.iter().for_each(|&element| is_own[element] = true);
        for element in (0..before.len()).filter(|&element| !is_own[element]) {
            let (before, after) = (before[element], after[element]);
            assert_eq!(
                before.to_bits(),
                after.to_bits(),
                "{at}: {name}, element {element}: {before}, {after}"
            );
        }
    }
}

#[test]
fn attention_with_borders_equals_attention_of_each_document_alone() {
    for lengths in PACKINGS {
        for attention in attentions() {
            let case = attention_case("packed", [SAMPLES, POSITIONS, HEAD_DIM], attention, lengths);
            let operands = operand_values(&case);
            let in_f32 = relative(4.0, DType::F32.epsilon(), case.reduction);
            let packed: Vec<(String, Results, f64)> = devices()
                .into_iter()
                .map(|device| {
                    let bound = if device.name() == "reference" { 1e-12 } else { in_f32 };
                    (device.describe(), run(&case, device, &operands), bound)
                })
                .collect();
            for document in documents(lengths) {
                let alone = alone(&case, attention, &operands, &document);
                for (device, packed, bound) in &packed {
                    let at = format!("{document:?} of {lengths:?}, {attention:?}, {device}");
                    check_alone(&at, parts(packed, attention.heads, &document), &alone, *bound);
                }
            }
        }
    }
}

/// The results of a document inside a sample against those of the document alone.
fn check_alone(at: &str, packed: Vec<(String, &Vec<f64>, Vec<usize>)>, alone: &Results, bound: f64) {
    // As in all attention, the gradients of queries and keys are differences of terms as large as those of values.
    let scale = alone.gradients.iter().map(|(_, gradient)| largest(gradient)).fold(0.0, f64::max);
    for ((name, packed, own), (_, alone)) in packed.into_iter().zip(alone.all()) {
        let got: Vec<f64> = own.iter().map(|&element| packed[element]).collect();
        if let Err(difference) = compare(&got, alone, bound * scale.max(largest(alone))) {
            panic!("{at}: {name}: {difference}");
        }
    }
}

/// A document as a sample of its own, without borders, on the reference.
fn alone(
    case: &Case,
    attention: Attention,
    operands: &[Vec<f64>],
    document: &(usize, Range<usize>),
) -> Results {
    let take = |values: &[f64]| values[rows_of(document, values.len() / (SAMPLES * POSITIONS))].to_vec();
    let operands: Vec<Vec<f64>> = operands[..3].iter().map(|values| take(values)).collect();
    let outputs: usize = case.operands[0].dims.iter().product();
    let seeds = take(&seed_values(0, outputs));
    let case = attention_case("alone", [1, document.1.len(), HEAD_DIM], attention, &[]);
    run_seeded(&case, exact(), &operands, &[0, 1, 2], &|_, _| seeds.clone())
}
