//! Faults on demand, for tests of what happens then.
//!
//! The variable `IRONMILL_FAULT` names them, with commas between: `kill-save=N` ends the process at the N-th thing that
//! saves do to the disk, `disk-full=N` lets no more than N writes succeed, `disk-free=BYTES` claims so much free space,
//! `disk-slow=MS` makes everything done to the disk take longer, `oom=STEP:ROWS` refuses memory for more than so many rows from a
//! step on, `nan=SAMPLE` makes the loss of a sample no number and `spike=SAMPLE` a thousand times as large.

use crate::failure::{Code, Failure, Result};
use ironmill_model::Fault;
use ironmill_text::durable::{Act, Disk, Watch};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const VARIABLE: &str = "IRONMILL_FAULT";

/// The faults that were asked for; usually none.
#[derive(Debug, Default)]
pub struct Faults {
    kill_save: Option<u64>,
    disk_full: Option<u64>,
    disk_free: Option<u64>,
    disk_slow: Option<Duration>,
    /// From which step on, and for more than how many rows.
    out_of_memory: Option<(u64, u64)>,
    data: Vec<Fault>,
}

impl Faults {
    /// Those of the environment.
    pub fn from_environment() -> Result<Faults> {
        match std::env::var(VARIABLE) {
            Ok(text) => Faults::parse(&text)
                .ok_or_else(|| Failure::new(Code::Usage, format!("{VARIABLE}={text} is no fault: unset it"))),
            Err(_) => Ok(Faults::default()),
        }
    }

    fn parse(text: &str) -> Option<Faults> {
        let mut faults = Faults::default();
        for fault in text.split(',').filter(|fault| !fault.is_empty()) {
            let (name, value) = fault.split_once('=')?;
            let number = || value.parse::<u64>().ok();
            match name {
                "kill-save" => faults.kill_save = Some(number()?),
                "disk-full" => faults.disk_full = Some(number()?),
                "disk-free" => faults.disk_free = Some(number()?),
                "disk-slow" => faults.disk_slow = Some(Duration::from_millis(number()?)),
                "nan" => faults.data.push(Fault { sample: value.parse().ok()?, factor: f32::NAN }),
                "spike" => faults.data.push(Fault { sample: value.parse().ok()?, factor: 1000.0 }),
                "oom" => {
                    let (step, rows) = value.split_once(':')?;
                    faults.out_of_memory = Some((step.parse().ok()?, rows.parse().ok()?));
                }
                _ => return None,
            }
        }
        Some(faults)
    }

    /// Samples that are spoilt.
    pub fn in_data(&self) -> Vec<Fault> {
        self.data.clone()
    }

    /// The disk that checkpoints are written to.
    pub fn disk(&self) -> Disk {
        let Faults { kill_save, disk_full, disk_free, disk_slow, .. } = *self;
        if kill_save.is_none() && disk_full.is_none() && disk_free.is_none() && disk_slow.is_none() {
            return Disk::default();
        }
        Disk::watched(Arc::new(Faulty { kill_save, disk_full, disk_free, disk_slow, ..Faulty::default() }))
    }

    /// Refuses a step for want of memory.
    pub fn before_step(&self, step: u64, rows: usize) -> Result<()> {
        match self.out_of_memory {
            Some((from, most)) if step >= from && rows as u64 > most => {
                let message = format!("no memory for {rows} rows, because {VARIABLE} says so");
                Err(Failure::new(Code::OutOfMemory, message))
            }
            _ => Ok(()),
        }
    }
}

/// A disk with faults.
#[derive(Default)]
struct Faulty {
    kill_save: Option<u64>,
    disk_full: Option<u64>,
    disk_free: Option<u64>,
    disk_slow: Option<Duration>,
    acts: AtomicU64,
    writes: AtomicU64,
}

impl Watch for Faulty {
    fn before(&self, act: Act, _: &Path) -> io::Result<()> {
        if let Some(time) = self.disk_slow {
            std::thread::sleep(time);
        }
        if self.kill_save == Some(self.acts.fetch_add(1, Ordering::Relaxed)) {
            // Nothing is tidied up and no other thread goes on, as when a machine goes down.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        let is_full = act == Act::Write
            && self.disk_full.is_some_and(|most| self.writes.fetch_add(1, Ordering::Relaxed) >= most);
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn free_bytes(&self, truly: u64) -> u64 {
        self.disk_free.unwrap_or(truly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_nonsense_is_not() {
        let faults = Faults::parse("kill-save=3,oom=2:4").unwrap();
        assert_eq!((faults.kill_save, faults.out_of_memory), (Some(3), Some((2, 4))));
        assert!(faults.before_step(1, 8).is_ok() && faults.before_step(2, 4).is_ok());
        assert_eq!(faults.before_step(2, 5).unwrap_err().code(), Code::OutOfMemory);
        let [nan, spike] = Faults::parse("nan=8,spike=9").unwrap().in_data().try_into().unwrap();
        assert!(nan.sample == 8 && nan.factor.is_nan() && spike == Fault { sample: 9, factor: 1000.0 });
        for text in ["kill-save", "kill-save=x", "oom=3", "rain=1"] {
            assert!(Faults::parse(text).is_none(), "{text}");
        }
    }
}
