use crate::program::Desk;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::thread::sleep;
use std::time::Duration;

/// A desk with a few files of text that share most of their words.
fn desk() -> Desk {
    let desk = Desk::new();
    for idx in 0..5 {
        let mut text = String::new();
        for number in 0..400 {
            let word = ["otter", "harbour", "lantern", "naïve", "Привіт", "世界"][(number * 7 + idx) % 6];
            text +=
                &format!("The {word} went on it's {} times{}\n", number * idx, ["", ".", "!  "][number % 3]);
        }
        desk.write(&format!("texts/{idx}.txt"), text);
    }
    desk
}

fn train(desk: &Desk, out: &str, extra: &[&str]) -> Value {
    let fixed = ["tokenizer", "train", "--vocab-size", "500", "--out", out, "--quiet", "--json"];
    let said = desk.ok(&[&fixed[..], extra].concat());
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
fn threads_memory_and_tasks_do_not_change_the_tokenizer() {
    let desk = desk();
    train(&desk, "plain.json", &["texts", "--threads", "1"]);
    let expected = desk.read("plain.json");
    for (idx, extra) in [
        &["--threads", "2", "--memory", "96MiB"][..],
        &["--threads", "4", "--memory", "128MiB"],
        &["--threads", "1", "--scratch", "work"],
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("{idx}.json");
        train(&desk, &out, &[&["texts"], extra].concat());
        assert_eq!(desk.read(&out), expected, "{extra:?}");
    }
    let left: Vec<_> = std::fs::read_dir(desk.path("work")).unwrap().collect();
    assert!(left.is_empty(), "the scratch folder is left with {left:?}");

    desk.ok(&["tokenizer", "count", "texts", "--out", "whole.counts", "--quiet"]);
    for tasks in [2u32, 3, 7] {
        let names: Vec<String> = (0..tasks).map(|task| format!("{tasks}-{task}.counts")).collect();
        for (task, name) in names.iter().enumerate() {
            let (task, of) = (task.to_string(), tasks.to_string());
            desk.ok(&["tokenizer", "count", "texts", "--task", &task, "--of", &of, "--out", name, "--quiet"]);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        desk.ok(&[&["tokenizer", "merge"], &names[..], &["--out", "merged.counts", "--quiet"]].concat());
        assert_eq!(desk.read("merged.counts"), desk.read("whole.counts"), "{tasks} tasks");
    }
    train(&desk, "counts.json", &["--counts", "merged.counts"]);
    assert_eq!(desk.read("counts.json"), expected);
}

#[test]
fn a_task_that_is_done_is_not_done_again_unless_its_input_has_changed() {
    let desk = desk();
    let count = ["tokenizer", "count", "texts", "--out", "all.counts"];
    assert!(!desk.run(&count).stderr.contains("already counted"));
    assert!(desk.run(&count).stderr.contains("already counted"));
    desk.write("texts/9.txt", "something new");
    let again = desk.run(&count);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(
        !again.stderr.contains("already counted") && again.stdout.contains("in 6 documents"),
        "{again:?}"
    );
    let lines = [&count[..], &["--lines"]].concat();
    assert!(!desk.run(&lines).stderr.contains("already counted"));
}

#[test]
fn the_origin_tells_the_inputs_and_settings() {
    let desk = desk();
    let hash = |out: &str, extra: &[&str]| {
        let result = train(&desk, out, extra);
        let origin: Value = serde_json::from_slice(&desk.read(&format!("{out}.origin.json"))).unwrap();
        assert_eq!(origin["hash"], result["origin"]);
        origin["hash"].as_str().unwrap().to_string()
    };
    let first = hash("a.json", &["texts"]);
    assert_eq!(hash("b.json", &["texts", "--threads", "2", "--memory", "1GiB"]), first);
    for extra in [
        &["texts", "--ties", "raw"][..],
        &["texts", "--lines"],
        &["texts/0.txt"],
        &["texts", "--min-count", "2"],
    ] {
        assert_ne!(hash("c.json", extra), first, "{extra:?}");
    }
}

#[test]
fn a_killed_training_goes_on_from_what_it_had() {
    let desk = Desk::new();
    let corpus = ["builtin:stories:3MB"];
    train(&desk, "plain.json", &corpus);
    let command =
        ["tokenizer", "train", corpus[0], "--vocab-size", "500", "--out", "killed.json", "--scratch", "work"];
    // Whenever the signal comes, in whichever phase, the next try ends with the same bytes.
    for wait_ms in [5, 20, 60, 120, 250] {
        let mut child = desk.start(&command);
        sleep(Duration::from_millis(wait_ms));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    desk.ok(&command);
    assert_eq!(desk.read("killed.json"), desk.read("plain.json"));
    let left: Vec<_> =
        std::fs::read_dir(desk.path("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".counts")), "{left:?}");
}

/// Random words, nearly all of them distinct.
fn many_words(count: u32) -> String {
    let mut text = String::new();
    let mut state = 1u64;
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut number = state >> 34;
        text.push(' ');
        while number > 0 {
            text.push(char::from(b'a' + (number % 26) as u8));
            number /= 26;
        }
    }
    text
}

#[test]
#[cfg(target_os = "linux")]
fn the_memory_asked_for_is_not_exceeded() {
    let desk = Desk::new();
    // More distinct pieces than the tables of two threads hold, so that they must go to the disk.
    desk.write("many.txt", many_words(2_200_000));
    let plenty = train(&desk, "plenty.json", &["many.txt", "--threads", "1"]);
    let little = train(
        &desk,
        "little.json",
        &["many.txt", "--threads", "2", "--memory", "128MiB", "--scratch", "work"],
    );
    assert_eq!(desk.read("little.json"), desk.read("plenty.json"));
    let peak = |result: &Value| result["peak_memory_bytes"].as_u64().unwrap();
    assert!(peak(&little) <= 128 << 20, "{little}");
    assert!(peak(&plenty) > peak(&little), "{plenty}");
    // At the floor not even the pieces fit, so that learning has them on disk.
    let least = ["many.txt", "--threads", "1", "--memory", "80MiB", "--scratch", "work"];
    let least = train(&desk, "least.json", &least);
    assert_eq!(desk.read("least.json"), desk.read("plenty.json"));
    assert!(peak(&least) <= 80 << 20, "{least}");
}

#[test]
fn killed_after_any_phase_the_same_command_ends_with_the_same_bytes() {
    let desk = Desk::new();
    desk.write("many.txt", many_words(900_000));
    train(&desk, "plain.json", &["many.txt"]);
    let fixed =
        "tokenizer train many.txt --vocab-size 500 --threads 1 --memory 80MiB --scratch work --out t.json";
    let command: Vec<&str> = fixed.split(' ').collect();
    // Whatever phase follows the one that has ended is cut short.
    for ended in ["count:", "sum:", "load:"] {
        let mut child = desk.start(&command);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with(ended)), "there is no {ended}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!desk.path("t.json").exists(), "{ended}");
    }
    let last = desk.run(&command);
    assert!(last.code == 0 && last.stderr.contains("already counted"), "{last:?}");
    assert_eq!(desk.read("t.json"), desk.read("plain.json"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_scratch_disk_that_fills_up_and_a_file_that_cannot_be_read_are_told() {
    let desk = Desk::new();
    desk.write("many.txt", many_words(900_000));
    let command =
        "tokenizer train many.txt --vocab-size 500 --threads 1 --memory 80MiB --scratch work --out t.json";
    // No file may grow beyond a mebibyte, which to the program is a disk that takes no more.
    let limited =
        format!("trap '' XFSZ; ulimit -f 2048; exec '{}' {command}", env!("CARGO_BIN_EXE_ironmill"));
    let output =
        std::process::Command::new("sh").args(["-c", &limited]).current_dir(desk.path(".")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("work") && said.contains("--scratch"), "{said}");
    assert!(!desk.path("t.json").exists());
    let left: Vec<_> = std::fs::read_dir(desk.path("work")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let command: Vec<&str> = command.split(' ').collect();
    desk.ok(&command);
    train(&desk, "plenty.json", &["many.txt"]);
    assert_eq!(desk.read("t.json"), desk.read("plenty.json"));

    // The process's own memory can be opened, but nothing is at its beginning.
    let read = ["tokenizer", "train", "/proc/self/mem", "--vocab-size", "300", "--out", "u.json"];
    desk.fails(74, &read, &["/proc/self/mem"]);
    assert!(!desk.path("u.json").exists());
}

#[test]
fn a_corpus_with_next_to_nothing_is_learnt_from_as_far_as_it_goes() {
    let desk = Desk::new();
    // A thousand letters become powers of two up to 512, and what is left over joins in five steps more.
    for (name, text, tokens) in
        [("byte", "a".to_string(), 257), ("run", "a".repeat(1000), 271), ("few", "ab ab abc".into(), 260)]
    {
        desk.write("tiny.txt", text);
        let run = desk.run(&[
            "tokenizer",
            "train",
            "tiny.txt",
            "--vocab-size",
            "9000",
            "--out",
            "t.json",
            "--json",
        ]);
        let result: Value = serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap();
        assert_eq!((run.code, &result["vocab_size"]), (0, &tokens.into()), "{name}: {run:?}");
        assert!(run.stderr.contains("no pair was left to merge"), "{name}: {run:?}");
    }
}

#[test]
fn approximate_counting_is_asked_for_and_tells_its_error() {
    let desk = Desk::new();
    desk.write("many.txt", many_words(1_200_000));
    let train = |out: &str, extra: &[&str]| {
        let fixed = ["tokenizer", "train", "many.txt", "--vocab-size", "300", "--threads", "1", "--out", out];
        let run = desk.run(&[&fixed[..], extra].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.stderr
    };
    let exact = train("exact.json", &["--memory", "80MiB"]);
    assert!(!exact.contains("approximate"), "{exact}");
    let said = train("rough.json", &["--memory", "80MiB", "--approximate"]);
    assert!(said.contains("the counts are approximate") && said.contains("too low by more than"), "{said}");
    assert!(!said.contains(": 0 of 1,"), "{said}");
    let said = train("same.json", &["--memory", "1GiB", "--approximate"]);
    assert!(said.contains(": 0 of 1,"), "{said}");
    assert_eq!(desk.read("same.json"), desk.read("exact.json"));
    desk.fails(
        2,
        &["tokenizer", "train", "many.txt", "--kind", "char", "--approximate", "--out", "c.json"],
        &["bpe"],
    );
}

#[test]
fn progress_names_the_file_it_is_at() {
    let desk = Desk::new();
    for idx in 0..250 {
        desk.write(&format!("texts/{idx:03}.txt"), "a few words");
    }
    let count = ["tokenizer", "count", "texts", "--out", "a.counts", "--threads", "1"];
    let said = desk.run(&count).stderr;
    assert!(
        said.contains("file 100 of 250") && said.contains("file 200 of 250") && said.contains(" left"),
        "{said}"
    );
}

#[test]
fn parquet_is_read_like_any_other_text() {
    let desk = Desk::new();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/parquet");
    let rows: Vec<Option<String>> =
        serde_json::from_slice(&std::fs::read(format!("{golden}/rows.json")).unwrap()).unwrap();
    let lines: Vec<String> =
        rows.iter().flatten().map(|text| serde_json::json!({ "text": text }).to_string()).collect();
    desk.write("rows.jsonl", lines.join("\n"));
    train(&desk, "rows.json", &["rows.jsonl"]);
    train(&desk, "parquet.json", &[&format!("{golden}/zstd-v2.parquet")]);
    assert_eq!(desk.read("parquet.json"), desk.read("rows.json"));
    let prepare =
        ["data", "prepare", &format!("{golden}/plain.parquet"), "--tokenizer", "rows.json", "--out", "data"];
    desk.ok(&prepare);
    desk.fails(
        65,
        &["tokenizer", "train", &format!("{golden}/lz4.parquet"), "--vocab-size", "300", "--out", "x.json"],
        &["lz4"],
    );
}

#[test]
fn mistakes_with_counts_are_explained() {
    let desk = desk();
    desk.ok(&["tokenizer", "count", "texts", "--out", "a.counts", "--quiet"]);
    desk.ok(&["tokenizer", "count", "texts", "--pattern", "o200k", "--out", "b.counts", "--quiet"]);
    desk.write("broken.counts", &desk.read("a.counts")[..1000]);
    desk.write("cut.txt.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 75][..]);
    desk.explains(&[
        (78, "tokenizer merge a.counts b.counts --out c.counts", &["b.counts", "o200k", "count again"]),
        (78, "tokenizer train --counts b.counts --vocab-size 300 --out t.json", &["o200k", "gpt2"]),
        (
            65,
            "tokenizer train --counts broken.counts --vocab-size 300 --out t.json",
            &["broken.counts", "count again"],
        ),
        (66, "tokenizer train --counts gone --vocab-size 300 --out t.json", &["gone"]),
        (2, "tokenizer train texts --counts a.counts --vocab-size 300 --out t.json", &["--counts"]),
        (2, "tokenizer train --counts a.counts --kind word --out t.json", &["--counts", "bpe"]),
        (2, "tokenizer count texts --task 3 --of 3 --out c.counts", &["no task 3 of 3", "from 0 to 2"]),
        (2, "tokenizer count texts --task 3 --out c.counts", &["--of"]),
        (
            78,
            "tokenizer train texts --vocab-size 300 --memory 1MiB --threads 2 --out t.json",
            &["100.7 MB", "fewer threads"],
        ),
        (65, "tokenizer train cut.txt.gz --vocab-size 300 --out t.json", &["cut.txt.gz"]),
    ]);
    assert!(!desk.path("t.json").exists() && !desk.path("c.counts").exists());
}

#[test]
fn the_spark_job_learns_the_same_tokenizer() {
    let works = |program: &str, arguments: &[&str]| {
        std::process::Command::new(program)
            .args(arguments)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !works("java", &["-version"]) || !works("python3", &["-c", "import pyspark"]) {
        println!("skipped: needs Java and python3 with pyspark");
        return;
    }
    let desk = desk();
    train(&desk, "plain.json", &["texts"]);
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/count_on_spark.py");
    let output = std::process::Command::new("python3")
        .args([job, "texts/*.txt", "--ironmill", env!("CARGO_BIN_EXE_ironmill")])
        .args(["--vocab-size", "500", "--out", "spark.json", "--partitions", "3"])
        .current_dir(desk.path("."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(desk.read("spark.json"), desk.read("plain.json"));
}
