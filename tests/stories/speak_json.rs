use crate::program::{Desk, Outcome, words};
use serde_json::Value;
use std::collections::BTreeSet;

/// A use of every command, and what its result is known by.
const USES: &[(&str, &str)] = &[
    ("tokenizer train builtin:stories:60KB --vocab-size 300 --out t.json", "vocab_size"),
    ("tokenizer encode --tokenizer tokenizer.json a.txt", "ids"),
    ("tokenizer encode --tokenizer tokenizer.json a.txt --out a.u32", "tokens"),
    ("tokenizer decode --tokenizer tokenizer.json ids.txt", "text"),
    ("tokenizer decode --tokenizer tokenizer.json ids.txt --out back.txt", "bytes"),
    ("tokenizer inspect tokenizer.json --text a.txt", "texts"),
    ("tokenizer convert tokenizer.json --out t.tiktoken", "vocab_size"),
    ("tokenizer convert tokenizer.json --pieces-from a.txt --out pieces.json", "pieces"),
    ("data prepare builtin:stories:60KB --tokenizer tokenizer.json --out data", "train"),
    ("data verify data", "shards"),
    ("data inspect data", "samples"),
    ("data convert data --to nanogpt --out nanogpt", "files"),
    ("config show tiny.toml", "origins"),
    ("config check tiny.toml", "right"),
    ("train tiny.toml --dry-run", "parameters"),
    ("run tiny.toml --out run", "completions"),
    ("train tiny.toml --out run --train.steps 21", "steps"),
    ("report run --out page.html", "report"),
    ("sweep sweep.toml --list", "runs"),
    ("eval run", "loss"),
    ("eval run --choices choices.jsonl", "accuracy"),
    ("eval run --answers answers.jsonl", "f1"),
    ("sample run -n 2", "text"),
    ("export run --out folder", "parameters"),
    ("import folder --out again --check", "check"),
    ("embed run --text Fox", "vector"),
    ("chat run --template chatml", "answers"),
    ("doctor", "flops_per_s"),
    ("bench ops --quick --only attention", "kind"),
    ("bench step --quick --model 1x2x16 --batch 2 --context 8", "kind"),
    ("bench tokenizer builtin:stories:60KB --vocab-size 300 --quick", "kind"),
    ("bench tokenizer builtin:stories:60KB --tokenizer tokenizer.json --quick", "kind"),
    ("bench generate --quick --model 1x2x16 --vocab 50 --prompt 4 --tokens 4 --batch 1 --rounds 1", "kind"),
    ("bench loader data --quick --context 16 --batch 2 --step-ms 1", "kind"),
    ("tokenizer count a.txt --out a.counts", "distinct"),
    ("tokenizer merge a.counts a.counts --out b.counts", "distinct"),
    ("completions zsh", "script"),
    ("man pages", "pages"),
];

#[test]
fn every_command_speaks_json_lines_on_both_streams() {
    let desk = Desk::with_config();
    desk.write("a.txt", "Once there was a fox.");
    desk.write("ids.txt", "40 41 42");
    desk.write("choices.jsonl", r#"{"prompt": "A", "choices": [" b", " c"], "answer": 1}"#);
    desk.write("answers.jsonl", r#"{"prompt": "A", "answers": ["b"]}"#);
    desk.write("sweep.toml", "[sweep]\nseed = [1, 2]\n");
    desk.ok(&words_of("tokenizer train builtin:stories:60KB --vocab-size 400 --out tokenizer.json -q"));
    for (line, key) in USES {
        let outcome = desk.run(&[&words_of(line)[..], &["--json"]].concat());
        assert_eq!(outcome.code, 0, "{line}: {outcome:?}");
        let results = objects(line, &outcome.stdout);
        assert!(!results.is_empty(), "{line} has no result");
        for result in results {
            assert!(!result[key].is_null(), "{line} has no {key}: {result}");
        }
        for told in objects(line, &outcome.stderr) {
            assert!(told["event"].is_string(), "{line}: {told}");
        }
    }
    let pages: Value = serde_json::from_str(&desk.ok(&["man", "pages", "--json"])).unwrap();
    let pages: BTreeSet<&str> =
        pages["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    for page in pages {
        let name = page.strip_prefix("ironmill").unwrap().strip_suffix(".1").unwrap().replace('-', " ");
        assert!(USES.iter().any(|(line, _)| line.starts_with(name.trim())), "{name} has no use here");
    }
}

#[test]
fn steps_notes_and_phases_are_events() {
    let desk = Desk::with_config();
    let outcome = desk.run(&["run", "tiny.toml", "--out", "run", "--json", "--verbose"]);
    let told = events(&outcome);
    for event in ["note", "finished", "step", "sample"] {
        assert!(told.contains(event), "{event} is not among {told:?}");
    }
    let quiet = desk.run(&["run", "tiny.toml", "--out", "again", "--json", "--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

fn words_of(line: &str) -> Vec<&str> {
    assert!(!line.contains('\''));
    line.split(' ').collect()
}

fn objects(line: &str, text: &str) -> Vec<Value> {
    let parse = |row: &str| -> Value {
        let object: Value =
            serde_json::from_str(row).unwrap_or_else(|error| panic!("{line}: {error} in {row}"));
        assert!(object.is_object(), "{line}: {row}");
        object
    };
    text.lines().map(parse).collect()
}

fn events(outcome: &Outcome) -> BTreeSet<String> {
    let told = objects("run", &outcome.stderr);
    told.iter().map(|object| object["event"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_command_line_is_read_as_a_shell_reads_it() {
    assert_eq!(words("a 'b c' ''  d"), ["a", "b c", "", "d"]);
}
