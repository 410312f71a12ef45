use crate::program::Desk;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

/// Steps of a few dozen milliseconds, so that there is a middle to stop in.
const SLOW: [&str; 10] = [
    "--model.width",
    "64",
    "--model.context",
    "64",
    "--train.batch-tokens",
    "4096",
    "--train.micro-batch",
    "8",
    "--threads",
    "1",
];

fn slow<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&["run", "tiny.toml"], &SLOW[..], extra].concat()
}

fn wait_for(desk: &Desk, name: &str, child: &mut Child) {
    let started = Instant::now();
    while !desk.path(name).exists() {
        assert!(started.elapsed() < Duration::from_secs(120), "{name} never appeared");
        assert!(child.try_wait().unwrap().is_none(), "the program ended before {name} appeared");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the program has worked for so long, by the processor's clock where the system tells it: on a busy machine that of the
/// wall says little.
fn wait_for_work(child: &Child, work: Duration) {
    let worked = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
        // Behind the name in brackets, which may have anything in it: the times are the 14th and 15th of all, in hundredths.
        let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut next = || times.next()?.parse::<u64>().ok();
        Some(Duration::from_millis(10 * (next()? + next()?)))
    };
    let Some(before) = worked() else { return std::thread::sleep(work) };
    let started = Instant::now();
    while worked().is_some_and(|now| now < before + work) {
        assert!(started.elapsed() < Duration::from_secs(120), "the program does nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn assert_same_end(desk: &Desk, one: &str, other: &str) {
    for name in ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"] {
        let read = |run: &str| desk.read(&format!("{run}/checkpoints/step-00000020/{name}"));
        assert!(read(one) == read(other), "{name} differs");
    }
    let losses = |run: &str| -> Vec<String> {
        let text = String::from_utf8(desk.read(&format!("{run}/metrics.jsonl"))).unwrap();
        let object = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        text.lines().map(|line| format!("{} {}", object(line)["step"], object(line)["loss"])).collect()
    };
    assert_eq!(losses(one).len(), 20);
    assert_eq!(losses(one), losses(other));
}

#[test]
fn a_killed_run_ends_in_the_same_weights_as_an_uninterrupted_one() {
    let desk = Desk::with_config();
    desk.ok(&slow(&["--out", "straight", "--quiet"]));

    let mut child = desk.start(&slow(&["--out", "killed", "--quiet"]));
    wait_for(&desk, "killed/checkpoints/step-00000007", &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!desk.path("killed/checkpoints/step-00000020").exists());
    let resumed = desk.run(&slow(&["--out", "killed"]));
    assert_eq!(resumed.code, 0, "{resumed:?}");
    assert!(resumed.stderr.contains("resumed from killed/checkpoints/step-000000"), "{}", resumed.stderr);
    assert_same_end(&desk, "straight", "killed");

    let mut child = desk.start(&slow(&["--out", "stopped", "--quiet"]));
    wait_for(&desk, "stopped/checkpoints/step-00000007", &mut child);
    signal(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("run the same command again"), "{said}");
    desk.ok(&slow(&["--out", "stopped", "--quiet"]));
    assert_same_end(&desk, "straight", "stopped");
}

#[test]
fn a_killed_llama_or_encoder_ends_in_the_same_weights_too() {
    let llama = [
        "run",
        "tiny.toml",
        "--model.architecture",
        "llama",
        "--model.kv-heads",
        "1",
        "--data.sampler",
        "packed",
    ];
    let encoder = ["run", "encoder.toml", "--data.sampler", "bucketed", "--train.optimizer", "sgd"];
    for (command, straight, killed) in [(&llama[..], "a", "b"), (&encoder[..], "c", "d")] {
        let desk = Desk::with_config();
        desk.ok(&[command, &SLOW, &["--out", straight, "--quiet"]].concat());
        let again = [command, &SLOW, &["--out", killed, "--quiet"]].concat();
        let mut child = desk.start(&again);
        wait_for(&desk, &format!("{killed}/checkpoints/step-00000007"), &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!desk.path(killed).join("checkpoints/step-00000020").exists());
        desk.ok(&again);
        assert_same_end(&desk, straight, killed);
    }
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let desk = Desk::with_config();
    for (name, out, code) in [(Signal::INT, "interrupted", 130), (Signal::TERM, "terminated", 143)] {
        let mut child = desk.start(&[
            "run",
            "tiny.toml",
            "--device",
            "reference",
            "--model.width",
            "128",
            "--train.batch-tokens",
            "8192",
            "--train.micro-batch",
            "512",
            "--quiet",
            "--out",
            out,
        ]);
        // The file is opened after the flag is set up and just before the first step, whose one micro-batch takes many seconds; a
        // signal that comes before it begins or behind it ends the run in order.
        wait_for(&desk, &format!("{out}/metrics.jsonl"), &mut child);
        wait_for_work(&child, Duration::from_secs(1));
        signal(&child, name);
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before() {
    let desk = Desk::with_run();
    let straight = desk.read("run/checkpoints/step-00000020/model.safetensors");
    let mut damaged = straight.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    desk.write("run/checkpoints/step-00000020/model.safetensors", damaged);
    let again = desk.run(&["run", "tiny.toml", "--out", "run"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(
        again.stderr.contains("passed over") && again.stderr.contains("step-00000014"),
        "{}",
        again.stderr
    );
    assert_eq!(desk.read("run/checkpoints/step-00000020/model.safetensors"), straight);
}

#[test]
fn metrics_are_cut_back_to_the_checkpoint() {
    let desk = Desk::with_run();
    std::fs::remove_dir_all(desk.path("run/checkpoints/step-00000020")).unwrap();
    desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
    let text = String::from_utf8(desk.read("run/metrics.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 20);
}
