//! A generator's requests against the oracle that has no cache: together, one behind the other, with shared beginnings and with
//! contexts that fill up.

use ironmill_compute::{DType, Device, Reference};
use ironmill_model::{
    Architecture, Engine, Finish, Generator, GeneratorOptions, Keep, LogProbability, ModelConfig, Place,
    Request, RequestId, Sampler, Sampling, Token, Window,
};

use crate::{backends, causal_kinds, cuda, model, tiny};

/// Where the two best logits of the oracle are as close as this, relative to the larger, rounding may decide.
const NEAR_TIE: f32 = 1e-4;

fn engine(config: &ModelConfig, device: Box<dyn Device>, seed: u64) -> Engine {
    let model = model(config.clone());
    // Larger than initial weights are, so that the likeliest token stands out.
    let values: Vec<f32> = model.initial_values(seed).iter().map(|x| x * 12.0).collect();
    Engine::new(device, model, &values).unwrap()
}

/// What the oracle gives for a request, and how many of its tokens were chosen from near ties.
fn oracle(engine: &mut Engine, request: &Request) -> (Vec<u32>, usize) {
    let context = engine.model().config().context;
    let mut window = Window::new(request.keep, context);
    let (mut tokens, mut sampler, mut ties) = (request.prompt.clone(), Sampler::default(), 0);
    for generated in 0..request.max_tokens {
        window.follow(tokens.len());
        let logits = engine.next_logits(&window.of(&tokens)).unwrap();
        let best = LogProbability::of(&logits, 0, 2).likeliest;
        let [first, second] = [0, 1].map(|rank: usize| logits[best[rank].0 as usize]);
        ties += usize::from(first - second <= NEAR_TIE * first.abs().max(second.abs()));
        let barred = if generated < request.min_tokens { &request.stop[..] } else { &[] };
        let place = Place { tokens: &tokens, prompt: request.prompt.len(), sample: request.sample, barred };
        let id = sampler.choose(&request.sampling, &logits, place);
        tokens.push(id);
        if request.stop.contains(&id) {
            break;
        }
    }
    (tokens.split_off(request.prompt.len()), ties)
}

/// All tokens of some requests that run in `rows` rows.
fn run(engine: &mut Engine, rows: usize, requests: &[Request]) -> Vec<Vec<Token>> {
    let mut generator =
        Generator::new(engine, GeneratorOptions { rows, ..GeneratorOptions::default() }).unwrap();
    drain(&mut generator, requests)
}

fn drain(generator: &mut Generator<&mut Engine>, requests: &[Request]) -> Vec<Vec<Token>> {
    let ids: Vec<RequestId> =
        requests.iter().map(|request| generator.submit(request.clone()).unwrap()).collect();
    let mut made = vec![Vec::new(); requests.len()];
    while let Some(token) = generator.next_token().unwrap() {
        let index = ids.iter().position(|id| *id == token.request).unwrap();
        made[index].push(token);
    }
    made
}

fn ids(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}

/// Prompts that share nothing, a beginning, everything; short ones, one that fills the context, and ones beyond it.
fn requests(keep: usize, max_tokens: usize) -> Vec<Request> {
    let system = [7, 8, 9, 10];
    let mut prompts: Vec<Vec<u32>> = vec![vec![1, 2, 3], vec![36], (0..12).collect(), (5..30).collect()];
    prompts.extend([[1, 2], [3, 4], [1, 2]].map(|tail| [&system[..], &tail].concat()));
    prompts.push(system.to_vec());
    prompts
        .into_iter()
        .enumerate()
        .map(|(sample, prompt)| Request {
            keep: keep.min(prompt.len()),
            sample: sample as u32,
            ..Request::new(prompt, max_tokens)
        })
        .collect()
}

#[test]
fn requests_in_any_number_of_rows_equal_the_oracle_token_for_token() {
    let (mut cases, mut near_ties) = (0, 0);
    for (seed, config) in causal_kinds().enumerate() {
        for (device, _) in backends() {
            let mut engine = engine(&config, device, seed as u64 + 8);
            for keep in [0, 3] {
                let requests = requests(keep, 30);
                let expected: Vec<(Vec<u32>, usize)> =
                    requests.iter().map(|request| oracle(&mut engine, request)).collect();
                for rows in [1, 3, 8] {
                    for (index, tokens) in run(&mut engine, rows, &requests).iter().enumerate() {
                        let (expected, ties) = &expected[index];
                        (cases, near_ties) = (cases + expected.len(), near_ties + ties);
                        if *ties == 0 {
                            let place = format!("request {index} in {rows} rows, {keep} stay, {config:?}");
                            assert_eq!(ids(tokens), *expected, "{place} on {}", engine.describe_device());
                        }
                        assert_eq!(tokens[29].finish, Some(Finish::Length));
                    }
                }
            }
        }
    }
    assert!(near_ties * 100 < cases, "{near_ties} near ties in {cases} tokens");
}

