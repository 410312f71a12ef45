//! Weights that a device lays out as its products read them best, against the same weights as they were written.

use ironmill_compute::{Cpu, DType, Frozen, HostData, cpu::InstructionSet};
use ironmill_graph::{Graph, Layout, Passes, Precision, Runtime, StateId, States, Tensor, refresh_program};

use crate::{cases::normals, harness::exact};

/// A model in miniature: a table that is also the head, a product with bias and activation, and a loss.
struct Small {
    layout: Layout,
    states: States,
    masters: StateId,
    copy: StateId,
    vocabulary: usize,
    hidden: usize,
}

impl Small {
    fn new([vocabulary, hidden, width]: [usize; 3]) -> Self {
        let (mut layout, mut states) = (Layout::default(), States::default());
        layout.add("table", &[vocabulary, width], true);
        layout.add("w", &[hidden, width], true);
        layout.add("bias", &[hidden], false);
        let masters = states.declare("parameters", DType::F32, layout.len());
        let copy = states.declare("working", DType::BF16, layout.len());
        Small { layout, states, masters, copy, vocabulary, hidden }
    }

    fn passes(&self, dtype: DType) -> Passes {
        let Small { masters, copy, .. } = *self;
        match dtype {
            DType::BF16 => Passes { precision: Precision::Weights { dtype, masters, copy }, ..Passes::ALL },
            _ => Passes::ALL,
        }
    }

    fn runtime(&self, set: InstructionSet) -> Option<Runtime> {
        let cpu = Cpu::with_instruction_set(2, set)?.unwrap();
        let mut runtime = Runtime::new(Box::new(cpu), &self.states).unwrap();
        self.write(&mut runtime).unwrap();
        let refresh = refresh_program(self.layout.len(), DType::BF16, self.masters, self.copy);
        let refresh = runtime.compile(refresh, &Passes::ALL).unwrap();
        runtime.run(refresh).unwrap();
        runtime.forget(refresh);
        Some(runtime)
    }

    fn write(&self, runtime: &mut Runtime) -> ironmill_graph::Result<()> {
        let values = normals(1, self.layout.len());
        runtime.write_state(self.masters, 0..values.len(), HostData::F64(&values))
    }

    /// The ids and what is kept: hidden states and either logits or losses.
    fn program(&self, rows: usize, with_loss: bool) -> (Graph, [Tensor; 3]) {
        let mut g = Graph::new();
        let ids = g.input("ids", &[rows], DType::U32);
        let [table, w, bias] = [0, 1, 2].map(|i| g.parameter(self.masters, &self.layout.parameters()[i]));
        let x = g.embed(table, ids).unwrap();
        let h = g.linear(x, w, Some(bias)).unwrap();
        let h = g.gelu(h).unwrap();
        let mut end = g.linear(x, table, None).unwrap();
        if with_loss {
            let weights = g.input("weights", &[rows], DType::F32);
            end = g.cross_entropy(end, ids, weights, Default::default()).unwrap();
        }
        g.keep(h);
        g.keep(end);
        (g, [ids, h, end])
    }

    fn results(&self, runtime: &mut Runtime, rows: usize, with_loss: bool, passes: &Passes) -> Vec<u32> {
        let (g, [ids, h, end]) = self.program(rows, with_loss);
        let lengths = [(h, self.hidden), (end, if with_loss { 1 } else { self.vocabulary })];
        let program = runtime.compile(g, passes).unwrap();
        let numbers: Vec<u32> = (0..rows).map(|row| (row * 7 % self.vocabulary) as u32).collect();
        runtime.write(program, ids, HostData::U32(&numbers)).unwrap();
        runtime.run(program).unwrap();
        let mut bits = Vec::new();
        for (tensor, length) in lengths {
            let mut out = vec![0.0f32; rows * length];
            runtime.read(program, tensor, &mut out).unwrap();
            bits.extend(out.into_iter().map(f32::to_bits));
        }
        bits
    }

    fn freeze(&self, runtime: &mut Runtime, passes: &Passes) {
        runtime.freeze_weights(self.program(1, false).0, passes, Frozen::Exact).unwrap();
    }

    fn freeze_in_int8(&self, runtime: &mut Runtime) {
        runtime.freeze_weights(self.program(1, false).0, &Passes::ALL, Frozen::Int8).unwrap();
    }

