//! A step of decoding of many rows as two halves of them that run beside each other.
//!
//! A launch of such a step waits more than it works: for the one before to end, for its rows, for parts of its sums. Up to the head
//! rows need nothing of each other, so each half is a chain of launches of its own, and the card works on one while the other waits.
//! The head, which is bound by the bytes of its weights, takes all rows at once. What launches of a half hand to each other lies in
//! memory of that half alone, because halves do not keep step; what the last of them give is in its own place.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use super::{batch::MOST_ROWS, driver::Driver};
use crate::{
    device::{BufferId, Launch, View},
    error::Result,
    kernel::Kernel,
    op::Op,
    tensor::{DType, Shape, TensorType},
};

/// Rows of a step that is split. Up to 64 one chain of launches is faster. Products of more than [`MOST_ROWS`] are the library's, which
/// share working memory, so such halves would have to run by turns.
const ROWS: Range<usize> = 65..2 * MOST_ROWS + 1;
/// Where the memory of a half may begin.
const ALIGNMENT: usize = 256;

/// Where a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Track {
    /// Behind all calls before it, and before all behind it.
    Trunk,
    /// Beside the calls of the other half.
    Half(usize),
}

/// The stream that the second half is captured on beside the device's own, and what passes between them.
pub(super) struct Side {
    driver: Arc<Driver>,
    pub stream: usize,
    parted: usize,
    met: usize,
}

impl Side {
    pub fn new(driver: Arc<Driver>) -> Result<Self> {
        let mut side = Side { stream: driver.create_stream()?, driver, parted: 0, met: 0 };
        side.parted = side.driver.create_event(false)?;
        side.met = side.driver.create_event(false)?;
        Ok(side)
    }

    /// Lets what is put on this stream from now on run behind what is on `stream` so far.
    pub fn part(&self, stream: usize) -> Result<()> {
        self.driver.record(self.parted, stream)?;
        self.driver.wait(self.stream, self.parted)
    }

    /// Lets what is put on `stream` from now on run behind what is on this one so far.
    pub fn meet(&self, stream: usize) -> Result<()> {
        self.driver.record(self.met, self.stream)?;
        self.driver.wait(stream, self.met)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        for event in [self.parted, self.met].into_iter().filter(|&event| event != 0) {
            self.driver.destroy_event(event);
        }
        self.driver.destroy_stream(self.stream);
    }
}

/// The launches up to the head, once for each half.
pub(super) struct Branches {
    pub halves: [Vec<Launch>; 2],
    /// Bytes of memory that their values take.
    pub bytes: usize,
}

/// Splits the launches of a step up to its head; nothing where they are not all known here, or where rows are not as many as is
/// worth it. Values of the halves are put into `memory`.
pub(super) fn split(launches: &[Launch], memory: BufferId) -> Option<Branches> {
    let is_product = |launch: &Launch| matches!(launch.kernel, Kernel::Op(Op::Linear { .. }));
    let (before, rest) = launches.split_at(launches.iter().rposition(is_product)?);
    let logits = rest[0].outputs[0].of;
    let rows = logits.shape.rows();
    let draws = rest.iter().any(|launch| matches!(launch.kernel, Kernel::Draw(_)));
    if !draws || !ROWS.contains(&rows) || logits.dtype == DType::F32 {
        return None;
    }
    let operands: Vec<RowOperands> = before.iter().map(row_operands).collect::<Option<_>>()?;
    let given = |index: usize| &before[index].outputs[..operands[index].outputs];
    let last = before.len().checked_sub(1)?;
    let end = |view: &View| view.offset_bytes + view.of.shape.elements() * view.of.dtype.bytes();
    let bytes = (0..last).flat_map(given).map(end).max()?.next_multiple_of(ALIGNMENT);

    let middle = rows.div_ceil(2);
    let mut halves = [(0..middle, 0), (middle..rows, bytes)].map(|(own, first_byte)| Half {
        rows,
        own,
        memory,
        first_byte,
        values: BTreeSet::new(),
    });
    let [first, second]: [Option<Vec<Launch>>; 2] = halves.each_mut().map(|half| {
        let launches = before.iter().zip(&operands).enumerate();
        launches.map(|(index, (launch, of))| half.launch(launch, of, index < last)).collect()
    });
    let [Half { values, .. }, _] = halves;
    finds_all(rest, values).then_some(Branches { halves: [first?, second?], bytes: 2 * bytes })
}

