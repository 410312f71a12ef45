//! Attention over a cache that is filled chunk by chunk equals causal attention over the whole sequence.

use ironmill_compute::{DType, Device, HostData, Mask, TensorType};
use ironmill_graph::{Graph, Heads, Passes, Runtime, States};

use crate::{
    cases::normals,
    harness::{DEVICES, exact},
    tolerance::{assert_close, relative},
};

/// What stands in the padding of a chunk: large, so that a result that reads it is visibly wrong.
const PADDING: f64 = 1e3;

/// Sequences of different lengths and the chunks that feed them.
struct Story {
    lengths: &'static [usize],
    /// Queries of each chunk's program; a row takes as many as it still has, and padding behind.
    chunks: &'static [usize],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// How many keys a query sees; 0 is no limit.
    window: usize,
}

const STORIES: [Story; 8] = [
    Story { lengths: &[9, 5, 7], chunks: &[4, 1, 3, 4], heads: 2, kv_heads: 2, head_dim: 3, window: 0 },
    // One token at a time, as sampling does.
    Story { lengths: &[4, 2], chunks: &[1, 1, 1, 1], heads: 4, kv_heads: 2, head_dim: 2, window: 0 },
    Story { lengths: &[6], chunks: &[6], heads: 3, kv_heads: 1, head_dim: 1, window: 0 },
    // Chunks and sequences across the tiles of a fast backend.
    Story { window: 0, ..LONG },
    // Windows inside a chunk, across chunks, and longer than any sequence.
    Story { lengths: &[9, 5, 7], chunks: &[4, 1, 3, 4], heads: 2, kv_heads: 1, head_dim: 3, window: 3 },
    Story { lengths: &[4, 2], chunks: &[1, 1, 1, 1], heads: 2, kv_heads: 2, head_dim: 2, window: 1 },
    Story { window: 40, ..LONG },
    Story { window: 1000, ..LONG },
];

const LONG: Story = Story {
    lengths: &[131, 70, 1, 97],
    chunks: &[67, 33, 1, 64],
    heads: 4,
    kv_heads: 2,
    head_dim: 17,
    window: 0,
};

#[test]
fn cached_attention_equals_causal_attention_over_the_whole_sequence() {
    for story in &STORIES {
        let expected = story.whole();
        let bound = relative(2.0, DType::F32.epsilon(), story.longest().max(story.head_dim));
        for (device, bound) in DEVICES.into_iter().zip([1e-12, bound]) {
            let got = story.in_chunks(device());
            for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let name = format!("row {row} of {:?}, window {}", story.lengths, story.window);
                assert_close(&name, got, expected, bound);
            }
        }
    }
}

impl Story {
    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap()
    }

    fn heads(&self) -> Heads {
        Heads { queries: self.heads, keys: self.kv_heads, mask: Mask::Causal, window: self.window }
    }

    /// The columns of queries, keys and values.
    fn columns(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_dim)
    }

    /// Queries, keys and values of one row.
    fn row(&self, row: usize) -> [Vec<f64>; 3] {
        std::array::from_fn(|which| {
            normals((10 * row + which) as u32 + 500, self.lengths[row] * self.columns()[which])
        })
    }

    /// The oracle: every row alone, whole, without a cache, in double precision.
    fn whole(&self) -> Vec<Vec<f64>> {
        let attend = |row: usize| {
            let mut g = Graph::new();
            let columns = self.columns();
            let qkv = columns.map(|columns| g.input("qkv", &[1, self.lengths[row], columns], DType::F32));
            let out = g.attention(qkv, None, self.heads()).unwrap();
            g.keep(out);
            let mut runtime = Runtime::new(exact(), &States::default()).unwrap();
            let program = runtime.compile(g, &Passes::NONE).unwrap();
            for (tensor, values) in qkv.into_iter().zip(self.row(row)) {
                runtime.write(program, tensor, HostData::F64(&values)).unwrap();
            }
            runtime.run(program).unwrap();
            runtime.read_f64(program, out).unwrap()
        };
        (0..self.lengths.len()).map(attend).collect()
    }

    /// All rows together, chunk by chunk through a cache just large enough for the longest.
    fn in_chunks(&self, device: Box<dyn Device>) -> Vec<Vec<f64>> {
        let (rows, capacity, [q_columns, kv_columns, _]) =
            (self.lengths.len(), self.longest(), self.columns());
        let mut states = States::default();
        let caches =
            ["keys", "values"].map(|name| states.declare(name, DType::F32, rows * capacity * kv_columns));
        let mut runtime = Runtime::new(device, &states).unwrap();
        let sources: Vec<[Vec<f64>; 3]> = (0..rows).map(|row| self.row(row)).collect();
        let mut outputs = vec![Vec::new(); rows];
        let mut done = vec![0; rows];
        for &chunk in self.chunks {
            let mut g = Graph::new();
            let caches = caches
                .map(|cache| g.state(cache, 0, TensorType::new(&[rows, capacity, kv_columns], DType::F32)));
            let qkv = self.columns().map(|columns| g.input("qkv", &[rows, chunk, columns], DType::F32));
            let places = g.input("places", &[rows, 2], DType::U32);
            let out = g.cached_attention(qkv, caches, places, self.heads()).unwrap();
            g.keep(out);
            let program = runtime.compile(g, &Passes::ALL).unwrap();

            let taken: Vec<usize> = (0..rows).map(|row| chunk.min(self.lengths[row] - done[row])).collect();
            for (which, columns) in self.columns().into_iter().enumerate() {
                let mut values = vec![PADDING; rows * chunk * columns];
                for row in 0..rows {
                    let from = &sources[row][which][done[row] * columns..][..taken[row] * columns];
                    values[row * chunk * columns..][..from.len()].copy_from_slice(from);
                }
                runtime.write(program, qkv[which], HostData::F64(&values)).unwrap();
            }
            // Samples take the cache's rows from the last to the first.
            let places_of: Vec<u32> = done
                .iter()
                .zip((0..rows).rev())
                .flat_map(|(&start, row)| [row as u32, start as u32])
                .collect();
            runtime.write(program, places, HostData::U32(&places_of)).unwrap();
            runtime.run(program).unwrap();
            let values = runtime.read_f64(program, out).unwrap();
            for row in 0..rows {
                outputs[row].extend_from_slice(&values[row * chunk * q_columns..][..taken[row] * q_columns]);
                done[row] += taken[row];
            }
        }
        assert_eq!(done, self.lengths, "the chunks must cover the sequences");
        outputs
    }
}
