//! The grammar with every key of the configuration as a flag, for completions and manual pages.
//!
//! The program itself takes these flags out before the grammar sees them, because a key has rules of its own: `-` and
//! `_` are the same, lists grow, and an unknown key names the nearest one.

use super::Cli;
use crate::config::{KEYS, Kind};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, CommandFactory, ValueHint};

/// The commands that read a configuration, by the names that lead to them.
const READERS: &[&[&str]] = &[&["run"], &["train"], &["sweep"], &["config", "show"], &["config", "check"]];

/// The program's grammar, with the flags of keys.
pub fn grammar() -> Command {
    READERS.iter().fold(Cli::command(), |grammar, path| at(grammar, path))
}

fn at(command: Command, path: &'static [&'static str]) -> Command {
    match path {
        [name, rest @ ..] => command.mut_subcommand(name, |inner| at(inner, rest)),
        // Keys at the top of the file have no dot; those that are flags have been declared as such.
        [] => command.args(KEYS.iter().filter(|key| !key.section.is_empty()).map(|key| {
            let arg = Arg::new(key.path())
                .long(key.path().replace('_', "-"))
                .help(format!("The key {}: {}", key.path(), key.kind.expected()))
                .help_heading("Keys of the configuration")
                .value_name("VALUE")
                .action(ArgAction::Append);
            match key.kind {
                Kind::Choice(words) => arg.value_parser(PossibleValuesParser::new(words)),
                Kind::Switch => arg.value_parser(PossibleValuesParser::new(["true", "false"])),
                Kind::Path | Kind::Inputs => arg.value_hint(ValueHint::AnyPath),
                _ => arg,
            }
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_with_keys_is_consistent() {
        grammar().debug_assert();
    }

    #[test]
    fn every_command_that_reads_a_configuration_has_every_key() {
        for path in READERS {
            let mut command = &grammar();
            for name in *path {
                command = command.find_subcommand(name).unwrap();
            }
            let longs: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            for key in KEYS.iter().filter(|key| !key.section.is_empty()) {
                assert!(
                    longs.contains(&key.path().replace('_', "-").as_str()),
                    "{path:?} has no {}",
                    key.path()
                );
            }
        }
    }
}
