use crate::program::Desk;
use serde_json::Value;

fn plan(desk: &Desk, flags: &[&str]) -> Value {
    let arguments = [&["train", "empty.toml", "--dry-run", "--json", "--out", "run"], flags].concat();
    serde_json::from_str(desk.ok(&arguments).trim()).unwrap()
}

fn desk() -> Desk {
    let desk = Desk::new();
    desk.write("empty.toml", "");
    desk
}

#[test]
fn presets_have_the_parameters_of_the_models_they_are_named_after() {
    let desk = desk();
    for (preset, vocab_size, parameters) in [
        ("gpt2", "50257", 124_439_808u64),
        ("gpt2-medium", "50257", 354_823_168),
        ("gpt2-large", "50257", 774_030_080),
        ("gpt2-xl", "50257", 1_557_611_200),
        ("smollm2-135m", "49152", 134_515_008),
        ("smollm2-360m", "49152", 361_821_120),
        ("qwen3-0.6b", "151936", 596_049_920),
        // Without the pooler of the published one and with the head that fills in tokens.
        ("bert-base", "30522", 109_514_298),
    ] {
        let plan = plan(&desk, &["--model.preset", preset, "--tokenizer.vocab-size", vocab_size]);
        assert_eq!(plan["parameters"], parameters, "{preset}");
        assert!(plan["flops_per_token"].as_u64().unwrap() > 6 * parameters / 2, "{plan}");
        assert!(plan["total_bytes"].as_u64().unwrap() > 16 * parameters, "{plan}");
    }
    assert!(!desk.path("run").exists());
}

#[test]
fn one_dial_makes_a_model_of_any_size() {
    let desk = desk();
    let gpt2 = plan(&desk, &["--model.preset", "gpt2"]);
    let deep = plan(&desk, &["--depth", "12", "--model.context", "1024"]);
    assert_eq!(deep["parameters"], gpt2["parameters"]);
    assert_eq!(deep, plan(&desk, &["--model.depth", "12", "--model.context", "1024"]));
    let sizes: Vec<u64> =
        ["2", "4", "8"].map(|depth| plan(&desk, &["--depth", depth])["parameters"].as_u64().unwrap()).into();
    assert!(sizes[0] < sizes[1] && sizes[1] < sizes[2], "{sizes:?}");
    desk.fails(
        78,
        &["config", "check", "empty.toml", "--depth", "3", "--model.preset", "gpt2"],
        &["model.preset", "model.depth", "remove one"],
    );
}

#[test]
fn a_size_on_the_command_line_stands_above_the_file_and_says_so() {
    let desk = Desk::with_config();
    let said = desk.ok(&["config", "show", "tiny.toml", "--depth", "3"]);
    for (value, origin) in
        [("layers = 3", "depth 3"), ("width = 192", "depth 3"), ("context = 16", "line 15")]
    {
        let line = said.lines().find(|line| line.starts_with(value)).unwrap();
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    let named =
        desk.ok(&["config", "show", "tiny.toml", "--model.preset", "nano", "--train.batch-tokens", "512"]);
    assert!(
        named.lines().any(|line| line.starts_with("context = 128") && line.ends_with("# preset nano")),
        "{named}"
    );
}

#[test]
fn what_was_resolved_is_stored_and_reads_back_to_the_same() {
    let desk = Desk::with_config();
    for (out, flags) in [
        ("a", &["--depth", "1", "--model.architecture", "llama", "--model.rope-scaling", "linear:2"][..]),
        ("b", &["--model.preset", "nano", "--train.batch-tokens", "128", "--train.optimizer", "sgd"]),
    ] {
        let command =
            [&["run", "tiny.toml", "--out", out, "--train.steps", "2", "--train.micro-batch", "1"], flags]
                .concat();
        desk.ok(&command);
        let stored = desk.read(&format!("{out}/config.toml"));
        // The stored file alone gives the same run: nothing is said to have changed, and nothing is done again.
        let path = format!("{out}/config.toml");
        let again = desk.run(&["run", &path, "--out", out]);
        assert_eq!(again.code, 0, "{again:?}");
        assert!(!again.stderr.contains("changed since"), "{}", again.stderr);
        assert_eq!(desk.read(&path), stored);
        desk.ok(&[&command[..], &["--quiet"]].concat());
        assert_eq!(desk.read(&path), stored);
    }
}

#[test]
fn memory_that_does_not_suffice_makes_blocks_be_computed_again() {
    let desk = desk();
    let huge =
        ["--model.preset", "gpt2-xl", "--train.batch-tokens", "67108864", "--train.micro-batch", "65536"];
    let blocks = plan(&desk, &huge);
    assert_eq!(blocks["recompute"], "blocks", "{blocks}");
    let none = plan(&desk, &[&huge[..], &["--train.recompute", "none"]].concat());
    assert_eq!(none["recompute"], "none", "{none}");
    assert!(none["arena_bytes"].as_u64() > blocks["arena_bytes"].as_u64());
    assert_eq!(plan(&desk, &["--depth", "1"])["recompute"], "none");
    let said = desk.ok(&[&["train", "empty.toml", "--dry-run"], &huge[..]].concat());
    assert!(said.contains("recompute       blocks (") && said.contains("to spare)"), "{said}");
}

#[test]
fn the_decision_to_compute_again_is_told_stored_and_kept() {
    let desk = Desk::with_config();
    let first = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert!(first.stderr.contains("recompute: none ("), "{}", first.stderr);
    let stored = || String::from_utf8(desk.read("run/config.toml")).unwrap();
    assert!(stored().contains("recompute = \"none\""), "{}", stored());
    let changed = stored().replace("recompute = \"none\"", "recompute = \"blocks\"");
    desk.write("run/config.toml", changed);
    // Whatever the machine would say now, the run goes on as it was begun.
    let more = desk.run(&["run", "tiny.toml", "--out", "run", "--train.steps", "22"]);
    assert_eq!(more.code, 0, "{more:?}");
    assert!(!more.stderr.contains("recompute: "), "{}", more.stderr);
    assert!(stored().contains("recompute = \"blocks\""), "{}", stored());
}

#[test]
fn computing_again_changes_memory_but_no_weight() {
    let desk = Desk::with_config();
    for setting in ["none", "blocks"] {
        for (config, out) in [("tiny.toml", "gpt2"), ("encoder.toml", "encoder")] {
            let out = format!("{out}-{setting}");
            desk.ok(&["run", config, "--out", &out, "--train.recompute", setting, "--quiet"]);
        }
    }
    for out in ["gpt2", "encoder"] {
        let weights = |setting: &str| {
            desk.read(&format!("{out}-{setting}/checkpoints/step-00000020/model.safetensors"))
        };
        assert!(weights("none") == weights("blocks"), "{out}");
    }
}