/// Whether launches behind the halves read nothing of `values`, which are not in their places.
fn finds_all(launches: &[Launch], mut values: BTreeSet<(BufferId, usize)>) -> bool {
    launches.iter().all(|launch| {
        let finds = launch.inputs.iter().all(|view| !values.contains(&key(view)));
        launch.outputs.iter().for_each(|view| {
            values.remove(&key(view));
        });
        finds
    })
}

/// Which operands of a launch have a row of their own for each of the step's: these inputs, and so many of the outputs.
struct RowOperands {
    inputs: Range<usize>,
    outputs: usize,
}

/// Nothing for a kernel whose rows are not known to be independent.
fn row_operands(launch: &Launch) -> Option<RowOperands> {
    let outputs = launch.outputs.len();
    let (inputs, outputs) = match launch.kernel {
        Kernel::Op(Op::Embed) => (1..2, outputs),
        Kernel::Op(Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Linear { .. })
        | Kernel::LinearGelu { .. }
        | Kernel::JointSiluGate => (0..1, outputs),
        Kernel::AddLayerNorm { .. } | Kernel::AddRmsNorm { .. } | Kernel::Op(Op::Rope { .. }) => {
            (0..2, outputs)
        }
        // Behind those come the caches, whose rows are named by the second operand.
        Kernel::CachedAttention(_) => (0..2, 2),
        _ => return None,
    };
    Some(RowOperands { inputs, outputs })
}

/// Some of the rows.
struct Half {
    rows: usize,
    own: Range<usize>,
    memory: BufferId,
    /// Where its memory begins.
    first_byte: usize,
    /// Where values would lie that are in its memory instead.
    values: BTreeSet<(BufferId, usize)>,
}

impl Half {
    /// The launch for its rows, which keeps what it gives in the half's memory or puts it in its own place.
    fn launch(&mut self, launch: &Launch, of: &RowOperands, is_kept: bool) -> Option<Launch> {
        let input = |(index, view): (usize, &View)| {
            let is_value = self.values.contains(&key(view));
            match of.inputs.contains(&index) {
                true if is_value => Some(self.moved(self.rows_of(view)?)),
                true => self.rows_of(view),
                false => (!is_value).then_some(*view),
            }
        };
        let output = |(index, view): (usize, &View)| match index < of.outputs {
            true if is_kept => Some(self.moved(self.rows_of(view)?)),
            true => self.rows_of(view),
            false => Some(*view),
        };
        let inputs = launch.inputs.iter().enumerate().map(input).collect::<Option<_>>()?;
        let outputs = launch.outputs.iter().enumerate().map(output).collect::<Option<_>>()?;
        for view in &launch.outputs[..of.outputs] {
            if is_kept {
                self.values.insert(key(view));
            } else {
                self.values.remove(&key(view));
            }
        }
        Some(Launch { kernel: launch.kernel.clone(), inputs, outputs })
    }

    fn rows_of(&self, view: &View) -> Option<View> {
        let TensorType { shape, dtype } = view.of;
        let mut dims = shape.dims().to_vec();
        if dims[0] != self.rows {
            return None;
        }
        dims[0] = self.own.len();
        let row_bytes = shape.elements() / self.rows * dtype.bytes();
        let offset_bytes = view.offset_bytes + self.own.start * row_bytes;
        Some(View { offset_bytes, of: TensorType { shape: Shape::new(&dims), dtype }, ..*view })
    }

