//! The head with products of eight bits, a few rows of logits at a time.
//!
//! x and the weight are quantised once. Logits of a chunk are read once, for their losses and for the bytes of their gradient, which
//! never lies in memory with 16 bits; then the bytes are transposed.

use super::{Copies, Numbers, PARTIALS, Rows, Sampled, THREADS, TILE, product, tiles};
use crate::{
    cuda::{
        blas::Epilogue,
        call::{Arg, Builder, Grid},
        modules::Source as File,
        rows::{HeadRows, add_head_losses, kept_row_bytes, row_threads},
    },
    device::View,
    error::Result,
    kernel::HeadLoss,
    op::LossShape,
    quantise::Source,
    tensor::DType,
};

/// Pieces of a workspace, one after the other. All sizes are multiples of 256 bytes, because all rows and columns are of 16.
struct Pieces(Arg);

impl Pieces {
    fn take(&mut self, bytes: usize) -> Arg {
        let at = self.0;
        self.0 = at.plus(bytes);
        at
    }
}

/// A tensor's copies of eight bits: as it stands, and transposed.
#[derive(Clone, Copy)]
struct Pair {
    rows: Rows,
    columns: Rows,
}

impl Pair {
    /// Room for copies of a matrix.
    fn new(pieces: &mut Pieces, of: DType, unit: Arg, [rows, columns]: [usize; 2]) -> Self {
        let mut piece = |rows: usize, columns: usize| {
            let at = pieces.take(rows * columns);
            Rows { at, of, unit, rows, columns, leading: columns }
        };
        Pair { rows: piece(rows, columns), columns: piece(columns, rows) }
    }

    /// Fills it from a matrix that lies in memory.
    fn fill(&self, builder: &mut Builder<'_>, view: &View) -> Result<()> {
        let (operand, real) = (builder.pointer(view), view.of.dtype);
        let Rows { at, of, unit, rows, columns, .. } = self.rows;
        let partials = Sampled::stored(operand, real, rows).largest(builder, columns)?;
        let numbers = Numbers { source: Source::Stored, operands: &[operand], real, rows, columns };
        let copies = Copies { of, unit, as_it_is: Some(at), transposed: Some(self.columns.at) };
        numbers.write(builder, copies, partials, None)
    }

    /// Some of the matrix's rows, which are columns of the transposed copy.
    fn part(&self, start: usize, count: usize) -> Self {
        let rows = Rows { at: self.rows.at.plus(start * self.rows.leading), rows: count, ..self.rows };
        let columns = Rows { at: self.columns.at.plus(start), columns: count, ..self.columns };
        Pair { rows, columns }
    }
}

