//! `ironmill config`: what a configuration comes to.

use super::Context;
use crate::config::{Config, Typed};
use crate::failure::Result;
use serde_json::json;
use std::path::PathBuf;

/// The commands on configurations.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Print the resolved configuration and where each value came from
    #[command(after_help = "\
Examples:
  ironmill config show examples/quickstart.toml
  ironmill config show examples/quickstart.toml --train.learning-rate 3e-4
  ironmill config show examples/quickstart.toml --json")]
    Show(Args),
    /// Say whether a configuration is right
    #[command(after_help = "\
Examples:
  ironmill config check examples/quickstart.toml
  ironmill config check examples/quickstart.toml --model.width 256")]
    Check(Args),
}

/// The flags of both.
#[derive(clap::Args)]
pub struct Args {
    /// The TOML file
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
}

/// Runs one of the commands.
pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Show(args) => show(context, &args),
        Command::Check(args) => {
            let config = Config::load(&args.config, &context.overrides)?;
            let object = json!({"config": args.config, "seed": config.seed, "right": true});
            context.show.result(&format!("{}: all right", args.config.display()), &object)
        }
    }
}

fn show(context: &Context, args: &Args) -> Result<()> {
    let typed = Typed::load(&args.config, &context.overrides)?;
    let config = Config::resolve(typed.clone())?;
    let object = serde_json::to_value(&config).unwrap_or_default();
    context.show.result(&with_origins(&config.to_toml()?, &typed), &object)
}

/// The TOML with a remark behind every value.
fn with_origins(toml: &str, typed: &Typed) -> String {
    let mut section = "";
    let mut lines = Vec::new();
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        }
        let origin = line.split_once(" = ").map(|(name, _)| typed.source(section, name));
        lines.push(match origin {
            Some(origin) => format!("{line:44}  # {origin}"),
            None => line.to_string(),
        });
    }
    lines.join("\n")
}