#[test]
fn draws_repeat_with_the_seed_in_any_batch() {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: 20,
        top_p: 0.9,
        repetition_penalty: 1.2,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        seed: 4,
        ..Sampling::GREEDY
    };
    for config in causal_kinds() {
        for (device, _) in backends() {
            let mut engine = engine(&config, device, 8);
            let mut requests = requests(2, 20);
            requests.iter_mut().for_each(|request| request.sampling = sampling.clone());
            let together = run(&mut engine, 8, &requests);
            assert_eq!(together, run(&mut engine, 3, &requests), "{}", engine.describe_device());
            for (request, tokens) in requests.iter().zip(&together) {
                assert_eq!(ids(tokens), oracle(&mut engine, request).0);
            }
        }
    }
}

/// Whether two tokens differ in nothing but the rounding of their probabilities, which may change the order of near ties.
fn are_alike(a: &Token, b: &Token) -> bool {
    const NEAR: f32 = 1e-3;
    let without = |token: &Token| Token { log_probability: None, ..token.clone() };
    let [of_a, of_b] = [a, b].map(|token| token.log_probability.clone().unwrap_or_default());
    let pairs = || of_a.likeliest.iter().zip(&of_b.likeliest);
    let are_near = (of_a.chosen - of_b.chosen).abs() < NEAR && pairs().all(|(a, b)| (a.1 - b.1).abs() < NEAR);
    let value = |rank: usize| of_b.likeliest.get(rank).map_or(f32::NEG_INFINITY, |of| of.1);
    let stands_out = |rank: usize| {
        (rank == 0 || value(rank - 1) - value(rank) > NEAR) && value(rank) - value(rank + 1) > NEAR
    };
    let are_same = pairs().enumerate().all(|(rank, (a, b))| a.0 == b.0 || !stands_out(rank));
    let lengths = [&of_a, &of_b].map(|of| of.likeliest.len());
    let asked = [a, b].map(|token| token.log_probability.is_some());
    without(a) == without(b) && are_near && are_same && lengths[0] == lengths[1] && asked[0] == asked[1]
}

#[test]
fn tokens_that_the_device_draws_are_those_that_the_host_draws() {
    let sampled =
        Sampling { temperature: 0.9, top_k: 12, top_p: 0.9, min_p: 0.01, seed: 3, ..Sampling::GREEDY };
    for config in causal_kinds() {
        for (device, _) in backends() {
            let mut engine = engine(&config, device, 5);
            let mut requests = requests(2, 23);
            for (index, request) in requests.iter_mut().enumerate() {
                if index % 2 == 0 {
                    request.sampling = sampled.clone();
                }
                if index % 3 > 0 {
                    request.sampling.repetition_penalty = 1.2;
                    request.sampling.frequency_penalty = 0.3;
                    request.sampling.bias = vec![(7, 1.5), (30, f32::NEG_INFINITY), (u32::MAX, 1.0)];
                }
                if index % 4 == 1 {
                    request.sampling.presence_penalty = -0.4;
                }
                // More than a device gives, and some that it gives beside rows without.
                request.log_probabilities = [None, Some(3), Some(20), None, Some(0), Some(21)][index % 6];
                // Ends somewhere inside a flight, in the middle of others' texts.
                request.stop = vec![3, 30];
                request.min_tokens = 4 * (index % 3);
            }
            let with = |ahead| GeneratorOptions { rows: 4, ahead, ..GeneratorOptions::default() };
            let mut generator = Generator::new(&mut engine, with(1)).unwrap();
            let expected = drain(&mut generator, &requests);
            drop(generator);
            for ahead in [2, 5, 32] {
                let mut generator = Generator::new(&mut engine, with(ahead)).unwrap();
                let made = drain(&mut generator, &requests);
                let device = generator.engine().describe_device();
                for (made, expected) in made.iter().zip(&expected) {
                    assert_eq!(made.len(), expected.len(), "{ahead} tokens ahead on {device}, {config:?}");
                    for (made, expected) in made.iter().zip(expected) {
                        assert!(are_alike(made, expected), "{made:?}, not {expected:?}: {ahead} on {device}");
                    }
                }
            }
        }
    }
}

#[test]
fn weights_kept_in_bf16_give_what_their_own_oracle_gives() {
    for config in causal_kinds() {
        let model = model(config);
        let values: Vec<f32> = model.initial_values(3).iter().map(|x| x * 12.0).collect();
        let device = Box::new(ironmill_compute::Cpu::new(2).unwrap());
        let keep = Keep::Weights(DType::BF16);
        let mut engine = Engine::keeping(device, model, &values, keep).unwrap();
        let requests = requests(2, 20);
        let made = run(&mut engine, 3, &requests);
        for (request, tokens) in requests.iter().zip(&made) {
            assert_eq!(ids(tokens), oracle(&mut engine, request).0);
        }
    }
}

