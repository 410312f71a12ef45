//! The CUDA backend against the reference: every kernel, odd shapes, every element type. Without a card the tests say so and pass,
//! unless IRONMILL_REQUIRE_CUDA is set.

#![expect(clippy::print_stderr, reason = "a test that skips says so")]

mod cases;

use cases::{
    Case, Data, Tensor, UNLIKELY, adams_with_copies, all, attentions_in_whole_tiles,
    attentions_of_wide_heads, compare_within, eight_bit_heads, embedding_gradients, gates_in_tiles,
    gelu_products, gelus_in_tiles, grads_of_many_heads, grads_of_whole_heads, indices, largest,
    products_of_rows, quantised, quantised_attention_grads, quantised_grads_of_whole_heads,
    quantised_norm_grads, quantised_norms, quantised_weights, random, run, scaled_products, unlikely_targets,
    weight_gradients_in_wide_tiles,
};
use ironmill_compute::cuda::Places;
use ironmill_compute::{
    AttentionBy, Cuda, CudaOptions, DType, Device, Error, Frozen, GeluProduct, HostData, Kernel, Launch, Op,
    Reference, Result, Shape, TensorType, View, quantise::Source,
};

fn cuda() -> Option<Cuda> {
    cuda_with(AttentionBy::Fastest)
}

fn cuda_with(attention: AttentionBy) -> Option<Cuda> {
    // The tests of a run share what they compile.
    let kernel_cache = Some(std::env::temp_dir().join("ironmill-test-kernels"));
    open(CudaOptions { attention, kernel_cache, ..CudaOptions::default() })
}

/// A card, or its emulator where there is none.
fn open(options: CudaOptions) -> Option<Cuda> {
    ironmill_emulator::card_or_emulator(|emulator| {
        let places =
            Places { first: emulator.into_iter().collect(), last: vec!["/usr/local/cuda/lib64".into()] };
        Cuda::new(&CudaOptions { places, ..options.clone() })
    })
}

/// Every case in every element type that a program can have it in.
fn cases() -> Vec<Case> {
    let plain = all();
    let narrow = in_halves(&plain);
    [plain, narrow].concat()
}

/// In both types of 16 bits.
fn in_halves(cases: &[Case]) -> Vec<Case> {
    [DType::BF16, DType::F16].map(|of| narrowed(cases, of)).concat()
}

fn narrowed(cases: &[Case], of: DType) -> Vec<Case> {
    cases.iter().filter_map(|case| case.in_working_type(of)).collect()
}

/// The matrix units of a card cut sums off where a processor rounds them, so their errors do not average out as well.
fn slack(case: &Case) -> f64 {
    if case.products() == DType::F32 { 1.0 } else { 2.0 }
}

#[test]
fn every_kernel_matches_the_reference_in_f32() {
    check_all(&all());
}

#[test]
fn every_kernel_matches_the_reference_in_bf16() {
    check_all(&narrowed(&all(), DType::BF16));
}

#[test]
fn every_kernel_matches_the_reference_in_f16() {
    check_all(&narrowed(&all(), DType::F16));
}

#[test]
fn adam_keeps_a_working_copy_as_the_reference_does() {
    check_all(&adams_with_copies());
}

#[test]
fn gradients_of_embeddings_match_the_reference_and_repeat_their_bits() {
    let Some(mut cuda) = cuda() else { return };
    let plain = embedding_gradients();
    let narrow = in_halves(&plain);
    check_each(&mut cuda, &[plain, narrow].concat(), |case, actual, expected| {
        compare_within(1.0, case, actual, expected).unwrap();
    });
}

/// Runs every case twice, which must give the same bits, and looks at them beside the reference's.
fn check_each(cuda: &mut Cuda, cases: &[Case], check: impl Fn(&Case, &[Vec<f64>], &[Vec<f64>])) {
    for (case, expected) in cases.iter().zip(all_expected(cases)) {
        check(case, &run_twice(cuda, case), &expected);
    }
}

fn run_twice(cuda: &mut Cuda, case: &Case) -> Vec<Vec<f64>> {
    let [first, second] = [0, 1].map(|_| run(cuda, case).expect("a kernel runs it"));
    assert_eq!(first, second, "{}", case.name());
    first
}

/// No number is further away than allowed, and at most one of so many differs at all; of nothing, any may.
fn assert_near(
    case: &Case,
    output: usize,
    [actual, expected]: [&[f64]; 2],
    one_of: usize,
    tolerance: impl Fn(f64) -> f64,
) {
    let name = case.name();
    let differing = actual.iter().zip(expected).filter(|(a, e)| a != e).count();
    assert!(one_of * differing <= actual.len(), "{differing} of output {output} differ in {name}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let is_near = (a - e).abs() <= tolerance(*e);
        assert!(is_near, "output {output} element {index}: {a}, not {e}, in {name}");
    }
}

/// What the reference says to all cases. It takes its time, which several threads share.
fn all_expected(cases: &[Case]) -> Vec<Vec<Vec<f64>>> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let index = || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let indices = std::iter::from_fn(|| Some(index()).filter(|&index| index < cases.len()));
        indices.map(|index| (index, cases[index].expected())).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("the reference runs every case")).collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, expected)| expected).collect()
}

