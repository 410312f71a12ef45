use crate::program::Desk;
use std::io::{BufRead, BufReader, Read};

const TRAIN: [&str; 4] = ["tokenizer", "train", "--vocab-size", "300"];
const PREPARE: [&str; 6] = ["data", "prepare", "--tokenizer", "tokenizer.json", "--out", "data"];

fn with<'a>(command: &[&'a str], extra: &[&'a str]) -> Vec<&'a str> {
    [command, extra].concat()
}

/// A desk with a tokenizer and one of every wrong kind of file.
fn desk_of_wrong_files() -> Desk {
    let desk = Desk::with_tokenizer();
    desk.write("a.txt", "Once there was a fox.");
    desk.write("empty.txt", "");
    desk.write("blank.txt", " \n\n ");
    desk.write("bad.txt", b"good text \xff and more");
    desk.write("picture.png", b"\x89PNG");
    desk.write("paper.pdf", "%PDF");
    desk.write("folder/picture.png", b"\x89PNG");
    desk.write("binary", b"\xff\xfe\x00");
    desk.write("no_key.jsonl", "{\"text\": \"fine\"}\n{\"words\": \"not here\"}\n");
    desk.write("no_json.jsonl", "plain words\n");
    desk.write("number.jsonl", "{\"text\": 5}\n");
    desk.write("no_gzip.txt.gz", "plain words\n");
    desk.write("no_zstd.txt.zst", "plain words\n");
    // The first bytes of a gzip file, as a broken download leaves them.
    desk.write("cut.txt.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x4c");
    desk
}

#[test]
fn texts_that_cannot_be_read_are_named_with_the_reason() {
    let desk = desk_of_wrong_files();
    let cases: &[(i32, &str, &[&str])] = &[
        (66, "nowhere.txt", &["nowhere.txt", "check the name"]),
        (66, "'no/*.txt'", &["no/*.txt"]),
        (66, "empty.txt", &["empty.txt", "at least one file"]),
        (66, "blank.txt", &["blank.txt", "at least one file"]),
        (66, "folder", &["folder", "known kinds are .txt"]),
        (65, "paper.pdf", &["paper.pdf", ".pdf", "convert it"]),
        (65, "picture.png", &["picture.png", "UTF-8", "convert the file"]),
        (65, "bad.txt", &["bad.txt", "byte 10", "--on-bad-utf8"]),
        (65, "no_key.jsonl", &["no_key.jsonl, line 2", "\"text\"", "--text-key"]),
        (65, "no_json.jsonl", &["no_json.jsonl, line 1", "correct the row"]),
        (65, "number.jsonl", &["number.jsonl, line 1", "correct the row"]),
        (65, "cut.txt.gz", &["cut.txt.gz", "truncated", "fetch or compress it again"]),
        (65, "no_gzip.txt.gz", &["no_gzip.txt.gz", "fetch or compress it again"]),
        (65, "no_zstd.txt.zst", &["no_zstd.txt.zst", "fetch or compress it again"]),
        (78, "builtin:storys:1MB", &["builtin:storys:1MB", "builtin:stories:20MB"]),
        (78, "builtin:stories:lots", &["lots", "20MB"]),
        (78, "a.txt --sample 0", &["sample", "at least one file"]),
        (78, "a.txt --document-separator ''", &["document_separator", "leave it out"]),
        (2, "a.txt --on-bad-utf8 eror", &["--on-bad-utf8", "error"]),
        (2, "", &["INPUT"]),
    ];
    for command in [
        "tokenizer train --vocab-size 300 --out t.json",
        "data prepare --tokenizer tokenizer.json --out data",
    ] {
        for (code, input, said) in cases {
            desk.explains(&[(*code, &format!("{command} {input}"), said)]);
        }
    }
    assert!(!desk.path("t.json").exists());
    assert!(!desk.path("data").exists());
    desk.ok(&with(&PREPARE, &["bad.txt", "--on-bad-utf8", "replace"]));
}

#[test]
fn settings_of_a_tokenizer_that_cannot_be_are_refused() {
    let desk = Desk::new();
    desk.write("a.txt", "Once there was a fox.");
    let cases: &[(i32, &str, &[&str])] = &[
        (2, "", &["--vocab-size", "8192"]),
        (2, "--vocab-size many", &["many", "100M"]),
        (2, "--vocab-sise 300", &["--vocab-sise", "--vocab-size"]),
        (2, "--vocab-size 300 --max-token-length 0", &["--max-token-length"]),
        (2, "--vocab-size 300 --kind bep", &["bep", "bpe"]),
        (78, "--vocab-size 100", &["100", "at least 257"]),
        (78, "--vocab-size 5G", &["5000000000", "at most"]),
        (78, "--vocab-size 300 --pattern gpt3", &["gpt3", "gpt2"]),
        (78, "--vocab-size 300 --pattern '(((x'", &["(((x", "does not compile", "correct it"]),
        (78, "--vocab-size 300 --special ''", &["special token", "is empty", "choose another"]),
        (78, "--vocab-size 300 --special x --special x", &["\"x\"", "twice", "choose another"]),
    ];
    for (code, flags, said) in cases {
        desk.explains(&[(*code, &format!("tokenizer train a.txt --out t.json {flags}"), said)]);
    }
    assert!(!desk.path("t.json").exists());
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused_everywhere() {
    let desk = desk_of_wrong_files();
    let whole = String::from_utf8(desk.read("tokenizer.json")).unwrap();
    desk.write("cut.json", &whole[..whole.len() / 2]);
    desk.write("other.json", "{\"hello\": 1}");
    desk.write("list.json", "[1, 2]");
    desk.write("words.json", "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}");
    desk.write("unigram.json", "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}");
    desk.write("lone.json", whole.replacen("\"type\": \"BPE\"", "\"type\": \"BPE\", \"fuse_unk\": 3", 1));
    let advice = "train a new tokenizer";
    let cases: &[(i32, &str, &[&str])] = &[
        (66, "missing.json", &["missing.json"]),
        (66, "folder", &["folder", "tokenizer file"]),
        (65, "empty.txt", &["empty.txt", advice]),
        (65, "binary", &["binary", "tokenizer file"]),
        (65, "cut.json", &["cut.json", advice]),
        (65, "other.json", &["other.json", advice]),
        (65, "list.json", &["list.json", advice]),
        (65, "words.json", &["words.json", advice]),
        (65, "unigram.json", &["unigram.json", advice]),
        (65, "lone.json", &["lone.json", advice]),
    ];
    for (code, file, said) in cases {
        for command in [
            format!("tokenizer encode --tokenizer {file} a.txt"),
            format!("tokenizer decode --tokenizer {file} a.txt"),
            format!("tokenizer inspect {file}"),
            format!("data prepare a.txt --tokenizer {file} --out data"),
        ] {
            desk.explains(&[(*code, &command, said)]);
        }
    }
}

#[test]
fn ids_and_texts_that_do_not_fit_the_tokenizer_are_refused() {
    let desk = desk_of_wrong_files();
    desk.write("ids", "1 2 400");
    desk.write("huge", "99999999999");
    desk.write("odd", [7, 0, 0, 255, 1]);
    desk.ok(&["tokenizer", "train", "a.txt", "--kind", "char", "--out", "chars.json", "--quiet"]);
    desk.ok(&["tokenizer", "train", "a.txt", "--kind", "word", "--out", "words.json", "--quiet"]);
    desk.write("other.txt", "Once there was a zebra!");
    desk.explains(&[
        (
            65,
            "tokenizer decode --tokenizer tokenizer.json ids",
            &["ids", "token id 400", "vocabulary of 400", "decode with"],
        ),
        (
            65,
            "tokenizer decode --tokenizer tokenizer.json huge",
            &["huge", "99999999999", "below 4294967296"],
        ),
        (65, "tokenizer decode --tokenizer tokenizer.json odd", &["odd", "5 bytes", "--width"]),
        (66, "tokenizer decode --tokenizer tokenizer.json gone", &["gone", "check the name"]),
        (66, "tokenizer decode --tokenizer tokenizer.json folder", &["folder is a folder", "a file"]),
        (66, "tokenizer encode --tokenizer tokenizer.json gone", &["gone", "check the name"]),
        (66, "tokenizer encode --tokenizer tokenizer.json folder", &["folder is a folder", "a file"]),
        (
            65,
            "tokenizer encode --tokenizer chars.json other.txt",
            &["other.txt", "'z'", "train the char tokenizer"],
        ),
        (65, "tokenizer encode --tokenizer chars.json bad.txt", &["bad.txt", "UTF-8"]),
        (65, "tokenizer encode --tokenizer words.json other.txt", &["other.txt", "zebra", "<|unknown|>"]),
        (
            65,
            "data prepare other.txt --tokenizer chars.json --out data",
            &["other.txt", "'z'", "train the char"],
        ),
        (66, "tokenizer inspect tokenizer.json --text gone", &["gone", "check the name"]),
        (66, "tokenizer inspect tokenizer.json --text folder", &["folder is a folder"]),
        (2, "tokenizer encode a.txt", &["--tokenizer"]),
        (2, "tokenizer encode --tokenizer tokenizer.json a.txt --width u8", &["u8", "u16"]),
    ]);
    assert!(!desk.path("data").exists());
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_the_work() {
    let desk = Desk::with_config();
    desk.write("file", "I am no folder.");
    desk.write("folder/inside", "x");
    desk.ok(&[
        "tokenizer",
        "train",
        "builtin:stories:60KB",
        "--vocab-size",
        "300",
        "--out",
        "tokenizer.json",
        "-q",
    ]);
    let vast = "tokenizer train builtin:stories:2GB --vocab-size 300 --out";
    let encode = "tokenizer encode --tokenizer tokenizer.json file --out";
    let prepare = "data prepare builtin:stories:60KB --tokenizer tokenizer.json --out";
    desk.explains(&[
        (73, &format!("{vast} no/such/t.json"), &["no/such/t.json", "folder exists"]),
        (73, &format!("{vast} file/t.json"), &["file/t.json", "choose another name"]),
        (73, &format!("{vast} folder"), &["folder", "name of a file"]),
        (73, &format!("{encode} no/such/ids"), &["no/such/ids", "folder exists"]),
        (73, &format!("{encode} folder"), &["folder", "name of a file"]),
        (73, &format!("{prepare} file"), &["cannot write file", "choose another name"]),
        (73, &format!("{prepare} file/data"), &["file/data", "choose another name"]),
        (73, "run tiny.toml --out file", &["cannot write file", "choose another name"]),
        (73, "run tiny.toml --out file/run", &["file/run", "choose another name"]),
        (73, "man file", &["cannot write file", "choose another name"]),
    ]);
    // A full disk, through a link so that a mistake could only replace the link.
    #[cfg(target_os = "linux")]
    {
        std::os::unix::fs::symlink("/dev/full", desk.path("full")).unwrap();
        let train = "tokenizer train builtin:stories:60KB --vocab-size 300 --quiet --out full";
        desk.explains(&[
            (73, train, &["cannot write full", "free some space"]),
            (73, &format!("{encode} full"), &["cannot write full", "free some space"]),
        ]);
        assert!(desk.path("full").is_symlink());
    }
}

#[test]
#[cfg(unix)]
fn a_folder_without_permission_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    desk.write("a.txt", "Once there was a fox.");
    desk.write("locked/inside.txt", "x");
    std::fs::set_permissions(desk.path("locked"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(desk.path("locked")).is_ok() {
        use std::io::Write;
        writeln!(std::io::stderr(), "skipped: permissions do not bind this user").unwrap();
        return;
    }
    desk.explains(&[
        (73, "tokenizer train a.txt --vocab-size 300 --out locked/t.json", &["locked/t.json", "permissions"]),
        (74, "tokenizer train locked/inside.txt --vocab-size 300 --out t.json", &["locked", "permissions"]),
    ]);
    std::fs::set_permissions(desk.path("locked"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_folder_without_prepared_data_is_refused() {
    let desk = desk_of_wrong_files();
    desk.write("broken/manifest.json", "{}");
    for command in ["verify", "inspect"] {
        desk.explains(&[
            (66, &format!("data {command} nothing"), &["nothing", "data prepare"]),
            (66, &format!("data {command} folder"), &["folder", "data prepare"]),
            (66, &format!("data {command} a.txt"), &["a.txt is not a folder", "data prepare"]),
            (65, &format!("data {command} broken"), &["broken/manifest.json", "prepare the data again"]),
            (2, &format!("data {command}"), &["DIR"]),
        ]);
    }
    desk.explains(&[
        (
            78,
            "data prepare a.txt --tokenizer tokenizer.json --out data --validation 2",
            &["validation", "0.005"],
        ),
        (
            78,
            "data prepare a.txt --tokenizer tokenizer.json --out data --shard-tokens 0",
            &["shard_tokens", "at least 1"],
        ),
        (2, "data prepare a.txt --out data", &["--tokenizer"]),
    ]);
}

#[test]
fn a_damaged_shard_is_found_and_named() {
    let desk = Desk::with_data();
    let shard = std::fs::read_dir(desk.path("data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".json"))
        .min()
        .unwrap();
    let name = format!("data/{shard}");
    let whole = desk.read(&name);
    for offset in [0, 20, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[offset] ^= 0x10;
        desk.write(&name, flipped);
        desk.fails(65, &["data", "verify", "data"], &[&shard, "prepare the data again"]);
    }
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        desk.write(&name, &whole[..length]);
        desk.fails(65, &["data", "verify", "data"], &[&shard, "prepare the data again"]);
    }
    std::fs::remove_file(desk.path(&name)).unwrap();
    let missing = desk.run(&["data", "verify", "data"]);
    assert!([65, 66].contains(&missing.code), "{missing:?}");
    assert!(missing.stderr.contains(&shard), "{missing:?}");
    desk.write(&name, whole);
    desk.ok(&["data", "verify", "data"]);
}

#[test]
fn a_damaged_manifest_is_found() {
    let desk = Desk::with_data();
    let manifest = String::from_utf8(desk.read("data/manifest.json")).unwrap();
    desk.write("data/manifest.json", manifest.replacen("\"tokens\": ", "\"tokens\": 1", 1));
    desk.fails(65, &["data", "verify", "data"], &["manifest.json", "prepare the data again"]);
}

#[test]
fn another_tokenizer_than_the_shards_is_refused() {
    let desk = Desk::with_data();
    desk.ok(&with(&TRAIN, &["builtin:stories:60KB", "--out", "other.json", "--quiet"]));
    let inspect = ["data", "inspect", "data", "--tokenizer", "other.json"];
    desk.fails(65, &inspect, &["other.json", "300 tokens", "400 tokens", "prepare again"]);
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest() {
    let desk = Desk::new();
    desk.write("c.toml", "[train]\nsteps = 10\nlearning_rat = 1e-3\n");
    desk.fails(
        78,
        &["config", "check", "c.toml"],
        &["c.toml:3", "train.learning_rat", "`train.learning_rate`"],
    );
    desk.write("c.toml", "[trian]\nsteps = 10\n");
    desk.fails(78, &["config", "check", "c.toml"], &["c.toml:1", "did you mean [train]?"]);
}

#[test]
fn a_wrong_type_names_key_expected_and_found() {
    let desk = Desk::new();
    desk.write("c.toml", "[model]\nlayers = \"four\"\n");
    desk.fails(
        78,
        &["config", "check", "c.toml"],
        &["c.toml:2", "`model.layers`", "a whole number", "\"four\""],
    );
    desk.write("c.toml", "[model]\nwidth = 100\nheads = 3\n");
    desk.fails(
        78,
        &["config", "check", "c.toml"],
        &["model.width = 100", "model.heads = 3", "use a width such as"],
    );
}

#[test]
fn what_a_later_version_brings_is_refused_by_name() {
    let desk = Desk::new();
    desk.write("c.toml", "[sample]\nrepetition_penalty = 2");
    let said = ["c.toml:2", "sample.repetition_penalty", "not available in this version"];
    desk.fails(78, &["config", "check", "c.toml"], &said);
}

#[test]
fn an_unknown_flag_or_command_suggests_the_nearest() {
    let desk = Desk::new();
    desk.fails(2, &["tokenizer", "train", "a.txt", "--vocab-sise", "300"], &["--vocab-sise", "--vocab-size"]);
    desk.fails(2, &["tokeniser", "train"], &["tokeniser", "tokenizer"]);
    desk.write("c.toml", "");
    desk.fails(2, &["config", "check", "c.toml", "--train.step", "3"], &["did you mean `train.steps`?"]);
    desk.fails(
        2,
        &["config", "check", "c.toml", "--train.steps", "three"],
        &["--train.steps", "whole number"],
    );
    desk.fails(2, &["doctor", "--train.steps", "3"], &["--train.steps", "doctor"]);
    desk.fails(2, &["tokenizer", "train", "a.txt", "--out", "t.json"], &["--vocab-size"]);
}

#[test]
fn an_error_is_a_json_line_with_json() {
    let desk = Desk::new();
    desk.write("c.toml", "[train]\nstep = 1\n");
    for (line, exit_code, code) in [
        ("data verify nothing --json", 66, "no_input"),
        ("config check c.toml --json", 78, "bad_config"),
        ("doctor --jsn --json", 2, "usage"),
        ("doctor --train.steps 3 --json", 2, "usage"),
    ] {
        let arguments = crate::program::words(line);
        let outcome = desk.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (exit_code, ""), "{line}");
        let object: serde_json::Value = serde_json::from_str(outcome.stderr.trim()).unwrap();
        assert_eq!(object["event"], "error");
        assert_eq!(object["code"], code);
        assert_eq!(object["exit_code"], exit_code);
        assert!(!object["message"].as_str().unwrap().is_empty());
    }
    let said = desk.run(&["config", "check", "c.toml", "--json"]).stderr;
    let object: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!((object["file"].as_str(), object["line"].as_u64()), (Some("c.toml"), Some(2)));
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let desk = Desk::with_tokenizer();
    desk.write("long.txt", "Once there was a fox. ".repeat(100_000));
    let mut child = desk.start(&["tokenizer", "encode", "--tokenizer", "tokenizer.json", "long.txt"]);
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The pipe is closed here, with most of the ids unwritten.
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");

    let mut child = desk.start(&["completions", "bash"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_behind_stdout_is_told() {
    let desk = Desk::with_tokenizer();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = desk.command(&["tokenizer", "inspect", "tokenizer.json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout"));
}
