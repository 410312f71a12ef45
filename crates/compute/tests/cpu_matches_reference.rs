//! The CPU backend against the reference: every kernel, odd shapes, every instruction set, several numbers of threads.

mod cases;

use cases::{Case, Data, PRODUCTS, all, compare, indices, largest, random, reals, run};
use ironmill_compute::{
    Attention, Cpu, DType, Device, Error, Kernel, Mask, Op, Reference, Result, TensorType,
    cpu::InstructionSet,
};

fn cpu(threads: usize, set: InstructionSet) -> Option<Cpu> {
    Cpu::with_instruction_set(threads, set).map(Result::unwrap)
}

#[test]
fn every_kernel_matches_the_reference_under_every_instruction_set() {
    let mut failures = Vec::new();
    for case in all() {
        let expected = case.expected();
        for set in InstructionSet::ALL {
            let Some(mut cpu) = cpu(2, set) else { continue };
            let actual = run(&mut cpu, &case).unwrap();
            failures
                .extend(compare(&case, &actual, &expected).err().map(|failure| format!("{set}: {failure}")));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn heads_of_256_match_the_reference() {
    for case in cases::attentions_of_wide_heads() {
        compare(&case, &run(&mut Cpu::new(2).unwrap(), &case).unwrap(), &case.expected()).unwrap();
    }
}

#[test]
fn products_of_f16_match_the_reference() {
    let plain = all().into_iter().filter(|case| case.products() == DType::F32);
    let cases: Vec<_> = plain.filter_map(|case| case.with_products(DType::F16)).collect();
    assert!(cases.len() > 20);
    for case in cases {
        let expected = case.expected();
        // What overflows f16 on the way is the business of a loss scale.
        if expected.iter().flatten().all(|x| x.is_finite()) {
            let actual = run(&mut Cpu::new(2).unwrap(), &case).unwrap();
            compare(&case, &actual, &expected).unwrap();
        }
    }
}

#[test]
fn an_error_of_four_bounds_fails() {
    for case in all() {
        let expected = case.expected();
        let actual = run(&mut Cpu::new(1).unwrap(), &case).unwrap();
        for output in 0..actual.len() {
            let scale = largest(&expected[output]);
            let bound = case.bound(output, &expected[output]);
            let is_narrow = bound <= 3e-5 * scale || case.has_computed_factors();
            assert!(is_narrow, "the bound {bound} says little about {scale} in {}", case.name());
            let mut wrong = actual.clone();
            let middle = wrong[output].len() / 2;
            wrong[output][middle] += (4.0 * bound).max(1e-12);
            assert!(compare(&case, &wrong, &expected).is_err(), "{}", case.name());
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for case in all() {
        for set in InstructionSet::ALL {
            let bits = |threads| {
                let outputs = run(&mut cpu(threads, set)?, &case).unwrap();
                Some(outputs.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
            };
            let one = bits(1);
            assert_eq!(one, bits(2), "{set}: {}", case.name());
            assert_eq!(one, bits(3), "{set}: {}", case.name());
        }
    }
}

#[test]
fn a_row_of_a_product_does_not_depend_on_the_other_rows() {
    // A vector of columns and one more, so that the last column takes another way with many rows than with few.
    let (n, k) = (209, 901);
    for (set, products) in InstructionSet::ALL.into_iter().flat_map(|set| PRODUCTS.map(|of| (set, of))) {
        let Some(mut cpu) = cpu(2, set) else { continue };
        let mut product = |m: usize| {
            let x = random(&[100, k], 1);
            let Data::Real(x) = x.data else { panic!("numbers") };
            let inputs = vec![reals(&[m, k], x[..m * k].to_vec()), random(&[n, k], 2)];
            let outputs = vec![random(&[m, n], 3)];
            let case =
                Case { kernel: Kernel::Op(Op::Linear { bias: false, products }), inputs, outputs, terms: k };
            run(&mut cpu, &case).unwrap().remove(0)[..n].to_vec()
        };
        let alone = product(1);
        for m in [2, 7, 8, 9, 33, 100] {
            assert_eq!(product(m), alone, "{set}, {products}, {m} rows");
        }
    }
}

#[test]
fn an_id_outside_the_table_is_an_error_that_names_it() {
    let mut cpu = Cpu::new(2).unwrap();
    cases::check_ids_outside_tables(&mut cpu);
}

/// A number that went wrong must reach the loss, where it is seen, and not end at a comparison.
#[test]
fn what_is_not_a_number_stays_so_through_every_activation() {
    let broken = || reals(&[2], vec![f32::NAN, 1.0]);
    for (op, operands) in [
        (Op::Gelu, 1),
        (Op::GeluErf, 1),
        (Op::ReluSquared, 1),
        (Op::SiluGate, 2),
        (Op::Mul, 2),
        (Op::Affine { factor: 2.0, offset: 1.0 }, 1),
        (Op::GeluGrad, 2),
        (Op::GeluErfGrad, 2),
        (Op::ReluSquaredGrad, 2),
        (Op::SiluGateGrad, 3),
    ] {
        let devices: [Box<dyn Device>; 2] = [Box::new(Reference::exact()), Box::new(Cpu::new(1).unwrap())];
        for mut device in devices {
            for place in 0..operands {
                let mut inputs = vec![reals(&[2], vec![0.5, 1.0]); operands];
                inputs[place] = broken();
                let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.of).collect();
                let outputs = op.outputs(&types).unwrap().iter().map(|_| random(&[2], 1)).collect();
                let case = Case { kernel: Kernel::Op(op.clone()), inputs, outputs, terms: 1 };
                let results = run(&mut *device, &case).unwrap();
                let is_seen = results.iter().any(|result| result[0].is_nan() && result[1].is_finite());
                assert!(is_seen, "{}, operand {place} on {}: {results:?}", op.name(), device.name());
            }
        }
    }
}

/// Documents that share a sample, and positions that are still to come, are nothing to a query, whatever they hold.
#[test]
fn a_query_is_not_touched_by_values_that_it_does_not_see() {
    let (t, d, broken) = (37, 16, 21);
    let mask = Mask::Causal;
    for (set, products) in InstructionSet::ALL.into_iter().flat_map(|set| PRODUCTS.map(|of| (set, of))) {
        let Some(mut cpu) = cpu(2, set) else { continue };
        let (heads, kv_heads, cached, borders, window) = (1, 1, false, true, 0);
        let of = Attention { heads, kv_heads, mask, cached, borders, window, products };
        let mut attention = |value: f32| {
            let documents = (0..t as u32).map(|t| if t < 19 { 0 } else { 19 }).collect();
            let v = random(&[1, t, d], 3);
            let Data::Real(mut numbers) = v.data else { panic!("numbers") };
            numbers[broken * d + 5] = value;
            let v = reals(&[1, t, d], numbers);
            let inputs = vec![random(&[1, t, d], 1), random(&[1, t, d], 2), v, indices(&[1, t], documents)];
            let outputs = vec![random(&[1, t, d], 4), random(&[1, 1, t], 5)];
            let case = Case { kernel: Kernel::Op(Op::Attention(of)), inputs, outputs, terms: t };
            run(&mut cpu, &case).unwrap().remove(0)
        };
        let expected = attention(0.0);
        for value in [f32::NAN, f32::INFINITY] {
            for (place, (actual, expected)) in attention(value).into_iter().zip(&expected).enumerate() {
                let (query, column) = (place / d, place % d);
                let sees = query >= broken && column == 5;
                let is_near = (actual - expected).abs() < 0.02;
                assert_eq!(!sees, is_near, "{set}, {products}, query {query}, column {column}: {actual}");
            }
        }
    }
}

#[test]
fn what_cannot_run_is_refused_at_bind() {
    let mut cpu = Cpu::new(1).unwrap();
    let gelu = Case {
        kernel: Kernel::Op(Op::Gelu),
        inputs: vec![random(&[4], 1)],
        outputs: vec![random(&[4], 2)],
        terms: 1,
    };
    let mut half = gelu.clone();
    half.inputs[0].of = half.inputs[0].of.with_dtype(DType::BF16);
    half.outputs[0].of = half.outputs[0].of.with_dtype(DType::BF16);
    let message = run(&mut cpu, &half).unwrap_err().to_string();
    assert!(message.contains("cpu") && message.contains("bf16"), "{message}");

    let mut other_shape = gelu.clone();
    other_shape.outputs = vec![random(&[5], 2)];
    assert!(matches!(run(&mut cpu, &other_shape), Err(Error::Binding { .. })));

    let into = Case { kernel: Kernel::OpInto { op: Op::Gelu, add: true }, ..gelu.clone() };
    assert!(matches!(run(&mut cpu, &into), Err(Error::Binding { kernel: "gelu", .. })));

    let mut whole = gelu.clone();
    whole.inputs[0] = indices(&[4], vec![1, 2, 3, 4]);
    whole.outputs[0] = indices(&[4], vec![0; 4]);
    assert!(matches!(run(&mut cpu, &whole), Err(Error::Unsupported { dtype: DType::U32, .. })));
}

#[test]
fn a_sequence_ends_with_the_memory_it_names() {
    let mut cpu = Cpu::new(1).unwrap();
    let case = &all()[0];
    let bound = cases::bind(&mut cpu, case).unwrap();
    cpu.run(bound.sequence).unwrap();
    cpu.free(bound.outputs()[0].buffer);
    assert!(matches!(cpu.run(bound.sequence), Err(Error::Binding { .. })));
}

#[test]
fn a_description_names_the_instructions_and_the_threads() {
    let cpu = Cpu::with_instruction_set(3, InstructionSet::Portable).unwrap().unwrap();
    assert_eq!(cpu.describe(), "cpu: portable kernels, 3 threads");
}

#[test]
fn numbers_too_small_to_be_normal_may_count_as_zero_in_products_of_bf16() {
    for set in InstructionSet::ALL {
        let Some(mut cpu) = cpu(1, set) else { continue };
        let inputs = vec![reals(&[1, 2], vec![1e-40, 1.0]), reals(&[2, 2], vec![1.0, 0.0, 1.0, 1.0])];
        let kernel = Kernel::Op(Op::Linear { bias: false, products: DType::BF16 });
        let case = Case { kernel, inputs, outputs: vec![random(&[1, 2], 1)], terms: 2 };
        let y = run(&mut cpu, &case).unwrap().remove(0);
        assert!((0.0..=1.01e-40).contains(&y[0]) && y[1] == 1.0, "{set}: {y:?}");
    }
}
