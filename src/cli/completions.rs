//! `ironmill completions`: what a shell needs to complete commands, flags and keys.

use super::{Context, key_flags};
use crate::failure::Result;
use clap_complete::{Shell, generate};
use serde_json::json;

/// The flags of `completions`.
#[derive(clap::Args)]
#[command(after_help = "\
Every key of the configuration is completed as a flag: --train.learning-rate, --data.input.

Examples:
  ironmill completions bash > ~/.local/share/bash-completion/completions/ironmill
  ironmill completions zsh > ~/.zfunc/_ironmill
  ironmill completions fish > ~/.config/fish/completions/ironmill.fish")]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the script to stdout.
pub fn run(context: &Context, args: &Args) -> Result<()> {
    context.refuse_overrides("completions")?;
    let mut script = Vec::new();
    generate(args.shell, &mut key_flags::grammar(), "ironmill", &mut script);
    let script = String::from_utf8_lossy(&script);
    context.show.result(&script, &json!({"shell": args.shell.to_string(), "script": script}))
}
