//! Generation through the cache against the oracle that has none.

use std::ops::ControlFlow;

use ironmill_model::{
    Architecture, Engine, Finish, GenerateOptions, Generated, Place, Sampler, Sampling, Window,
};

use crate::{backends, causal_kinds, model, tiny};

/// Every causal kind of model on every backend.
fn engines() -> Vec<Engine> {
    let mut engines = Vec::new();
    for config in causal_kinds() {
        for (device, _) in backends() {
            let model = model(config.clone());
            // Larger than initial weights are, so that the likeliest token stands out.
            let values: Vec<f32> = model.initial_values(8).iter().map(|x| x * 12.0).collect();
            engines.push(Engine::new(device, model, &values).unwrap());
        }
    }
    engines
}

fn generate(engine: &mut Engine, prompts: &[Vec<u32>], options: &GenerateOptions) -> Vec<Generated> {
    engine.generate(prompts, options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

/// Recomputes the whole window for every token.
fn oracle(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions, sample: u32) -> Vec<u32> {
    let context = engine.model().config().context;
    let (mut tokens, mut window) = (prompt.to_vec(), Window::new(0, context));
    while tokens.len() - prompt.len() < options.max_tokens {
        window.follow(tokens.len());
        let logits = engine.next_logits(&window.of(&tokens)).unwrap();
        let place = Place { tokens: &tokens, prompt: prompt.len(), sample, barred: &[] };
        let id = Sampler::default().choose(&options.sampling, &logits, place);
        tokens.push(id);
        if options.stop.contains(&tokens[tokens.len() - 1]) {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

fn prompts() -> Vec<Vec<u32>> {
    // Shorter than a chunk, a single token, exactly the context, and longer than it.
    vec![vec![1, 2, 3], vec![36], (0..12).collect(), (5..30).collect()]
}

#[test]
fn cached_greedy_generation_equals_the_uncached_oracle_token_for_token() {
    let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 30, stop: vec![] };
    for mut engine in engines() {
        let together = generate(&mut engine, &prompts(), &options);
        for (index, prompt) in prompts().iter().enumerate() {
            let expected = oracle(&mut engine, prompt, &options, index as u32);
            assert_eq!(together[index].ids, expected, "prompt {index} on {}", engine.describe_device());
            assert_eq!(together[index].finish, Finish::Length);
            let alone = generate(&mut engine, std::slice::from_ref(prompt), &options);
            assert_eq!(alone[0].ids, expected);
        }
    }
}

#[test]
fn sampled_generation_equals_the_oracle_and_repeats_with_the_seed() {
    let sampling = Sampling { temperature: 1.0, top_k: 20, top_p: 0.9, seed: 4, ..Sampling::GREEDY };
    let options = GenerateOptions { sampling: sampling.clone(), max_tokens: 20, stop: vec![] };
    for mut engine in engines() {
        let first = generate(&mut engine, &prompts(), &options);
        assert_eq!(first, generate(&mut engine, &prompts(), &options));
        for (index, prompt) in prompts().iter().enumerate() {
            assert_eq!(first[index].ids, oracle(&mut engine, prompt, &options, index as u32));
        }
        let other = GenerateOptions { sampling: Sampling { seed: 5, ..sampling.clone() }, ..options.clone() };
        assert_ne!(first, generate(&mut engine, &prompts(), &other));
    }
}

#[test]
fn generation_ends_at_a_stop_token_or_when_the_caller_says_so() {
    for mut engine in engines() {
        let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 10, stop: vec![] };
        let free = generate(&mut engine, &[vec![1, 2]], &options)[0].ids.clone();
        let stop = GenerateOptions { stop: vec![free[3]], ..options.clone() };
        let stopped = generate(&mut engine, &[vec![1, 2]], &stop);
        let first = free.iter().position(|id| *id == free[3]).unwrap();
        assert_eq!((&stopped[0].ids[..], stopped[0].finish), (&free[..=first], Finish::Stop));

        let mut seen = Vec::new();
        let cancelled = engine
            .generate(&[vec![1, 2]], &options, &mut |_, id| {
                seen.push(id);
                if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!((&cancelled[0].ids[..], cancelled[0].finish), (&free[..2], Finish::Cancelled));
        assert_eq!(seen, free[..2]);
        let nothing = GenerateOptions { max_tokens: 0, ..options };
        assert!(generate(&mut engine, &[vec![1]], &nothing)[0].ids.is_empty());
    }
}

#[test]
fn a_prompt_that_cannot_be_read_is_an_error() {
    for mut engine in engines() {
        let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 1, stop: vec![] };
        for prompt in [vec![], vec![37]] {
            assert!(engine.generate(&[prompt], &options, &mut |_, _| ControlFlow::Continue(())).is_err());
        }
    }
}

#[test]
fn an_encoder_says_that_it_cannot_generate() {
    let model = model(tiny(Architecture::Encoder));
    let values = model.initial_values(1);
    let mut engine = Engine::new(backends().remove(0).0, model, &values).unwrap();
    let options = GenerateOptions { sampling: Sampling::GREEDY, max_tokens: 1, stop: vec![] };
    let error = engine.generate(&[vec![1]], &options, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("bidirectional encoder"), "{error}");
}
