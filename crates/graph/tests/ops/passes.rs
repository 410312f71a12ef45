//! Programs with passes on equal programs with passes off, and the passes do what they are for.

use ironmill_compute::{DType, Kernel, Reference};
use ironmill_graph::{Passes, dry_run};

use crate::{
    harness::{DEVICES, cpu, exact},
    tiny::{ADAM_EPS, LEARNING_RATE, MEDIUM, Model, Outcome, SMALL, Size, Trial, train},
    tolerance::{assert_close, compare, largest, relative},
};

const FUSE: Passes = Passes { fuse: true, ..Passes::NONE };
const SHARE: Passes = Passes { share_memory: true, ..Passes::NONE };
const ALL_AND_EACH: [(&str, Passes); 3] = [("all", Passes::ALL), ("fuse", FUSE), ("share memory", SHARE)];

/// What a whole model may differ by in f32: some forty roundings one after the other, each magnified a little.
pub const MODEL_CONSTANT: f64 = 3.0;

#[test]
fn passes_change_nothing_on_the_reference() {
    let model = Model::new(SMALL);
    let plain = train(&model, exact(), &Passes::NONE);
    for (name, passes) in ALL_AND_EACH {
        let passed = train(&model, exact(), &passes);
        assert_close(&format!("{name}: losses"), &passed.losses, &plain.losses, 1e-12);
        assert_close(&format!("{name}: gradients"), &passed.gradients, &plain.gradients, 1e-12);
        assert_close(&format!("{name}: parameters"), &passed.parameters, &plain.parameters, 1e-12);
    }
}

#[test]
fn cpu_trains_as_the_reference_does_with_passes_on_and_off() {
    let model = Model::new(MEDIUM);
    let expected = train(&model, exact(), &Passes::NONE);
    for (name, passes) in ALL_AND_EACH.into_iter().chain([("none", Passes::NONE)]) {
        assert_model_close(&model, name, &train(&model, cpu(2), &passes), &expected);
    }
}

#[test]
fn sharing_memory_changes_no_bit_and_saves_memory() {
    let model = Model::new(MEDIUM);
    for device in DEVICES {
        for (shared, unshared) in [(SHARE, Passes::NONE), (Passes::ALL, FUSE)] {
            assert_eq!(train(&model, device(), &shared), train(&model, device(), &unshared));
        }
    }
    let plan = |passes| dry_run(model.micro(3, false).graph, passes).unwrap();
    assert!(plan(&SHARE).arena_bytes < plan(&Passes::NONE).arena_bytes * 2 / 3);
    assert_eq!(plan(&Passes::NONE).arena_bytes, plan(&Passes::NONE).unshared_bytes);
}

#[test]
fn fusing_replaces_the_head_every_residual_norm_and_every_gradient_write() {
    let model = Model::new(SMALL);
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let mut count = |passes: &Passes, is: fn(&Kernel) -> bool| {
        let program = trial.compile(model.micro(3, false), passes);
        trial.runtime.kernels(program.id).filter(|kernel| is(kernel)).count()
    };
    let is_head = |kernel: &Kernel| matches!(kernel, Kernel::HeadLoss(_));
    let is_norm = |kernel: &Kernel| matches!(kernel, Kernel::AddLayerNorm { .. });
    let is_into = |kernel: &Kernel| matches!(kernel, Kernel::OpInto { .. });
    let is_write = |kernel: &Kernel| matches!(kernel, Kernel::StateWrite { .. });

    // In each of two layers: a joint attention and its gradient, and an activation and its gradient in products.
    assert_eq!(count(&Passes::ALL, |kernel| matches!(kernel, Kernel::JointAttention(_))), 2);
    assert_eq!(count(&Passes::ALL, |kernel| matches!(kernel, Kernel::JointAttentionGrads { .. })), 2);
    assert_eq!(count(&Passes::ALL, |kernel| matches!(kernel, Kernel::LinearGelu { .. })), 2);
    assert_eq!(count(&Passes::ALL, |kernel| matches!(kernel, Kernel::LinearGradGelus { .. })), 2);
    // The gradients of the norms of a layer meet those that flow around its branches.
    assert_eq!(count(&Passes::ALL, |kernel| matches!(kernel, Kernel::NormGrads(_))), 4);

    assert_eq!(count(&Passes::ALL, is_head), 1);
    // Each of the two residuals of a layer is read by a norm: its own second, the next layer's first, or the last.
    assert_eq!(count(&Passes::ALL, is_norm), 4);
    assert_eq!(count(&Passes::ALL, is_write), 0);
    // A weight and a bias of four products a layer, two embeddings, and five norms, less what is in the gradients of norms,
    // attentions and activations; the head's weight is in the head.
    assert_eq!(count(&Passes::ALL, is_into), 2 * 4 * 2 + 2 + 5 - 4 - 2 - 2);
    for is_fused in [is_head, is_norm, is_into] {
        assert_eq!(count(&Passes::NONE, is_fused), 0);
    }
}