fn check_all(cases: &[Case]) {
    let Some(mut cuda) = cuda() else { return };
    let mut failures = Vec::new();
    for (case, expected) in cases.iter().zip(all_expected(cases)) {
        let failure = match run(&mut cuda, case) {
            Ok(actual) => compare_within(slack(case), case, &actual, &expected).err(),
            Err(error) => Some(format!("{error}, in {}", case.name())),
        };
        // A card that stopped answers nothing any more.
        let is_lost = failure.as_ref().is_some_and(|failure| failure.contains("the card stopped"));
        failures.extend(failure);
        if is_lost {
            break;
        }
    }
    let shown: Vec<&str> =
        failures.iter().map(|failure| &failure[..failure.len().min(600)]).take(60).collect();
    assert!(failures.is_empty(), "{} of {} cases failed:\n{}", failures.len(), cases.len(), shown.join("\n"));
}

/// One case of every kernel and type, the largest: few enough for a run under compute-sanitizer.
#[test]
fn one_case_of_every_kernel_runs() {
    let Some(mut cuda) = cuda() else { return };
    let size = |case: &Case| case.inputs.iter().map(|tensor| tensor.of.shape.elements()).sum::<usize>();
    let mut largest = std::collections::BTreeMap::new();
    for case in cases() {
        let key = format!("{} {} {}", case.kernel.name(), case.inputs[0].of.dtype, case.outputs[0].of.dtype);
        let best = largest.entry(key).or_insert_with(|| case.clone());
        if size(&case) > size(best) {
            *best = case;
        }
    }
    for case in largest.values() {
        run(&mut cuda, case).unwrap();
    }
}

/// Products of eight bits in the types that their results can have. Where the result is f32 the library takes no bias.
fn eight_bit_products() -> Vec<Case> {
    let cases = scaled_products();
    let narrow = in_halves(&cases);
    let has_bias = |case: &Case| matches!(case.kernel, Kernel::ScaledProduct { bias: true, .. });
    cases.into_iter().filter(|case| !has_bias(case)).chain(narrow).collect()
}

#[test]
fn products_of_eight_bits_match_the_reference_and_repeat_their_bits() {
    let Some(mut cuda) = cuda() else { return };
    check_each(&mut cuda, &[eight_bit_products(), eight_bit_heads()].concat(), |case, actual, expected| {
        compare_within(1.0, case, actual, expected).expect("within the bounds");
    });
}

/// To nearest, all of them would be −1, and a token's gradient 3 % too long.
#[test]
fn gradients_of_unlikely_targets_are_right_on_average_in_eight_bits() {
    let (case, (probability, rows)) = (unlikely_targets(), UNLIKELY);
    let [_, expected] = &case.expected()[..] else { panic!("losses and the weight's gradient") };
    let [target, other] = [5, 6].map(|row| expected[row * 16]);
    let exact = (probability - 1.0) * rows as f64;
    assert!((target - exact).abs() < 2e-3 * exact.abs(), "{target} is not {exact}");
    assert_eq!(other, probability * rows as f64);
    let Some(mut cuda) = cuda() else { return };
    assert_near(&case, 1, [&run_twice(&mut cuda, &case)[1], expected], 0, |_| 1e-3);
}

#[test]
fn a_row_of_a_product_in_halves_is_the_same_beside_any_others_bit_for_bit() {
    const MOST: usize = 128;
    let Some(mut cuda) = cuda() else { return };
    for of in [DType::BF16, DType::F16] {
        let all = narrowed(&products_of_rows(MOST), of);
        let whole: Vec<_> = all.iter().map(|case| run(&mut cuda, case).unwrap()).collect();
        for (case, actual) in all.iter().zip(&whole) {
            compare_within(slack(case), case, actual, &case.expected()).expect("within the bounds");
        }
        for rows in [5, 17, 48, 64, 67, MOST] {
            for (case, whole) in narrowed(&products_of_rows(rows), of).iter().zip(&whole) {
                for (few, whole) in run(&mut cuda, case).unwrap().iter().zip(whole) {
                    assert_eq!(few[..], whole[..few.len()], "{}", case.name());
                }
            }
        }
    }
}

/// Numbers that lie in memory become the reference's eight bits, every one; those that are computed on the way may be one step away.
#[test]
fn quantised_numbers_are_the_references() {
    let Some(mut cuda) = cuda() else { return };
    check_each(&mut cuda, &in_halves(&quantised()), |case, actual, expected| {
        let Kernel::Quantise(of) = case.kernel else { panic!("all of them quantise") };
        for (output, pair) in pairs(actual, expected) {
            let is_sum = of.sums.is_some() && output + 1 == actual.len();
            let tolerance = |e: f64| match (is_sum, of.source) {
                (true, _) => 0.01 * (case.terms as f64).sqrt(),
                (false, Source::Stored | Source::Bounded { .. }) => 0.0,
                (false, _) => of.of.epsilon() * e.abs() + 2f64.powi(-9),
            };
            // What was rounded to 16 bits on the way lies nearer to the middle than that in one of some twenty numbers.
            assert_near(case, output, pair, if is_sum { 0 } else { 10 }, tolerance);
        }
    });
}

