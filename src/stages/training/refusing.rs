//! Steps that the device refused: what the run's policy makes of them.
//!
//! A refused step has changed nothing. *Stop* ends the run there, *skip* goes on with the next batch, *rollback* goes back to the
//! newest healthy checkpoint and leaves out the data from there to behind the refused step. However often it goes well: more
//! than `train.max_skips` within [`WINDOW`] steps end the run.

use super::Session;
use super::stopping::EarlyStop;
use super::telling::now;
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::grouped;
use crate::stages::events::Events;
use crate::stages::metrics::Metrics;
use ironmill_model::checkpoint::{self, RunState};
use ironmill_model::{Alarm, Error, StepReport, Verdict};

/// Refused steps are counted over so many steps.
const WINDOW: u64 = 100;

/// How a run has fared lately.
#[derive(Default)]
pub(super) struct Health {
    /// The first sample of each step that was lately refused. Samples are counted, not steps: a rollback repeats steps.
    refused: Vec<u64>,
    /// Whether a step was refused since the last checkpoint.
    is_troubled: bool,
    /// What the step before was warned of, so that a lasting trouble is told once.
    alarm: Option<Alarm>,
}

impl Health {
    /// How a run fared when a checkpoint was written.
    pub(super) fn of(run: &RunState) -> Health {
        Health { refused: run.refused.clone(), ..Health::default() }
    }

    /// What a checkpoint tells of it.
    pub(super) fn state(&self) -> RunState {
        RunState { healthy: !self.is_troubled, refused: self.refused.clone(), ..RunState::default() }
    }

    /// A checkpoint was written.
    pub(super) fn saved(&mut self) {
        self.is_troubled = false;
    }

    /// Counts a refused step by its first sample, and says how many there lately were.
    fn refuse(&mut self, sample: u64, samples_a_step: u64) -> u64 {
        self.refused.retain(|&earlier| earlier + WINDOW * samples_a_step > sample);
        self.refused.push(sample);
        self.is_troubled = true;
        self.refused.len() as u64
    }
}

impl Session<'_> {
    /// Writes a checkpoint of the beginning if the policy may have to go back to it.
    pub(super) fn secure_a_way_back(&mut self) -> Result<()> {
        let has_none = self.saved_step.is_none();
        if self.config.train.on_nonfinite == "rollback" && has_none { self.save_now() } else { Ok(()) }
    }

    /// After a step that was refused and has left everything as it was before: ends the run, or goes back.
    pub(super) fn go_back(&mut self, refusal: Error) -> Result<()> {
        let (step, sample) = (self.trainer.step_count() + 1, self.trainer.next_sample());
        let samples_a_step = self.trainer.options().rows as u64;
        let count = self.health.refuse(sample, samples_a_step);
        if self.config.train.on_nonfinite == "stop" {
            return Err(refusal.into());
        }
        self.check_patience(count, &refusal.to_string())?;
        let written = self.saver.wait()?;
        self.tell_of(written);
        let folder = self.run.checkpoints();
        let Some(path) = checkpoint::newest_healthy(&folder)? else { return Err(refusal.into()) };
        let snapshot = checkpoint::load(&path, self.trainer.engine().model())?;
        self.trainer.restore(&snapshot)?;
        self.trainer.skip_samples(sample + samples_a_step - snapshot.state.samples);
        let back = snapshot.state.step;
        self.context.show.warn(&format!(
            "{refusal}; back to step {} and on behind the data of {} steps",
            grouped(back),
            grouped(step - back)
        ));
        checkpoint::forget_after(&self.faults.disk(), &folder, back)?;
        let mut early = EarlyStop::new(&self.config.train);
        self.metrics = Metrics::open(&self.run.metrics(), back, &mut |line| early.recall(line))?;
        self.early = early;
        self.events = Events::open(self.run.path(), back, now())?;
        self.saved_step = Some(back);
        // What is wrong was left behind with the data.
        self.health.is_troubled = false;
        Ok(())
    }

    /// Counts a step that was skipped, and warns of one that was applied but is no good sign.
    pub(super) fn bear_refusal(&mut self, report: &StepReport) -> Result<()> {
        let alarm = report.alarm();
        if alarm != self.health.alarm {
            self.health.alarm = alarm;
            alarm.into_iter().for_each(|alarm| self.context.show.warn(&explain(alarm, report)));
        }
        if matches!(report.verdict, Verdict::Applied | Verdict::Overflow) {
            return Ok(());
        }
        let samples_a_step = self.trainer.options().rows as u64;
        let count = self.health.refuse(self.trainer.next_sample() - samples_a_step, samples_a_step);
        let why = format!("step {} was refused ({})", report.step, report.verdict.name().replace('_', " "));
        self.check_patience(count, &why)
    }

    /// Ends a run whose steps are refused too often.
    fn check_patience(&self, count: u64, why: &str) -> Result<()> {
        let most = self.config.train.max_skips;
        if count <= most {
            return Ok(());
        }
        let message = format!(
            "{why}, and with it {count} of the last {WINDOW} steps, where train.max_skips allows {most}: lower \
             train.learning_rate, raise train.warmup, or check the data around this step"
        );
        Err(Failure::new(Code::Diverged, message))
    }
}

fn explain(alarm: Alarm, report: &StepReport) -> String {
    let step = report.step;
    match alarm {
        Alarm::NoTargets => {
            format!("step {step} has no target to learn from: all are padding or left out; check the data")
        }
        Alarm::ZeroGradients => {
            format!("step {step} has gradients of zero, so nothing is learnt: check the data and the model")
        }
        Alarm::ExplodingNorm => format!(
            "step {step} has a gradient norm of {:.3}, usually it is {:.3}: lower train.learning_rate if this goes on",
            report.norm, report.usual_norm
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_steps_are_counted_over_a_hundred() {
        let mut health = Health::default();
        assert_eq!(health.refuse(80, 8), 1);
        assert_eq!(health.refuse(88, 8), 2);
        assert!(!health.state().healthy);
        health.saved();
        assert!(health.state().healthy);
        // A hundred steps of eight samples later the first is forgotten.
        assert_eq!(health.refuse(80 + 800, 8), 2);
        assert_eq!(Health::of(&health.state()).refused, [88, 880]);
    }
}