/// Adds the calls of a head; false where the library has no such product.
pub(super) fn head_loss(
    builder: &mut Builder<'_>,
    head: &HeadLoss,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    let [x, w] = [inputs[0].of.shape, inputs[1].of.shape];
    let (rows, columns, vocabulary) = (x.rows(), x.columns(), w.rows());
    let (real, chunk) = (outputs[1].of.dtype, head.chunk_rows.min(rows));
    let mut pieces = Pieces(builder.pointer(&outputs[1]));
    let logits = pieces.take(chunk * vocabulary * real.bytes());
    let [x_unit, w_unit, unit] = [0, 1, 2].map(|_| builder.scratch(4));
    let xs = Pair::new(&mut pieces, DType::E4M3, x_unit, [rows, columns]);
    let ws = Pair::new(&mut pieces, DType::E4M3, w_unit, [vocabulary, columns]);
    xs.fill(builder, &inputs[0])?;
    ws.fill(builder, &inputs[1])?;
    let log_sum_exps = builder.scratch(4 * chunk);
    let partials = builder.scratch(4 * PARTIALS);
    let [targets, weights] = [2, 3].map(|index| builder.pointer(&inputs[index]));
    let d_losses = head.has_gradient().then(|| builder.pointer(&inputs[4]));
    let losses = builder.pointer(&outputs[0]);

    for start in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - start);
        let xs = xs.part(start, count);
        let of_rows = HeadRows {
            logits,
            of: real,
            rows: count,
            vocabulary,
            leading: vocabulary,
            targets: targets.plus(4 * start),
            weights: weights.plus(4 * start),
            d_losses: d_losses.map(|at| at.plus(4 * start)),
            losses: losses.plus(4 * start),
        };
        if !builder.product(product(xs.rows, ws.rows, (logits, real), false, Epilogue::Nothing))? {
            return Ok(false);
        }
        if !head.has_gradient() {
            add_head_losses(builder, &head.loss, &of_rows, log_sum_exps)?;
            continue;
        }
        let mut pieces = Pieces(pieces.0);
        let ds = Pair::new(&mut pieces, DType::E5M2, unit, [count, vocabulary]);
        add_losses_and_gradient(builder, &head.loss, (&of_rows, start), partials, ds.rows)?;
        let out =
            |builder: &Builder<'_>, index: usize| (builder.pointer(&outputs[index]), outputs[index].of.dtype);
        if head.d_input {
            let (at, of) = out(builder, 2);
            let at = at.plus(start * columns * of.bytes());
            if !builder.product(product(ds.rows, ws.columns, (at, of), false, Epilogue::Nothing))? {
                return Ok(false);
            }
        }
        if let Some(add) = head.d_weight {
            let arguments = [ds.rows.at, ds.columns.at, count.into(), vocabulary.into()];
            let grid = tiles(count, vocabulary, TRANSPOSE_THREADS);
            builder.kernel(File::QuantiseLoss, "transpose_bytes", real, &[], grid, &arguments)?;
            let out = out(builder, 2 + usize::from(head.d_input));
            let adds = add || start > 0;
            if !builder.product(product(ds.columns, xs.columns, out, adds, Epilogue::Nothing))? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Threads that transpose a tile; see the kernels.
const TRANSPOSE_THREADS: u32 = (TILE * TILE / 64) as u32;
/// Blocks of a multiprocessor that keep a row each.
const ROWS_AT_ONCE: usize = 2;

/// The losses of a chunk, given with its first row, and, from the same logits, the bytes of their gradient as it stands.
fn add_losses_and_gradient(
    builder: &mut Builder<'_>,
    loss: &LossShape,
    (chunk, start): (&HeadRows, usize),
    partials: Arg,
    to: Rows,
) -> Result<()> {
    let &HeadRows { logits, of, rows, vocabulary, targets, weights, d_losses, losses, .. } = chunk;
    let d_losses = d_losses.unwrap_or(super::NOTHING);
    let arguments = [targets, weights, d_losses, partials, rows.into()];
    let grid = Grid::new(PARTIALS, THREADS);
    builder.kernel(File::QuantiseLoss, "largest_loss_grad", of, &[], grid, &arguments)?;
    let arguments = [
        logits,
        targets,
        weights,
        d_losses,
        losses,
        partials,
        to.unit,
        to.at,
        start.into(),
        rows.into(),
        vocabulary.into(),
        Arg::F32(loss.label_smoothing),
        Arg::F32(loss.z_loss),
        Arg::Fault,
    ];
    let kept = kept_row_bytes(of, vocabulary);
    let name = if kept.is_some() { "e5m2_loss_rows" } else { "e5m2_loss_long_rows" };
    // A block that keeps its row copies its next one meanwhile. One that keeps nothing has no reason to stay.
    let blocks =
        if kept.is_some() { rows.min(ROWS_AT_ONCE * builder.multiprocessors().max(1)) } else { rows };
    let grid = Grid { shared_bytes: kept.unwrap_or(0), ..Grid::new(blocks, row_threads(of, vocabulary)) };
    builder.kernel(File::QuantiseLoss, name, of, &[], grid, &arguments)
}
