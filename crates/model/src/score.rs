//! How likely a model finds what follows a text: the sum of the log-probabilities of some last tokens.

use std::sync::atomic::{AtomicBool, Ordering};

use ironmill_compute::{HostData, IGNORED, LossShape};
use ironmill_graph::{Graph, Passes, ProgramId, Tensor};

use crate::{
    architecture::{Attend, Tokens},
    engine::{BatchInputs, Engine},
    error::{Error, Result},
};

/// The shortest program. Sequences are padded to the next of its doublings.
const SHORTEST: usize = 16;

/// Tokens, of which the last are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The text and what follows.
    pub ids: Vec<u32>,
    /// How many of the tokens are what follows.
    pub asked: usize,
}

/// A program for sequences up to some length.
#[derive(Clone, Copy)]
struct Program {
    id: ProgramId,
    length: usize,
    rows: usize,
    ids: Tensor,
    targets: Tensor,
    losses: Tensor,
}

impl Engine {
    /// The natural logarithm of the probability of what follows, for every sequence. Those of about the same length run together,
    /// `tokens` of them or one sequence at a time. Of a sequence that is longer than the context the last tokens are taken.
    /// `on_done` is told how many are done; the call ends in [`Error::Stopped`] soon after `stop` is set.
    pub fn log_likelihoods(
        &mut self,
        sequences: &[Continuation],
        tokens: usize,
        on_done: &mut dyn FnMut(usize),
        stop: &AtomicBool,
    ) -> Result<Vec<f64>> {
        let (context, vocabulary) = (self.model.config().context, self.model.config().vocab_size);
        if !self.model.config().architecture.is_causal() {
            let advice = "measure an encoder by its loss";
            return Err(Error::Prompt(format!(
                "a bidirectional encoder has no likelihood of what follows; {advice}"
            )));
        }
        for sequence in sequences {
            check(sequence, context, vocabulary)?;
        }
        self.show()?;
        let window = |sequence: &Continuation| sequence.ids.len().min(context + 1);
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|&idx| window(&sequences[idx]));
        let mut found = vec![0.0; sequences.len()];
        let mut programs: Vec<Program> = Vec::new();
        let mut next = 0;
        while next < order.len() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            // The last token is only ever asked for.
            let length = bucket(window(&sequences[order[next]]) - 1, context);
            let program = match programs.iter().find(|program| program.length == length) {
                Some(program) => *program,
                None => {
                    programs.push(self.score_program(length, (tokens / length).max(1))?);
                    programs[programs.len() - 1]
                }
            };
            let fits = |idx: &&usize| window(&sequences[**idx]) - 1 <= length;
            let batch: Vec<usize> =
                order[next..].iter().take(program.rows).take_while(fits).copied().collect();
            let sums = self.score_batch(program, batch.iter().map(|&idx| &sequences[idx]))?;
            for (idx, sum) in batch.iter().zip(sums) {
                found[*idx] = sum;
            }
            next += batch.len();
            on_done(next);
        }
        Ok(found)
    }

    fn score_program(&mut self, length: usize, rows: usize) -> Result<Program> {
        let mut g = Graph::new();
        let batch = BatchInputs::declare(&mut g, rows, length);
        let tokens =
            Tokens { ids: batch.ids, positions: batch.positions, attend: Attend::PLAIN, recompute: false };
        let hidden = self.model.hidden(&mut g, self.shown, tokens)?;
        let logits = self.model.logits(&mut g, self.shown, hidden)?;
        let losses = g.cross_entropy(logits, batch.targets, batch.weights, LossShape::default())?;
        g.keep(losses);
        let id = self.runtime.compile(g, &self.shown.passes(&Passes::ALL))?;
        batch.write_positions(&mut self.runtime, id)?;
        self.runtime.write(id, batch.weights, HostData::F32(&vec![1.0; rows * length]))?;
        Ok(Program { id, length, rows, ids: batch.ids, targets: batch.targets, losses })
    }

    fn score_batch<'s>(
        &mut self,
        program: Program,
        sequences: impl Iterator<Item = &'s Continuation>,
    ) -> Result<Vec<f64>> {
        let Program { id, length, rows, .. } = program;
        let mut ids = vec![0; rows * length];
        let mut targets = vec![IGNORED; rows * length];
        let mut filled = 0;
        for ((sequence, ids), targets) in
            sequences.zip(ids.chunks_exact_mut(length)).zip(targets.chunks_exact_mut(length))
        {
            let window = &sequence.ids[sequence.ids.len().saturating_sub(length + 1)..];
            let seen = window.len() - 1;
            ids[..seen].copy_from_slice(&window[..seen]);
            targets[seen - sequence.asked..seen].copy_from_slice(&window[window.len() - sequence.asked..]);
            filled += 1;
        }
        self.runtime.write(id, program.ids, HostData::U32(&ids))?;
        self.runtime.write(id, program.targets, HostData::U32(&targets))?;
        self.runtime.run(id)?;
        let mut losses = vec![0.0; rows * length];
        self.runtime.read(id, program.losses, &mut losses)?;
        let sums =
            losses.chunks_exact(length).map(|row| -row.iter().map(|&loss| f64::from(loss)).sum::<f64>());
        Ok(sums.take(filled).collect())
    }
}

