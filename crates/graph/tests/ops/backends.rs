//! Every backend against the exact reference, on the same inputs, within bounds derived from epsilon.

use ironmill_compute::{Cpu, DType, Device, HostData, Op, cpu::InstructionSet};
use ironmill_graph::{Graph, Passes, Runtime, States};

use crate::{
    cases::{Case, cases, normals},
    harness::{DEVICES, Results, cpu, exact, operand_values, real_operands, run},
    tolerance::{bound, compare, constant, largest, relative},
};

#[test]
fn cpu_matches_the_reference_on_every_op_with_every_instruction_set() {
    for case in cases() {
        let operands = operand_values(&case);
        let expected = run(&case, exact(), &operands);
        for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
            let cpu = Cpu::with_instruction_set(2, set).unwrap().unwrap();
            let differences = differences(&case, &run(&case, Box::new(cpu), &operands), &expected);
            assert!(differences.is_empty(), "{}, {set}: {differences:#?}", case.name);
        }
    }
}

#[test]
fn an_error_of_four_bounds_in_any_result_fails_the_check() {
    for case in cases() {
        let operands = operand_values(&case);
        let expected = run(&case, exact(), &operands);
        let got = run(&case, cpu(2), &operands);
        let results = got.all().zip(expected.all()).zip(bounds(&case, &expected));
        for (((name, got), (_, expected)), bound) in results {
            // Nothing is allowed where zeros are exact, and there the smallest error counts.
            let error = (4.0 * bound).max(f64::from(f32::MIN_POSITIVE));
            for element in [0, got.len() / 2, got.len() - 1] {
                for wrong in [got[element] + error, got[element] - error, f64::NAN] {
                    let mut bad = got.clone();
                    bad[element] = wrong;
                    let verdict = compare(&bad, expected, bound);
                    assert!(
                        verdict.is_err(),
                        "{}, {name}: {wrong} passed for {}",
                        case.name,
                        expected[element]
                    );
                }
            }
        }
    }
}

/// The bounds are narrow enough to tell f32 from a backend that quietly computes in less.
#[test]
fn inputs_rounded_to_bf16_fail_the_check() {
    for case in cases() {
        let operands = operand_values(&case);
        let mut rounded = operands.clone();
        for operand in real_operands(&case) {
            rounded[operand].iter_mut().for_each(|x| *x = DType::BF16.round(*x));
        }
        let expected = run(&case, exact(), &operands);
        let got = run(&case, exact(), &rounded);
        assert!(
            !differences(&case, &got, &expected).is_empty(),
            "{}: results of bf16 inputs passed",
            case.name
        );
    }
}

#[test]
fn an_id_outside_the_table_is_an_error_that_names_it_on_every_backend() {
    for device in DEVICES {
        let message = embed_two(device(), &[7, 5], [3, 9]).unwrap_err();
        assert!(message.starts_with("embed: id 9 is outside the 7"), "{message}");
    }
}

#[test]
fn a_table_of_three_dimensions_has_the_rows_of_the_outer_two() {
    for device in DEVICES {
        let rows = embed_two(device(), &[2, 3, 4], [5, 1]).unwrap();
        let table = normals(1, 24);
        assert_eq!(rows, [&table[20..24], &table[4..8]].concat());
    }
}

/// What is further from the exact results than allowed.
fn differences(case: &Case, got: &Results, expected: &Results) -> Vec<String> {
    got.all()
        .zip(expected.all())
        .zip(bounds(case, expected))
        .filter_map(|(((name, got), (_, expected)), bound)| {
            compare(got, expected, bound).err().map(|difference| format!("{name}: {difference}"))
        })
        .collect()
}

/// The bound of every result of a case, in the order of [`Results::all`].
fn bounds(case: &Case, expected: &Results) -> Vec<f64> {
    let relative = relative(constant(&case.op), DType::F32.epsilon(), case.reduction);
    let of_gradients = expected.gradients.iter().map(|(_, gradient)| largest(gradient)).fold(0.0, f64::max);
    let outputs = expected.outputs.iter().map(|output| bound(output, relative));
    let gradients = expected.gradients.iter().map(|(_, gradient)| match case.op {
        // The gradients of queries and keys are differences of terms as large as the gradient of values: with one
        // position they cancel to nothing, and what remains in f32 is the rounding of those terms.
        Op::Attention(_) => relative * of_gradients,
        _ => bound(gradient, relative),
    });
    outputs.chain(gradients).collect()
}

/// Two rows of a table, or what the device says.
fn embed_two(device: Box<dyn Device>, table: &[usize], ids: [u32; 2]) -> Result<Vec<f64>, String> {
    let mut g = Graph::new();
    let tensor = g.input("table", table, DType::F32);
    let id_tensor = g.input("ids", &[2], DType::U32);
    let rows = g.embed(tensor, id_tensor).unwrap();
    g.keep(rows);
    let mut runtime = Runtime::new(device, &States::default()).unwrap();
    let program = runtime.compile(g, &Passes::ALL).unwrap();
    runtime.write(program, tensor, HostData::F64(&normals(1, table.iter().product()))).unwrap();
    runtime.write(program, id_tensor, HostData::U32(&ids)).unwrap();
    runtime.run(program).map_err(|error| error.to_string())?;
    Ok(runtime.read_f64(program, rows).unwrap())
}
