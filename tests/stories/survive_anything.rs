use crate::program::Desk;
use serde_json::Value;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }
}

/// Whatever was asked, the program ends in order and with a code that is not our bug.
fn survives(desk: &Desk, arguments: &[&str], what: &str) {
    let outcome = desk.run(arguments);
    let known = [0, 1, 2, 65, 66, 69, 73, 74, 78, 80, 81];
    assert!(known.contains(&outcome.code), "{arguments:?} on {what}: {outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{arguments:?} on {what}: {outcome:?}");
    assert!(outcome.code == 0 || !outcome.stderr.is_empty(), "{arguments:?} on {what} failed without a word");
}

#[test]
fn any_arguments_end_in_order() {
    const COMMANDS: &[&[&str]] = &[
        &["run"],
        &["train", "--dry-run"],
        &["tokenizer"],
        &["tokenizer", "train"],
        &["tokenizer", "encode"],
        &["tokenizer", "decode"],
        &["tokenizer", "inspect"],
        &["data"],
        &["data", "prepare"],
        &["data", "verify"],
        &["data", "inspect"],
        &["data", "convert"],
        &["config", "show"],
        &["config", "check"],
        &["eval"],
        &["sample"],
        &["completions"],
        &["man"],
        &["zzz"],
        &[],
    ];
    const WORDS: &[&str] = &[
        "a.txt",
        "tokenizer.json",
        "c.toml",
        "folder",
        "gone",
        "",
        "-",
        "--",
        "--out",
        "out/x",
        "x",
        "--tokenizer",
        "--tokenizer=tokenizer.json",
        "--vocab-size",
        "--vocab-size=300",
        "0",
        "-1",
        "18446744073709551615",
        "1e999",
        "nan",
        "\u{1F98A}",
        "--width",
        "u16",
        "--json",
        "--quiet",
        "--threads",
        "--threads=0",
        "--threads=65535",
        "--train.steps",
        "--train.steps=1",
        "--train.zzz=1",
        "--model.width=0",
        "--.x",
        "--a.",
        "--a.b.c=1",
        "bash",
        "--help",
        "--version",
        "-V",
        "--kind=char",
        "--kind=word",
        "--kind=byte",
        "--pattern=(",
        "--pattern=.*",
        "--special=",
        "--text",
        "--longest=0",
        "--validation=0.5",
        "--drop-duplicates",
        "--to=nanogpt",
        "--from=megatron",
        "--shard-tokens=1",
        "--sample=1",
        "--seed=0",
        "--text-key=",
        "--document-separator=o",
        "--on-bad-utf8=skip",
        "--device=cuda",
        "--prompt=x",
        "--max-tokens=0",
        "--min-count=0",
        "--min-count=99",
        "--max-token-length=1",
        "--lines",
        "--ties=raw",
        "--allow-special",
        "@x",
    ];
    let desk = Desk::with_tokenizer();
    desk.write("a.txt", "Once there was a fox.");
    desk.write("c.toml", "[train]\nsteps = 1\n");
    desk.write("folder/x", "y");
    let mut dice = Dice(7);
    for _ in 0..400 {
        let mut arguments = dice.pick(COMMANDS).to_vec();
        for _ in 0..dice.roll(7) {
            let at = dice.roll(arguments.len() + 1);
            arguments.insert(at, *dice.pick::<&str>(WORDS));
        }
        survives(&desk, &arguments, "random words");
        // What one of them wrote must not change what the next ones mean.
        desk.write("a.txt", "Once there was a fox.");
    }
}

#[test]
fn any_configuration_ends_in_order() {
    const VALUES: &[&str] = &[
        "0",
        "1",
        "2",
        "3",
        "16",
        "-1",
        "0.5",
        "1e-9",
        "1e308",
        "1e400",
        "nan",
        "inf",
        "9223372036854775807",
        "18446744073709551615",
        "4294967296",
        "\"\"",
        "\"x\"",
        "\"auto\"",
        "\"llama\"",
        "\"encoder\"",
        "\"sgd\"",
        "\"packed\"",
        "\"bucketed\"",
        "\"100M\"",
        "\"16EiB\"",
        "\"10m\"",
        "\"1e9d\"",
        "true",
        "false",
        "[]",
        "[\"a\"]",
        "[1]",
        "{}",
        "1979-05-27",
        "\"linear:0\"",
        "\"linear:nan\"",
        "\"llama3:8:1:4:0\"",
        "0x10",
    ];
    let desk = Desk::new();
    desk.write("c.toml", "");
    let shown: Value = serde_json::from_str(&desk.ok(&["config", "show", "c.toml", "--json"])).unwrap();
    let mut keys: Vec<String> = shown["origins"].as_object().unwrap().keys().cloned().collect();
    // These are not in every resolved configuration.
    keys.extend(
        [
            "model.preset",
            "model.depth",
            "model.kv_heads",
            "model.head_dim",
            "model.rope_scaling",
            "model.gemma",
            "train.epochs",
        ]
        .map(String::from),
    );
    let mut dice = Dice(11);
    for _ in 0..250 {
        let mut lines: Vec<(String, String)> = Vec::new();
        for _ in 0..=dice.roll(4) {
            let key = dice.pick(&keys).clone();
            if !lines.iter().any(|(known, _)| *known == key) {
                lines.push((key, dice.pick(VALUES).to_string()));
            }
        }
        lines.sort_by_key(|(key, _)| key.contains('.'));
        let mut text: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        if dice.roll(8) == 0 {
            let cut = dice.roll(text.len() + 1);
            text.truncate(cut);
        }
        desk.write("c.toml", &text);
        survives(&desk, &["config", "check", "c.toml"], &text);
        survives(&desk, &["train", "c.toml", "--dry-run"], &text);
    }
    assert!(!desk.path("runs").exists());
}
