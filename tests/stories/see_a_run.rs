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
    assert_eq!(lines[9]["perplexity"].as_f64(), lines[9]["validation_loss"].as_f64().map(f64::exp));
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
