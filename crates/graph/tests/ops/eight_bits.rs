//! Products of eight bits: exactly computed they change nothing, rounded they stay as near as their types allow, and a backend
//! without them says so.

use ironmill_compute::{DType, GeluProduct, HostData, Kernel, Reference, quantise::Source};
use ironmill_graph::{EightBits, Graph, Passes, Precision, Runtime, States, refresh_program};

use crate::{
    cases::normals,
    harness::{cpu, exact},
    tiny::{Model, SMALL, Size, Trial, train},
    tolerance::{assert_close, largest},
};

/// Sixteen rows in a micro-batch of two, and widths of multiples of 16.
const SIZE: Size = Size { positions: 8, channels: 16, vocabulary: 32, dropout: 0.0, ..SMALL };
const EIGHT: Passes = Passes { eight_bits: EightBits::Blocks, ..Passes::ALL };
const HEAD: Passes = Passes { eight_bits: EightBits::BlocksAndHead, ..Passes::ALL };

#[test]
fn exactly_computed_they_change_nothing() {
    for recompute in [false, true] {
        let model = Model::new(Size { dropout: 0.1, recompute, ..SIZE });
        let plain = train(&model, exact(), &Passes::NONE);
        let unfused = |passes| Passes { fuse: false, ..passes };
        let bare = Passes { bare_rows: 1, ..EIGHT };
        let ways = [("blocks", EIGHT), ("with the head", HEAD), ("biases in norms", bare)];
        for (name, passes) in ways.into_iter().flat_map(|(name, way)| [(name, way), (name, unfused(way))]) {
            let eight = train(&model, exact(), &passes);
            assert_close(&format!("{name}: losses"), &eight.losses, &plain.losses, 1e-12);
            assert_close(&format!("{name}: gradients"), &eight.gradients, &plain.gradients, 1e-12);
            assert_close(&format!("{name}: parameters"), &eight.parameters, &plain.parameters, 1e-12);
        }
    }
}

#[test]
fn slopes_take_the_place_of_arguments_where_a_device_wants_them() {
    let model = Model::new(SIZE);
    let device = || Box::new(Reference::exact().with_slopes());
    let mut trial = Trial::new(&model, device(), &Passes::NONE);
    let program = trial.compile(model.micro(2, false), &EIGHT);
    let kept = |kernel: &&Kernel| matches!(kernel, Kernel::GeluProduct(of) if of.has_slope());
    assert_eq!(trial.runtime.kernels(program.id).filter(kept).count(), 2 * 2);
    let plain = train(&model, exact(), &Passes::NONE);
    let eight = train(&model, device(), &EIGHT);
    assert_close("losses", &eight.losses, &plain.losses, 1e-12);
    assert_close("gradients", &eight.gradients, &plain.gradients, 1e-12);
}

#[test]
fn every_tensor_is_quantised_once_and_what_only_goes_there_is_computed_on_the_way() {
    let model = Model::new(SIZE);
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let program = trial.compile(model.micro(2, false), &EIGHT);
    let count = |is: &dyn Fn(&Kernel) -> bool| trial.runtime.kernels(program.id).filter(|k| is(k)).count();
    // Four products a layer, forward and two gradients, in two layers.
    let products = count(&|kernel| matches!(kernel, Kernel::ScaledProduct { .. } | Kernel::GeluProduct(_)));
    assert_eq!(products, 2 * 4 * 3);
    // Each has an input, a weight and a gradient of its own. Two of a layer are results of norms, and two of products.
    assert_eq!(count(&|kernel| matches!(kernel, Kernel::QuantisedNorm(_))), 2 * 2);
    // All weights are quantised together.
    let together =
        |kernel: &Kernel| matches!(kernel, Kernel::QuantiseWeights(weights) if weights.len() == 2 * 4);
    assert_eq!(count(&together), 1);
    // Gradients of the residual stream that a norm's gradients write: all but those of the last norm.
    assert_eq!(count(&|kernel| matches!(kernel, Kernel::QuantisedNormGrads(_))), 3);
    assert_eq!(count(&|kernel| matches!(kernel, Kernel::Quantise(_))), 2 * (4 * 2 - 4) - 3);
    assert_eq!(count(&|kernel| matches!(kernel, Kernel::Quantise(of) if of.source != Source::Stored)), 0);
    for of in [
        GeluProduct::Forward { bias: true, slope: false },
        GeluProduct::Backward { sums: Some(false), slope: false },
    ] {
        assert_eq!(count(&|kernel| *kernel == Kernel::GeluProduct(of)), 2, "{of:?}");
    }
    // Gradients of biases are sums over what is quantised, or over what the gradient of a norm writes: all norms but the first, which
    // follows no product, and the last, around which nothing flows.
    let sums = |kernel: &Kernel| match kernel {
        Kernel::Quantise(of) => of.sums.is_some(),
        Kernel::GeluProduct(of) => of.quantise().sums.is_some(),
        _ => false,
    };
    assert_eq!(count(&sums), 2 * 4 - 3);
    assert_eq!(count(&|kernel| kernel.name() == "linear_grad_bias"), 0);
}

