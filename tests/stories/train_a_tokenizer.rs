use crate::program::Desk;

#[test]
fn text_encodes_and_decodes_to_itself() {
    let desk = Desk::with_tokenizer();
    for text in ["Once there was a fox.", "", "naïve café 🦊 \u{fffd}\n\n\ttabs", "<|endoftext|>"] {
        let ids =
            desk.run_with_input(&["tokenizer", "encode", "--tokenizer", "tokenizer.json"], text.as_bytes());
        assert_eq!(ids.code, 0, "{ids:?}");
        let back =
            desk.run_with_input(&["tokenizer", "decode", "--tokenizer", "tokenizer.json"], &ids.stdout_bytes);
        assert_eq!(back.stdout_bytes, text.as_bytes());
    }
}

#[test]
fn bytes_that_are_no_text_survive_too() {
    let desk = Desk::with_tokenizer();
    let bytes: Vec<u8> = (0..=255).collect();
    desk.write("raw", &bytes);
    desk.ok(&["tokenizer", "encode", "--tokenizer", "tokenizer.json", "raw", "--out", "ids"]);
    desk.ok(&["tokenizer", "decode", "--tokenizer", "tokenizer.json", "ids", "--out", "back"]);
    assert_eq!(desk.read("back"), bytes);
}

#[test]
fn raw_ids_have_the_width_asked_for() {
    let desk = Desk::with_tokenizer();
    desk.write("a.txt", "The fox and the otter went to the harbour.");
    desk.ok(&["tokenizer", "encode", "--tokenizer", "tokenizer.json", "a.txt", "--out", "a.u32"]);
    desk.ok(&[
        "tokenizer",
        "encode",
        "--tokenizer",
        "tokenizer.json",
        "a.txt",
        "--out",
        "a.u16",
        "--width",
        "u16",
    ]);
    let line = desk.ok(&["tokenizer", "encode", "--tokenizer", "tokenizer.json", "a.txt"]);
    let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let wide: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let narrow: Vec<u8> = ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect();
    assert_eq!(desk.read("a.u32"), wide);
    assert_eq!(desk.read("a.u16"), narrow);
    let text = desk.ok(&["tokenizer", "decode", "--tokenizer", "tokenizer.json", "a.u16", "--width", "u16"]);
    assert_eq!(text, "The fox and the otter went to the harbour.");
}

#[test]
fn special_tokens_are_recognised_only_when_allowed() {
    let desk = Desk::with_tokenizer();
    let encode = |extra: &[&str]| {
        let arguments = [&["tokenizer", "encode", "--tokenizer", "tokenizer.json"], extra].concat();
        desk.run_with_input(&arguments, b"<|endoftext|>").stdout
    };
    assert!(encode(&[]).split_whitespace().count() > 1);
    assert_eq!(encode(&["--allow-special"]), "0\n");
}

#[test]
fn any_number_of_threads_learns_the_same_tokenizer() {
    let desk = Desk::new();
    for (threads, out) in [("1", "one.json"), ("3", "three.json")] {
        desk.ok(&[
            "tokenizer",
            "train",
            "builtin:stories:300KB",
            "--vocab-size",
            "500",
            "--out",
            out,
            "--threads",
            threads,
        ]);
    }
    assert_eq!(desk.read("one.json"), desk.read("three.json"));
}

#[test]
fn a_char_tokenizer_has_a_token_a_character() {
    let desk = Desk::new();
    desk.write("a.txt", "abcab cab");
    let said = desk.ok(&["tokenizer", "train", "a.txt", "--kind", "char", "--out", "chars.json", "--json"]);
    assert!(said.contains("\"vocab_size\":5"), "{said}");
    let ids = desk.run_with_input(&["tokenizer", "encode", "--tokenizer", "chars.json"], b"cab");
    assert_eq!(ids.stdout, "4 2 3\n");
}

#[test]
fn the_trained_file_is_of_the_asked_size_and_says_so() {
    let desk = Desk::new();
    let said =
        desk.ok(&["tokenizer", "train", "builtin:stories:60KB", "--vocab-size", "400", "--out", "t.json"]);
    assert!(said.starts_with("t.json: 400 tokens by 143 merges"), "{said}");
}

#[test]
fn progress_goes_to_stderr_and_quiet_silences_it() {
    let desk = Desk::new();
    let train = ["tokenizer", "train", "builtin:stories:60KB", "--vocab-size", "300", "--out", "t.json"];
    let loud = desk.run(&train);
    assert!(loud.stderr.contains("count: ") && loud.stderr.contains("merge: "), "{}", loud.stderr);
    let quiet = desk.run(&[&train[..], &["--quiet"]].concat());
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    let json = desk.run(&[&train[..], &["--json"]].concat());
    for line in json.stdout.lines().chain(json.stderr.lines()) {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