    fn masters(&self, runtime: &Runtime) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.len()];
        runtime.read_state(self.masters, 0..values.len(), &mut values).unwrap();
        values
    }
}

#[test]
fn frozen_weights_give_the_same_bits_for_any_number_of_rows() {
    // Whole strips, strips with lines left, lines alone; sums of one block and of several; strips in pairs with one left.
    for sizes in [[96, 64, 48], [209, 77, 902], [50, 11, 130], [37, 33, 17], [527, 272, 610]] {
        let small = Small::new(sizes);
        for (set, dtype) in
            InstructionSet::ALL.into_iter().flat_map(|set| [(set, DType::F32), (set, DType::BF16)])
        {
            let passes = small.passes(dtype);
            let Some(mut plain) = small.runtime(set) else { continue };
            let mut frozen = small.runtime(set).unwrap();
            small.freeze(&mut frozen, &passes);
            for rows in [1, 3, 8, 9, 17, 100] {
                for with_loss in [false, true] {
                    let [expected, got] =
                        [&mut plain, &mut frozen].map(|of| small.results(of, rows, with_loss, &passes));
                    assert!(expected == got, "{set}, {dtype:?}, {rows} rows, {sizes:?}, loss {with_loss}");
                }
            }
        }
    }
}

#[test]
fn frozen_weights_are_read_as_they_were_written_and_written_no_more() {
    let small = Small::new([50, 33, 17]);
    for set in InstructionSet::ALL {
        let Some(mut runtime) = small.runtime(set) else { continue };
        let (before, len) = (normals(1, small.layout.len()), small.layout.len());
        small.freeze(&mut runtime, &Passes::ALL);
        // A second time changes nothing.
        small.freeze(&mut runtime, &Passes::ALL);
        let mut single = vec![0.0; len];
        runtime.read_state(small.masters, 0..len, &mut single).unwrap();
        let expected: Vec<f32> = before.iter().map(|&x| x as f32).collect();
        assert_eq!(single, expected, "{set}");
        let double = runtime.read_state_f64(small.masters, 0..len).unwrap();
        assert_eq!(double, expected.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), "{set}");
        if matches!(set, InstructionSet::Avx512 | InstructionSet::Avx512Bf16) {
            let message = small.write(&mut runtime).unwrap_err().to_string();
            assert!(message.contains("frozen"), "{message}");
            runtime.read_state(small.masters, 1..len, &mut single[1..]).unwrap_err();
            let refresh = refresh_program(len, DType::BF16, small.masters, small.copy);
            let message = runtime.compile(refresh, &Passes::ALL).unwrap_err().to_string();
            assert!(message.contains("frozen"), "{message}");
        }
    }
}

#[test]
fn programs_compiled_before_weights_are_frozen_are_refused_and_those_that_change_them_too() {
    let small = Small::new([64, 32, 16]);
    let Some(mut runtime) = small.runtime(InstructionSet::Avx512) else { return };
    let early = runtime.compile(small.program(2, false).0, &Passes::ALL).unwrap();
    small.freeze(&mut runtime, &Passes::ALL);
    let message = runtime.run(early).unwrap_err().to_string();
    assert!(message.contains("frozen"), "{message}");
    runtime.forget(early);
    let (mut g, [_, h, _]) = small.program(2, false);
    let seed = g.input("seed", &[2, small.hidden], DType::F32);
    let table = g.parameter(small.masters, &small.layout.parameters()[0]);
    let gradients = g.gradients(&[(h, seed)], &[table]).unwrap();
    gradients.into_iter().flatten().for_each(|gradient| g.keep(gradient));
    let message = runtime.compile(g, &Passes::ALL).unwrap_err().to_string();
    assert!(message.contains("frozen"), "{message}");
}

#[test]
fn a_backend_without_a_better_order_leaves_weights_as_they_are() {
    let small = Small::new([50, 33, 16]);
    let mut runtime = Runtime::new(exact(), &small.states).unwrap();
    small.freeze(&mut runtime, &Passes::ALL);
    small.write(&mut runtime).unwrap();
}

/// Whole strips and lines left, whole groups and terms left.
const INT8_SIZES: [[usize; 3]; 4] = [[96, 64, 128], [209, 77, 902], [50, 27, 131], [37, 33, 17]];

