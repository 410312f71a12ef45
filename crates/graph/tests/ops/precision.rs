//! A working type narrower than f32: the rounding reference stays near the exact one; a backend without it says so.

use ironmill_compute::{Cpu, DType, Device, HostData, Reference, cpu::InstructionSet};
use ironmill_graph::{Graph, Layout, Passes, Precision, Runtime, States, refresh_program};

use crate::{
    cases::normals,
    harness::{cpu, exact},
    tiny::{Model, SMALL, Size, Trial},
    tolerance::{assert_close, largest, relative},
};

const SIZE: Size = Size { dropout: 0.0, ..SMALL };

#[test]
fn a_bf16_program_is_as_near_to_the_exact_one_as_bf16_allows() {
    let model = Model::new(SIZE);
    let (loss, gradients) = one_step(&model, exact(), &Passes::ALL, &Passes::ALL);
    let bf16 = bf16_passes(&model, true);
    let (rounded_loss, rounded_gradients) = one_step(&model, rounded(), &bf16, &Passes::ALL);

    // Some forty roundings one after the other, each half an epsilon, of which the residual stream averages most away.
    let bound = relative(0.5, DType::BF16.epsilon(), 40);
    assert_close("loss", &[rounded_loss], &[loss], bound);
    assert_close("gradients", &rounded_gradients, &gradients, bound);

    // The rounding is real: neither result is near what f32 would give.
    let f32_bound = relative(16.0, DType::F32.epsilon(), 40);
    assert!((rounded_loss - loss).abs() > f32_bound * loss, "{rounded_loss} and {loss}");
    let apart = rounded_gradients.iter().zip(&gradients).map(|(a, b)| a - b).collect::<Vec<_>>();
    assert!(largest(&apart) > f32_bound * largest(&gradients));
}

#[test]
fn fusing_changes_nothing_in_bf16() {
    let model = Model::new(SIZE);
    let plain = one_step(&model, rounded(), &bf16_passes(&model, false), &Passes::NONE);
    let fused = one_step(&model, rounded(), &bf16_passes(&model, true), &Passes::NONE);
    assert_close("loss", &[fused.0], &[plain.0], 1e-12);
    assert_close("gradients", &fused.1, &plain.1, 1e-12);
}

#[test]
fn in_f32_the_rounding_reference_stays_within_f32_of_the_exact_one() {
    let model = Model::new(SIZE);
    let (loss, gradients) = one_step(&model, exact(), &Passes::ALL, &Passes::ALL);
    let (rounded_loss, rounded_gradients) = one_step(&model, rounded(), &Passes::ALL, &Passes::ALL);
    let bound = relative(0.5, DType::F32.epsilon(), 40);
    assert_close("loss", &[rounded_loss], &[loss], bound);
    assert_close("gradients", &rounded_gradients, &gradients, bound);
}

#[test]
fn cpu_refuses_bf16_by_name_when_the_program_is_compiled() {
    let model = Model::new(SIZE);
    for fuse in [false, true] {
        let mut runtime = Runtime::new(cpu(1), &model.states).unwrap();
        let error = runtime.compile(model.micro(2, false).graph, &bf16_passes(&model, fuse)).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("the cpu backend has no ") && message.contains("kernel in bf16"),
            "{message}"
        );
    }
}

/// Everything stored in f32, products of bf16.
const PRODUCTS: Passes = Passes { precision: Precision::Products(DType::BF16), ..Passes::ALL };

#[test]
fn bf16_products_are_as_near_to_the_exact_ones_as_bf16_allows() {
    let model = Model::new(SIZE);
    let (loss, gradients) = one_step(&model, exact(), &Passes::ALL, &Passes::ALL);
    let (rounded_loss, rounded_gradients) = one_step(&model, rounded(), &PRODUCTS, &Passes::ALL);
    let bound = relative(0.5, DType::BF16.epsilon(), 16);
    assert_close("loss", &[rounded_loss], &[loss], bound);
    assert_close("gradients", &rounded_gradients, &gradients, bound);

    // The rounding is real: the loss is not near what f32 would give.
    assert!((rounded_loss - loss).abs() > relative(16.0, DType::F32.epsilon(), 40) * loss);
}