#[test]
fn the_gradient_of_whole_heads_is_written_in_eight_bits_and_changes_nothing() {
    for (positions, channels, expected) in [(64, 64, 2), (64, 48, 0), (48, 64, 0)] {
        let size = Size { positions, channels, heads: 1, vocabulary: 16, ..SIZE };
        let model = Model::new(size);
        let mut trial = Trial::new(&model, exact(), &Passes::NONE);
        let program = trial.compile(model.micro(2, false), &EIGHT);
        let is_such =
            |kernel: &&Kernel| matches!(kernel, Kernel::QuantisedAttentionGrad(of) if of.sums.is_some());
        let count = trial.runtime.kernels(program.id).filter(is_such).count();
        assert_eq!(count, expected, "{positions} positions, {channels} channels");
        if expected > 0 {
            let [plain, eight] = [Passes::NONE, EIGHT].map(|passes| train(&model, exact(), &passes));
            assert_close("gradients", &eight.gradients, &plain.gradients, 1e-12);
        }
    }
}

#[test]
fn a_norm_writes_eight_bits_unless_somebody_reads_it_or_a_row_has_several() {
    const COLUMNS: usize = 32;
    let run = |gain: usize, is_kept: bool, passes: &Passes| {
        let mut g = Graph::new();
        let dims = [&[16, COLUMNS][..], &[16, COLUMNS], &[gain], &[48, COLUMNS]];
        let inputs = dims.map(|dims| g.input("operand", dims, DType::F32));
        let sum = g.add(inputs[0], inputs[1]).unwrap();
        let normal = g.rms_norm(sum, inputs[2], 1e-5).unwrap();
        let result = g.linear(normal, inputs[3], None).unwrap();
        [Some(sum), Some(result), is_kept.then_some(normal)]
            .into_iter()
            .flatten()
            .for_each(|kept| g.keep(kept));
        let mut runtime = Runtime::new(exact(), &States::default()).unwrap();
        let program = runtime.compile(g, passes).unwrap();
        for (salt, (input, dims)) in inputs.into_iter().zip(dims).enumerate() {
            let values: Vec<f32> =
                normals(salt as u32, dims.iter().product()).iter().map(|x| *x as f32).collect();
            runtime.write(program, input, HostData::F32(&values)).unwrap();
        }
        runtime.run(program).unwrap();
        let names: Vec<&str> = runtime.kernels(program).map(Kernel::name).collect();
        let results = [sum, result].map(|kept| runtime.read_f64(program, kept).unwrap()).concat();
        (results, names.contains(&"quantise_add_rms_norm"), names.contains(&"quantise_rms_norm"))
    };
    let unfused = Passes { fuse: false, ..EIGHT };
    for (gain, is_kept, passes, expected) in [
        (COLUMNS, false, EIGHT, (true, false)),
        (COLUMNS, false, unfused, (false, true)),
        (COLUMNS, true, EIGHT, (false, false)),
        (COLUMNS / 2, false, EIGHT, (false, false)),
    ] {
        let (plain, ..) = run(gain, is_kept, &Passes::NONE);
        let (eight, adds, alone) = run(gain, is_kept, &passes);
        assert_eq!((adds, alone), expected, "gain of {gain}, kept {is_kept}");
        assert_close("the sum and the product", &eight, &plain, 1e-12);
    }
}

