use crate::program::Desk;
use std::time::{Duration, Instant};

const TRAIN: [&str; 4] = ["tokenizer", "train", "--vocab-size", "300"];

fn with<'a>(command: &[&'a str], extra: &[&'a str]) -> Vec<&'a str> {
    [command, extra].concat()
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
fn a_configuration_that_cannot_be_read_is_refused_everywhere() {
    let desk = Desk::new();
    desk.write("folder/x", "");
    desk.write("binary.toml", b"\xff");
    desk.write("broken.toml", "[train\nsteps = 1");
    desk.write("key.toml", "[train]\nsteps = 10\nlearning_rat = 1e-3\n");
    desk.write("value.toml", "[train]\nsteps = \"many\"\n");
    for command in ["run", "train", "train --dry-run", "config show", "config check"] {
        desk.explains(&[
            (66, &format!("{command} none.toml"), &["none.toml", "check the name"]),
            (66, &format!("{command} folder"), &["folder is a folder", "a file"]),
            (78, &format!("{command} binary.toml"), &["binary.toml", "TOML"]),
            (78, &format!("{command} broken.toml"), &["broken.toml:1", "not valid TOML"]),
            (78, &format!("{command} key.toml"), &["key.toml:3", "did you mean `train.learning_rate`?"]),
            (
                78,
                &format!("{command} value.toml"),
                &["value.toml:2", "`train.steps`", "whole number", "many"],
            ),
            (2, &format!("{command} key.toml --train.steps"), &["--train.steps", "needs a value"]),
            (2, command, &["CONFIG"]),
        ]);
    }
    assert!(!desk.path("runs").exists());
}

#[test]
fn values_out_of_range_say_what_is_in_range() {
    let desk = Desk::new();
    for (lines, said) in [
        (
            "[model]\nwidth = 100\nheads = 3",
            &["model.width = 100", "model.heads = 3", "use a width such as"][..],
        ),
        ("[model]\nlayers = 0", &["model.layers = 0", "at least 1"]),
        ("[model]\ndropout = 1.5", &["model.dropout", "from 0 to"]),
        ("[train]\nsteps = 5\nepochs = 2", &["train.steps", "train.epochs", "remove one"]),
        ("[train]\nlearning_rate = 1e6", &["train.learning_rate", "from 0 to 100"]),
        ("[train]\nbatch_tokens = 1000\n[model]\ncontext = 256", &["train.batch_tokens", "use 768"]),
        ("[train]\nmicro_batch = 5", &["train.micro_batch", "for example"]),
        ("[sample]\ntop_p = 1.5", &["sample.top_p", "from 0 to 1"]),
        ("[data]\nvalidation = 1.5", &["data.validation", "from 0 to"]),
        ("[tokenizer]\nfile = \"x\"\nvocab_size = 300", &["tokenizer.vocab_size", "remove"]),
        ("[train]\nschedule = \"cosin\"", &["c.toml:2", "cosine"]),
        ("[model]\ncontext = 18446744073709551615", &["context", "larger than any model", "[model]"]),
        ("[train]\nbatch_tokens = 18446744073709551615", &["train.batch_tokens"]),
    ] {
        desk.write("c.toml", lines);
        desk.fails(78, &["config", "check", "c.toml"], said);
    }
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let desk = Desk::with_run();
    for command in ["eval run", "sample run", "run tiny.toml", "train tiny.toml"] {
        // Without a driver it is the driver that is missing, with one the card.
        desk.explains(&[
            (69, &format!("{command} --device cuda:99"), &["use --device cpu"]),
            (69, &format!("{command} --device tpu"), &["tpu", "use auto, cpu, cuda"]),
        ]);
    }
    desk.explains(&[
        (69, "run tiny.toml --out other --train.device cuda:99", &["use --device cpu"]),
        (2, "run tiny.toml --train.device tpu", &["train.device", "auto, cpu, cuda"]),
        (78, "run tiny.toml --train.device cpu --train.precision fp8", &["fp8", "use bf16 or fp32"]),
        (78, "run tiny.toml --train.device cpu --train.precision fp8", &["fp8", "use bf16 or fp32"]),
    ]);
}

#[test]
fn a_folder_that_is_no_model_is_refused() {
    let desk = Desk::with_run();
    desk.write("folder/readme.txt", "nothing here");
    desk.write("file", "nothing here");
    desk.write("odd/config.json", "{}");
    desk.write("list/config.json", "[]");
    for name in ["config.json", "tokenizer.json"] {
        desk.write(&format!("bare/{name}"), desk.read(&format!("run/checkpoints/step-00000020/{name}")));
    }
    std::fs::create_dir(desk.path("begun")).unwrap();
    desk.write("begun/config.toml", desk.read("run/config.toml"));
    for command in ["sample --prompt x", "eval --data run/data"] {
        desk.explains(&[
            (66, &format!("{command} nowhere"), &["nowhere", "run folder"]),
            (65, &format!("{command} folder"), &["folder", "config.json", "run folder"]),
            (65, &format!("{command} file"), &["file", "config.json", "run folder"]),
            (65, &format!("{command} odd --tokenizer run/tokenizer.json"), &["odd"]),
            (65, &format!("{command} list --tokenizer run/tokenizer.json"), &["list"]),
            (66, &format!("{command} bare"), &["bare"]),
            (66, &format!("{command} begun"), &["begun", "no checkpoint yet", "train it first"]),
        ]);
    }
    let train = "train tiny.toml --data.input run/data --out new --init-from";
    desk.explains(&[
        (66, &format!("{train} nowhere"), &["nowhere", "config.json"]),
        (65, &format!("{train} folder"), &["folder", "config.json"]),
        (65, &format!("{train} odd"), &["odd"]),
    ]);
}

#[test]
fn a_damaged_checkpoint_is_refused_when_there_is_no_other() {
    let desk = Desk::with_run();
    std::fs::remove_dir_all(desk.path("run/checkpoints/step-00000014")).unwrap();
    let name = "run/checkpoints/step-00000020/model.safetensors";
    let whole = desk.read(name);
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], b"", &flipped] {
        desk.write(name, damaged);
        let outcome = desk.fails(66, &["sample", "run"], &["no checkpoint yet", "train it first"]);
        assert!(outcome.stderr.contains("passed over"), "{}", outcome.stderr);
    }
    desk.write(name, &whole[..whole.len() / 2]);
    desk.explains(&[(65, "sample run/checkpoints/step-00000020 --prompt x", &["model.safetensors"])]);
}

