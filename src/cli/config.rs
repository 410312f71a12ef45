//! `ironmill config`: what a configuration comes to.

use super::Context;
use crate::config::{Config, Override, Typed};
use crate::failure::Result;
use crate::show::numbers::counted;
use crate::stages::sweep::Plan;
use serde_json::{Map, Value, json};
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
    /// Blocks and heads, each head 64 wide: one dial for the size (model.depth)
    #[arg(long, value_name = "N")]
    depth: Option<String>,
}

impl Args {
    /// What the command line says about keys.
    fn overrides(&self, context: &Context) -> Vec<Override> {
        let depth =
            self.depth.iter().map(|depth| Override { path: "model.depth".into(), value: depth.clone() });
        context.overrides.iter().cloned().chain(depth).collect()
    }
}

/// Runs one of the commands.
pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Show(args) => show(context, &args),
        Command::Check(args) => {
            let (typed, sweep) = Typed::load_with_sweep(&args.config, &args.overrides(context))?;
            let mut object = json!({"config": args.config, "right": true});
            let mut text = format!("{}: all right", args.config.display());
            match sweep {
                Some(sweep) => {
                    let runs = Plan::new(&args.config, &typed, &sweep)?.names().len();
                    text += &format!(", {}", counted(runs as u64, "run"));
                    object["runs"] = runs.into();
                }
                None => object["seed"] = Config::resolve(typed)?.seed.into(),
            }
            context.show.result(&text, &object)
        }
    }
}

fn show(context: &Context, args: &Args) -> Result<()> {
    let typed = Typed::load(&args.config, &args.overrides(context))?;
    let values = serde_json::to_value(Config::resolve(typed.clone())?).unwrap_or_default();
    let mut origins = Map::new();
    let text = with_origins(&values, &typed, &mut origins);
    context.show.result(&text, &json!({"config": args.config, "values": values, "origins": origins}))
}

/// The resolved configuration as TOML that reads back to itself, with a remark behind every value.
fn with_origins(values: &Value, typed: &Typed, origins: &mut Map<String, Value>) -> String {
    let mut lines = Vec::new();
    for (name, value) in values.as_object().into_iter().flatten() {
        let Value::Object(section) = value else {
            lines.push(line("", name, value, typed, origins));
            continue;
        };
        lines.push(format!("\n[{name}]"));
        lines.extend(section.iter().map(|(key, value)| line(name, key, value, typed, origins)));
    }
    lines.join("\n")
}

fn line(section: &str, name: &str, value: &Value, typed: &Typed, origins: &mut Map<String, Value>) -> String {
    let origin = typed.source(section, name);
    let path = if section.is_empty() { name.to_string() } else { format!("{section}.{name}") };
    origins.insert(path, origin.clone().into());
    format!("{:44}  # {origin}", format!("{name} = {}", as_toml(value)))
}

/// A value on one line of TOML. JSON writes numbers and lists as TOML does, and texts but for one character.
fn as_toml(value: &Value) -> String {
    value.to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_stays_on_its_line_and_reads_back() {
        for value in [
            json!("a\nb\t\"c\" \\ \u{7f}\u{1} # é = [x]"),
            json!(["one", "two = 3"]),
            json!(3e-4),
            json!(1e21),
            json!(0.0),
            json!(true),
            json!(u32::MAX),
        ] {
            let written = as_toml(&value);
            assert!(!written.contains('\n'), "{written}");
            let back: toml::Table = toml::from_str(&format!("x = {written}")).unwrap();
            assert_eq!(serde_json::to_value(&back["x"]).unwrap(), value, "{written}");
        }
    }
}
