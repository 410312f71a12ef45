use crate::program::{Desk, Outcome, numbers};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

/// Runs the program with a fault of its own making.
fn faulty(desk: &Desk, fault: &str, arguments: &[&str]) -> Outcome {
    let output = desk.command(arguments).env("IRONMILL_FAULT", fault).output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        stdout_bytes: output.stdout,
    }
}

fn checkpoints(desk: &Desk, run: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(desk.path(run).join("checkpoints")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn weights(desk: &Desk, run: &str, step: u64) -> Vec<Vec<u8>> {
    ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"]
        .map(|name| desk.read(&format!("{run}/checkpoints/step-{step:08}/{name}")))
        .into()
}

/// The last few numbers of a run's losses, for comparing runs whose sums are taken in another order.
fn assert_near(desk: &Desk, one: &str, other: &str) {
    let (one, other) = (numbers(desk, one, "loss"), numbers(desk, other, "loss"));
    assert_eq!(one.len(), other.len());
    let furthest = one.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(furthest < 1e-3, "losses differ by {furthest}");
}

#[test]
fn a_run_that_dies_while_saving_goes_on_and_ends_in_the_same_weights() {
    let desk = Desk::with_run();
    let mut deaths = 0;
    for (idx, act) in [0, 2, 5, 11, 20, 27, 31, 34, 47, 62].into_iter().enumerate() {
        let out = format!("killed-{idx}");
        let run = ["run", "tiny.toml", "--quiet", "--out", &out];
        let outcome = faulty(&desk, &format!("kill-save={act}"), &run);
        deaths += u32::from(outcome.code == -1);
        desk.ok(&run);
        assert!(weights(&desk, "run", 20) == weights(&desk, &out, 20), "killed at act {act}");
        assert!(checkpoints(&desk, &out).iter().all(|name| !name.starts_with('.')));
    }
    assert!(deaths >= 8, "only {deaths} of the saves were killed");
}

#[test]
fn a_full_disk_is_told_and_the_checkpoint_before_is_there() {
    let desk = Desk::with_run();
    // A save makes some dozens of writes, so this is in the second one.
    let run = ["run", "tiny.toml", "--quiet", "--out", "full"];
    let writes = (10..200).step_by(5).find(|writes| {
        std::fs::remove_dir_all(desk.path("full")).ok();
        let outcome = faulty(&desk, &format!("disk-full={writes}"), &run);
        assert_eq!(outcome.code, 73, "{outcome:?}");
        assert!(outcome.stderr.contains("free some space"), "{}", outcome.stderr);
        checkpoints(&desk, "full") == ["step-00000007"]
    });
    assert!(writes.is_some(), "no save succeeded before the disk was full");
    desk.ok(&run);
    assert!(weights(&desk, "run", 20) == weights(&desk, "full", 20));

    let outcome = faulty(&desk, "disk-free=1000", &["run", "tiny.toml", "--quiet", "--out", "small"]);
    assert_eq!(outcome.code, 73, "{outcome:?}");
    assert!(
        outcome.stderr.contains("a checkpoint takes") && outcome.stderr.contains("1000"),
        "{}",
        outcome.stderr
    );
    assert_eq!(checkpoints(&desk, "small"), Vec::<String>::new());
}

#[test]
fn the_last_the_best_and_those_of_round_steps_stay() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--quiet", "--out"];
    let plain = ["--train.checkpoint-every", "2", "--train.keep-last", "1", "--train.keep-every", "8"];
    desk.ok(&[&run[..], &["every"], &plain].concat());
    assert_eq!(checkpoints(&desk, "every"), ["step-00000008", "step-00000016", "step-00000020"]);

    // A rate that falls apart in the end, so that the best is not the last.
    let best = ["--train.checkpoint-every", "2", "--train.keep-last", "1", "--train.keep-best", "2"];
    let wild = ["--train.learning-rate", "1", "--train.schedule", "constant", "--train.eval-every", "0"];
    desk.ok(&[&run[..], &["best"], &best, &wild].concat());
    let losses = numbers(&desk, "best", "validation_loss");
    assert_eq!(losses.len(), 10, "every checkpoint is measured");
    let mut order: Vec<usize> = (0..10).collect();
    order.sort_by(|&a, &b| losses[a].total_cmp(&losses[b]));
    let mut expected: Vec<String> =
        order[..2].iter().chain([&9]).map(|idx| format!("step-{:08}", 2 * (idx + 1))).collect();
    expected.sort();
    expected.dedup();
    assert_eq!(checkpoints(&desk, "best"), expected);
}

#[test]
fn a_run_of_the_first_version_goes_on() {
    let desk = Desk::new();
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoint-v1");
    let step = "step-00000003";
    desk.write("run.toml", std::fs::read(golden.join("run.toml")).unwrap());
    // The data is made by this version; the checkpoint is of the first.
    desk.ok(&["run", "run.toml", "--out", "run", "--quiet"]);
    std::fs::remove_dir_all(desk.path("run/checkpoints")).unwrap();
    for name in [
        "config.json",
        "config.toml",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "trainer/manifest.json",
        "trainer/optimizer.safetensors",
        "trainer/state.json",
    ] {
        let bytes = std::fs::read(golden.join(step).join(name)).unwrap();
        desk.write(&format!("run/checkpoints/{step}/{name}"), bytes);
    }
    let outcome = desk.run(&["run", "run.toml", "--out", "run"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("resumed from run/checkpoints/step-00000003"), "{}", outcome.stderr);
    assert!(desk.path("run/checkpoints/step-00000006").exists());
}

#[test]
fn a_step_that_finds_no_memory_is_taken_again_in_smaller_pieces() {
    let desk = Desk::with_run();
    let run = ["run", "tiny.toml", "--out", "oom"];
    let outcome = faulty(&desk, "oom=5:1", &run);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    for change in ["train.micro_batch 4 → 2", "train.micro_batch 2 → 1", "same order"] {
        assert!(outcome.stderr.contains(change), "{}", outcome.stderr);
    }
    assert_near(&desk, "run", "oom");
    let stored = String::from_utf8(desk.read("oom/config.toml")).unwrap();
    assert!(stored.contains("micro_batch = 1\n"), "{stored}");

    // When nothing smaller is left, that is the end, and what was learnt is saved.
    let outcome = faulty(&desk, "oom=5:0", &["run", "tiny.toml", "--out", "none", "--quiet"]);
    assert_eq!(outcome.code, 81, "{outcome:?}");
    assert_eq!(checkpoints(&desk, "none"), ["step-00000004"]);
}

#[test]
fn a_machine_decides_how_much_goes_through_at_once_and_keeps_to_it() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--out", "run", "--train.micro-batch", "auto"];
    let outcome = desk.run(&[&run[..], &["--train.steps", "10"]].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("micro_batch: 8 of the 8 sequences"), "{}", outcome.stderr);
    let stored = String::from_utf8(desk.read("run/config.toml")).unwrap();
    assert!(stored.contains("micro_batch = 8\n"), "{stored}");
    let outcome = desk.run(&run);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(!outcome.stderr.contains("micro_batch"), "what was decided stays: {}", outcome.stderr);
}

#[test]
fn what_can_never_fit_names_what_saves_most() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--quiet", "--model.heads", "1", "--model.width", "1000000"];
    let outcome = desk.fails(81, &run, &["of memory", "make it smaller", "saves"]);
    assert_eq!(outcome.stderr.matches("(saves").count(), 3, "{}", outcome.stderr);
}

