//! `ironmill tokenizer count` and `merge`: counting shared out between machines.

use super::super::Context;
use super::{Room, check_can_write};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::grouped;
use crate::stages::tokenizer::{Origin, count_pieces};
use ironmill_text::{CountSettings, CountTotals, CountsFile, Pattern, merge_counts};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The flags of `tokenizer count`.
#[derive(clap::Args)]
pub struct CountArgs {
    /// Files, folders, patterns such as 'texts/*.txt', builtin:stories:20MB, or - for stdin
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Which of several tasks this is, counted from 0
    #[arg(long, value_name = "I", requires = "of")]
    task: Option<u64>,
    /// How many tasks share the files
    #[arg(long, value_name = "N", requires = "task", value_parser = clap::value_parser!(u64).range(1..))]
    of: Option<u64>,
    /// How text is cut into pieces: gpt2, cl100k, o200k, llama3, qwen2 or a regular expression
    #[arg(long, default_value = "gpt2", value_name = "NAME|REGEX")]
    pattern: String,
    /// A text that is one token; may be repeated
    #[arg(long, default_value = "<|endoftext|>", value_name = "TEXT")]
    special: Vec<String>,
    /// Count line by line, as Hugging Face's file reader does
    #[arg(long)]
    lines: bool,
    #[command(flatten)]
    room: Room,
    #[command(flatten)]
    reading: crate::cli::data::Reading,
}

/// The flags of `tokenizer merge`.
#[derive(clap::Args)]
pub struct MergeArgs {
    /// Files that `tokenizer count` or `tokenizer merge` wrote
    #[arg(required = true, value_name = "COUNTS")]
    counts: Vec<PathBuf>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Counts the text of one task.
pub fn run_count(context: &Context, args: &CountArgs) -> Result<()> {
    let (task, of) = (args.task.unwrap_or(0), args.of.unwrap_or(1));
    if task >= of {
        let message = format!("there is no task {task} of {of}: tasks are counted from 0 to {}", of - 1);
        return Err(Failure::new(Code::Usage, message));
    }
    let pattern: Pattern = args.pattern.parse()?;
    let settings = CountSettings::new(&pattern, &args.special, args.lines);
    check_can_write(&args.out)?;
    let inputs = args.reading.find(&args.inputs)?.task(task, of);
    let origin = Origin::of_count(&settings, &inputs);
    if let Ok(done) = CountsFile::open(&args.out)
        && inputs.are_repeatable()
        && origin.is_of(&args.out)
    {
        context.show.note("already counted: nothing to do");
        return show_result(context, &args.out, done.totals(), &origin);
    }
    let budget = args.room.budget(context, &args.out)?;
    let pieces = count_pieces(&inputs, &settings, &budget, &context.show, &AtomicBool::new(false))?;
    let totals = pieces.totals();
    pieces.save(&args.out, &context.show)?;
    origin.save(&args.out)?;
    budget.forget_counts();
    show_result(context, &args.out, totals, &origin)
}

/// Adds up counts files.
pub fn run_merge(context: &Context, args: &MergeArgs) -> Result<()> {
    let files =
        args.counts.iter().map(|path| CountsFile::open(path)).collect::<ironmill_text::Result<Vec<_>>>()?;
    let totals = merge_counts(&files, &args.out, &context.show)?;
    let object = json!({
        "file": args.out,
        "pieces": totals.pieces,
        "distinct": totals.distinct,
        "documents": totals.documents,
    });
    context.show.result(&summary(&args.out, totals), &object)
}

fn show_result(context: &Context, out: &Path, totals: CountTotals, origin: &Origin) -> Result<()> {
    let object = json!({
        "file": out,
        "pieces": totals.pieces,
        "distinct": totals.distinct,
        "documents": totals.documents,
        "origin": origin.hash(),
    });
    context.show.result(&summary(out, totals), &object)
}

fn summary(out: &Path, totals: CountTotals) -> String {
    format!(
        "{}: {} distinct pieces of {} in {} documents",
        out.display(),
        grouped(totals.distinct),
        grouped(totals.pieces),
        grouped(totals.documents)
    )
}