#[test]
fn cpu_multiplies_bf16_as_the_rounding_reference_does() {
    let model = Model::new(SIZE);
    let (loss, gradients) = one_step(&model, rounded(), &PRODUCTS, &Passes::ALL);
    for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
        let cpu = Cpu::with_instruction_set(2, set).unwrap().unwrap();
        // Only the products have a narrow type, so the update and the copy stay in f32.
        let mut trial = Trial::new(&model, Box::new(cpu), &Passes::ALL);
        let program = trial.compile(model.micro(2, false), &PRODUCTS);
        let cpu_loss = trial.run(&program, 0..2, 2, 0);
        // Computed factors near the middle of two bf16 go either way, and what follows takes the difference along.
        let bound = relative(0.25, DType::BF16.epsilon(), 16);
        assert_close(&format!("{set}: loss"), &[cpu_loss], &[loss], bound / 16.0);
        assert_close(&format!("{set}: gradients"), &trial.gradients(), &gradients, bound);
    }
}

#[test]
fn fusing_changes_nothing_with_bf16_products() {
    let model = Model::new(SIZE);
    let unfused = Passes { fuse: false, ..PRODUCTS };
    let plain = one_step(&model, rounded(), &unfused, &Passes::NONE);
    let fused = one_step(&model, rounded(), &PRODUCTS, &Passes::NONE);
    assert_close("loss", &[fused.0], &[plain.0], 1e-6);
    assert_close("gradients", &fused.1, &plain.1, 1e-6);
}

#[test]
fn weights_kept_in_bf16_multiply_bit_for_bit_as_those_that_are_rounded_on_the_way() {
    // Even and odd rows; odd ones are read from the masters.
    for (n, k) in [(70, 130), (209, 902), (33, 17)] {
        let (mut layout, mut states) = (Layout::default(), States::default());
        let w = layout.add("w", &[n, k], true);
        let masters = states.declare("parameters", DType::F32, layout.len());
        let copy = states.declare("working", DType::BF16, layout.len());
        let weights =
            Passes { precision: Precision::Weights { dtype: DType::BF16, masters, copy }, ..Passes::ALL };
        for (set, rows) in InstructionSet::ALL.into_iter().flat_map(|set| [1, 3, 8, 9, 100].map(|m| (set, m)))
        {
            let Some(cpu) = Cpu::with_instruction_set(2, set) else { continue };
            let mut runtime = Runtime::new(Box::new(cpu.unwrap()), &states).unwrap();
            let values = normals(1, layout.len());
            runtime.write_state(masters, 0..layout.len(), HostData::F64(&values)).unwrap();
            let refresh = refresh_program(layout.len(), DType::BF16, masters, copy);
            let refresh = runtime.compile(refresh, &Passes::ALL).unwrap();
            runtime.run(refresh).unwrap();
            let mut product = |passes: &Passes| {
                let mut g = Graph::new();
                let x = g.input("x", &[rows, k], DType::F32);
                let w = g.parameter(masters, &layout.parameters()[w]);
                let y = g.linear(x, w, None).unwrap();
                let y = g.gelu(y).unwrap();
                g.keep(y);
                let program = runtime.compile(g, passes).unwrap();
                runtime.write(program, x, HostData::F64(&normals(2, rows * k))).unwrap();
                runtime.run(program).unwrap();
                let mut out = vec![0.0f32; rows * n];
                runtime.read(program, y, &mut out).unwrap();
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(product(&weights), product(&PRODUCTS), "{set}, {rows} rows of {k}");
        }
    }
}

fn rounded() -> Box<dyn Device> {
    Box::new(Reference::rounded())
}

fn bf16_passes(model: &Model, fuse: bool) -> Passes {
    let precision =
        Precision::Working { dtype: DType::BF16, masters: model.optimiser.parameters, copy: model.working };
    Passes { precision, fuse, share_memory: fuse, ..Passes::ALL }
}

/// The loss and gradients of one micro-batch, with the working copy fresh.
fn one_step(model: &Model, device: Box<dyn Device>, micro: &Passes, update: &Passes) -> (f64, Vec<f64>) {
    let mut trial = Trial::new(model, device, update);
    let refresh = refresh_program(model.layout.len(), DType::BF16, model.optimiser.parameters, model.working);
    let refresh = trial.runtime.compile(refresh, &Passes::NONE).unwrap();
    let program = trial.compile(model.micro(2, false), micro);
    trial.runtime.run(refresh).unwrap();
    let loss = trial.run(&program, 0..2, 2, 0);
    (loss, trial.gradients())
}