/// Outputs by number, as they are and as they should be.
fn pairs<'a>(
    actual: &'a [Vec<f64>],
    expected: &'a [Vec<f64>],
) -> impl Iterator<Item = (usize, [&'a [f64]; 2])> {
    actual.iter().zip(expected).map(|(actual, expected)| [&actual[..], expected]).enumerate()
}

#[test]
fn weights_quantised_together_are_the_references_bit_for_bit() {
    let Some(mut cuda) = cuda() else { return };
    check_each(&mut cuda, &in_halves(&quantised_weights()), |case, actual, expected| {
        assert_eq!(actual, expected, "{}", case.name());
    });
}

/// A norm that writes eight bits finds the reference's unit, and of its numbers few are a step away.
#[test]
fn quantised_norms_are_the_references() {
    let Some(mut cuda) = cuda() else { return };
    check_each(&mut cuda, &in_halves(&quantised_norms()), |case, actual, expected| {
        let Kernel::QuantisedNorm(of) = case.kernel else { panic!("all of them are norms") };
        let unit = usize::from(of.adds) + of.statistics();
        for (output, pair) in pairs(actual, expected) {
            let is_statistic = (usize::from(of.adds)..unit).contains(&output);
            let tolerance = |e: f64| match output {
                _ if is_statistic => 1e-5 * e.abs().max(1.0),
                _ if output > unit => of.copies().of.epsilon() * e.abs() + 2f64.powi(-9),
                // The sum and the unit.
                _ => 0.0,
            };
            assert_near(case, output, pair, if is_statistic { 0 } else { 100 }, tolerance);
        }
    });
}

/// Gradients of a norm that are written in eight bits, too, are the reference's, and their eight bits are those that it makes of what is
/// stored, every one.
#[test]
fn quantised_gradients_of_norms_are_the_references() {
    let Some(mut cuda) = cuda() else { return };
    for case in in_halves(&quantised_norm_grads()) {
        let Kernel::QuantisedNormGrads(of) = case.kernel else {
            panic!("all of them are gradients of norms")
        };
        let first = run_twice(&mut cuda, &case);
        let (grads, copies) = first.split_at(1 + of.0.sums());
        let (outputs, inputs) = (case.outputs[..grads.len()].to_vec(), case.inputs.clone());
        let plain = Case { kernel: Kernel::NormGrads(of.0), inputs, outputs, terms: case.terms };
        compare_within(1.0, &plain, grads, &plain.expected()).unwrap();
        let stored = Data::Real(grads[0].iter().map(|&x| x as f32).collect());
        let inputs = vec![Tensor { of: case.outputs[0].of, data: stored }];
        let outputs = case.outputs[grads.len()..].to_vec();
        let apart = Case { kernel: Kernel::Quantise(of.copies()), inputs, outputs, terms: 1 };
        assert_eq!(copies, apart.expected(), "{}", case.name());
    }
}

/// The gradient of an attention that is written in eight bits has the reference's unit, numbers that are at most a step away, and sums as
/// of those before they are rounded.
#[test]
fn quantised_gradients_of_attentions_are_the_references() {
    let Some(mut cuda) = cuda() else { return };
    check_quantised_attention_grads(&mut cuda, &quantised_attention_grads());
}

/// One kernel for whole heads gives what the reference does, in numbers of 16 and of eight bits, and the same bits twice.
#[test]
fn gradients_of_whole_heads_are_the_references() {
    let Some(mut cuda) = cuda_with(AttentionBy::WholeHeads) else { return };
    check_each(&mut cuda, &in_halves(&grads_of_whole_heads()), |case, actual, expected| {
        compare_within(slack(case), case, actual, expected).expect("within the bounds");
    });
    check_quantised_attention_grads(&mut cuda, &quantised_grads_of_whole_heads());
}

/// Heads that share a multiprocessor one after another, and those left over, give what the kernels by tiles alone do.
#[test]
fn gradients_of_many_whole_heads_are_those_by_tiles() {
    let Some(mut whole) = cuda_with(AttentionBy::WholeHeads) else { return };
    let Some(mut by_tiles) = cuda_with(AttentionBy::Kernels) else { return };
    let counts = if ironmill_emulator::stands_in() { [7, 9] } else { [100, 115] };
    let [halves, bytes] = grads_of_many_heads(counts).map(|cases| in_halves(&cases));
    for case in halves {
        let expected = run(&mut by_tiles, &case).unwrap();
        compare_within(slack(&case), &case, &run_twice(&mut whole, &case), &expected).expect("alike");
    }
    for case in bytes {
        let expected = run(&mut by_tiles, &case).unwrap();
        check_quantised_attention_grad(&case, &run_twice(&mut whole, &case), &expected);
    }
}

fn check_quantised_attention_grads(cuda: &mut Cuda, cases: &[Case]) {
    check_each(cuda, &in_halves(cases), check_quantised_attention_grad);
}

fn check_quantised_attention_grad(case: &Case, actual: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(actual[0], expected[0], "the unit of {}", case.name());
    let (unit, rows) = (actual[0][0], case.inputs[0].of.shape.rows() as f64);
    let largest = largest(&expected[1]);
    for (output, pair) in pairs(actual, expected).skip(1) {
        if output == 3 {
            assert_near(case, output, pair, 0, |_| 0.01 * rows.sqrt() * largest * unit);
        } else {
            assert_near(case, output, pair, 10, |e| 0.25 * e.abs() + largest / 256.0);
        }
    }
}

/// One launch makes of a product what the reference does, and what a product and quantising in two launches do. Sums of products of eight bits
/// keep some 14 bits, which may round a number the other way.
#[test]
fn products_through_gelu_are_the_references_and_those_of_two_launches() {
    let Some(mut cuda) = cuda() else { return };
    let cases = in_halves(&gelu_products());
    for (case, expected) in cases.iter().zip(all_expected(&cases)) {
        let actual = run_twice(&mut cuda, case);
        check_gelu_product(case, &actual, &expected, 10);
        check_gelu_product(case, &actual, &in_two_launches(&mut cuda, case), 100);
    }
}

/// What a product through GELU gives when it is quantised apart.
fn in_two_launches(cuda: &mut Cuda, case: &Case) -> Vec<Vec<f64>> {
    let Kernel::GeluProduct(of) = case.kernel else { panic!("all of them are products through GELU") };
    let (is_forward, bias) = (matches!(of, GeluProduct::Forward { .. }), of.bias());
    let (factors, rest) = case.inputs.split_at(4 + usize::from(bias));
    let h = if is_forward { case.outputs[0].clone() } else { rest[0].clone() };
    let kernel = Kernel::ScaledProduct { bias, add: false };
    let product = Case { kernel, inputs: factors.to_vec(), outputs: vec![h.clone()], terms: case.terms };
    let product = run(cuda, &product).expect("a product of the library").remove(0);
    let numbers = Tensor { of: h.of, data: Data::Real(product.iter().map(|&x| x as f32).collect()) };
    let outputs = case.outputs[usize::from(is_forward)..].to_vec();
    let inputs = if is_forward { vec![numbers] } else { vec![h, numbers] };
    let quantise = Case { kernel: Kernel::Quantise(of.quantise()), inputs, outputs, terms: case.terms };
    let copies = run(cuda, &quantise).expect("a kernel quantises");
    if !is_forward {
        return copies;
    }
    let kept = if of.has_slope() { slopes(cuda, &quantise.inputs[0]) } else { product };
    [vec![kept], copies].concat()
}

/// GELU's slopes at such arguments: its gradients where those of the results are ones.
fn slopes(cuda: &mut Cuda, h: &Tensor) -> Vec<f64> {
    let ones = Tensor { of: h.of, data: Data::Real(vec![1.0; h.of.shape.elements()]) };
    let inputs = vec![h.clone(), ones];
    let case = Case { kernel: Kernel::Op(Op::GeluGrad), inputs, outputs: vec![h.clone()], terms: 1 };
    run(cuda, &case).expect("a kernel takes slopes").remove(0)
}

/// Bytes may be one step away, in one of so many numbers.
fn check_gelu_product(case: &Case, actual: &[Vec<f64>], expected: &[Vec<f64>], one_of: usize) {
    let Kernel::GeluProduct(of) = case.kernel else { panic!("all of them are products through GELU") };
    let unit = usize::from(matches!(of, GeluProduct::Forward { .. }));
    assert_eq!(actual[unit], expected[unit], "the unit of {}", case.name());
    for (output, pair) in pairs(actual, expected) {
        let (is_byte, is_sum) = (output == unit + 1 || output == unit + 2, output == unit + 3);
        let step = if is_byte { of.quantise().of.epsilon() } else { case.outputs[output].of.dtype.epsilon() };
        let largest = largest(pair[1]);
        let tolerance = |e: f64| {
            if is_sum {
                0.01 * (case.terms as f64).sqrt() * largest
            } else {
                2.0 * step * e.abs() + largest / 512.0
            }
        };
        assert_near(case, output, pair, if is_byte { one_of } else { 0 }, tolerance);
    }
}

#[test]
fn the_same_launch_gives_the_same_bits() {
    let Some(mut cuda) = cuda() else { return };
    if ironmill_emulator::stands_in() {
        return eprintln!("skipped: the emulator does everything in the same order every time");
    }
    let bits = |outputs: Vec<Vec<f64>>| outputs.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for case in cases() {
        let [first, second] = [0, 1].map(|_| bits(run(&mut cuda, &case).unwrap()));
        assert_eq!(first, second, "{}", case.name());
    }
}

#[test]
fn attention_by_cudnn_in_bf16_matches_the_reference_and_repeats_its_bits() {
    check_cudnn(DType::BF16);
}

#[test]
fn attention_by_cudnn_in_f16_matches_the_reference_and_repeats_its_bits() {
    check_cudnn(DType::F16);
}

#[test]
fn heads_of_256_match_the_reference() {
    let Some(mut cuda) = cuda() else { return };
    let single = attentions_of_wide_heads();
    let narrow = in_halves(&single);
    check_each(&mut cuda, &[single, narrow].concat(), |case, actual, expected| {
        compare_within(slack(case), case, actual, expected).expect("within the bounds");
    });
}

/// What cuDNN computes where it can, whether or not it is the faster one here.
fn check_cudnn(of: DType) {
    let Some(mut cuda) = cuda_with(AttentionBy::Cudnn) else { return };
    if !cuda.describe().contains("cuDNN") {
        eprintln!("skipped, because there is no cuDNN of use: {}", cuda.describe());
        return;
    }
    check_each(&mut cuda, &narrowed(&attentions_in_whole_tiles(), of), |case, actual, expected| {
        compare_within(slack(case), case, actual, expected).expect("within the bounds");
    });
    let description = cuda.describe();
    assert!(description.ends_with("(attention forward and backward)"), "{description}");
}

/// Choices are kept in a file, where the test puts every way in turn.
#[test]
fn every_way_to_run_a_product_with_gelu_matches_the_reference() {
    if let Some(worth_timing) = sizes() {
        check_every_way("gelu", &narrowed(&gelus_in_tiles(worth_timing), DType::BF16), 5);
    }
}

#[test]
fn every_way_to_run_a_product_with_a_gate_matches_the_reference() {
    if let Some(worth_timing) = sizes() {
        for real in [DType::BF16, DType::F16] {
            check_every_way("gate", &narrowed(&gates_in_tiles(worth_timing), real), 3);
        }
    }
}

#[test]
fn products_with_a_gate_match_the_reference_in_f32() {
    let Some(mut cuda) = cuda() else { return };
    check_each(&mut cuda, &gates_in_tiles(false), |case, actual, expected| {
        compare_within(slack(case), case, actual, expected).expect("within the bounds");
    });
}

#[test]
fn every_way_to_run_a_weight_gradient_matches_the_reference() {
    if let Some(worth_timing) = sizes() {
        for real in [DType::BF16, DType::F16] {
            check_every_way("weights", &narrowed(&weight_gradients_in_wide_tiles(worth_timing), real), 2);
        }
    }
}

/// Whether launches are large enough for a card to time: on a card that they are, on its emulator that they are not.
fn sizes() -> Option<bool> {
    cuda().map(|_| !ironmill_emulator::stands_in())
}

fn check_every_way(name: &str, cases: &[Case], ways: usize) {
    let results = run_in_every_way(name, cases, ways);
    if results.is_empty() {
        return;
    }
    let expected = all_expected(cases);
    for (way, results) in results.iter().enumerate() {
        for ((case, actual), expected) in cases.iter().zip(results).zip(&expected) {
            compare_within(slack(case), case, actual, expected)
                .unwrap_or_else(|far| panic!("way {way}: {far}"));
        }
    }
}

/// The results of launches that a card has so many ways for, by each way in turn; nothing without a card.
fn run_in_every_way(name: &str, cases: &[Case], ways: usize) -> Vec<Vec<Vec<Vec<f64>>>> {
    let folder = std::env::temp_dir().join(format!("ironmill-ways-{name}-{}", std::process::id()));
    let file = folder.join("choices.txt");
    let open = || {
        let (kernel_cache, choices) = (Some(folder.join("kernels")), Some(file.clone()));
        open(CudaOptions { kernel_cache, choices, ..CudaOptions::default() }).expect("there is a card")
    };
    if cuda().is_none() {
        return Vec::new();
    }
    std::fs::create_dir_all(&folder).expect("a folder for choices");
    let mut card = open();
    cases.iter().for_each(|case| drop(run(&mut card, case).expect("a kernel runs it")));
    drop(card);
    let chosen = std::fs::read_to_string(&file).expect("choices are kept");
    assert_eq!(chosen.matches("\tway ").count(), cases.len(), "{chosen}");
    let by_way = |way: usize| {
        let forced = chosen.lines().map(|line| match line.split_once("\tway ") {
            Some((key, _)) => format!("{key}\tway {way}\n"),
            None => format!("{line}\n"),
        });
        std::fs::write(&file, forced.collect::<String>()).expect("choices are written");
        let mut card = open();
        cases.iter().map(|case| run_twice(&mut card, case)).collect()
    };
    let results = (0..ways).map(by_way).collect();
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    results
}

/// A launch on weights that a device keeps in eight bits, made from f32 as a model's masters are; then the weights as it gives them back.
fn run_frozen(device: &mut dyn Device, case: &Case, weight: usize) -> Result<[Vec<f64>; 2]> {
    let mut place = |tensor: &Tensor, dtype: DType| -> Result<View> {
        let of = TensorType { dtype, ..tensor.of };
        let buffer = device.allocate(of.shape.elements() * device.element_bytes(dtype))?;
        let view = View { buffer, offset_bytes: 0, of };
        match &tensor.data {
            Data::Real(data) => device.upload(&view, HostData::F32(data))?,
            Data::Index(data) => device.upload(&view, HostData::U32(data))?,
        }
        Ok(view)
    };
    let masters = place(&case.inputs[weight], DType::F32)?;
    let mut all = |tensors: &[Tensor]| -> Result<Vec<View>> {
        tensors.iter().map(|tensor| place(tensor, tensor.of.dtype)).collect()
    };
    let (inputs, outputs) = (all(&case.inputs)?, all(&case.outputs)?);
    let numbers = if inputs[weight].of.dtype == DType::F32 { inputs[weight] } else { masters };
    device.freeze(&inputs[weight], &numbers, Frozen::Int8)?;
    let (result, matrix) = (outputs[outputs.len() - 1], inputs[weight]);
    let sequence = device.bind(&[Launch { kernel: case.kernel.clone(), inputs, outputs }])?;
    device.run(sequence)?;
    let read = |view: &View| -> Result<Vec<f64>> {
        let mut data = vec![0.0; view.of.shape.elements()];
        device.download_f64(view, &mut data)?;
        Ok(data)
    };
    Ok([read(&result)?, read(&matrix)?])
}

/// Products with bias, with GELU and from a table's rows, of weights with and without whole groups, steps and tiles.
fn eight_bit_weights(rows: usize) -> Vec<(Case, usize)> {
    let (mut cases, products) = (Vec::new(), DType::F32);
    for (n, k) in [(64, 256), (77, 64), (33, 131), (50, 904), (201, 1600)] {
        let inputs = vec![random(&[rows, k], 1), random(&[n, k], 2), random(&[n], 3)];
        let outputs = vec![random(&[rows, n], 4); 2];
        let linear = Kernel::Op(Op::Linear { bias: true, products });
        let gelu = Kernel::LinearGelu { slope: false, bias: false, products };
        let one = outputs[..1].to_vec();
        cases.push((Case { kernel: gelu, inputs: inputs[..2].to_vec(), outputs, terms: k }, 1));
        let ids = indices(&[rows], (0..rows).map(|row| (row * 7 % n) as u32).collect());
        let embed = (Kernel::Op(Op::Embed), vec![inputs[1].clone(), ids], vec![random(&[rows, k], 5)]);
        cases.push((Case { kernel: embed.0, inputs: embed.1, outputs: embed.2, terms: 1 }, 0));
        cases.push((Case { kernel: linear, inputs, outputs: one, terms: k }, 1));
    }
    cases
}

#[test]
fn products_with_weights_in_int8_match_the_reference_and_rows_do_not_depend_on_others() {
    let Some(mut cuda) = cuda() else { return };
    for of in [DType::F32, DType::BF16, DType::F16] {
        let mut eight_rows = Vec::new();
        for rows in [8, 1, 3, 40] {
            for (index, (plain, weight)) in eight_bit_weights(rows).into_iter().enumerate() {
                let case = if of == DType::F32 { plain } else { plain.in_working_type(of).unwrap() };
                let [actual, numbers] = run_frozen(&mut cuda, &case, weight).unwrap();
                let [expected, rounded] = run_frozen(&mut Reference::exact(), &case, weight).unwrap();
                let name = format!("{of}, {}", case.name());
                let epsilon = of.epsilon();
                for (number, rounded) in numbers.iter().zip(&rounded) {
                    let bound = if of == DType::F32 { 0.0 } else { epsilon * rounded.abs() };
                    assert!((number - rounded).abs() <= bound, "{number}, not {rounded}, in {name}");
                }
                // Few rows meet weights as they are, more meet them rounded to the type; so are results.
                let length = (case.terms as f64).sqrt() * cases::largest(&rounded);
                for (place, (a, e)) in actual.iter().zip(&expected).enumerate() {
                    let bound = 4.0 * epsilon * (e.abs() + length);
                    assert!((a - e).abs() <= bound, "{place}: {a}, not {e}, in {name}");
                }
                if rows == 8 {
                    eight_rows.push(actual);
                } else if rows < 8 && case.inputs[weight].of.shape.columns() >= 256 {
                    // Smaller matrices need more room than they have, and stay in their type.
                    assert_eq!(actual, eight_rows[index][..actual.len()], "{name}");
                }
            }
        }
    }
}

#[test]
fn an_id_outside_the_table_is_an_error_that_names_it() {
    let Some(mut cuda) = cuda() else { return };
    cases::check_ids_outside_tables(&mut cuda);
}

/// Two products and the norm of sums between them.
#[derive(Clone, Copy, Debug)]
struct Around {
    rows: usize,
    /// Terms of the first product, columns of the norm, outputs of the second product.
    sizes: [usize; 3],
    centred: bool,
    biased: bool,
    gelu: bool,
}

#[test]
fn norms_between_products_give_what_launches_of_their_own_give() {
    let Some(mut cuda) = cuda() else { return };
    let plain = Around { rows: 64, sizes: [128, 768, 256], centred: true, biased: true, gelu: false };
    for around in [
        plain,
        Around { gelu: true, ..plain },
        Around { rows: 9, sizes: [512, 64, 100], ..plain },
        Around { rows: 33, sizes: [64, 320, 192], biased: false, ..plain },
        Around { rows: 48, sizes: [1024, 128, 64], centred: false, ..plain },
        Around { rows: 100, sizes: [320, 192, 128], ..plain },
        Around { rows: 57, sizes: [192, 704, 68], centred: false, biased: false, gelu: true },
    ] {
        check_around_norm(&mut cuda, around).unwrap();
    }
}

fn check_around_norm(cuda: &mut Cuda, around: Around) -> Result<()> {
    let Around { rows, sizes: [terms, columns, outputs], centred, biased, gelu } = around;
    let products = DType::BF16;
    let mut salt = 20;
    let mut number = |dims: &[usize], offset: f32, scale: f32| {
        salt += 1;
        let mut tensor = random(dims, salt);
        if let Data::Real(numbers) = &mut tensor.data {
            numbers.iter_mut().for_each(|x| *x = offset + scale * *x);
        }
        place(cuda, &tensor, DType::BF16)
    };
    let x = number(&[rows, 1, terms], 0.0, 1.0)?;
    let [first, second] = [number(&[columns, terms], 0.0, 0.1)?, number(&[outputs, columns], 0.0, 0.1)?];
    let [first_bias, second_bias] = [number(&[columns], 0.0, 1.0)?, number(&[outputs], 0.0, 1.0)?];
    let [kept, rows_of] = [number(&[rows, 1, columns], 0.0, 1.0)?, number(&[rows + 1, columns], 0.7, 2.0)?];
    let others = number(&[outputs, columns], 0.0, 0.2)?;
    let [gain, shift] = [number(&[columns], 1.0, 0.5)?, number(&[columns], 0.0, 0.5)?];
    let [added, sum, normed] = [0; 3].map(|_| number(&[rows, 1, columns], 0.0, 1.0));
    let (added, sum, normed) = (added?, sum?, normed?);
    let [y, activated] = [number(&[rows, 1, outputs], 0.0, 1.0)?, number(&[rows, 1, outputs], 0.0, 1.0)?];
    let statistics = [1, 2].map(|salt| place(cuda, &random(&[rows], salt), DType::F32));
    let [mean, rstd] = statistics.map(|view| view.expect("a place"));

    let with = |views: &[View], bias: View| if biased { [views, &[bias]].concat() } else { views.to_vec() };
    let (kernel, parameters, statistics) = if centred {
        (Kernel::AddLayerNorm { eps: 1e-5, bias: biased }, with(&[gain], shift), vec![mean, rstd])
    } else {
        (Kernel::AddRmsNorm { eps: 1e-5 }, vec![gain], vec![rstd])
    };
    // The rows that are kept are still being written when the first product may begin.
    let ids = place(cuda, &indices(&[rows, 1], (0..rows as u32).rev().collect()), DType::U32)?;
    let launches = [
        Launch { kernel: Kernel::Op(Op::Embed), inputs: vec![rows_of, ids], outputs: vec![kept] },
        Launch {
            kernel: Kernel::Op(Op::Linear { bias: biased, products }),
            inputs: with(&[x, first], first_bias),
            outputs: vec![added],
        },
        Launch {
            kernel,
            inputs: [vec![kept, added], parameters].concat(),
            outputs: [vec![sum, normed], statistics].concat(),
        },
        Launch {
            kernel: match gelu {
                true => Kernel::LinearGelu { bias: biased, products, slope: false },
                false => Kernel::Op(Op::Linear { bias: biased, products }),
            },
            inputs: with(&[normed, second], second_bias),
            outputs: if gelu { vec![y, activated] } else { vec![y] },
        },
    ];
    let results = [vec![sum], launches[3].outputs.clone()].concat();
    let apart = cuda.bind(&launches)?;
    let together = cuda.bind_for_state(&launches)?;
    let fewer = cuda.bind_for_state(&launches.clone().map(|launch| first_rows(launch, rows, rows - 3)))?;
    let poison = vec![-7.0; rows * columns];
    let all = place(cuda, &indices(&[outputs], (0..outputs as u32).collect()), DType::U32)?;
    let copies = cuda.bind(&[Launch {
        kernel: Kernel::Op(Op::Embed),
        inputs: vec![others, all],
        outputs: vec![second],
    }])?;
    // Then with other gains and other weights, which a host writes or a run: what was made of those before is not used.
    for change in 0..3 {
        match change {
            1 => cuda.upload(&gain, HostData::F32(&vec![0.5; columns]))?,
            2 => cuda.run(copies)?,
            _ => {}
        }
        cuda.run(apart)?;
        let expected = read(cuda, &results)?;
        for view in [&added, &normed] {
            cuda.upload(view, HostData::F32(&poison))?;
        }
        cuda.run(together)?;
        let given = read(cuda, &results)?;
        for (given, expected) in given.iter().zip(&expected) {
            let size = |numbers: &mut dyn Iterator<Item = f32>| {
                (numbers.map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt()
            };
            // Rows are rounded elsewhere: an element in 400 of its own, at random.
            let apart = size(&mut given.iter().zip(expected).map(|(a, b)| a - b))
                / size(&mut expected.iter().copied());
            assert!(apart < 4e-3, "{apart} of what numbers are, {around:?}");
        }
        let is_inside = read(cuda, &[normed])?[0] == poison;
        assert!(is_inside, "a norm between products takes no launch of its own, {around:?}");
        cuda.run(together)?;
        assert_eq!(read(cuda, &results)?, given, "the same bits, {around:?}");
        for view in &results {
            cuda.upload(view, HostData::F32(&vec![-7.0; view.of.shape.elements()]))?;
        }
        cuda.run(fewer)?;
        for (beside_fewer, given) in read(cuda, &results)?.iter().zip(&given) {
            let there = given.len() / rows * (rows - 3);
            assert_eq!(beside_fewer[..there], given[..there], "the same beside fewer rows, {around:?}");
            assert!(beside_fewer[there..].iter().all(|x| *x == -7.0), "rows that are not there, {around:?}");
        }
    }
    let views = launches.iter().flat_map(|launch| launch.inputs.iter().chain(&launch.outputs));
    let buffers: std::collections::BTreeSet<_> =
        views.chain([&others, &all]).map(|view| view.buffer).collect();
    buffers.into_iter().for_each(|buffer| cuda.free(buffer));
    Ok(())
}

/// A step that only changes state begins with one launch for rows of tables and the norm behind them.
#[test]
fn rows_of_tables_and_their_norm_in_one_launch_are_those_of_their_launches_bit_for_bit() {
    let Some(mut cuda) = cuda() else { return };
    for (real, rows, columns) in [
        (DType::BF16, 64, 768),
        (DType::BF16, 1, 1600),
        (DType::F16, 33, 24),
        (DType::F32, 7, 50),
        (DType::BF16, 100, 100),
    ] {
        for adds in [true, false] {
            check_embedded_norm(&mut cuda, real, [rows, columns], adds).unwrap();
        }
    }
}

/// The same launch for the first of its rows, which nothing else is as many as.
fn first_rows(Launch { kernel, inputs, outputs }: Launch, rows: usize, count: usize) -> Launch {
    let of_first = |view: View| {
        let mut dims = view.of.shape.dims().to_vec();
        if dims[0] == rows {
            dims[0] = count;
        }
        View { of: TensorType { shape: Shape::new(&dims), ..view.of }, ..view }
    };
    let all = |views: Vec<View>| views.into_iter().map(of_first).collect();
    Launch { kernel, inputs: all(inputs), outputs: all(outputs) }
}

/// A tensor on the card, stored in this type.
fn place(cuda: &mut Cuda, tensor: &Tensor, dtype: DType) -> Result<View> {
    let of = TensorType { dtype, ..tensor.of };
    let buffer = cuda.allocate(of.shape.elements() * dtype.bytes())?;
    let view = View { buffer, offset_bytes: 0, of };
    let data = match &tensor.data {
        Data::Real(numbers) => HostData::F32(numbers),
        Data::Index(numbers) => HostData::U32(numbers),
    };
    cuda.upload(&view, data)?;
    Ok(view)
}

fn read(cuda: &Cuda, views: &[View]) -> Result<Vec<Vec<f32>>> {
    let one = |view: &View| {
        let mut out = vec![0.0; view.of.shape.elements()];
        cuda.download(view, &mut out).map(|()| out)
    };
    views.iter().map(one).collect()
}

/// The sum of two tables' rows and its layer norm, or one table's rows and their RMS norm.
fn check_embedded_norm(cuda: &mut Cuda, real: DType, [rows, columns]: [usize; 2], adds: bool) -> Result<()> {
    const TABLE_ROWS: usize = 9;
    let tables = if adds { 2 } else { 1 };
    let mut launches = Vec::new();
    let mut ids_of_tables = Vec::new();
    for table in 0..tables {
        let ids = (0..rows).map(|row| ((row * 5 + table) % TABLE_ROWS) as u32).collect();
        let ids = place(cuda, &indices(&[rows, 1], ids), DType::U32)?;
        let numbers = place(cuda, &random(&[TABLE_ROWS, columns], 1 + table as u32), real)?;
        let found = place(cuda, &random(&[rows, 1, columns], 5), real)?;
        ids_of_tables.push(ids);
        launches.push(Launch {
            kernel: Kernel::Op(Op::Embed),
            inputs: vec![numbers, ids],
            outputs: vec![found],
        });
    }
    let found: Vec<View> = launches.iter().map(|launch| launch.outputs[0]).collect();
    let [gain, shift] = [6, 7].map(|salt| place(cuda, &random(&[columns], salt), real));
    let [sum, y] = [8, 9].map(|salt| place(cuda, &random(&[rows, 1, columns], salt), real));
    let [mean, rstd] = [10, 11].map(|salt| place(cuda, &random(&[rows], salt), DType::F32));
    let (gain, shift, sum, y, mean, rstd) = (gain?, shift?, sum?, y?, mean?, rstd?);
    let (kernel, parameters, outputs) = if adds {
        (Kernel::AddLayerNorm { eps: 1e-5, bias: true }, vec![gain, shift], vec![sum, y, mean, rstd])
    } else {
        (Kernel::Op(Op::RmsNorm { eps: 1e-5 }), vec![gain], vec![y, rstd])
    };
    let inputs = [found.clone(), parameters].concat();
    launches.push(Launch { kernel, inputs, outputs: outputs.clone() });
    // The row of one table is a result as well.
    let results = if adds { outputs } else { [found.clone(), outputs].concat() };

    let apart = cuda.bind(&launches)?;
    cuda.run(apart)?;
    let expected = read(cuda, &results)?;
    let poison = vec![-7.0; rows * columns];
    for view in found.iter().chain(&results) {
        cuda.upload(view, HostData::F32(&poison[..view.of.shape.elements()]))?;
    }
    let together = cuda.bind_for_state(&launches)?;
    cuda.run(together)?;
    assert_eq!(read(cuda, &results)?, expected, "{real} {rows}x{columns} of {tables} tables");
    if adds {
        assert_eq!(read(cuda, &found[..1])?, [poison], "rows that are only added up are not kept");
    }

    let outside = vec![TABLE_ROWS as u32; rows];
    cuda.upload(&ids_of_tables[tables - 1], HostData::U32(&outside))?;
    cuda.run(together)?;
    let refused = read(cuda, &results);
    let expected = Error::IndexOutOfRange { op: "embed", index: TABLE_ROWS, rows: TABLE_ROWS };
    assert_eq!(refused.map_err(|error| error.to_string()), Err(expected.to_string()));
    let views = launches.iter().flat_map(|launch| launch.inputs.iter().chain(&launch.outputs));
    let mut buffers: Vec<_> = views.map(|view| view.buffer).collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers.into_iter().for_each(|buffer| cuda.free(buffer));
    Ok(())
}

#[test]
fn a_sequence_ends_with_the_memory_it_names() {
    let Some(mut cuda) = cuda() else { return };
    let case = &all()[0];
    let bound = cases::bind(&mut cuda, case).unwrap();
    cuda.run(bound.sequence).unwrap();
    cuda.free(bound.outputs()[0].buffer);
    assert!(matches!(cuda.run(bound.sequence), Err(Error::Binding { .. })));
}

/// Compiling needs the compiler alone, so that a machine without a card can check every kernel.
#[test]
fn every_kernel_compiles_for_every_architecture() {
    let first = std::env::var_os("IRONMILL_CUDA_LIBRARIES").iter().flat_map(std::env::split_paths).collect();
    let places = Places { first, last: Vec::new() };
    let compile = |architecture: &str| match ironmill_compute::cuda::compile_all(&places, architecture, None)
    {
        Ok(count) => assert!(count > 10, "{count} images"),
        Err(error @ Error::LibraryMissing { .. }) => {
            assert!(std::env::var_os("IRONMILL_REQUIRE_NVRTC").is_none(), "{error}");
            eprintln!("skipped: {error}");
        }
        Err(error) => panic!("{architecture}: {error}"),
    };
    std::thread::scope(|scope| {
        for architecture in ["sm_80", "sm_90a", "sm_100"] {
            scope.spawn(|| compile(architecture));
        }
    });
}

/// More is reserved than any card has, so it cannot all be there.
#[test]
fn reserved_memory_is_taken_when_it_is_asked_for() {
    const MIB: usize = 1 << 20;
    let Some(mut cuda) = cuda() else { return };
    let buffer = cuda.reserve(1 << 40).unwrap();
    let view = |mib: usize| View { buffer, offset_bytes: mib * MIB, of: TensorType::new(&[4], DType::F32) };
    assert!(cuda.upload(&view(100), HostData::F32(&[1.0; 4])).is_err(), "nothing is there yet");
    cuda.back(buffer, 99 * MIB..103 * MIB).unwrap();
    let mut found = [7.0; 4];
    cuda.download(&view(102), &mut found).unwrap();
    assert_eq!(found, [0.0; 4]);
    cuda.upload(&view(102), HostData::F32(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    // More around it changes nothing.
    cuda.back(buffer, 90 * MIB..110 * MIB).unwrap();
    cuda.download(&view(102), &mut found).unwrap();
    assert_eq!(found, [1.0, 2.0, 3.0, 4.0]);
    assert!(cuda.upload(&view(112), HostData::F32(&[1.0; 4])).is_err(), "this was not asked for");
    assert!(cuda.back(buffer, 0..(1 << 40) + 1).is_err(), "beyond the end");
    assert!(matches!(cuda.back(buffer, 0..1 << 40), Err(Error::OutOfMemory { .. })));
    cuda.free(buffer);
}