/// Eight samples a step: sample 80 is the first of the eleventh step.
const NAN: &str = "nan=80";

#[test]
fn a_step_that_is_no_number_stops_the_run_with_the_weights_before_it() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--quiet", "--out"];
    desk.ok(&[&run[..], &["straight", "--train.checkpoint-every", "10"]].concat());
    let outcome = faulty(&desk, NAN, &[&run[..], &["stopped"]].concat());
    assert_eq!(outcome.code, 80, "{outcome:?}");
    assert!(
        outcome.stderr.contains("step 11") && outcome.stderr.contains("weights are those of step 10"),
        "{outcome:?}"
    );
    assert!(weights(&desk, "straight", 10)[..2] == weights(&desk, "stopped", 10)[..2]);
    // Without the fault it goes on as if nothing had been.
    desk.ok(&[&run[..], &["stopped"]].concat());
    assert!(weights(&desk, "straight", 20)[..2] == weights(&desk, "stopped", 20)[..2]);
}

#[test]
fn a_step_that_is_no_number_is_skipped_but_not_too_often() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--train.on-nonfinite", "skip", "--out"];
    let outcome = faulty(&desk, NAN, &[&run[..], &["skipped"]].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("step 11 is skipped"), "{}", outcome.stderr);
    assert_eq!(numbers(&desk, "skipped", "step").len(), 20);

    let often =
        faulty(&desk, "nan=80,nan=96,nan=112", &[&run[..], &["often", "--train.max-skips", "2"]].concat());
    assert_eq!(often.code, 80, "{often:?}");
    assert!(often.stderr.contains("3 of the last 100 steps"), "{}", often.stderr);
    assert!(
        checkpoints(&desk, "often").contains(&"step-00000015".to_string()),
        "{:?}",
        checkpoints(&desk, "often")
    );
    // That checkpoint is not a healthy one, so the one before it stays however many follow.
    let state = String::from_utf8(desk.read("often/checkpoints/step-00000015/trainer/state.json")).unwrap();
    assert!(state.contains("\"healthy\": false"), "{state}");
}