#[test]
fn a_device_that_wants_slopes_keeps_them_in_place_of_arguments() {
    let model = Model::new(SMALL);
    let device = || Box::new(Reference::exact().with_slopes());
    let mut trial = Trial::new(&model, device(), &Passes::NONE);
    let program = trial.compile(model.micro(3, false), &Passes::ALL);
    let kept = |kernel: &&Kernel| {
        matches!(kernel, Kernel::LinearGelu { slope: true, .. } | Kernel::LinearGradGelus { slope: true, .. })
    };
    assert_eq!(trial.runtime.kernels(program.id).filter(kept).count(), 4);
    let plain = train(&model, exact(), &Passes::NONE);
    let fused = train(&model, device(), &Passes::ALL);
    assert_close("losses", &fused.losses, &plain.losses, 1e-12);
    assert_close("gradients", &fused.gradients, &plain.gradients, 1e-12);
    assert_close("parameters", &fused.parameters, &plain.parameters, 1e-12);
}

#[test]
fn the_gradient_of_a_norm_sums_that_of_the_bias_before_it() {
    let model = Model::new(Size { dropout: 0.0, ..SMALL });
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let program = trial.compile(model.micro(3, false), &Passes::ALL);
    let with_bias = |kernel: &&Kernel| matches!(kernel, Kernel::NormGrads(of) if of.bias);
    // All but the first norm follow a product with a bias; around the last one nothing flows.
    assert_eq!(trial.runtime.kernels(program.id).filter(with_bias).count(), 3);
    let plain = train(&model, exact(), &Passes::NONE);
    let fused = train(&model, exact(), &FUSE);
    assert_close("gradients", &fused.gradients, &plain.gradients, 1e-12);
}

#[test]
fn norms_add_the_biases_of_products_of_many_rows() {
    const MOVE: Passes = Passes { bare_rows: 1, ..Passes::ALL };
    let model = Model::new(Size { dropout: 0.0, ..MEDIUM });
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let mut count = |bare_rows: usize, name: &str| {
        let program = trial.compile(model.micro(3, false), &Passes { bare_rows, ..MOVE });
        trial.runtime.kernels(program.id).filter(|kernel| kernel.name() == name).count()
    };
    let norms = count(usize::MAX, "add_layer_norm");
    // All but the first follow a product.
    assert_eq!([count(1, "add_layer_norm"), count(1, "add_biased_layer_norm")], [1, norms - 1]);
    assert_eq!(count(3 * MEDIUM.positions + 1, "add_biased_layer_norm"), 0);
    let plain = train(&model, exact(), &Passes::NONE);
    let moved = train(&model, exact(), &MOVE);
    assert_close("losses", &moved.losses, &plain.losses, 1e-12);
    assert_close("gradients", &moved.gradients, &plain.gradients, 1e-12);
    assert_model_close(&model, "on a processor", &train(&model, cpu(2), &MOVE), &plain);
}

#[test]
fn with_a_fused_head_the_logits_never_exist_whole() {
    let size = Size { positions: 256, vocabulary: 50_000, ..SMALL };
    let logits_bytes = 8 * size.positions * size.vocabulary * DType::F32.bytes();
    for trained in [false, true] {
        let model = Model::new(size);
        let graph = || {
            if trained { model.micro(8, false).graph } else { model.forward(8).graph }
        };
        let fused = dry_run(graph(), &Passes::ALL).unwrap();
        let plain = dry_run(graph(), &SHARE).unwrap();
        assert!(fused.arena_bytes < logits_bytes / 5, "{} of {logits_bytes}", fused.arena_bytes);
        assert!(plain.arena_bytes >= logits_bytes, "{} of {logits_bytes}", plain.arena_bytes);
    }
}

/// Compares training in f32 with the exact one, within bounds that follow from epsilon.
fn assert_model_close(model: &Model, name: &str, got: &Outcome, expected: &Outcome) {
    let relative = relative(MODEL_CONSTANT, DType::F32.epsilon(), 4 * MEDIUM.channels);
    assert_close(&format!("{name}: losses"), &got.losses, &expected.losses, relative);
    assert_gradients_close(model, name, &got.gradients, &expected.gradients, relative);
    // Adam divides by the root of the second moment, which magnifies an error of small gradients up to 1/eps times.
    let gradient_error = relative * largest(&expected.gradients);
    let step_error = 2.0 * f64::from(LEARNING_RATE) * gradient_error / f64::from(ADAM_EPS);
    let parameters = relative + step_error / largest(&expected.parameters);
    assert_close(&format!("{name}: parameters"), &got.parameters, &expected.parameters, parameters);
}

/// Compares gradients parameter by parameter. A parameter's scale is its own largest gradient, but not less than a
/// fiftieth of the model's: some gradients, as that of a key's bias, are zero in truth, and rounding leaves noise.
pub fn assert_gradients_close(model: &Model, name: &str, got: &[f64], expected: &[f64], relative: f64) {
    for parameter in model.layout.parameters() {
        let (got, of) = (&got[parameter.range()], &expected[parameter.range()]);
        let scale = largest(of).max(largest(expected) / 50.0);
        if let Err(difference) = compare(got, of, relative * scale) {
            panic!("{name}: gradient of {}: {difference}", parameter.name);
        }
    }
}
