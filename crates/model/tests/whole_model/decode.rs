//! A step of decoding that a card runs as one kernel: models wide enough for it, against the launches that it stands for, and in
//! any number of rows.

use ironmill_compute::DType;
use ironmill_model::{
    Architecture, Engine, Generator, GeneratorOptions, Keep, ModelConfig, Request, Sampling, Token,
};

use crate::{cuda, model};

/// A token's log-probability may move by this: logits of bf16 lie a quarter apart here, and several of them may move.
const NEAR_PROBABILITY: f32 = 1.0;

/// Where the likeliest token's log-probability leads by less than this, two ways to round may choose differently: halves of these
/// logits are up to 0.25 apart, and with weights rounded to bf16 one that leads by that comes second.
fn near_tie(of: DType) -> f32 {
    if of == DType::F32 { 0.1 } else { 0.5 }
}

/// Heads of 64 and products deeper than one part, with a vocabulary that divides by nothing; parts of the last are all of full length.
fn wide_kinds() -> [ModelConfig; 4] {
    let wide = |architecture, heads| ModelConfig {
        vocab_size: 101,
        context: 160,
        ..ModelConfig::new(architecture, 2, heads, 256)
    };
    [
        wide(Architecture::Gpt2, 4),
        ModelConfig { kv_heads: 2, ..wide(Architecture::Llama, 4) },
        ModelConfig { bias: false, window: 21, ..wide(Architecture::Gpt2, 2) },
        ModelConfig { vocab_size: 101, context: 160, ..ModelConfig::new(Architecture::Gpt2, 1, 12, 768) },
    ]
}

fn engine(config: &ModelConfig, of: DType) -> Option<Engine> {
    engine_keeping(config, Keep::Everything(of))
}

fn engine_keeping(config: &ModelConfig, keep: Keep) -> Option<Engine> {
    engine_with(config, keep, 6.0)
}

/// With initial values times a scale, by which tokens stand out.
fn engine_with(config: &ModelConfig, keep: Keep, scale: f32) -> Option<Engine> {
    let model = model(config.clone());
    let values: Vec<f32> = model.initial_values(3).iter().map(|x| x * scale).collect();
    Some(Engine::keeping(cuda()?, model, &values, keep).unwrap())
}

/// Prompts of many lengths up to one; every other text is drawn, the rest take the likeliest token.
fn requests(count: usize, longest: usize, max_tokens: usize) -> Vec<Request> {
    let drawn = Sampling { temperature: 0.8, top_k: 20, seed: 5, ..Sampling::GREEDY };
    let prompt =
        |sample: usize| (0..1 + 7 * sample % longest).map(|i| ((sample * 31 + i * i) % 101) as u32).collect();
    (0..count)
        .map(|sample| Request {
            sample: sample as u32,
            sampling: if sample % 2 == 0 { Sampling::GREEDY } else { drawn.clone() },
            ..Request::new(prompt(sample), max_tokens)
        })
        .collect()
}

/// How much of something a card is given, and how much its emulator, which takes a thousand times as long.
fn much<T>(on_a_card: T, emulated: T) -> T {
    if ironmill_emulator::stands_in() { emulated } else { on_a_card }
}

fn run(engine: &mut Engine, rows: usize, ahead: usize, requests: &[Request]) -> Vec<Vec<Token>> {
    let options = GeneratorOptions { rows, ahead, ..GeneratorOptions::default() };
    let mut generator = Generator::new(engine, options).unwrap();
    let ids: Vec<_> = requests.iter().map(|request| generator.submit(request.clone()).unwrap()).collect();
    let mut made = vec![Vec::new(); requests.len()];
    while let Some(token) = generator.next_token().unwrap() {
        let index = ids.iter().position(|id| *id == token.request).unwrap();
        made[index].push(token);
    }
    made
}

/// Says which texts differ and where the first of them begins to, since all of them together would fill pages.
fn assert_same(made: &[Vec<Token>], expected: &[Vec<Token>], when: &str) {
    let differing: Vec<usize> =
        (0..made.len().max(expected.len())).filter(|&i| made.get(i) != expected.get(i)).collect();
    let Some(&text) = differing.first() else { return };
    let [of, by] = [made, expected].map(|texts| texts.get(text).map_or(&[][..], Vec::as_slice));
    let place = of.iter().zip(by).take_while(|(a, b)| a == b).count();
    let [token, other] = [of, by].map(|text| text.get(place));
    panic!(
        "{when}: texts {differing:?} differ, {text} from token {place} of {} on: {token:?}, not {other:?}",
        by.len()
    );
}

