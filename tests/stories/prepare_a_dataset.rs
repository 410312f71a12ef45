use crate::program::Desk;
use serde_json::Value;

#[test]
fn text_becomes_shards_that_verify() {
    let desk = Desk::with_data();
    let verified: Value = serde_json::from_str(&desk.ok(&["data", "verify", "data", "--json"])).unwrap();
    assert!(verified["shards"].as_u64().unwrap() >= 3, "{verified}");
    assert!(verified["tokens"].as_u64().unwrap() > 10_000, "{verified}");
    assert!((60_000..63_000).contains(&verified["raw_bytes"].as_u64().unwrap()), "{verified}");
}

#[test]
fn inspect_shows_counts_and_the_beginnings_of_stories() {
    let desk = Desk::with_data();
    let said = desk.ok(&["data", "inspect", "data"]);
    for words in
        ["a vocabulary of 400", "train", "validation", "builtin:stories:60KB", "bytes a token", "lived"]
    {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}

#[test]
fn any_number_of_threads_writes_the_same_shards() {
    let desk = Desk::with_tokenizer();
    for (threads, out) in [("1", "one"), ("3", "three")] {
        desk.ok(&[
            "data",
            "prepare",
            "builtin:stories:200KB",
            "--tokenizer",
            "tokenizer.json",
            "--out",
            out,
            "--shard-tokens",
            "20K",
            "--threads",
            threads,
        ]);
    }
    let mut names: Vec<_> =
        std::fs::read_dir(desk.path("one")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!(names.len() > 3, "{names:?}");
    for name in names.iter().map(|name| name.to_str().unwrap()) {
        assert_eq!(desk.read(&format!("one/{name}")), desk.read(&format!("three/{name}")), "{name}");
    }
}

#[test]
fn preparing_again_does_nothing_and_other_settings_do_it_anew() {
    let desk = Desk::with_tokenizer();
    desk.write("texts/a.jsonl", "{\"text\": \"A fox.\", \"other\": 1}\n{\"text\": \"An owl.\"}\n");
    desk.write("texts/b.txt", "One.<sep>Two.<sep>Three.");
    let prepare = ["data", "prepare", "texts", "--tokenizer", "tokenizer.json", "--out", "data", "--json"];
    let reused = |extra: &[&str]| {
        let said = desk.ok(&[&prepare[..], extra].concat());
        serde_json::from_str::<Value>(&said).unwrap()["reused"].as_bool().unwrap()
    };
    assert!(!reused(&[]));
    assert!(reused(&[]));
    assert!(!reused(&["--document-separator", "<sep>"]));
    let verified: Value = serde_json::from_str(&desk.ok(&["data", "verify", "data", "--json"])).unwrap();
    assert_eq!(verified["documents"], 5);
}

/// Numbers that look random and are the same in every run.
fn dice(state: &mut u64, sides: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % sides
}

/// Names and bytes of all files in a folder.
fn content(desk: &Desk, dir: &str) -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<String> = std::fs::read_dir(desk.path(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.iter().map(|name| (name.clone(), desk.read(&format!("{dir}/{name}")))).collect()
}

#[test]
fn killed_at_any_moment_the_same_command_ends_with_the_same_bytes() {
    let desk = Desk::with_tokenizer();
    let prepare = |out| {
        let words = "data prepare builtin:stories:8MB --tokenizer tokenizer.json --shard-tokens 200K --drop-duplicates";
        let mut words: Vec<&str> = words.split(' ').collect();
        words.extend(["--out", out]);
        words
    };
    let began = std::time::Instant::now();
    desk.ok(&prepare("whole"));
    let whole_ms = began.elapsed().as_millis() as u64;
    let expected = content(&desk, "whole");
    assert!(expected.len() > 10, "{}", expected.len());
    let mut state = 11;
    for kill in 1..=20 {
        let mut child = desk.command(&prepare("out")).stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(dice(&mut state, whole_ms)));
        child.kill().unwrap();
        child.wait().unwrap();
        // Now and then it is let go to its end, and begun anew.
        if kill % 4 == 0 {
            desk.ok(&prepare("out"));
            let found = content(&desk, "out");
            let names =
                |files: &[(String, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
            assert_eq!(names(&found), names(&expected), "after kill {kill}");
            assert!(found == expected, "after kill {kill}");
            std::fs::remove_dir_all(desk.path("out")).unwrap();
        }
    }
}

#[test]
fn a_full_disk_is_told_and_what_was_complete_is_used_again() {
    let desk = Desk::with_tokenizer();
    let line = "data prepare builtin:stories:400KB --tokenizer tokenizer.json --shard-tokens 20K --out";
    let words = |out| line.split(' ').chain([out]).collect::<Vec<_>>();
    desk.ok(&words("whole"));
    for writes in ["0", "5", "9"] {
        let output =
            desk.command(&words("out")).env("IRONMILL_FAULT", format!("disk-full={writes}")).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(73), "{said}");
        assert!(said.contains("cannot write") && said.contains("free some space"), "{said}");
        assert!(!desk.path("out/manifest.json").exists());
    }
    desk.ok(&words("out"));
    assert!(content(&desk, "out") == content(&desk, "whole"));
}

#[test]
fn every_kind_of_file_and_the_standard_input_are_read() {
    let desk = Desk::with_tokenizer();
    desk.write("texts/a.md", "# A fox");
    desk.write("texts/b.csv", "id,text\n1,\"An owl, grey.\"\n2,A cat.\n");
    desk.write("texts/c.json", "[{\"text\": \"A dog.\"}, \"A hen.\"]");
    desk.write("texts/AA/wiki_00", "<doc id=\"1\" title=\"Cow\">\nCow\n\nA cow.\n</doc>\n");
    desk.write(
        "texts/d.xml",
        "<mediawiki><page><title>Pig</title><ns>0</ns><revision><text>A '''pig'''.</text></revision></page></mediawiki>",
    );
    desk.ok(&["data", "prepare", "texts", "--tokenizer", "tokenizer.json", "--out", "data"]);
    let verified: Value = serde_json::from_str(&desk.ok(&["data", "verify", "data", "--json"])).unwrap();
    assert_eq!(verified["documents"], 7);
    let text = "One.<sep>Two.<sep>Three.";
    let mut documents = Vec::new();
    for (name, out) in [("-", "piped"), ("named.txt", "named")] {
        desk.write("named.txt", text);
        let stdin = std::fs::File::open(desk.path("named.txt")).unwrap();
        let words = ["data", "prepare", name, "--tokenizer", "tokenizer.json", "--out", out];
        let more = ["--document-separator", "<sep>", "--json"];
        let output = desk.command(&[&words[..], &more].concat()).stdin(stdin).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        documents.push(desk.read(&format!("{out}/train-00000.shard")));
        assert!(!desk.path(&format!("{out}/.stdin.txt")).exists());
    }
    assert!(documents[0] == documents[1]);
    desk.fails(
        65,
        &[
            "data",
            "prepare",
            "texts/b.csv",
            "--text-key",
            "body",
            "--tokenizer",
            "tokenizer.json",
            "--out",
            "x",
        ],
        &["texts/b.csv, line 1", "no column \"body\" among id, text", "--text-key"],
    );
}

#[test]
fn files_of_other_programs_are_written_and_read_back_token_for_token() {
    let desk = Desk::with_data();
    let all_tokens = |dir: &str| {
        let dataset = ironmill_data::Dataset::open(&desk.path(dir)).unwrap();
        ironmill_data::Split::ALL.map(|split| {
            let stream = dataset.split(split);
            let mut tokens = vec![0; stream.tokens() as usize];
            stream.read(0, &mut tokens).unwrap();
            tokens
        })
    };
    for form in ["nanogpt", "llmc", "megatron"] {
        let (there, back) = (format!("{form}-files"), format!("{form}-back"));
        desk.ok(&["data", "convert", "data", "--to", form, "--out", &there]);
        let from = ["--from", form, "--tokenizer", "tokenizer.json", "--out", &back];
        desk.ok(&[&["data", "convert", &there][..], &from].concat());
        assert!(all_tokens(&back) == all_tokens("data"), "{form}");
        desk.ok(&["data", "verify", &back]);
        desk.fails(73, &[&["data", "convert", &there][..], &from].concat(), &["already holds a data set"]);
    }
    desk.fails(2, &["data", "convert", "data", "--out", "x"], &["--to"]);
    desk.fails(2, &["data", "convert", "x", "--from", "llmc", "--out", "y"], &["--tokenizer"]);
    desk.fails(66, &["data", "convert", "gone", "--to", "llmc", "--out", "y"], &["gone"]);
}