    fn moved(&self, view: View) -> View {
        View { buffer: self.memory, offset_bytes: self.first_byte + view.offset_bytes, ..view }
    }
}

fn key(view: &View) -> (BufferId, usize) {
    (view.buffer, view.offset_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    const ARENA: BufferId = BufferId(0);
    const WEIGHTS: BufferId = BufferId(1);
    const IDS: BufferId = BufferId(2);
    const MEMORY: BufferId = BufferId(9);

    fn view(buffer: BufferId, offset_bytes: usize, dims: &[usize], dtype: DType) -> View {
        View { buffer, offset_bytes, of: TensorType::new(dims, dtype) }
    }

    /// Rows by id at byte 0, their norm at 4096, the head over what lies at `read`, and the draw.
    fn step(rows: usize, read: usize) -> Vec<Launch> {
        let value = |offset, columns| view(ARENA, offset, &[rows, 1, columns], DType::BF16);
        let weight = |dims: &[usize]| view(WEIGHTS, 0, dims, DType::BF16);
        let ids = view(IDS, 0, &[rows, 1], DType::U32);
        let statistic = |offset| view(ARENA, offset, &[rows, 1], DType::F32);
        let (normed, logits) = (value(4096, 8), value(0, 16));
        vec![
            Launch {
                kernel: Kernel::Op(Op::Embed),
                inputs: vec![weight(&[16, 8]), ids],
                outputs: vec![value(0, 8)],
            },
            Launch {
                kernel: Kernel::Op(Op::RmsNorm { eps: 1e-5 }),
                inputs: vec![value(0, 8), weight(&[8])],
                outputs: vec![normed, statistic(8192)],
            },
            Launch {
                kernel: Kernel::Op(Op::Linear { bias: false, products: DType::BF16 }),
                inputs: vec![value(read, 8), weight(&[16, 8])],
                outputs: vec![logits],
            },
            Launch { kernel: Kernel::Draw(Draw { context: 64 }), inputs: vec![logits], outputs: vec![ids] },
        ]
    }

    #[test]
    fn halves_have_their_own_rows_and_memory_and_leave_the_last_result_in_its_place() {
        let Branches { halves: [first_half, second_half], bytes } = split(&step(97, 4096), MEMORY).unwrap();
        let [first, second] = [&first_half[0], &second_half[0]];
        assert_eq!(first.inputs[1], view(IDS, 0, &[49, 1], DType::U32));
        assert_eq!(second.inputs[1], view(IDS, 49 * 4, &[48, 1], DType::U32));
        assert_eq!(first.outputs[0], view(MEMORY, 0, &[49, 1, 8], DType::BF16));
        assert_eq!(second.outputs[0], view(MEMORY, bytes / 2 + 49 * 16, &[48, 1, 8], DType::BF16));
        assert_eq!(first_half[1].inputs[0], first.outputs[0]);
        let [first, second] = [&first_half[1], &second_half[1]];
        assert_eq!(second.inputs, [second_half[0].outputs[0], view(WEIGHTS, 0, &[8], DType::BF16)]);
        assert_eq!(first.outputs[0], view(ARENA, 4096, &[49, 1, 8], DType::BF16));
        assert_eq!(second.outputs[1], view(ARENA, 8192 + 49 * 4, &[48, 1], DType::F32));
        assert_eq!([first_half.len(), second_half.len()], [2; 2]);
    }

    #[test]
    fn steps_stay_whole_that_have_few_or_too_many_rows_or_read_what_halves_keep_to_themselves() {
        assert!(split(&step(64, 4096), MEMORY).is_none());
        assert!(split(&step(257, 4096), MEMORY).is_none());
        assert!(split(&step(97, 0), MEMORY).is_none());
        assert!(split(&step(97, 4096)[..3], MEMORY).is_none());
    }
}
