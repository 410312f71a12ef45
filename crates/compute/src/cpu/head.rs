//! The head's product, the loss and their gradients, a few rows at a time.
//!
//! V vocabulary, C channels. A chunk of logits lies in the workspace; one pass over it takes the losses and turns it into its
//! own gradient, from which d_x and d_w follow. So logits never exist whole, and each is touched while it is in cache.

use super::{
    Context, Needs,
    gemm::{self, Matrix, Product},
    launch::weight,
    memory::Operands,
    rows::{
        loss::{check_targets, row_grad, row_loss},
        tile_rows,
    },
    shared::{Grid, for_tiles},
    simd::Simd,
    vector,
};
use crate::{device::Frozen, error::Result, kernel::HeadLoss, tensor::Shape};

/// The most that any product of any chunk takes.
pub(super) fn needs(simd: Simd, head: &HeadLoss, x: Shape, w: Shape, frozen: Option<Frozen>) -> Needs {
    let (rows, columns, vocabulary) = (x.rows(), x.columns(), w.rows());
    let mut needs = Needs::default();
    // The last chunk may be shorter.
    for chunk in [head.chunk_rows.min(rows), rows % head.chunk_rows] {
        needs.include(gemm::needs_of(simd, head.products, [chunk, vocabulary, columns], frozen));
        let mut include = |sizes| needs.include(gemm::needs(simd, head.products, sizes));
        if head.d_input {
            include([chunk, columns, vocabulary]);
        }
        if head.d_weight.is_some() {
            include([vocabulary, columns, chunk]);
        }
    }
    needs
}

pub(super) fn head_loss(
    context: &mut Context<'_>,
    operands: &mut Operands<'_>,
    head: &HeadLoss,
) -> Result<()> {
    let simd = context.simd;
    let (x, w, weights) = (operands.input(0), weight(operands, 1), operands.input(3));
    let targets = operands.indices(2);
    let (rows, columns) = (operands.input_type(0).shape.rows(), operands.input_type(0).shape.columns());
    let vocabulary = operands.input_type(1).shape.rows();
    check_targets("head_loss", targets, vocabulary)?;
    let d_losses = head.has_gradient().then(|| operands.input(4));
    let (losses, workspace) = (operands.output(0), operands.output(1));
    let mut d_x = head.d_input.then(|| operands.output(2));
    let mut d_w = head.d_weight.map(|_| operands.output(2 + usize::from(head.d_input)));

    for first in (0..rows).step_by(head.chunk_rows) {
        let chunk = first..(first + head.chunk_rows).min(rows);
        let count = chunk.len();
        let logits = &mut workspace[..count * vocabulary];
        let x = Matrix::new(&x[first * columns..chunk.end * columns], count, columns);
        gemm::multiply(context, product(head, x, w.transposed(), false), logits);

        let tile = tile_rows(vocabulary);
        let grids =
            [Grid::rows(&mut *logits, vocabulary, tile), Grid::elements(&mut losses[chunk.clone()], tile)];
        for_tiles(context.pool, grids, |[mut logits, losses], _| {
            for (index, loss) in losses.into_slice().iter_mut().enumerate() {
                let row = first + logits.row + index;
                let logits = logits.row_mut(index);
                let log_sum_exp = vector::log_sum_exp(simd, logits);
                *loss = row_loss(simd, head.loss, logits, log_sum_exp, targets[row], weights[row]);
                if let Some(d_losses) = d_losses {
                    let scale = weights[row] * d_losses[row];
                    row_grad(simd, head.loss, logits, log_sum_exp, targets[row], scale);
                }
            }
        });

        let d_logits = Matrix::new(logits, count, vocabulary);
        if let Some(d_x) = &mut d_x {
            let d_x = &mut d_x[first * columns..chunk.end * columns];
            gemm::multiply(context, product(head, d_logits, w, false), d_x);
        }
        if let Some(d_w) = &mut d_w {
            let add = head.d_weight == Some(true) || first > 0;
            gemm::multiply(context, product(head, d_logits.transposed(), x, add), d_w);
        }
    }
    Ok(())
}

fn product<'a>(head: &HeadLoss, a: Matrix<'a>, b: Matrix<'a>, add: bool) -> Product<'a> {
    Product { a, b, bias: None, add, products: head.products }
}
