use crate::program::Desk;
use serde_json::Value;

fn metrics(desk: &Desk, run: &str) -> Vec<Value> {
    let text = String::from_utf8(desk.read(&format!("{run}/metrics.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_command_goes_from_a_configuration_to_completions() {
    let desk = Desk::with_config();
    let outcome = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.starts_with("run: 20 steps, validation loss "), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("\n\nOnce there was"), "{}", outcome.stdout);
    for words in ["yardsticks", "bigram", "model: ", "step 10/20 | loss ", " | val ", "sample at step 10:"] {
        assert!(outcome.stderr.contains(words), "{words:?} is not in: {}", outcome.stderr);
    }
    for name in [
        "config.toml",
        "tokenizer.json",
        "data/manifest.json",
        "metrics.jsonl",
        "log.txt",
        "samples/step-00000010.txt",
        "samples/step-00000020.txt",
        "checkpoints/step-00000020/config.json",
        "checkpoints/step-00000020/model.safetensors",
        "checkpoints/step-00000020/tokenizer.json",
        "checkpoints/step-00000020/tokenizer_config.json",
        "checkpoints/step-00000020/config.toml",
    ] {
        assert!(desk.path("run").join(name).is_file(), "{name}");
    }
    // Two checkpoints are kept by default.
    assert_eq!(std::fs::read_dir(desk.path("run/checkpoints")).unwrap().count(), 2);
}

#[test]
fn the_loss_falls_and_every_step_is_measured() {
    let desk = Desk::with_run();
    let lines = metrics(&desk, "run");
    assert_eq!(lines.len(), 20);
    for (idx, line) in lines.iter().enumerate() {
        assert_eq!(line["step"], idx as u64 + 1);
        assert_eq!(line["tokens"], 128 * (idx as u64 + 1));
        assert_eq!(line.get("validation_loss").is_some(), (idx + 1) % 10 == 0, "{line}");
    }
    let loss = |idx: usize| lines[idx]["loss"].as_f64().unwrap();
    assert!((loss(0) - 300f64.ln()).abs() < 0.3, "{}", loss(0));
    assert!(loss(19) < loss(0) - 0.3, "{} → {}", loss(0), loss(19));
}

#[test]
fn the_number_of_threads_changes_no_loss() {
    let desk = Desk::with_config();
    for (threads, out) in [("1", "one"), ("2", "two")] {
        desk.ok(&["run", "tiny.toml", "--out", out, "--threads", threads, "--quiet"]);
    }
    let losses = |run: &str| -> Vec<f64> {
        metrics(&desk, run).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    assert_eq!(losses("one"), losses("two"));
    let weights = "checkpoints/step-00000020/model.safetensors";
    assert_eq!(desk.read(&format!("one/{weights}")), desk.read(&format!("two/{weights}")));
}

#[test]
fn tokenizer_data_and_training_can_be_done_one_by_one() {
    let desk = Desk::with_data();
    desk.write(
        "c.toml",
        "[data]\ninput = \"data\"\n[model]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n[train]\nepochs = 0.1\n\
         batch_tokens = 128\n",
    );
    let said = desk.ok(&["train", "c.toml", "--out", "run", "--json"]);
    let object: Value = serde_json::from_str(said.trim()).unwrap();
    let tokens: Value = serde_json::from_str(&desk.ok(&["data", "inspect", "data", "--json"])).unwrap();
    let train_tokens = tokens["manifest"]["train"]["tokens"].as_u64().unwrap();
    let samples = (train_tokens - 1) / 16;
    assert_eq!(object["steps"], (samples as f64 * 0.1 / 8.0).ceil() as u64);
    assert!(!desk.path("run/data").exists());

    let evaluated: Value = serde_json::from_str(desk.ok(&["eval", "run", "--json"]).trim()).unwrap();
    assert!((evaluated["loss"].as_f64().unwrap() - object["validation_loss"].as_f64().unwrap()).abs() < 1e-5);
    assert!(evaluated["bits_per_byte"].as_f64().unwrap() > 0.5, "{evaluated}");
    desk.ok(&["eval", "run", "--data", "data", "--split", "train", "--tokens", "100"]);
}

#[test]
fn running_again_does_nothing_twice() {
    let desk = Desk::with_run();
    let before = desk.read("run/metrics.jsonl");
    let again = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.starts_with("run: 20 steps"), "{again:?}");
    assert!(!again.stderr.contains("count:") && !again.stderr.contains("prepare:"), "{}", again.stderr);
    assert_eq!(desk.read("run/metrics.jsonl"), before);
}

#[test]
fn a_finished_run_goes_on_with_more_steps() {
    let desk = Desk::with_run();
    let more = desk.run(&["run", "tiny.toml", "--out", "run", "--train.steps", "25"]);
    assert_eq!(more.code, 0, "{more:?}");
    assert!(more.stderr.contains("train.steps 20 → 25"), "{}", more.stderr);
    assert_eq!(metrics(&desk, "run").len(), 25);
}

#[test]
fn an_unfinished_preparation_is_taken_up_where_it_stopped() {
    let desk = Desk::with_config();
    desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
    std::fs::remove_dir_all(desk.path("run/checkpoints")).unwrap();
    let again = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert!(again.stderr.contains("tokenizer: already trained"), "{}", again.stderr);
    assert!(again.stderr.contains("data: already prepared"), "{}", again.stderr);
}

#[test]
fn weights_of_another_run_can_begin_a_new_one() {
    let desk = Desk::with_run();
    let start = "run/checkpoints/step-00000020";
    desk.write("data.toml", "");
    let arguments = [
        "train",
        "tiny.toml",
        "--data.input",
        "run/data",
        "--out",
        "next",
        "--init-from",
        start,
        "--train.steps",
        "1",
        "--train.learning-rate",
        "1e-9",
        "--train.min-learning-rate",
        "0",
        "--quiet",
    ];
    desk.ok(&arguments);
    let loss = |run: &str| -> f64 {
        let said = desk.ok(&["eval", run, "--data", "run/data", "--json"]);
        serde_json::from_str::<Value>(said.trim()).unwrap()["loss"].as_f64().unwrap()
    };
    assert!((loss("next") - loss("run")).abs() < 1e-4);
    desk.fails(2, &arguments, &["next", "--init-from", "new --out"]);
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let desk = Desk::with_config();
    let said = desk.ok(&["train", "tiny.toml", "--dry-run", "--out", "run"]);
    // 300 × 16 and 16 × 16 embeddings, two blocks of 12 · 16² + 13 · 16, and the last norm.
    let parameters = 300 * 16 + 16 * 16 + 2 * (12 * 256 + 13 * 16) + 2 * 16;
    assert_eq!(parameters, 11_648);
    for words in ["parameters      11,648", "FLOPs a token", "gradients", "activations", "total"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
    assert!(!desk.path("run").exists());
}

#[test]
fn the_reference_device_trains_to_nearly_the_same_loss() {
    let desk = Desk::with_config();
    let losses = |device: &str| -> Vec<f64> {
        let arguments =
            ["run", "tiny.toml", "--out", device, "--device", device, "--train.steps", "5", "--quiet"];
        desk.ok(&arguments);
        metrics(&desk, device).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    for (cpu, reference) in losses("cpu").into_iter().zip(losses("reference")) {
        assert!((cpu - reference).abs() < 1e-4, "{cpu} and {reference}");
    }
}