#[test]
fn a_rollback_goes_back_and_around_the_data() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--train.on-nonfinite", "rollback", "--train.checkpoint-every", "4"];
    let outcome = faulty(&desk, NAN, &[&run[..], &["--out", "back"]].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("back to step 8"), "{}", outcome.stderr);
    assert_eq!(numbers(&desk, "back", "step"), (1..=20).map(f64::from).collect::<Vec<_>>());
    let state: serde_json::Value =
        serde_json::from_slice(&desk.read("back/checkpoints/step-00000020/trainer/state.json")).unwrap();
    // Step 8 went on behind sample 88; twelve steps of eight are to come.
    assert_eq!(state["state"]["samples"], 88 + 12 * 8);
    assert_eq!(state["run"]["refused"], serde_json::json!([80]));

    // Before the first checkpoint there is the beginning; and in the end patience ends.
    let early = faulty(&desk, "nan=8", &[&run[..], &["--out", "early"]].concat());
    assert_eq!(early.code, 0, "{early:?}");
    assert!(early.stderr.contains("back to step 0"), "{}", early.stderr);
    let never = faulty(
        &desk,
        "nan=80,nan=88,nan=96",
        &[&run[..], &["--out", "never", "--train.max-skips", "2"]].concat(),
    );
    assert_eq!(never.code, 80, "{never:?}");
    assert!(checkpoints(&desk, "never").contains(&"step-00000008".to_string()));

    // A kill on the way changes nothing.
    let killed = [&run[..], &["--out", "killed", "--quiet"]].concat();
    let died = faulty(&desk, "nan=80,kill-save=150", &killed);
    assert_eq!(died.code, -1, "{died:?}");
    assert_eq!(faulty(&desk, NAN, &killed).code, 0);
    assert!(weights(&desk, "back", 20) == weights(&desk, "killed", 20));
}

