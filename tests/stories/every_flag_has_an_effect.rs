use crate::program::{Desk, numbers};
use serde_json::Value;
use std::collections::BTreeSet;

/// The flags that a command has for itself, as its help page lists them, without those that every command has.
fn flags(desk: &Desk, command: &str) -> BTreeSet<String> {
    let everywhere = ["--threads", "--quiet", "--json", "--no-color", "--verbose", "--help"];
    let help = desk.ok(&[command, "--help"]);
    let options = help.split_once("Options:").unwrap().1;
    options
        .lines()
        .map(str::trim_start)
        .take_while(|line| !line.starts_with("Examples:"))
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")))
        .map(|flag| flag.trim_end_matches([',', '.']).to_string())
        .filter(|flag| !everywhere.contains(&flag.as_str()))
        .collect()
}

#[track_caller]
fn check_complete(desk: &Desk, command: &str, tested: &[&str]) {
    let tested: BTreeSet<String> = tested.iter().map(ToString::to_string).collect();
    assert_eq!(flags(desk, command), tested, "of {command}");
}

fn loss(desk: &Desk, arguments: &[&str]) -> f64 {
    let said = desk.ok(&[arguments, &["--json"]].concat());
    serde_json::from_str::<serde_json::Value>(said.lines().last().unwrap()).unwrap()["loss"].as_f64().unwrap()
}

#[test]
fn every_flag_of_run_and_train_changes_something() {
    let desk = Desk::with_config();
    check_complete(&desk, "run", &["--out", "--fresh", "--device", "--seed", "--depth"]);
    check_complete(
        &desk,
        "train",
        &["--out", "--fresh", "--device", "--seed", "--depth", "--init-from", "--dry-run"],
    );
    desk.ok(&["run", "tiny.toml", "--quiet"]);
    assert!(desk.path("runs/tiny/config.toml").exists(), "without --out a run has the name of its file");
    desk.ok(&["run", "tiny.toml", "--quiet", "--out", "here"]);
    assert!(desk.path("here/config.toml").exists());
    desk.fails(73, &["run", "tiny.toml", "--out", "here", "--fresh"], &["already holds a run"]);
    for (flag, value) in [("--seed", "6"), ("--depth", "1")] {
        let out = flag.trim_start_matches('-');
        desk.ok(&["run", "tiny.toml", "--quiet", "--out", out, "--train.steps", "3", flag, value]);
        assert_ne!(numbers(&desk, out, "loss")[..3], numbers(&desk, "here", "loss")[..3], "{flag}");
    }
    let told = desk.run(&[
        "run",
        "tiny.toml",
        "--out",
        "device",
        "--train.steps",
        "3",
        "--device",
        "reference",
        "-v",
    ]);
    assert!(told.stderr.contains("device: reference"), "{}", told.stderr);
    let train = ["train", "tiny.toml", "--data.input", "here/data", "--out", "next"];
    let planned = desk.ok(&[&train[..], &["--dry-run"]].concat());
    assert!(planned.contains("parameters      11,648") && !desk.path("next").exists(), "{planned}");
    let start = "here/checkpoints/step-00000020";
    desk.ok(&[&train[..], &["--init-from", start, "--train.steps", "1", "--quiet"]].concat());
    assert!(numbers(&desk, "next", "loss")[0] < numbers(&desk, "here", "loss")[0] - 0.5);
}

#[test]
fn every_flag_of_eval_changes_something() {
    let desk = Desk::with_run();
    // What is about questions is tried in `ask_a_model`.
    let questions =
        ["--choices", "--answers", "--examples", "--chat", "--template", "--max-tokens", "--details"];
    let flags =
        ["--data", "--split", "--tokens", "--context", "--rows", "--tokenizer", "--weights", "--device"];
    // What is about a text is tried in `bring_a_model`.
    let of_text = ["--text", "--logits", "--precision"];
    check_complete(&desk, "eval", &[&flags[..], &questions, &of_text].concat());
    let plain = loss(&desk, &["eval", "run"]);
    assert_ne!(plain, loss(&desk, &["eval", "run", "--split", "train"]));
    assert_ne!(plain, loss(&desk, &["eval", "run", "--tokens", "50"]));
    assert_ne!(plain, loss(&desk, &["eval", "run", "--context", "5"]));
    // The device and the number of rows change the rounding of sums and nothing else.
    for extra in [["--rows", "3"], ["--device", "reference"]] {
        let other = loss(&desk, &[&["eval", "run"], &extra[..]].concat());
        assert!((plain - other).abs() < 1e-4, "{extra:?}: {plain} and {other}");
    }
    // Weights of eight bits cost little, and what the oracle says that they do.
    let int8 = ["eval", "run", "--weights", "int8"];
    let [light, twin] =
        ["cpu", "reference"].map(|device| loss(&desk, &[&int8[..], &["--device", device]].concat()));
    assert!(light != plain && (light - plain).abs() < 0.01, "{light} in int8, {plain}");
    assert!((light - twin).abs() < 5e-4, "{light} on a processor, {twin} by the reference");
    let of_both = ["--precision", "bf16", "--device", "cpu"];
    desk.fails(2, &[&int8[..], &of_both].concat(), &["--weights", "--precision"]);
    // With a card it runs there; without one it says what anything else says.
    let [plain_on_card, light_on_card] = [&int8[..2], &int8]
        .map(|arguments| desk.run(&[arguments, &["--device", "cuda", "--tokens", "50"]].concat()));
    assert_eq!(plain_on_card.code, light_on_card.code, "{}", light_on_card.stderr);
    if plain_on_card.code != 0 {
        assert_eq!(plain_on_card.stderr, light_on_card.stderr);
    }
    desk.fails(69, &["eval", "run", "--device", "none"], &["there is no device \"none\""]);
    desk.fails(2, &["eval", "run", "--rows", "0"], &["--rows"]);
    let prepare =
        ["data", "prepare", "builtin:stories:20KB", "--tokenizer", "run/tokenizer.json", "--out", "other"];
    desk.ok(&[&prepare[..], &["--validation", "0.5"]].concat());
    assert_ne!(plain, loss(&desk, &["eval", "run", "--data", "other"]));
    let train =
        ["tokenizer", "train", "builtin:stories:40KB", "--vocab-size", "290", "--out", "t.json", "--quiet"];
    desk.ok(&train);
    desk.fails(65, &["eval", "run", "--tokenizer", "t.json"], &["t.json", "290 tokens"]);
}