fn check(sequence: &Continuation, context: usize, vocabulary: usize) -> Result<()> {
    let Continuation { ids, asked } = sequence;
    if *asked == 0 || *asked >= ids.len() {
        let advice = "give at least one token before and one that follows";
        return Err(Error::Prompt(format!("{asked} of {} tokens are asked for; {advice}", ids.len())));
    }
    if *asked > context {
        let advice = "shorten it, or use a model with a longer context";
        return Err(Error::Prompt(format!(
            "what follows has {asked} tokens, more than a context of {context}; {advice}"
        )));
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => {
            let advice = "use the tokenizer that the model was trained with";
            Err(Error::Prompt(format!(
                "token {id} is outside the model's vocabulary of {vocabulary}; {advice}"
            )))
        }
        None => Ok(()),
    }
}

/// The length of the program for so many tokens.
fn bucket(tokens: usize, context: usize) -> usize {
    tokens.next_power_of_two().max(SHORTEST).min(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, Model, config::tests::tiny};
    use ironmill_compute::Cpu;

    /// The same, a token at a time from the logits of everything before it.
    fn oracle(engine: &mut Engine, sequence: &Continuation) -> f64 {
        let Continuation { ids, asked } = sequence;
        let context = engine.model().config().context;
        let ids = &ids[ids.len().saturating_sub(context + 1)..];
        let mut sum = 0.0;
        for place in ids.len() - asked..ids.len() {
            let logits = engine.next_logits(&ids[..place]).unwrap();
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = logits.iter().map(|&logit| f64::from(logit - highest).exp()).sum();
            sum += f64::from(logits[ids[place] as usize] - highest) - total.ln();
        }
        sum
    }

    #[test]
    fn likelihoods_are_those_of_one_token_at_a_time() {
        for architecture in [Architecture::Gpt2, Architecture::Llama] {
            let model = Model::new(tiny(architecture)).unwrap();
            let (values, context) = (model.initial_values(5), model.config().context);
            let vocabulary = model.config().vocab_size as u32;
            let mut engine = Engine::new(Box::new(Cpu::new(2).unwrap()), model, &values).unwrap();
            let sequence = |length: usize, asked: usize| Continuation {
                ids: (0..length as u32).map(|n| (n * 7 + length as u32) % vocabulary).collect(),
                asked,
            };
            // Some are longer than the context.
            let sequences: Vec<Continuation> =
                (2..context + 6).map(|length| sequence(length, 1 + length % 3 % (length - 1))).collect();
            let never = AtomicBool::new(false);
            for tokens in [1, 40, 1000] {
                let mut done = 0;
                let found = engine.log_likelihoods(&sequences, tokens, &mut |n| done = n, &never).unwrap();
                assert_eq!(done, sequences.len());
                for (sequence, found) in sequences.iter().zip(found) {
                    let expected = oracle(&mut engine, sequence);
                    assert!((found - expected).abs() < 1e-4, "{sequence:?}: {found} and not {expected}");
                }
            }
            let stopped = AtomicBool::new(true);
            assert!(matches!(
                engine.log_likelihoods(&sequences, 9, &mut |_| (), &stopped),
                Err(Error::Stopped)
            ));
        }
    }

    #[test]
    fn the_logits_behind_every_token_are_those_of_the_text_up_to_it() {
        let model = Model::new(tiny(Architecture::Llama)).unwrap();
        let (values, vocabulary) = (model.initial_values(5), model.config().vocab_size);
        let mut engine = Engine::new(Box::new(Cpu::new(1).unwrap()), model, &values).unwrap();
        let ids = [3, 1, 4, 1, 5];
        let all = engine.logits(&ids).unwrap();
        assert_eq!(all.len(), ids.len() * vocabulary);
        for (seen, row) in (1..).zip(all.chunks_exact(vocabulary)) {
            let alone = engine.next_logits(&ids[..seen]).unwrap();
            assert!(row.iter().zip(alone).all(|(a, b)| (a - b).abs() < 1e-5), "behind {seen} tokens");
        }
        assert!(engine.logits(&[]).is_err());
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let model = Model::new(tiny(Architecture::Gpt2)).unwrap();
        let values = model.initial_values(5);
        let mut engine = Engine::new(Box::new(Cpu::new(1).unwrap()), model, &values).unwrap();
        for (ids, asked, said) in [
            (vec![1], 1, "at least one token before"),
            (vec![1, 2], 0, "0 of 2"),
            (vec![1; 99], 50, "more than a context"),
            (vec![1, 1_000_000], 1, "outside the model's vocabulary"),
        ] {
            let asked = [Continuation { ids, asked }];
            let error = engine.log_likelihoods(&asked, 9, &mut |_| (), &AtomicBool::new(false)).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
