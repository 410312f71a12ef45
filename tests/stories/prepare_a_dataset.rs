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
