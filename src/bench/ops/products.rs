//! Products in the three layouts of training: Y = X·Wᵀ, dX = dY·W and dW = dYᵀ·X, for X [M,K], W [N,K], Y [M,N].

use super::case::{Case, Check, Cut, Group, Operand, Work, few};
use crate::bench::Precision;

/// Rows of a step's batch that the wider models are measured at.
const BATCH_ROWS: [usize; 3] = [512, 2048, 8192];
/// Queries, keys and values; projection; up and down: outputs and inputs of GPT-2's products, 768 wide.
const WIDE: [[usize; 2]; 4] = [[2304, 768], [768, 768], [3072, 768], [768, 3072]];
/// Queries, keys and values; up; a vocabulary of characters: outputs and inputs, 384 wide.
const MIDDLE: [[usize; 2]; 3] = [[1152, 384], [1536, 384], [65, 384]];
/// The same five products, 128 wide, with the rows of 12 samples of 64 tokens.
const NARROW: [[usize; 2]; 5] = [[384, 128], [128, 128], [512, 128], [128, 512], [65, 128]];
const NARROW_ROWS: usize = 768;
/// Nothing here is a multiple of anything, whichever of the three is summed over.
const ODD: [[usize; 3]; 3] = [[511, 385, 383], [2047, 767, 769], [333, 65, 129]];

/// All of them: 66 of training, then narrow and odd ones. A glance has one of each.
pub fn all(precision: Precision, quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |group, [m, n, k]: [usize; 3]| {
        cases.extend([forward, grad_input, grad_weight].map(|case| case(precision, group, [m, n, k])));
    };
    if quick {
        add(Group::Products, [96, 96, 64]);
        add(Group::SmallAndOdd, [33, 65, 129]);
        return cases;
    }
    for m in BATCH_ROWS {
        for [n, k] in WIDE.into_iter().chain(MIDDLE) {
            add(Group::Products, [m, n, k]);
        }
    }
    add(Group::Products, [512, 50304, 768]);
    for [n, k] in NARROW {
        add(Group::SmallAndOdd, [NARROW_ROWS, n, k]);
    }
    for shape in ODD {
        add(Group::SmallAndOdd, shape);
    }
    cases
}

fn flops([m, n, k]: [usize; 3]) -> Work {
    Work::Flops(2.0 * m as f64 * n as f64 * k as f64)
}

fn forward(precision: Precision, group: Group, [m, n, k]: [usize; 3]) -> Case {
    let (x, w, y) = (Operand::reals(&[m, k]), Operand::reals(&[n, k]), Operand::poison(&[m, n]));
    let (rows, columns) = (few(m), few(n));
    let (rows, columns) = (Some(&rows[..]), Some(&columns[..]));
    let check = Check {
        kernel: precision.linear(),
        inputs: vec![Cut::matrix(&x, rows, None), Cut::matrix(&w, columns, None)],
        outputs: vec![Cut::matrix(&y, rows, columns)],
        workspace: None,
        silenced: None,
    };
    Case {
        group,
        name: format!("X·Wᵀ   M {m} N {n} K {k}"),
        kernel: precision.linear(),
        inputs: vec![x, w],
        outputs: vec![y],
        work: flops([m, n, k]),
        terms: k,
        check,
    }
}

fn grad_input(precision: Precision, group: Group, [m, n, k]: [usize; 3]) -> Case {
    let (d_y, w, d_x) = (Operand::reals(&[m, n]), Operand::reals(&[n, k]), Operand::poison(&[m, k]));
    let (rows, columns) = (few(m), few(k));
    let (rows, columns) = (Some(&rows[..]), Some(&columns[..]));
    let check = Check {
        kernel: precision.linear_grad_input(),
        inputs: vec![Cut::matrix(&d_y, rows, None), Cut::matrix(&w, None, columns)],
        outputs: vec![Cut::matrix(&d_x, rows, columns)],
        workspace: None,
        silenced: None,
    };
    Case {
        group,
        name: format!("dY·W   M {m} N {n} K {k}"),
        kernel: precision.linear_grad_input(),
        inputs: vec![d_y, w],
        outputs: vec![d_x],
        work: flops([m, n, k]),
        terms: n,
        check,
    }
}

fn grad_weight(precision: Precision, group: Group, [m, n, k]: [usize; 3]) -> Case {
    let (d_y, x, d_w) = (Operand::reals(&[m, n]), Operand::reals(&[m, k]), Operand::poison(&[n, k]));
    let (rows, columns) = (few(n), few(k));
    let (rows, columns) = (Some(&rows[..]), Some(&columns[..]));
    let check = Check {
        kernel: precision.linear_grad_weight(),
        inputs: vec![Cut::matrix(&d_y, None, rows), Cut::matrix(&x, None, columns)],
        outputs: vec![Cut::matrix(&d_w, rows, columns)],
        workspace: None,
        silenced: None,
    };
    Case {
        group,
        name: format!("dYᵀ·X  M {m} N {n} K {k}"),
        kernel: precision.linear_grad_weight(),
        inputs: vec![d_y, x],
        outputs: vec![d_w],
        work: flops([m, n, k]),
        terms: m,
        check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_66_products_of_training() {
        let cases = all(Precision::Fp32, false);
        assert_eq!(cases.iter().filter(|case| case.group == Group::Products).count(), 66);
        assert!(cases.iter().any(|case| case.name.contains("N 50304 K 768")));
    }
}