#[test]
fn only_the_copies_that_are_read_are_written() {
    let model = Model::new(SIZE);
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let program = trial.compile(model.forward(2), &EIGHT);
    let transposed = |kernel: &Kernel| match kernel {
        Kernel::Quantise(of) => of.columns,
        Kernel::QuantiseWeights(all) => all.iter().any(|of| of.columns),
        Kernel::QuantisedNorm(of) => of.columns,
        _ => false,
    };
    assert_eq!(trial.runtime.kernels(program.id).filter(|kernel| transposed(kernel)).count(), 0);
}

#[test]
fn sizes_that_the_matrix_units_do_not_take_stay_as_they_are() {
    let model = Model::new(Size { positions: 5, ..SIZE });
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    let program = trial.compile(model.micro(2, false), &EIGHT);
    let is_eight = |kernel: &Kernel| {
        matches!(
            kernel,
            Kernel::Quantise(_)
                | Kernel::QuantiseWeights(_)
                | Kernel::QuantisedNorm(_)
                | Kernel::QuantisedNormGrads(_)
                | Kernel::ScaledProduct { .. }
        )
    };
    assert!(!trial.runtime.kernels(program.id).any(is_eight));
}

#[test]
fn rounded_they_are_as_near_as_eight_bits_allow() {
    let model = Model::new(SIZE);
    let run = |device, passes: &Passes| {
        let mut trial = Trial::new(&model, device, &Passes::ALL);
        let (masters, copy) = (model.optimiser.parameters, model.working);
        let refresh = refresh_program(model.layout.len(), DType::BF16, masters, copy);
        let refresh = trial.runtime.compile(refresh, &Passes::NONE).unwrap();
        let program = trial.compile(model.micro(2, false), passes);
        trial.runtime.run(refresh).unwrap();
        (trial.run(&program, 0..2, 2, 0), trial.gradients())
    };
    let (loss, gradients) = run(exact(), &Passes::ALL);
    let precision =
        Precision::Working { dtype: DType::BF16, masters: model.optimiser.parameters, copy: model.working };
    for passes in [EIGHT, HEAD] {
        let (rounded_loss, rounded) = run(Box::new(Reference::rounded()), &Passes { precision, ..passes });
        assert_close("loss", &[rounded_loss], &[loss], DType::E4M3.epsilon() / 4.0);
        // A gradient is a sum over few rows here, so that roundings hardly average out.
        assert_close("gradients", &rounded, &gradients, DType::E5M2.epsilon());
        let apart: Vec<f64> = rounded.iter().zip(&gradients).map(|(a, b)| a - b).collect();
        assert!(largest(&apart) > 2.0 * DType::BF16.epsilon() * largest(&gradients), "the rounding is real");
    }
}

#[test]
fn a_fused_head_is_taken_where_it_is_asked_for() {
    let model = Model::new(SIZE);
    let precision =
        Precision::Working { dtype: DType::BF16, masters: model.optimiser.parameters, copy: model.working };
    let mut trial = Trial::new(&model, exact(), &Passes::NONE);
    for (passes, expected) in [(EIGHT, DType::BF16), (HEAD, DType::E4M3)] {
        let program = trial.compile(model.micro(2, false), &Passes { precision, ..passes });
        let is_such = |kernel: &Kernel| matches!(kernel, Kernel::HeadLoss(head) if head.products == expected);
        assert_eq!(trial.runtime.kernels(program.id).filter(|kernel| is_such(kernel)).count(), 1);
    }
}

#[test]
fn cpu_refuses_eight_bits_by_name_when_the_program_is_compiled() {
    let model = Model::new(SIZE);
    let mut runtime = Runtime::new(cpu(1), &model.states).unwrap();
    let message = runtime.compile(model.micro(2, false).graph, &EIGHT).unwrap_err().to_string();
    assert!(
        message.starts_with("the cpu backend has no quantise_add_layer_norm kernel in e4m3"),
        "{message}"
    );
}
