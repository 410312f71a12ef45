use crate::program::Desk;
use serde_json::Value;

/// A desk with `sweep.toml`: the tiny run with fewer steps, and this `[sweep]`.
fn desk(sweep: &str) -> Desk {
    let desk = Desk::with_config();
    let tiny = String::from_utf8(desk.read("tiny.toml")).unwrap().replace("steps = 20", "steps = 8");
    let tiny =
        tiny.replace("eval_every = 10", "eval_every = 4").replace("sample_every = 10", "sample_every = 0");
    desk.write("sweep.toml", format!("{tiny}\n[sweep]\n{sweep}\n"));
    desk
}

fn sweep(desk: &Desk) -> Value {
    serde_json::from_str(&desk.ok(&["sweep", "sweep.toml", "--out", "out", "--json"])).unwrap()
}

#[test]
fn a_grid_trains_every_combination_and_shows_the_best_first() {
    let desk = desk("train.learning_rate = [1e-4, 1e-2]\nmodel.width = [8, 16]");
    let outcome = desk.run(&["sweep", "sweep.toml", "--out", "out"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(rows[0], "out: 4 runs, best first");
    let loss = |row: &str| -> f64 {
        row.split_once("val ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
    };
    let losses: Vec<f64> = rows[1..5].iter().map(|row| loss(row)).collect();
    assert!(losses.is_sorted(), "{losses:?}");
    assert!(rows[1].starts_with("learning_rate=0.01,"), "{}", outcome.stdout);
    assert!(desk.path("out/shared/data/manifest.json").exists());
    assert!(!desk.path("out/learning_rate=0.01,width=8/data").exists(), "the runs share one corpus");

    let page = String::from_utf8(desk.read("out/report.html")).unwrap();
    for part in ["\"columns\":[\"train.learning_rate\",\"model.width\"]", "learning_rate=0.0001,width=16"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn what_is_finished_is_not_done_again_and_a_longer_list_only_adds() {
    let desk = desk("train.learning_rate = [1e-3, 1e-2]");
    let first = sweep(&desk);
    let written = desk.read("out/learning_rate=0.01/metrics.jsonl");
    let again = desk.run(&["sweep", "sweep.toml", "--out", "out"]);
    assert_eq!(again.stderr.matches("is finished").count(), 2, "{}", again.stderr);
    let text = String::from_utf8(desk.read("sweep.toml")).unwrap();
    desk.write("sweep.toml", text.replace("[1e-3, 1e-2]", "[3e-3, 1e-3, 1e-2]"));
    let more = sweep(&desk);
    assert_eq!((first["runs"].as_array().unwrap().len(), more["runs"].as_array().unwrap().len()), (2, 3));
    assert!(desk.read("out/learning_rate=0.01/metrics.jsonl") == written, "it was trained again");
    // With other settings it is another sweep.
    desk.fails(
        78,
        &["sweep", "sweep.toml", "--out", "out", "--model.width", "32"],
        &["another configuration"],
    );
}

#[test]
fn a_killed_sweep_goes_on_where_it_stopped() {
    let desk = desk("seed = [1, 2, 3, 4]");
    let mut child = desk.start(&["sweep", "sweep.toml", "--out", "out"]);
    while !desk.path("out/sweep.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the sweep ended at once");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let written = desk.read("out/seed=1/metrics.jsonl");
    let runs = sweep(&desk);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 4);
    assert!(desk.read("out/seed=1/metrics.jsonl") == written);
}

#[test]
fn draws_are_the_same_every_time_and_a_swept_tokenizer_is_made_for_each_run() {
    let desk = desk("search = \"random\"\nruns = 2\ntokenizer.vocab_size = { min = 270, max = 320 }");
    let runs = sweep(&desk);
    let names = |runs: &Value| {
        runs["runs"].as_array().unwrap().iter().map(|run| run["name"].clone()).collect::<Vec<_>>()
    };
    let name = names(&runs)[0].as_str().unwrap().to_string();
    assert!(desk.path("out").join(&name).join("data/manifest.json").exists(), "{name}");
    assert_eq!(names(&sweep(&desk)), names(&runs));
}

#[test]
fn a_run_that_diverges_is_told_and_the_others_go_on() {
    let desk = desk("train.learning_rate = [100, 1e-2]");
    let text = String::from_utf8(desk.read("sweep.toml")).unwrap();
    desk.write(
        "sweep.toml",
        text.replace("warmup = 2", "warmup = 0\ngrad_clip = 0\noptimizer = \"sgd\"\nprecision = \"fp32\""),
    );
    let outcome = desk.run(&["sweep", "sweep.toml", "--out", "out"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert!(
        rows[1].starts_with("learning_rate=0.01 ") && rows[2].ends_with("diverged"),
        "{}",
        outcome.stdout
    );
    assert!(desk.run(&["sweep", "sweep.toml", "--out", "out"]).stderr.matches("is finished").count() == 2);
}

#[test]
fn mistakes_in_a_sweep_are_told_before_anything_is_trained() {
    let desk = desk("model.width = [16, 17]");
    desk.fails(78, &["config", "check", "sweep.toml"], &["the run width=17"]);
    desk.fails(78, &["sweep", "sweep.toml"], &["the run width=17", "heads"]);
    desk.fails(78, &["sweep", "tiny.toml"], &["tiny.toml has no [sweep]"]);
    desk.fails(78, &["run", "sweep.toml"], &["[sweep] is for `ironmill sweep`"]);
    desk.write("bad.toml", "[sweep]\ntrain.learning_rat = [1]\n");
    desk.fails(78, &["sweep", "bad.toml"], &["bad.toml:2", "did you mean `train.learning_rate`?"]);
    assert!(!desk.path("runs").exists());
}
