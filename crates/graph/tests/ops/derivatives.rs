//! Derivatives against central differences: |a − n| ≤ 1e-6 · max(1, ‖g‖∞), in double precision.

use ironmill_compute::philox::philox;

use crate::{
    cases::{Case, cases},
    harness::{
        Forward, differentiable_outputs, exact, operand_values, real_operands, run, run_for, seed_values,
    },
    tolerance::largest,
};

/// Half the distance of a central difference. Its error is h²·f‴/6 + ε·f/h: some 1e-10 for the numbers used here.
const H: f64 = 1e-5;
/// Elements checked per operand; small cases are checked whole.
const CHECKED: usize = 40;

#[test]
fn derivatives_of_every_op_match_central_differences() {
    for case in cases() {
        let operands = operand_values(&case);
        let analytic = run(&case, exact(), &operands);
        let mut forward = Forward::new(&case, exact());
        for (operand, gradient) in &analytic.gradients {
            check(&case, &mut forward, *operand, &operands[*operand], gradient);
        }
    }
}

#[test]
fn asking_for_one_gradient_gives_what_asking_for_all_gives() {
    for case in cases() {
        let operands = operand_values(&case);
        let all = run(&case, exact(), &operands);
        for (operand, gradient) in &all.gradients {
            let alone = run_for(&case, exact(), &operands, &[*operand]);
            assert_eq!(alone.gradients[0].1, *gradient, "{}: operand {operand}", case.name);
        }
        assert_eq!(all.gradients.len(), real_operands(&case).len(), "{}", case.name);
    }
}

fn check(case: &Case, forward: &mut Forward, operand: usize, values: &[f64], gradient: &[f64]) {
    let bound = 1e-6 * largest(gradient).max(1.0);
    for element in elements(values.len()) {
        let mut at = |x: f64| {
            let mut moved = values.to_vec();
            moved[element] = x;
            forward.write(case, operand, &moved);
            projection(&forward.run(differentiable_outputs(case)))
        };
        let numeric = (at(values[element] + H) - at(values[element] - H)) / (2.0 * H);
        let error = (gradient[element] - numeric).abs();
        assert!(
            error <= bound,
            "{}: operand {operand}, element {element}: derived {}, by differences {numeric}, apart by {error:e}",
            case.name,
            gradient[element],
        );
    }
    forward.write(case, operand, values);
}

/// All elements when they are few, otherwise a fixed sample with both ends.
fn elements(count: usize) -> Vec<usize> {
    if count <= CHECKED {
        return (0..count).collect();
    }
    let sample = |i: usize| philox([count as u32, 3], [i as u32, 0, 0, 0])[0] as usize % count;
    [0, count - 1].into_iter().chain((2..CHECKED).map(sample)).collect()
}

/// The number whose gradient the seeds are: Σ outputs · seeds.
fn projection(outputs: &[Vec<f64>]) -> f64 {
    let dot = |(index, output): (usize, &Vec<f64>)| -> f64 {
        output.iter().zip(seed_values(index, output.len())).map(|(y, d_y)| y * d_y).sum()
    };
    outputs.iter().enumerate().map(dot).sum()
}
