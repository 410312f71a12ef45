//! One large batch against as many small ones: what a step gains from having much to do at once.

use super::{Sizes, Subject};
use crate::bench::{Settings, cpu};
use crate::failure::Result;
use ironmill_graph::Passes;
use serde_json::{Value, json};

/// Samples of the large batch, and how many small ones stand against it.
const LARGE: usize = 32;

/// Tokens a second, medians of rounds that take turns.
pub struct Batching {
    /// A step of 32 samples.
    large: f64,
    /// 32 steps of one sample each, every one with its update.
    small: f64,
    /// A step of 32 samples, one at a time, with one update.
    micro: f64,
}

impl Batching {
    /// Measures all three, in turns.
    pub fn measure(sizes: Sizes, passes: Passes, settings: Settings) -> Result<Batching> {
        let subject = |batch: usize, micro_rows: usize| -> Result<Subject> {
            let device = cpu("cpu", settings.threads)?;
            Subject::new(Box::new(device), Sizes { batch, ..sizes }, micro_rows, passes, None)
        };
        let (mut large, mut small, mut micro) = (subject(LARGE, LARGE)?, subject(1, 1)?, subject(LARGE, 1)?);
        let rounds = if settings.quick { 2 } else { 6 };
        let mut seconds: [Vec<f64>; 3] = Default::default();
        for round in 0..rounds {
            let of = |subject: &mut Subject, steps: usize| -> Result<f64> {
                let mut sum = 0.0;
                for _ in 0..steps {
                    sum += subject.step()?.counted(settings.threads);
                }
                Ok(sum)
            };
            let times = [of(&mut large, 1)?, of(&mut small, LARGE)?, of(&mut micro, 1)?];
            // The first round touches memory for the first time.
            if round > 0 {
                seconds.iter_mut().zip(times).for_each(|(seconds, time)| seconds.push(time));
            }
        }
        let tokens = (LARGE * sizes.context) as f64;
        let [large, small, micro] = seconds.map(|seconds| tokens / super::Spread::of(seconds).median);
        Ok(Batching { large, small, micro })
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "batching    batch {LARGE}: {:.0} tok/s, {:.2} × {LARGE} steps of one sample ({:.0} tok/s), \
             {:.2} × {LARGE} micro-batches of one ({:.0} tok/s)\n",
            self.large,
            self.large / self.small,
            self.small,
            self.large / self.micro,
            self.micro,
        )
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "batch": LARGE,
            "tokens_per_s": self.large,
            "tokens_per_s_of_single_steps": self.small,
            "tokens_per_s_of_single_micro_batches": self.micro,
            "ratio": self.large / self.small,
            "micro_batch_ratio": self.large / self.micro,
        })
    }
}