#[test]
fn what_eval_and_sample_cannot_do_is_told() {
    let desk = Desk::with_run();
    desk.write("folder/x", "");
    desk.write("binary", b"\xff");
    desk.ok(&with(
        &["tokenizer", "train", "builtin:stories:60KB", "--vocab-size", "400"],
        &["--out", "other.json", "-q"],
    ));
    desk.explains(&[
        (66, "sample run --prompt @gone", &["gone", "check the name"]),
        (66, "sample run --prompt @folder", &["folder is a folder"]),
        (65, "sample run --prompt @binary", &["binary", "UTF-8"]),
        (65, "sample run --tokenizer other.json", &["other.json", "400", "300"]),
        (2, "sample run --temperature 101", &["--temperature", "0 to 100"]),
        (2, "sample run --temperature nan", &["--temperature", "0 to 100"]),
        (2, "sample run --top-p 1.5", &["--top-p", "0 to 1"]),
        (2, "sample run --bias 42", &["--bias", "42=-5"]),
        (2, "sample run -n 0", &["--samples"]),
        (2, "sample run --train.steps 3", &["--train.steps", "sample"]),
        (2, "eval run --split test", &["test", "validation"]),
        (2, "eval run --tokens 0", &["--tokens", "at least 2"]),
        (2, "eval run --rows 0", &["--rows"]),
        (66, "eval run --data gone", &["gone", "data prepare"]),
        (65, "eval run --tokenizer other.json", &["other.json", "400 tokens", "300 tokens"]),
    ]);
}

#[test]
fn a_model_too_large_for_the_machine_is_refused_before_it_is_made() {
    let desk = Desk::with_config();
    let run = "run tiny.toml --out run --quiet --model.heads 1 --model.width";
    desk.explains(&[
        (81, &format!("{run} 1000000"), &["memory", "smaller"]),
        (78, &format!("{run} 1000000000000"), &["width"]),
    ]);
}

#[test]
fn a_run_folder_in_use_is_refused_until_its_process_ends() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--out", "run", "--quiet", "--device", "reference"];
    let long = ["--model.width", "128", "--train.batch-tokens", "32768"];
    let mut child = desk.start(&with(&run, &long));
    let started = Instant::now();
    while !desk.path("run/metrics.jsonl").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the run never began");
        std::thread::sleep(Duration::from_millis(2));
    }
    let process = format!("process {}", child.id());
    desk.fails(73, &run, &["run is in use", &process, "choose another --out"]);
    desk.fails(73, &["train", "tiny.toml", "--out", "run"], &["run is in use", &process]);
    child.kill().unwrap();
    child.wait().unwrap();
    desk.ok(&["run", "tiny.toml", "--out", "run", "--quiet"]);
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