#[test]
fn a_text_is_the_same_beside_any_others_bit_for_bit() {
    for of in [DType::BF16, DType::F16] {
        for config in wide_kinds() {
            let Some(mut engine) = engine(&config, of) else { return };
            // Longer prompts would be read by products of the library, which rounds as suits the number of rows.
            let most = much(32, 6);
            let mut requests = requests(most, 1, much(40, 4));
            requests.iter_mut().step_by(3).for_each(|request| request.log_probabilities = Some(4));
            let together = run(&mut engine, most, 0, &requests);
            let again = run(&mut engine, most, 0, &requests);
            assert_same(&again, &together, &format!("again, {of}, {config:?}"));
            for &rows in much(&[1, 2, 6, 16][..], &[1, 2]) {
                let made = run(&mut engine, rows, 0, &requests[..rows + 3]);
                assert_same(&made, &together[..rows + 3], &format!("{rows} rows, {of}, {config:?}"));
            }
        }
    }
}

/// Gates and shared heads; whole parts; so many outputs that a block has many tiles, and parts that end inside a chunk of eight bits.
fn kinds_for_eight_bits() -> [ModelConfig; 3] {
    let [_, gated, _, whole] = wide_kinds();
    let large =
        ModelConfig { vocab_size: 101, context: 160, ..ModelConfig::new(Architecture::Gpt2, 1, 25, 1600) };
    [gated, whole, large]
}

/// The same where some ways read weights of eight bits and others round them to bf16 first.
const NEAR_TIE_IN_EIGHT_BITS: f32 = 1.0;

#[test]
fn weights_in_int8_give_the_same_text_beside_any_others_and_that_of_its_launches() {
    for config in kinds_for_eight_bits() {
        let keep = Keep::Int8(DType::BF16);
        let Some(mut engine) = engine_keeping(&config, keep) else { return };
        // Longer prompts would be read by products of the library, which rounds as suits the number of rows.
        let most = much(32, 6);
        let mut requests = requests(most, 1, much(20, 3));
        let together = run(&mut engine, most, 0, &requests);
        for &rows in much(&[1, 2, 6][..], &[1, 2]) {
            let made = run(&mut engine, rows, 0, &requests[..rows + 3]);
            assert_same(&made, &together[..rows + 3], &format!("{rows} rows, {config:?}"));
        }
        let flown = [together, run(&mut engine, 48, 0, &requests)];
        let launched = run_as_launches(&mut engine, &mut requests);
        let compared = compare(&requests, &launched, &flown, (&config, NEAR_TIE_IN_EIGHT_BITS));
        assert!(compared >= much(32, 4), "{compared} tokens stood out, {config:?}");
    }
}

#[test]
fn one_kernel_for_a_step_gives_the_tokens_of_its_launches() {
    for of in [DType::F32, DType::BF16, DType::F16] {
        for config in wide_kinds() {
            let Some(mut engine) = engine(&config, of) else { return };
            let most = much(32, 8);
            let mut requests = requests(most, much(40, 9), much(4, 2));
            let mut flown: Vec<Vec<Vec<Token>>> =
                [1, 2, 4, most].map(|rows| run(&mut engine, rows, 0, &requests)).into();
            let launched = run_as_launches(&mut engine, &mut requests);
            // With probabilities, which the requests ask for now.
            flown.extend([2, most].map(|rows| run(&mut engine, rows, 0, &requests)));
            let compared = compare(&requests, &launched, &flown, (&config, near_tie(of)));
            assert!(compared >= much(32, 2), "{compared} tokens stood out, {of}, {config:?}");
        }
    }
}

/// Log-probabilities of bf16 may lie so far apart where tokens stand out little: the eight likeliest span 1.3, and what rounding alone
/// moves is below 0.07.
const NEAR_WHERE_ALL_ARE_LIKELY: f32 = 0.1;

