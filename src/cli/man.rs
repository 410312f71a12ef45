//! `ironmill man`: a manual page for every command.

use super::{Context, key_flags};
use crate::failure::{Code, Failure, Result};
use crate::show::numbers::counted;
use clap_mangen::Man;
use ironmill_text::durable;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The flags of `man`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ironmill man ~/.local/share/man/man1
  ironmill man pages --json")]
pub struct Args {
    /// The folder to write the pages to
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("man")?;
    std::fs::create_dir_all(&args.dir).map_err(|error| Failure::write(&args.dir, &error))?;
    let mut grammar = key_flags::grammar().disable_help_subcommand(true);
    grammar.build();
    let mut pages = Vec::new();
    write_pages(&grammar, &args.dir, &mut pages)?;
    let text = format!("{}: {}", args.dir.display(), counted(pages.len() as u64, "page"));
    context.show.result(&text, &json!({"dir": args.dir, "pages": pages}))
}

fn write_pages(command: &clap::Command, dir: &Path, pages: &mut Vec<String>) -> Result<()> {
    // Commands are numbered in one manual, so each names the program and its version and not itself.
    let page = Man::new(command.clone()).source(format!("ironmill {}", env!("CARGO_PKG_VERSION")));
    let mut roff = Vec::new();
    page.render(&mut roff).map_err(|error| {
        Failure::new(Code::OurBug, format!("cannot make a page ({error}): please report it"))
    })?;
    let name = page.get_filename();
    let path = dir.join(&name);
    durable::write(&path, &roff).map_err(|error| Failure::write(&path, &error))?;
    pages.push(name);
    command.get_subcommands().try_for_each(|command| write_pages(command, dir, pages))
}