#[test]
fn every_flag_of_sample_changes_something() {
    let desk = Desk::with_run();
    let tested = [
        ("--prompt", "The otter"),
        ("--samples", "2"),
        ("--max-tokens", "3"),
        ("--temperature", "0"),
        ("--top-k", "1"),
        ("--top-p", "0.01"),
        ("--min-p", "0.99"),
        ("--repetition-penalty", "50"),
        ("--presence-penalty", "50"),
        ("--frequency-penalty", "50"),
        ("--bias", "97=100"),
        ("--stop", "e"),
        ("--seed", "8"),
        ("--tokenizer", "other.json"),
    ];
    let others = ["--device", "--min-tokens", "--log-probabilities", "--quality", "--precision", "--weights"];
    let names: Vec<&str> = tested.iter().map(|row| row.0).chain(others).collect();
    check_complete(&desk, "sample", &names);
    // Another tokenizer of the same size reads the same ids as other text.
    let train = ["tokenizer", "train", "builtin:stories:40KB", "--vocab-size", "300", "--ties", "raw"];
    desk.ok(&[&train[..], &["--pattern", "o200k", "--out", "other.json", "--quiet"]].concat());
    let plain = desk.ok(&["sample", "run"]);
    for (flag, value) in tested {
        assert_ne!(plain, desk.ok(&["sample", "run", flag, value]), "{flag} {value}");
    }
    assert_eq!(plain, desk.ok(&["sample", "run", "--device", "cpu"]));
    let object = |extra: &[&str]| -> Value {
        let said = desk.ok(&[&["sample", "run", "--json", "--max-tokens", "20"], extra].concat());
        serde_json::from_str(said.trim()).unwrap()
    };
    let probabilities = ["--log-probabilities", "2"];
    let of = |extra: &[&str]| object(&[&probabilities[..], extra].concat())["log_probabilities"].clone();
    assert_eq!(of(&[])["likeliest"][0].as_array().unwrap().len(), 2);
    assert!(object(&[])["log_probabilities"].is_null());
    for (extra, weights) in
        [(&[][..], "fp32"), (&["--precision", "bf16"], "bf16"), (&["--weights", "int8"], "int8")]
    {
        assert_eq!(object(extra)["weights"], weights);
        assert_eq!(of(&[]) == of(extra), extra.is_empty(), "{weights}");
    }
    assert!(object(&["--quality"])["quality"]["distinct"][0].as_f64().unwrap() > 0.0);
    // The end of the text, as soon as it may come.
    let tokenizer: Value = serde_json::from_slice(&desk.read("run/tokenizer.json")).unwrap();
    let end = format!("{}=100", tokenizer["added_tokens"][0]["id"]);
    let ends = ["--bias", &end];
    assert_eq!((&object(&ends)["tokens"], &object(&ends)["finish"]), (&1.into(), &"stop".into()));
    assert_eq!(object(&[&ends[..], &["--min-tokens", "5"]].concat())["tokens"], 6);
    desk.fails(69, &["sample", "run", "--device", "none"], &["there is no device \"none\""]);
}

#[test]
fn every_flag_of_report_changes_something() {
    let desk = Desk::with_run();
    check_complete(&desk, "report", &["--out", "--title"]);
    std::fs::remove_file(desk.path("run/report.html")).unwrap();
    desk.ok(&["report", "run"]);
    assert!(desk.path("run/report.html").exists());
    desk.ok(&["report", "run", "run", "--out", "here.html", "--title", "Two of a kind"]);
    let page = String::from_utf8(desk.read("here.html")).unwrap();
    assert!(page.contains("<title>Two of a kind</title>"));
}

#[test]
fn every_flag_of_sweep_changes_something() {
    let desk = Desk::with_config();
    check_complete(&desk, "sweep", &["--out", "--list"]);
    let tiny = String::from_utf8(desk.read("tiny.toml")).unwrap();
    desk.write("rates.toml", tiny + "\n[sweep]\ntrain.learning_rate = [1e-2]\n");
    assert_eq!(desk.ok(&["sweep", "rates.toml", "--list"]), "learning_rate=0.01\n");
    assert!(!desk.path("runs").exists());
    for (extra, out) in [(&[][..], "runs/rates"), (&["--out", "here"], "here")] {
        desk.ok(&[&["sweep", "rates.toml", "--train.steps", "2", "--quiet"], extra].concat());
        assert!(desk.path(out).join("learning_rate=0.01/config.toml").exists(), "{out}");
    }
}