#[test]
fn weights_kept_in_int8_give_what_their_own_oracle_gives() {
    for config in causal_kinds() {
        let model = model(config);
        let values: Vec<f32> = model.initial_values(3).iter().map(|x| x * 12.0).collect();
        let device = Box::new(ironmill_compute::Cpu::new(2).unwrap());
        let mut engine = Engine::keeping(device, model, &values, Keep::Int8(DType::F32)).unwrap();
        assert_ne!(engine.parameters().unwrap(), values, "weights are rounded");
        let requests = requests(2, 20);
        let made = run(&mut engine, 3, &requests);
        for (request, tokens) in requests.iter().zip(&made) {
            assert_eq!(ids(tokens), oracle(&mut engine, request).0);
        }
    }
}

#[test]
fn weights_kept_in_int8_on_a_card_give_what_the_reference_gives_with_the_same_numbers() {
    let (mut cases, mut near_ties) = (0, 0);
    for config in causal_kinds() {
        let Some(card) = cuda() else { return };
        let model = || model(config.clone());
        let values: Vec<f32> = model().initial_values(3).iter().map(|x| x * 12.0).collect();
        let [mut engine, mut twin] = [card, Box::new(Reference::exact())]
            .map(|device| Engine::keeping(device, model(), &values, Keep::Int8(DType::F32)).unwrap());
        let numbers = engine.parameters().unwrap();
        assert_ne!(numbers, values, "weights are rounded");
        assert_eq!(numbers, twin.parameters().unwrap());
        let requests = requests(2, 20);
        let expected: Vec<(Vec<u32>, usize)> =
            requests.iter().map(|request| oracle(&mut twin, request)).collect();
        for rows in [1, 3, 8] {
            let made = run(&mut engine, rows, &requests);
            for ((tokens, ties), made) in expected.iter().zip(&made) {
                (cases, near_ties) = (cases + tokens.len(), near_ties + ties);
                if *ties == 0 {
                    assert_eq!(ids(made), *tokens, "{rows} rows, {config:?}");
                }
            }
        }
    }
    assert!(near_ties * 100 < cases, "{near_ties} near ties in {cases} tokens");
}

#[test]
fn a_beginning_that_a_row_holds_is_not_read_again() {
    for (device, _) in backends() {
        let mut engine = engine(&tiny(Architecture::Llama), device, 8);
        let options = GeneratorOptions { rows: 4, ahead: 1, ..GeneratorOptions::default() };
        let mut generator = Generator::new(&mut engine, options).unwrap();
        let request = |sample| Request {
            sample,
            sampling: Sampling { temperature: 1.0, ..Sampling::GREEDY },
            ..Request::new((0..8).collect(), 2)
        };
        let samples: Vec<Request> = (0..4).map(request).collect();
        let first = drain(&mut generator, &samples);
        // One sample reads the prompt; the other three read its last token only.
        let counts = generator.counts();
        assert_eq!((counts.prefilled, counts.reused, counts.generated), (8, 3 * 7, 8));
        // The next request begins like the first, one turn further.
        let longer: Vec<u32> = (0..8).chain([first[0][0].id, 3]).collect();
        drain(&mut generator, &[Request::new(longer, 1)]);
        assert_eq!(generator.counts().reused, 3 * 7 + 9);
    }
}

#[test]
fn a_full_context_is_said_once_for_every_time() {
    for (device, _) in backends() {
        let mut engine = engine(&tiny(Architecture::Gpt2), device, 8);
        let request = Request { keep: 2, ..Request::new(vec![1, 2, 3], 20) };
        let tokens = &run(&mut engine, 1, &[request])[0];
        let refills: Vec<(usize, usize, usize)> = tokens
            .iter()
            .enumerate()
            .filter_map(|(at, token)| token.refill.map(|refill| (at, refill.kept, refill.dropped)))
            .collect();
        // The context of 12 is full after 9 tokens: the tenth came from 2 + 5 tokens.
        assert_eq!(refills, [(10, 7, 6), (16, 7, 6)]);
    }
}

