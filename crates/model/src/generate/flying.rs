//! Tokens that the device draws without the host: flights, which the host gives and whose tokens it takes when they have landed.

use std::borrow::BorrowMut;

use super::{
    Generator,
    caches::{Airborne, Drawn, Pilot},
    reading::bucket,
};
use crate::{engine::Engine, error::Result};

impl<E: BorrowMut<Engine>> Generator<E> {
    /// How many tokens of some rows the device may draw on its own: as many as every one of them still has room for.
    pub(super) fn flight_steps(&self, rows: &[usize]) -> usize {
        if self.ahead == 1 {
            return 0;
        }
        let room = |index: usize| {
            let row = &self.rows[index];
            row.sample.as_ref().map_or(0, |sample| {
                if sample.suits_a_device() { sample.room().min(self.context - row.cached.len()) } else { 0 }
            })
        };
        rows.iter().map(|&index| room(index)).min().unwrap_or(0).min(self.ahead)
    }

    /// Lets the device draw some tokens for every row.
    pub(super) fn take_off(&mut self, chosen: Vec<usize>, steps: usize) -> Result<()> {
        let bucket = bucket(chosen.len(), self.rows.len());
        let pilots: Vec<(Pilot, &[u32])> =
            chosen.iter().filter_map(|&index| self.rows[index].pilot(index)).collect();
        let tells = chosen.iter().any(|&index| self.log_probabilities_of(index).is_some());
        let idle = self.idle_rows(&chosen);
        let (runtime, model, buffers, caches) = self.engine.borrow_mut().cached();
        let airborne = caches.take_off((runtime, model, buffers), (bucket, tells), pilots, &idle, steps)?;
        self.airborne = Some((chosen, airborne));
        Ok(())
    }

    /// Takes the tokens that a flight drew. What a row drew behind its end is forgotten.
    pub(super) fn land(&mut self, chosen: &[usize], airborne: Airborne) -> Result<()> {
        let steps = airborne.steps;
        let (runtime, model, _, caches) = self.engine.borrow_mut().cached();
        let Drawn { tokens, mut log_probabilities } = caches.land((runtime, model), airborne)?;
        let asked: Vec<Option<usize>> =
            chosen.iter().map(|&index| self.log_probabilities_of(index)).collect();
        let mut added = Vec::with_capacity(chosen.len());
        for (&index, ids) in chosen.iter().zip(tokens.chunks_exact(steps)) {
            self.take_in(index, 1);
            added.push(self.extend(index, ids));
        }
        // The device goes on before anybody is told.
        if self.goes_on(chosen) {
            let steps = self.flight_steps(chosen);
            self.take_off(chosen.to_vec(), steps)?;
        }
        for step in 0..steps {
            for (at, added) in added.iter().enumerate() {
                let log_probability = asked[at].filter(|_| step < added.count).map(|count| {
                    let mut of = std::mem::take(&mut log_probabilities[at * steps + step]);
                    of.likeliest.truncate(count);
                    of
                });
                self.ready.extend(added.told(step, tokens[at * steps + step], log_probability));
            }
        }
        Ok(())
    }

    /// Whether rows of which a flight has just landed do nothing else before the next one.
    fn goes_on(&self, chosen: &[usize]) -> bool {
        let is_full = chosen.len() == self.rows.len();
        self.engine().runtime.runs_ahead()
            && (is_full || self.waiting.is_empty())
            && chosen.iter().all(|&index| self.pending(index) == 1)
            && self.flight_steps(chosen) > 0
    }

    fn log_probabilities_of(&self, index: usize) -> Option<usize> {
        self.rows[index].sample.as_ref()?.request.log_probabilities
    }
}