#[test]
fn weights_in_int8_are_the_numbers_that_their_slow_twin_rounds_to_and_their_products_are_near_its() {
    for sizes in INT8_SIZES {
        let small = Small::new(sizes);
        let mut twin = Runtime::new(exact(), &small.states).unwrap();
        small.write(&mut twin).unwrap();
        small.freeze_in_int8(&mut twin);
        for set in InstructionSet::ALL {
            let Some(mut runtime) = small.runtime(set) else { continue };
            let plain = small.masters(&runtime);
            small.freeze_in_int8(&mut runtime);
            let values = small.masters(&runtime);
            assert_eq!(values, small.masters(&twin), "{set}, {sizes:?}");
            let bias = small.layout.parameters()[2].range();
            assert_ne!(values, plain);
            assert_eq!(values[bias.clone()], plain[bias], "a bias stays as it is");
            let doubles = runtime.read_state_f64(small.masters, 0..values.len()).unwrap();
            assert!(doubles.iter().zip(&values).all(|(a, b)| *a == f64::from(*b)));
            for rows in [1, 5, 18] {
                let of = |runtime: &mut Runtime| -> Vec<f32> {
                    let bits = small.results(runtime, rows, false, &Passes::ALL);
                    bits.into_iter().map(f32::from_bits).collect()
                };
                let (expected, got) = (of(&mut twin), of(&mut runtime));
                // Both factors of so many terms are normal numbers, and activations move by at most 6e-5, 4 in 32767 halved;
                // bf16 would move them by twenty times as much.
                let bound = 2e-4 * (sizes[2] as f32).sqrt();
                for (expected, got) in expected.iter().zip(&got) {
                    assert!((expected - got).abs() <= bound, "{set}, {rows} rows: {got} for {expected}");
                }
            }
        }
    }
}

#[test]
fn products_with_int8_have_the_same_bits_for_any_number_of_rows_and_on_any_instruction_set() {
    for sizes in INT8_SIZES {
        let small = Small::new(sizes);
        let (hidden, vocabulary) = (small.hidden, small.vocabulary);
        // Hidden states pass through an activation, whose bits depend on the set; logits are products alone.
        let mut logits_of_all: Option<Vec<u32>> = None;
        for set in InstructionSet::ALL {
            let Some(mut runtime) = small.runtime(set) else { continue };
            small.freeze_in_int8(&mut runtime);
            let all = small.results(&mut runtime, 20, false, &Passes::ALL);
            for rows in [1, 2, 3, 4, 7, 8, 9, 17] {
                let some = small.results(&mut runtime, rows, false, &Passes::ALL);
                assert!(some[..rows * hidden] == all[..rows * hidden], "{set}, {rows} rows, {sizes:?}");
                let logits = &some[rows * hidden..];
                assert!(logits == &all[20 * hidden..][..rows * vocabulary], "{set}, {rows} rows, {sizes:?}");
            }
            let logits = all[20 * hidden..].to_vec();
            let first = logits_of_all.get_or_insert_with(|| logits.clone());
            assert!(*first == logits, "{set}, {sizes:?}");
            // The loss beside the logits reads the same strips.
            let losses = small.results(&mut runtime, 9, true, &Passes::ALL);
            let one = small.results(&mut runtime, 1, true, &Passes::ALL);
            assert_eq!(losses[9 * hidden], one[hidden], "{set}");
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_shows_in_its_row_alone() {
    let small = Small::new([64, 32, 130]);
    let mut values = normals(1, small.layout.len());
    values[3 * 130 + 100] = f64::INFINITY;
    let mut g = Graph::new();
    let x = g.input("x", &[3, 130], DType::F32);
    let w = g.parameter(small.masters, &small.layout.parameters()[1]);
    let y = g.linear(x, w, None).unwrap();
    g.keep(y);
    for set in InstructionSet::ALL {
        let Some(mut runtime) = small.runtime(set) else { continue };
        small.freeze_in_int8(&mut runtime);
        let program = runtime.compile(g.clone(), &Passes::ALL).unwrap();
        runtime.write(program, x, HostData::F64(&values[2 * 130..5 * 130])).unwrap();
        runtime.run(program).unwrap();
        let mut out = vec![0.0f32; 3 * 32];
        runtime.read(program, y, &mut out).unwrap();
        for (row, out) in out.chunks_exact(32).enumerate() {
            assert!(out.iter().all(|x| x.is_finite() == (row != 1)), "{set}, row {row}");
        }
    }
}
