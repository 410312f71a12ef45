//! The memory plan: where every value lies in the arena, known before the first step.
//!
//! A value lives from the node that writes it to the last one that reads it. Values are placed largest first, each at the
//! lowest offset where it meets no value that lives at the same time. Offsets depend on the program alone.

use ironmill_compute::DType;

use crate::graph::{Graph, Kind};

/// Bytes between possible starts of a value.
pub(crate) const ALIGNMENT: usize = 256;

/// Places of inputs and values, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For every tensor: its offset in the arena (values) or in the program's inputs (inputs).
    pub(crate) offsets: Vec<usize>,
    /// Bytes of the arena that the program needs.
    pub arena_bytes: usize,
    /// Bytes of the program's inputs.
    pub input_bytes: usize,
    /// What the arena would need if no two values shared a place.
    pub unshared_bytes: usize,
}

/// A value's place in time and space.
struct Life {
    tensor: usize,
    first: usize,
    last: usize,
    bytes: usize,
}

/// Plans a program's memory, with elements as large as `element_bytes` says.
pub(crate) fn plan(graph: &Graph, share: bool, element_bytes: &dyn Fn(DType) -> usize) -> Plan {
    let bytes_of = |tensor: usize| {
        let of = graph.tensors[tensor].of;
        (of.shape.elements() * element_bytes(of.dtype)).next_multiple_of(ALIGNMENT)
    };
    let mut plan =
        Plan { offsets: vec![0; graph.tensors.len()], arena_bytes: 0, input_bytes: 0, unshared_bytes: 0 };
    for (tensor, info) in graph.tensors.iter().enumerate() {
        if matches!(info.kind, Kind::Input { .. }) {
            plan.offsets[tensor] = plan.input_bytes;
            plan.input_bytes += bytes_of(tensor);
        }
    }

    let mut lives: Vec<Life> = Vec::new();
    let mut life_of = vec![None; graph.tensors.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for output in &node.outputs {
            if graph.is_value(*output) {
                life_of[output.0] = Some(lives.len());
                lives.push(Life { tensor: output.0, first: index, last: index, bytes: bytes_of(output.0) });
            }
        }
        for life in node.inputs.iter().filter_map(|input| life_of[input.0]) {
            lives[life].last = index;
        }
    }
    for life in graph.kept.iter().filter_map(|kept| life_of[kept.0]) {
        lives[life].last = graph.nodes.len();
    }

    plan.unshared_bytes = lives.iter().map(|life| life.bytes).sum();
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.first, life.tensor));
    let mut placed: Vec<(usize, Life)> = Vec::with_capacity(lives.len());
    for life in lives {
        let mut offset = 0;
        // Kept in order of offset, so the first gap that is large enough is the lowest.
        for (start, other) in &placed {
            let meets = !share || (other.first <= life.last && life.first <= other.last);
            if meets && *start < offset + life.bytes && offset < start + other.bytes {
                offset = start + other.bytes;
            }
        }
        plan.offsets[life.tensor] = offset;
        plan.arena_bytes = plan.arena_bytes.max(offset + life.bytes);
        let at = placed.partition_point(|(start, _)| *start <= offset);
        placed.insert(at, (offset, life));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironmill_compute::Op;

    /// A chain where each value dies as the next is made, with one that is read at the very end.
    fn chain(length: usize) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", &[1000], DType::F32);
        let first = g.gelu(x).unwrap();
        let mut last = first;
        for _ in 0..length {
            last = g.gelu(last).unwrap();
        }
        let sum = g.add(first, last).unwrap();
        g.keep(sum);
        g
    }

    #[test]
    fn values_that_live_together_never_overlap() {
        let g = chain(5);
        let plan = plan(&g, true, &DType::bytes);
        let last_use = |t: usize| {
            g.nodes.iter().rposition(|n| n.inputs.iter().any(|i| i.0 == t)).unwrap_or(g.nodes.len())
        };
        let lives: Vec<(usize, usize, usize)> =
            g.nodes.iter().enumerate().map(|(i, n)| (n.outputs[0].0, i, last_use(n.outputs[0].0))).collect();
        for &(a, a_first, a_last) in &lives {
            for &(b, b_first, b_last) in lives.iter().filter(|other| other.0 > a) {
                let apart = plan.offsets[a].abs_diff(plan.offsets[b]) >= 4096;
                assert!(apart || a_last < b_first || b_last < a_first, "{a} and {b}");
            }
        }
    }

    #[test]
    fn a_long_chain_needs_no_more_memory_than_a_short_one() {
        let bytes = |length| plan(&chain(length), true, &DType::bytes).arena_bytes;
        assert_eq!(bytes(3), 3 * 4096);
        assert_eq!(bytes(50), bytes(3));
        assert_eq!(plan(&chain(50), false, &DType::bytes).arena_bytes, 52 * 4096);
    }

    #[test]
    fn the_plan_is_the_same_every_time() {
        let g = chain(20);
        assert_eq!(plan(&g, true, &DType::bytes), plan(&g, true, &DType::bytes));
        assert!(g.nodes.iter().any(|n| n.kernel == ironmill_compute::Kernel::Op(Op::Gelu)));
    }
}
