use crate::program::Desk;

const TRAIN: [&str; 4] = ["tokenizer", "train", "--vocab-size", "300"];
const PREPARE: [&str; 6] = ["data", "prepare", "--tokenizer", "tokenizer.json", "--out", "data"];

fn with<'a>(command: &[&'a str], extra: &[&'a str]) -> Vec<&'a str> {
    [command, extra].concat()
}

#[test]
fn a_missing_input_is_named() {
    let desk = Desk::with_tokenizer();
    desk.fails(66, &with(&TRAIN, &["nowhere.txt", "--out", "t.json"]), &["nowhere.txt", "check the name"]);
    desk.fails(66, &with(&PREPARE, &["no/*.txt"]), &["no/*.txt"]);
    desk.fails(66, &["tokenizer", "encode", "--tokenizer", "missing.json", "a.txt"], &["missing.json"]);
    desk.fails(66, &["tokenizer", "encode", "--tokenizer", "tokenizer.json", "a.txt"], &["a.txt"]);
    desk.fails(66, &["data", "verify", "nothing"], &["nothing", "data prepare"]);
    desk.fails(66, &["config", "show", "none.toml"], &["none.toml"]);
}

#[test]
fn an_empty_corpus_is_refused() {
    let desk = Desk::with_tokenizer();
    desk.write("empty.txt", "");
    desk.write("blank.txt", " \n\n ");
    for name in ["empty.txt", "blank.txt"] {
        desk.fails(66, &with(&TRAIN, &[name, "--out", "t.json"]), &[name, "at least one file"]);
        desk.fails(66, &with(&PREPARE, &[name]), &[name]);
    }
    assert!(!desk.path("t.json").exists());
    assert!(!desk.path("data").exists());
}

#[test]
fn bad_utf8_names_file_and_offset() {
    let desk = Desk::with_tokenizer();
    desk.write("bad.txt", b"good text \xff and more");
    let said = ["bad.txt", "byte 10", "--on-bad-utf8"];
    desk.fails(65, &with(&TRAIN, &["bad.txt", "--out", "t.json"]), &said);
    desk.fails(65, &with(&PREPARE, &["bad.txt"]), &said);
    desk.ok(&with(&PREPARE, &["bad.txt", "--on-bad-utf8", "replace"]));
}

#[test]
fn a_bad_row_names_its_line() {
    let desk = Desk::with_tokenizer();
    desk.write("rows.jsonl", "{\"text\": \"fine\"}\n{\"words\": \"not here\"}\n");
    desk.fails(65, &with(&PREPARE, &["rows.jsonl"]), &["rows.jsonl, line 2", "--text-key"]);
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
fn a_file_that_is_no_tokenizer_is_refused() {
    let desk = Desk::new();
    desk.write("t.json", "{\"hello\": 1}");
    desk.fails(65, &["tokenizer", "encode", "--tokenizer", "t.json", "x"], &["t.json", "tokenizer"]);
    desk.write("t.json", b"\xff\xfe");
    desk.fails(65, &["tokenizer", "encode", "--tokenizer", "t.json", "x"], &["t.json"]);
}

#[test]
fn ids_of_another_vocabulary_are_refused() {
    let desk = Desk::with_tokenizer();
    desk.write("ids", "1 2 400");
    let decode = ["tokenizer", "decode", "--tokenizer", "tokenizer.json", "ids"];
    desk.fails(65, &decode, &["ids", "token id 400", "vocabulary of 400"]);
}

#[test]
fn a_vocabulary_that_cannot_hold_the_bytes_is_refused() {
    let desk = Desk::new();
    let train = ["tokenizer", "train", "builtin:stories:60KB", "--vocab-size", "100", "--out", "t.json"];
    desk.fails(78, &train, &["100", "at least 257"]);
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
    for (line, value) in [
        ("[train]\nprecision = \"bf16\"", "bf16"),
        ("[train]\nmicro_batch = \"auto\"", "auto"),
        ("[train]\nema = 0.9", "train.ema"),
    ] {
        desk.write("c.toml", line);
        desk.fails(78, &["config", "check", "c.toml"], &["c.toml:2", value, "not available in this version"]);
    }
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
fn an_output_that_cannot_be_written_is_told_before_the_work() {
    let desk = Desk::new();
    let train =
        ["tokenizer", "train", "builtin:stories:2GB", "--vocab-size", "300", "--out", "no/such/t.json"];
    desk.fails(73, &train, &["no/such/t.json", "folder exists"]);
}

#[test]
fn an_error_is_a_json_line_with_json() {
    let desk = Desk::new();
    let outcome = desk.run(&["data", "verify", "nothing", "--json"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (66, ""));
    let object: serde_json::Value = serde_json::from_str(outcome.stderr.trim()).unwrap();
    assert_eq!(object["event"], "error");
    assert_eq!(object["exit_code"], 66);
}

#[test]
fn a_run_without_input_says_where_to_name_it() {
    let desk = Desk::new();
    desk.write("c.toml", "[train]\nsteps = 1\n");
    desk.fails(78, &["run", "c.toml"], &["data.input is missing", "builtin:stories"]);
    desk.fails(66, &["run", "c.toml", "--data.input", "nowhere.txt"], &["nowhere.txt"]);
}

#[test]
fn training_without_prepared_data_says_what_to_run() {
    let desk = Desk::with_config();
    desk.fails(66, &["train", "tiny.toml", "--out", "run"], &["ironmill run", "data prepare"]);
    assert!(!desk.path("run").exists());
}

#[test]
fn a_run_of_another_shape_is_refused_by_key() {
    let desk = Desk::with_run();
    let run = ["run", "tiny.toml", "--out", "run"];
    desk.fails(78, &with(&run, &["--model.layers", "3"]), &["model.layers 2 → 3", "another --out"]);
    desk.fails(78, &with(&run, &["--seed", "6"]), &["seed 5 → 6"]);
    desk.fails(73, &with(&run, &["--fresh"]), &["already holds a run", "--fresh"]);
    // The refusals have changed nothing.
    desk.ok(&with(&run, &["--quiet"]));
}

#[test]
fn a_checkpoint_of_another_shape_is_refused_with_both_sizes() {
    let desk = Desk::with_run();
    let train = [
        "train",
        "tiny.toml",
        "--data.input",
        "run/data",
        "--out",
        "new",
        "--init-from",
        "run/checkpoints/step-00000020",
        "--model.layers",
        "3",
    ];
    desk.fails(65, &train, &["2 layers", "3 layers", "[model]"]);
}

#[test]
fn a_tokenizer_that_does_not_fit_the_data_is_refused() {
    let desk = Desk::with_data();
    desk.ok(&with(&TRAIN, &["builtin:stories:60KB", "--out", "other.json", "--quiet"]));
    desk.write("c.toml", "[data]\ninput = \"data\"\n[tokenizer]\nfile = \"other.json\"\n");
    desk.fails(
        65,
        &["train", "c.toml"],
        &["other.json", "300 tokens", "400 tokens", "prepare the data again"],
    );
}

#[test]
fn a_damaged_shard_stops_training() {
    let desk = Desk::with_run();
    std::fs::remove_dir_all(desk.path("run/checkpoints")).unwrap();
    let shard = std::fs::read_dir(desk.path("run/data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.contains("train"))
        .unwrap();
    let name = format!("run/data/{shard}");
    let mut bytes = desk.read(&name);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    desk.write(&name, bytes);
    desk.fails(65, &["train", "tiny.toml", "--out", "run"], &[&shard, "damaged", "prepare the data again"]);
}

#[test]
fn a_folder_that_is_no_model_is_refused() {
    let desk = Desk::new();
    desk.write("folder/readme.txt", "nothing here");
    desk.fails(66, &["sample", "nowhere", "--prompt", "x"], &["nowhere", "run folder"]);
    desk.fails(
        65,
        &["sample", "folder", "--prompt", "x", "--tokenizer", "t.json"],
        &["folder", "config.json"],
    );
}

#[test]
fn a_rate_that_diverges_ends_with_its_own_code() {
    let desk = Desk::with_config();
    let run = [
        "run",
        "tiny.toml",
        "--out",
        "run",
        "--train.learning-rate",
        "100",
        "--train.grad-clip",
        "0",
        "--train.warmup",
        "0",
        "--train.weight-decay",
        "100",
        "--train.steps",
        "200",
    ];
    let outcome = desk.run(&run);
    assert_eq!(outcome.code, 80, "{outcome:?}");
    assert!(outcome.stderr.contains("learning_rate"), "{}", outcome.stderr);
}
