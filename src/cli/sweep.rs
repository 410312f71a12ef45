//! `ironmill sweep`: many runs of one configuration, compared.

use super::Context;
use crate::config::Typed;
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::{counted, grouped};
use crate::signals;
use crate::stages::sweep::{Plan, Tried};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The flags of `sweep`.
#[derive(clap::Args)]
#[command(after_help = "\
The configuration has a section [sweep] with lists or ranges of other keys:

  [sweep]
  train.learning_rate = { min = 1e-4, max = 1e-2, log = true, count = 5 }
  model.width = [64, 128]

Every combination is a run (search = \"grid\"), or some that are drawn (search = \"random\", runs = 20, search_seed = 1;
ranges then have no count). Runs that are finished are not done again, so the same command goes on after a stop.
Any other key of the configuration is a flag too: --train.steps 500.

Examples:
  ironmill sweep examples/sweep.toml
  ironmill sweep examples/sweep.toml --list
  ironmill sweep examples/sweep.toml --out runs/rates --train.steps 300")]
pub struct Args {
    /// The TOML file
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The folder of the runs [default: runs/ and the name of the configuration]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the runs and train nothing
    #[arg(long)]
    list: bool,
}

/// Trains the runs of a sweep that are not finished, and shows all.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    let (typed, sweep) = Typed::load_with_sweep(&args.config, &context.overrides)?;
    let sweep = sweep.ok_or_else(|| {
        let message = format!(
            "{} has no [sweep]: add one with lists or ranges of keys, such as train.learning_rate = [1e-3, 3e-3]",
            args.config.display()
        );
        Failure::new(Code::BadConfig, message)
    })?;
    let stem = args.config.file_stem().unwrap_or("sweep".as_ref());
    let out = args.out.clone().unwrap_or_else(|| Path::new("runs").join(stem));
    let plan = Plan::new(&out, &typed, &sweep)?;
    if args.list {
        let names = plan.names();
        let object = json!({"sweep": out, "runs": names});
        return context.show.result(&names.join("\n"), &object);
    }
    let stop = signals::stop_flag()?;
    let (tried, report) = plan.run(context, &stop)?;
    let heading = format!("{}: {}, best first", out.display(), counted(tried.len() as u64, "run"));
    let text = format!("{heading}\n{}report: {}", table(&tried), report.display());
    let rows: Vec<_> = tried.iter().map(Tried::to_json).collect();
    context.show.result(&text, &json!({"sweep": out, "runs": rows, "report": report}))
}

/// A line a run, with its columns below each other.
fn table(tried: &[Tried]) -> String {
    let width = tried.iter().map(|run| run.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for run in tried {
        let known = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
        let step = run.step.map_or("–".into(), grouped);
        let bits = known(run.bits_per_byte);
        let outcome = run.failure.as_ref().map_or(String::new(), |failure| format!("  {failure}"));
        text += &format!(
            "{:width$}  val {:>7} at step {step:>7}  {bits:>7} bits per byte{outcome}\n",
            run.name,
            known(run.loss)
        );
    }
    text
}
