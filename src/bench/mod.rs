//! Measurements against the machine's own limits, taken in the same run.

mod card;
mod clock;
pub mod generate;
mod limits;
pub mod loader;
pub mod ops;
mod precision;
mod random;
pub mod step;
pub mod tokenizer;

pub use precision::Precision;

use crate::failure::{Code, Failure, Result};
use clock::{Clock, Time};
use ironmill_compute::Cpu;

/// What both benches are told.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that compute.
    pub threads: usize,
    /// What products are computed in.
    pub precision: Precision,
    /// Whether to take only a glance.
    pub quick: bool,
}

/// The device to measure.
fn cpu(name: &str, threads: usize) -> Result<Cpu> {
    match name {
        "cpu" | "auto" => Ok(Cpu::new(threads)?),
        _ => {
            let message = format!("cannot measure the device \"{name}\" in this version: use --device cpu");
            Err(Failure::new(Code::NoDevice, message))
        }
    }
}

/// What is the same in the middle and at best of several times.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    best: f64,
}

impl Spread {
    /// The median and the least of some seconds.
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let best = seconds.first().copied().unwrap_or(f64::NAN);
        Spread { median: seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN), best }
    }

    /// The median and the greatest of some rates.
    fn of_rates(mut rates: Vec<f64>) -> Self {
        rates.sort_by(f64::total_cmp);
        let best = rates.last().copied().unwrap_or(f64::NAN);
        Spread { median: rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN), best }
    }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value.ln()));
    (sum / f64::from(count)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_best_the_least() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, best: 1.0 });
        assert_eq!(Spread::of_rates(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, best: 3.0 });
        assert!((geometric_mean([1.0, 4.0].into_iter()) - 2.0).abs() < 1e-12);
    }
}