/// More rows than one kernel takes run as launches, and still more as those of two halves beside each other, each of one or two tiles.
/// Where tokens stand out more, so does what rounding does to a text now and then, and nothing could be said of every text.
#[test]
fn many_rows_give_the_probabilities_of_few() {
    for (index, config) in wide_kinds().iter().enumerate() {
        let Some(mut engine) = engine_with(config, Keep::Everything(DType::BF16), 2.0) else { return };
        let emulated = if index == 0 { &[40, 132][..] } else { &[70] };
        for &rows in much(&[48, 100, 200][..], emulated) {
            let mut requests = requests(rows, much(40, 20), much(4, 2));
            requests.iter_mut().for_each(|request| request.log_probabilities = Some(8));
            let flown = run(&mut engine, rows, 0, &requests);
            let launched = run(&mut engine, 4, 1, &requests);
            let compared = compare_probabilities(&requests, &launched, &flown);
            assert!(compared >= rows, "{compared} tokens compared in {rows} rows, {config:?}");
        }
    }
}

/// Of 129 rows the first half has one tile more, for which not all blocks of a product may run at once.
#[test]
fn halves_of_which_one_has_other_kernels_give_the_probabilities_of_few() {
    let wide =
        ModelConfig { vocab_size: 101, context: 160, ..ModelConfig::new(Architecture::Gpt2, 2, 5, 320) };
    let Some(mut engine) = engine_with(&wide, Keep::Everything(DType::BF16), 2.0) else { return };
    let mut requests = requests(129, 1, 1);
    requests.iter_mut().for_each(|request| request.log_probabilities = Some(8));
    let flown = run(&mut engine, requests.len(), 0, &requests);
    let launched = run(&mut engine, 4, 1, &requests);
    assert!(compare_probabilities(&requests, &launched, &flown) >= 100);
}

/// Holds what tokens are likely against what they are by the launches of few rows, as long as texts are the same; gives how many were held.
fn compare_probabilities(requests: &[Request], launched: &[Vec<Token>], flown: &[Vec<Token>]) -> usize {
    let mut compared = 0;
    for (index, (launched, flown)) in launched.iter().zip(flown).enumerate() {
        for (place, (token, other)) in launched.iter().zip(flown).enumerate() {
            let [of, by] = [token, other].map(|token| &token.log_probability.as_ref().unwrap().likeliest);
            let in_both = || of.iter().flat_map(|a| by.iter().filter(|b| a.0 == b.0).map(|b| (a.1, b.1)));
            let is_near = in_both().all(|(x, y)| (x - y).abs() < NEAR_WHERE_ALL_ARE_LIKELY);
            assert!(is_near && in_both().count() >= of.len() / 2, "text {index}, {place}, {of:?}, {by:?}");
            if token.id != other.id {
                let is_greedy = requests[index].sampling.temperature == 0.0;
                let lead = of[0].1 - of[1].1;
                assert!(
                    !is_greedy || lead < 2.0 * NEAR_WHERE_ALL_ARE_LIKELY,
                    "text {index}, {place}, {of:?}"
                );
                break;
            }
            compared += 1;
        }
    }
    compared
}

/// Without tokens ahead, every step is run as the launches of a few rows. Asks for probabilities, to tell near ties.
fn run_as_launches(engine: &mut Engine, requests: &mut [Request]) -> Vec<Vec<Token>> {
    requests.iter_mut().for_each(|request| request.log_probabilities = Some(2));
    run(engine, 4, 1, requests)
}

/// Holds texts against those of the launches as long as likeliest tokens stand out; gives how many tokens did.
fn compare(
    requests: &[Request],
    launched: &[Vec<Token>],
    flown: &[Vec<Vec<Token>>],
    (config, lead): (&ModelConfig, f32),
) -> usize {
    let mut compared = 0;
    for (index, launched) in launched.iter().enumerate() {
        for (place, token) in launched.iter().enumerate() {
            let likeliest = &token.log_probability.as_ref().unwrap().likeliest;
            if requests[index].sampling.temperature > 0.0 || likeliest[0].1 - likeliest[1].1 < lead {
                break;
            }
            for (way, flown) in flown.iter().enumerate() {
                let flown = &flown[index][place];
                assert_eq!(flown.id, token.id, "text {index}, {place}, way {way}, {likeliest:?}, {config:?}");
                if let Some(of) = &flown.log_probability {
                    assert_eq!((of.likeliest[0], of.likeliest.len()), ((token.id, of.chosen), 2));
                    assert!((of.chosen - likeliest[0].1).abs() < NEAR_PROBABILITY, "{of:?}, {likeliest:?}");
                }
            }
            compared += 1;
        }
    }
    compared
}
