//! `ironmill report`: a page of one or more runs.

use super::Context;
use crate::failure::Result;
use crate::report::{self, Record};
use crate::stages::run_folder::RunFolder;
use serde_json::json;
use std::path::PathBuf;

/// The flags of `report`.
#[derive(clap::Args)]
#[command(after_help = "\
Curves of loss, validation loss, learning rate, gradient norm, speed and memory, where the time went, configurations side by
side, and samples: one HTML file that needs no network. A run writes its own when it ends.

Examples:
  ironmill report runs/quickstart
  ironmill report runs/first runs/second --out compare.html
  ironmill report runs/quickstart --out page.html --title 'A storyteller'")]
pub struct Args {
    /// Folders of runs, finished or not
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The page [default: report.html in the folder of the run, or here for several runs]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The page's heading [default: the names of the runs]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// Writes the page.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("report")?;
    let records = args.runs.iter().map(|path| Record::read(path)).collect::<Result<Vec<_>>>()?;
    let out = match (&args.out, args.runs.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [run]) => RunFolder::at(run).report(),
        (None, _) => PathBuf::from("report.html"),
    };
    let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
    let title = args.title.clone().unwrap_or_else(|| names.join(", "));
    report::write(&out, &title, &records, &[])?;
    let object = json!({"report": out, "runs": args.runs});
    context.show.result(&format!("{}: open it in a browser", out.display()), &object)
}