#[test]
fn a_spike_is_refused_where_outliers_are() {
    let desk = Desk::with_config();
    let run = [
        "run",
        "tiny.toml",
        "--train.outlier-warmup",
        "5",
        "--train.norm-outlier",
        "20",
        "--train.steps",
        "20",
    ];
    let outcome = faulty(&desk, "spike=80", &[&run[..], &["--out", "stop"]].concat());
    assert_eq!(outcome.code, 80, "{outcome:?}");
    assert!(
        outcome.stderr.contains("step 11") && outcome.stderr.contains("running mean"),
        "{}",
        outcome.stderr
    );
    let outcome =
        faulty(&desk, "spike=80", &[&run[..], &["--out", "skip", "--train.on-nonfinite", "skip"]].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("step 11 is skipped"), "{}", outcome.stderr);
}

fn wait_until(what: &str, child: &mut Child, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what} never came");
        assert!(child.try_wait().unwrap().is_none(), "the program ended before {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal once a phase has come; the program must end with 75 in seconds.
fn stop_in(
    desk: &Desk,
    phase: &str,
    signal: Signal,
    fault: &str,
    arguments: &[&str],
    is_so: impl Fn() -> bool,
) -> String {
    let mut child = desk.command(arguments).env("IRONMILL_FAULT", fault).spawn().unwrap();
    wait_until(phase, &mut child, is_so);
    let sent = Instant::now();
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{phase}: {said}");
    assert!(sent.elapsed() < Duration::from_secs(20), "{phase} took {:?} to stop", sent.elapsed());
    assert!(said.contains("run the same command again"), "{phase}: {said}");
    said
}

#[test]
fn a_signal_in_any_phase_ends_with_a_saved_run() {
    let desk = Desk::with_config();
    let has_lines = |run: &str, count: usize| {
        let path = desk.path(run).join("metrics.jsonl");
        move || std::fs::read_to_string(&path).is_ok_and(|text| text.lines().count() >= count)
    };
    let pause = || std::thread::sleep(Duration::from_millis(300));
    let run = ["run", "tiny.toml", "--quiet", "--out"];

    // Loading: there is nothing to save yet but what was prepared.
    let heavy = [&run[..], &["loading", "--data.input", "builtin:stories:20MB"]].concat();
    let locked = desk.path("loading/run.lock");
    stop_in(&desk, "loading", Signal::TERM, "", &heavy, || {
        locked.exists() && {
            pause();
            true
        }
    });

    // The first step: hundreds of micro-batches, each of which takes a while on the reference.
    let slow = ["--device", "reference", "--model.width", "64", "--train.batch-tokens", "65536"];
    let first = [&run[..], &["first"], &slow].concat();
    let begun = desk.path("first/metrics.jsonl");
    stop_in(&desk, "the first step", Signal::INT, "", &first, || {
        begun.exists() && {
            pause();
            true
        }
    });
    assert_eq!(checkpoints(&desk, "first"), ["step-00000000"]);

    // Training, between two steps.
    let long = [&run[..], &["training", "--train.steps", "100000", "--train.checkpoint-every", "0"]].concat();
    let long = [&long[..], &["--train.eval-every", "0", "--train.sample-every", "0"]].concat();
    stop_in(&desk, "training", Signal::USR1, "", &long, has_lines("training", 5));
    assert_eq!(checkpoints(&desk, "training").len(), 1);

    // Evaluation: of a large part of the data, on the reference, before the line of its step is written.
    let much = ["--data.input", "builtin:stories:400KB", "--data.validation", "0.9", "--device", "reference"];
    let rest = ["--train.eval-every", "1", "--train.eval-tokens", "1M", "--train.batch-tokens", "64"];
    let evaluates = [&run[..], &["evaluation"], &much, &rest].concat();
    let begun = desk.path("evaluation/metrics.jsonl");
    stop_in(&desk, "evaluation", Signal::TERM, "", &evaluates, || {
        begun.exists() && {
            pause();
            true
        }
    });
    assert_eq!(checkpoints(&desk, "evaluation"), ["step-00000001"]);

    // Saving: the disk is slow.
    let saves = [&run[..], &["saving"]].concat();
    let staged = desk.path("saving/checkpoints/.step-00000007.partial");
    stop_in(&desk, "saving", Signal::USR1, "disk-slow=30", &saves, || staged.exists());
    assert!(checkpoints(&desk, "saving").contains(&"step-00000007".to_string()));

    // Sampling: a text without an end, because no token means one.
    let other = ["--tokenizer.special", "<|other|>"];
    let endless = ["--train.sample-every", "1", "--sample.max-tokens", "10M", "--train.eval-every", "0"];
    let samples = [&run[..], &["sampling"], &other, &endless].concat();
    let seen = has_lines("sampling", 1);
    stop_in(&desk, "sampling", Signal::INT, "", &samples, || {
        seen() && {
            pause();
            true
        }
    });
    assert_eq!(checkpoints(&desk, "sampling"), ["step-00000001"]);

    // The end: what was learnt is saved, and the text is written when the run goes on.
    let last = ["--train.sample-every", "0", "--sample.max-tokens", "10M", "--train.steps", "3"];
    let ends = [&run[..], &["ending"], &other, &last].concat();
    let seen = has_lines("ending", 3);
    stop_in(&desk, "the last sample", Signal::TERM, "", &ends, || {
        seen() && {
            pause();
            true
        }
    });
    assert_eq!(checkpoints(&desk, "ending"), ["step-00000003"]);

    // Wherever it stopped, it goes on: to the same weights as without a stop.
    desk.ok(&[&run[..], &["straight"]].concat());
    desk.ok(&saves);
    assert!(weights(&desk, "straight", 20) == weights(&desk, "saving", 20));
    desk.ok(&[&run[..], &["sampling"], &other].concat());
    assert!(desk.path("sampling/checkpoints/step-00000020").exists());
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn a_hundred_steps_are_the_same_however_often_they_are_killed() {
    for (idx, flags) in [
        &["--train.optimizer", "adamw", "--train.ema", "0.9"][..],
        &["--train.optimizer", "adam", "--train.precision", "fp16"],
        &["--train.optimizer", "sgd", "--train.schedule", "plateau", "--train.eval-every", "9"],
        &["--train.optimizer", "muon", "--train.ema", "0.99", "--data.sampler", "packed"],
    ]
    .into_iter()
    .enumerate()
    {
        let desk = Desk::with_config();
        let all = ["run", "tiny.toml", "--quiet", "--train.steps", "100", "--train.checkpoint-every", "4"];
        // Steps of some milliseconds, so that a kill comes in the middle of one, or of a save.
        let all =
            [&all[..], &["--train.batch-tokens", "512", "--model.width", "32", "--threads", "1"], flags]
                .concat();
        desk.ok(&[&all[..], &["--out", "straight"]].concat());
        let killed = [&all[..], &["--out", "killed"]].concat();
        let mut dice = Dice(idx as u64);
        let mut kills = 0;
        while kills < 10 {
            let lines = numbers_so_far(&desk, "killed");
            let mut child = desk.start(&killed);
            // A few steps further than the last time, then any moment.
            let goal = (lines.saturating_sub(4) + 1 + dice.roll(9) as usize).min(96);
            wait_until("some steps", &mut child, || numbers_so_far(&desk, "killed") >= goal);
            std::thread::sleep(Duration::from_micros(dice.roll(20_000)));
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        desk.ok(&killed);
        assert!(weights(&desk, "straight", 100) == weights(&desk, "killed", 100), "{flags:?}");
        assert_eq!(numbers(&desk, "straight", "loss"), numbers(&desk, "killed", "loss"), "{flags:?}");
    }
}

/// How many lines of measurements a run has; the last may be half written.
fn numbers_so_far(desk: &Desk, run: &str) -> usize {
    std::fs::read_to_string(desk.path(run).join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}
