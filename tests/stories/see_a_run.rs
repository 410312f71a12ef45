use crate::program::{Desk, numbers};
use serde_json::Value;

fn lines(desk: &Desk, run: &str) -> Vec<Value> {
    let text = String::from_utf8(desk.read(&format!("{run}/metrics.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The data inside a page.
fn page_data(desk: &Desk, path: &str) -> Value {
    let page = String::from_utf8(desk.read(path)).unwrap();
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

#[test]
fn a_line_tells_speed_data_memory_and_what_was_spent_beside_steps() {
    let desk = Desk::with_config();
    let outcome = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(
        outcome.stderr.contains("peak: ") && outcome.stderr.contains(" % MFU | wait "),
        "{}",
        outcome.stderr
    );
    let lines = lines(&desk, "run");
    assert_eq!(lines.len(), 20);
    for (idx, line) in lines.iter().enumerate() {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key}: {line}"));
        assert_eq!(number("tokens"), 128.0 * (idx + 1) as f64);
        let rate = 128.0 / number("seconds");
        assert!((number("tokens_per_s") - rate).abs() < 1e-6 * rate, "{line}");
        assert!(number("mfu") > 0.0 && number("time") > 1.7e9, "{line}");
        assert!(number("data_seen") == number("epoch").min(1.0), "{line}");
    }
    let has = |line: &Value, key: &str| line[key].as_f64().is_some_and(|number| number > 0.0);
    for key in ["startup_seconds", "planned_bytes", "host_bytes"] {
        assert!(has(&lines[0], key), "{key}: {}", lines[0]);
    }
    // What is done after a step is told by the line of the next one.
    assert!(has(&lines[9], "evaluation_seconds") && has(&lines[7], "saving_seconds"));
    assert!(has(&lines[10], "sampling_seconds") && !has(&lines[9], "sampling_seconds"));
    // Numbers in text are read back to within their last digit.
    let perplexity = lines[9]["validation_loss"].as_f64().unwrap().exp();
    assert!((lines[9]["perplexity"].as_f64().unwrap() / perplexity - 1.0).abs() < 1e-14);
    assert!(outcome.stdout.contains("\ntime: ") && outcome.stdout.contains("goodput "), "{}", outcome.stdout);
}

#[test]
fn mfu_is_the_formula_of_the_manual() {
    let desk = Desk::with_run();
    let about: Value = serde_json::from_slice(&desk.read("run/about.json")).unwrap();
    let number = |key: &str| about[key].as_f64().unwrap();
    let line = &lines(&desk, "run")[5];
    let expected =
        line["tokens_per_s"].as_f64().unwrap() * number("flops_per_token") / number("peak_flops_per_s");
    assert!((line["mfu"].as_f64().unwrap() / expected - 1.0).abs() < 1e-9);
    // 6 for each parameter in products and 12·L·C·T for attention; embeddings and norms are in no product but the tied head.
    let products = 2 * (3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16) + 300 * 16;
    assert_eq!(number("flops_per_token"), (6 * products + 12 * 2 * 16 * 16) as f64);
    desk.ok(&[
        "run",
        "tiny.toml",
        "--device",
        "reference",
        "--train.steps",
        "1",
        "--out",
        "other",
        "--quiet",
    ]);
    assert!(numbers(&desk, "other", "mfu").is_empty(), "nobody knows the peak of the reference");
}

#[test]
fn a_finished_run_leaves_a_page_of_all_that_was_measured() {
    let desk = Desk::with_run();
    desk.ok(&["run", "tiny.toml", "--out", "other", "--train.learning-rate", "1e-3", "--quiet"]);
    let data = page_data(&desk, "run/report.html");
    let run = &data["runs"][0];
    assert_eq!(run["name"], "run");
    assert_eq!(run["steps"]["step"].as_array().unwrap().len(), 20);
    for name in ["loss", "learning_rate", "norm", "tokens_per_s", "mfu"] {
        assert_eq!(run["steps"]["curves"][name]["mean"].as_array().unwrap().len(), 20, "{name}");
    }
    assert_eq!(run["evaluations"]["step"], serde_json::json!([10, 20]));
    assert!(run["best"]["loss"].as_f64().unwrap() > 0.0);
    let samples = run["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2);
    assert!(samples[1][1].as_str().unwrap().starts_with("Once there was"));
    let config = run["config"].as_array().unwrap();
    assert!(config.contains(&serde_json::json!(["train.learning_rate", 0.01])), "{config:?}");

    desk.ok(&["report", "run", "other"]);
    let names: Vec<Value> = page_data(&desk, "report.html")["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["name"].clone())
        .collect();
    assert_eq!(names, ["run", "other"]);
    desk.fails(66, &["report", "nowhere"], &["nowhere holds no run"]);
}

#[test]
fn time_that_a_kill_undid_is_told_as_lost() {
    let desk = Desk::with_run();
    std::fs::remove_dir_all(desk.path("run/checkpoints/step-00000020")).unwrap();
    let undone: f64 = numbers(&desk, "run", "seconds")[14..].iter().sum();
    desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
    let lost = numbers(&desk, "run", "lost_seconds");
    assert_eq!(lost.len(), 1);
    assert!(lost[0] >= undone, "{} of {undone}", lost[0]);
    assert_eq!(lines(&desk, "run")[14]["lost_seconds"].as_f64(), Some(lost[0]));
}

#[test]
fn tensorboard_s_events_hold_every_step_once_also_after_a_kill() {
    let desk = Desk::with_run();
    let events = || {
        let names = std::fs::read_dir(desk.path("run")).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> =
            names.filter(|path| path.to_string_lossy().contains("events.out.tfevents.")).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        std::fs::read(&files[0]).unwrap()
    };
    // The tag stands in the event of every step, and only there.
    let count =
        |bytes: &[u8], tag: &str| bytes.windows(tag.len()).filter(|part| *part == tag.as_bytes()).count();
    assert_eq!((count(&events(), "loss/train"), count(&events(), "loss/validation")), (20, 2));
    std::fs::remove_dir_all(desk.path("run/checkpoints/step-00000020")).unwrap();
    desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
    assert_eq!((count(&events(), "loss/train"), count(&events(), "loss/validation")), (20, 2));
    assert_eq!(count(&events(), "brain.Event:2"), 1);
}

#[test]
fn norms_of_parts_add_up_to_the_norm_of_the_whole() {
    let desk = Desk::with_run();
    for line in lines(&desk, "run").iter().filter(|line| line["validation_loss"].is_number()) {
        let groups = line["groups"].as_object().unwrap_or_else(|| panic!("{line}"));
        let names: Vec<&String> = groups.keys().collect();
        assert_eq!(names, ["embedding", "block 0", "block 1", "head"]);
        let squares: f64 = groups.values().map(|norms| norms["gradient"].as_f64().unwrap().powi(2)).sum();
        let whole = line["norm"].as_f64().unwrap();
        assert!((squares.sqrt() / whole - 1.0).abs() < 1e-4, "{} and {whole}", squares.sqrt());
        assert!(groups.values().all(|norms| norms["weight"].as_f64().unwrap() > 0.0), "{line}");
    }
}

#[test]
fn one_step_is_taken_apart_and_its_parts_are_the_step() {
    let desk = Desk::with_run();
    let lines = lines(&desk, "run");
    let profiled: Vec<&Value> = lines.iter().filter(|line| line["profile"].is_object()).collect();
    assert_eq!(profiled.len(), 1);
    assert_eq!(profiled[0]["step"], 2);
    let parts = profiled[0]["profile"].as_object().unwrap();
    for name in ["forward", "head", "backward", "update"] {
        assert!(parts[name].as_f64().unwrap() > 0.0, "{parts:?}");
    }
    let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
    let seconds = profiled[0]["seconds"].as_f64().unwrap();
    assert!((sum / seconds - 1.0).abs() < 0.01, "{sum} of {seconds}");
}

#[test]
fn training_stops_when_the_validation_loss_no_longer_falls_also_after_a_kill() {
    let desk = Desk::with_config();
    let still = ["run", "tiny.toml", "--train.learning-rate", "0", "--train.eval-every", "2", "--quiet"];
    let stops = ["--train.early-stop-patience", "3", "--train.checkpoint-every", "5"];
    let run = |out: &str| desk.run(&[&still[..], &stops, &["--out", out]].concat());
    assert_eq!(run("straight").code, 0);
    // The best is that of step 2; those of steps 4, 6 and 8 are no better.
    assert_eq!(numbers(&desk, "straight", "step").len(), 8);
    assert!(desk.path("straight/checkpoints/step-00000008").exists());
    assert_eq!(run("straight").code, 0);
    assert_eq!(numbers(&desk, "straight", "step").len(), 8, "what has stopped does not go on");

    desk.ok(&[&still[..], &stops, &["--out", "resumed", "--train.steps", "4"]].concat());
    assert_eq!(numbers(&desk, "resumed", "step").len(), 4);
    let outcome = desk.run(&[&still[..6], &stops, &["--out", "resumed"]].concat());
    assert!(
        outcome.stderr.contains("stopped early: the validation loss was best at step 2"),
        "{}",
        outcome.stderr
    );
    assert_eq!(numbers(&desk, "resumed", "step").len(), 8, "evaluations before the resume count");
}

#[test]
fn the_validation_set_is_fixed_complete_or_drawn_anew() {
    let desk = Desk::with_config();
    let tiny = String::from_utf8(desk.read("tiny.toml")).unwrap();
    desk.write(
        "tiny.toml",
        tiny.replace("eval_tokens = 512\n", "").replace("learning_rate = 1e-2", "learning_rate = 0"),
    );
    let losses = |set: &str, tokens: Option<&str>, out: &str| {
        let mut arguments = vec!["run", "tiny.toml", "--quiet", "--out", out, "--train.eval-set", set];
        arguments.extend(tokens.into_iter().flat_map(|tokens| ["--train.eval-tokens", tokens]));
        desk.ok(&arguments);
        let losses = numbers(&desk, out, "validation_loss");
        (losses[0], losses[1])
    };
    // Nothing is learnt, so only the tokens make a difference.
    let (first, second) = losses("fixed", Some("64"), "fixed");
    assert_eq!(first, second);
    let (first, second) = losses("sampled", Some("64"), "sampled");
    assert_ne!(first, second);
    let (complete, _) = losses("complete", None, "complete");
    let (drawn, _) = losses("sampled", Some("1M"), "all");
    assert!((complete - drawn).abs() < 1e-5, "{complete} and {drawn}: a draw of all is all");
    let said: Value = serde_json::from_str(&desk.ok(&["eval", "complete", "--json"])).unwrap();
    assert!((said["loss"].as_f64().unwrap() - complete).abs() < 1e-4, "{said} and {complete}");
    desk.fails(
        78,
        &["run", "tiny.toml", "--train.eval-set", "complete", "--train.eval-tokens", "64"],
        &["train.eval_tokens cannot apply"],
    );
    desk.fails(78, &["run", "tiny.toml", "--train.early-stop-delta", "1"], &["train.early_stop_patience"]);
}