#[test]
fn stop_tokens_end_a_sample_but_not_before_its_least_length() {
    for (device, _) in backends() {
        let mut engine = engine(&tiny(Architecture::Gpt2), device, 8);
        let free = ids(&run(&mut engine, 1, &[Request::new(vec![1, 2], 10)])[0]);
        let stop = Request { stop: vec![free[3]], ..Request::new(vec![1, 2], 10) };
        let first = free.iter().position(|id| *id == free[3]).unwrap();
        let stopped = run(&mut engine, 1, std::slice::from_ref(&stop)).remove(0);
        assert_eq!(ids(&stopped), free[..=first]);
        assert_eq!(stopped.last().unwrap().finish, Some(Finish::Stop));
        assert!(stopped[..first].iter().all(|token| token.finish.is_none()));
        let least = Request { min_tokens: 6, ..stop };
        let longer = run(&mut engine, 1, std::slice::from_ref(&least)).remove(0);
        assert!(!ids(&longer)[..6].contains(&free[3]));
        assert_eq!(ids(&longer), oracle(&mut engine, &least).0);
    }
}

#[test]
fn a_cancelled_request_gives_no_more_tokens_and_its_row_to_the_next() {
    for (device, _) in backends() {
        let mut engine = engine(&tiny(Architecture::Gpt2), device, 8);
        let mut generator = Generator::new(&mut engine, GeneratorOptions::default()).unwrap();
        let first = generator.submit(Request::new(vec![1], 10)).unwrap();
        let second = generator.submit(Request::new(vec![2], 2)).unwrap();
        assert_eq!(generator.next_token().unwrap().unwrap().request, first);
        assert!(generator.cancel(first) && !generator.cancel(first));
        let rest: Vec<RequestId> =
            std::iter::from_fn(|| generator.next_token().unwrap()).map(|token| token.request).collect();
        assert_eq!(rest, [second, second]);
    }
}

#[test]
fn log_probabilities_are_given_when_asked_for() {
    for (device, _) in backends() {
        let mut engine = engine(&tiny(Architecture::Llama), device, 8);
        let request = Request { log_probabilities: Some(3), ..Request::new(vec![1, 2], 3) };
        let tokens = run(&mut engine, 1, &[request]).remove(0);
        let logits = engine.next_logits(&[1, 2]).unwrap();
        let expected = LogProbability::of(&logits, tokens[0].id, 3);
        let found = tokens[0].log_probability.clone().unwrap();
        assert!((found.chosen - expected.chosen).abs() < 1e-4);
        assert_eq!(found.likeliest.len(), 3);
        assert_eq!(found.likeliest[0].0, tokens[0].id, "greedy takes the likeliest");
    }
}

#[test]
fn a_request_that_cannot_be_served_is_an_error() {
    let mut engine = engine(&tiny(Architecture::Gpt2), backends().remove(0).0, 8);
    let mut generator = Generator::new(&mut engine, GeneratorOptions::default()).unwrap();
    for (request, said) in [
        (Request::new(vec![], 1), "no token"),
        (Request::new(vec![37], 1), "outside the model's vocabulary"),
        (Request::new(vec![1], 0), "at least one"),
        (Request { keep: 12, ..Request::new((0..20).collect(), 1) }, "leave no room"),
    ] {
        let error = generator.submit(request).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_smaller_context_than_the_model_s_is_kept_to() {
    let mut engine = engine(&tiny(Architecture::Llama), backends().remove(0).0, 8);
    let mut generator =
        Generator::new(&mut engine, GeneratorOptions { rows: 1, context: 6, ahead: 0 }).unwrap();
    assert_eq!(generator.context(), 6);
    let tokens = drain(&mut generator, &[Request::new(vec![1, 2, 3], 6)]).remove(0);
    assert_eq!(tokens.iter().filter(|token| token.refill.is_some()).count(), 1);
}

/// Rows of 33 MB get their memory as they are filled, here over borders of pages (4,096 positions on a card) while a prompt is read, while a
/// beginning is copied and while tokens are drawn; rows of 4 MB have it all.
#[test]
fn caches_that_grow_give_what_whole_ones_give() {
    let [grows, whole] = [65_000, 8_192];
    let config =
        ModelConfig { vocab_size: 37, context: grows, ..ModelConfig::new(Architecture::Llama, 2, 4, 128) };
    let prompt: Vec<u32> = (0..3_836).map(|i| i * i % 37).collect();
    let requests = [
        Request::new(prompt.clone(), 40),
        Request::new(vec![1, 2, 3], 20),
        Request::new([&prompt[..3_800], &[5, 6]].concat(), 30),
        Request::new(prompt.repeat(2), 12),
    ];
    // The exact reference would take minutes, and so would a card's emulator.
    let is_quick = |device: &dyn Device| device.name() != "cuda" || !ironmill_emulator::stands_in();
    for (device, _) in backends().into_iter().skip(1).filter(|(device, _)| is_quick(&**device)) {
        let mut engine = engine(&config, device, 8);
        let [grown, expected] = [grows, whole].map(|context| {
            let options = GeneratorOptions { rows: 3, context, ..GeneratorOptions::default() };
            drain(&mut Generator::new(&mut engine, options).unwrap(), &requests)
        });
        assert_eq!(grown, expected, "{}", engine.describe_device());
    }
}
