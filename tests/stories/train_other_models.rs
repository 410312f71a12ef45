use crate::program::{Desk, numbers};
use serde_json::Value;

const CHARACTERS: &str = "abcdefghij klmnop.\n";

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap()
}

/// A folder of a model that PyTorch made, without a tokenizer.
fn golden(name: &str) -> String {
    format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_llama_learns_writes_and_travels_as_a_hugging_face_folder() {
    let desk = Desk::with_config();
    for (out, flags, model_type) in [
        ("llama", &["--model.kv-heads", "1"][..], "llama"),
        ("qwen2", &["--model.bias", "true"], "qwen2"),
        ("qwen3", &["--model.qk-norm", "true", "--model.rope-scaling", "linear:2"], "qwen3"),
    ] {
        let run = ["run", "tiny.toml", "--out", out, "--model.architecture", "llama", "--quiet"];
        desk.ok(&[&run[..], flags].concat());
        let losses = numbers(&desk, out, "loss");
        assert!(losses[19] < losses[0] - 0.3, "{losses:?}");
        let folder = format!("{out}/checkpoints/step-00000020");
        let config = json(&String::from_utf8(desk.read(&format!("{folder}/config.json"))).unwrap());
        assert_eq!(config["model_type"], model_type);
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            desk.write(&format!("alone-{out}/{name}"), desk.read(&format!("{folder}/{name}")));
        }
        let alone = format!("alone-{out}");
        let sample =
            |model: &str| desk.ok(&["sample", model, "--prompt", "A", "--max-tokens", "20", "--seed", "3"]);
        assert_eq!(sample(out), sample(&alone));
        let data = format!("{out}/data");
        let evaluate =
            |model: &str| json(&desk.ok(&["eval", model, "--data", &data, "--json"]))["loss"].clone();
        assert_eq!(evaluate(out), evaluate(&alone));
    }
}

#[test]
fn an_encoder_fills_in_what_is_hidden_and_says_why_it_cannot_write() {
    let desk = Desk::with_config();
    let run = desk.run(&["run", "encoder.toml", "--out", "run"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("<|mask|> is a special token"), "{}", run.stderr);
    assert!(!run.stdout.contains("bits per byte"), "{}", run.stdout);
    assert!(!desk.path("run/samples").exists());
    let losses = numbers(&desk, "run", "loss");
    assert!(losses[19] < losses[0] - 0.3, "{losses:?}");

    let special = "run/checkpoints/step-00000020/special_tokens_map.json";
    assert_eq!(json(&String::from_utf8(desk.read(special)).unwrap())["mask_token"], "<|mask|>");
    let said = desk.ok(&["eval", "run"]);
    assert!(said.contains("masked validation tokens") && !said.contains("bits per byte"), "{said}");
    assert_eq!(json(&desk.ok(&["eval", "run", "--json"]))["objective"], "masked token");
    assert_eq!(desk.ok(&["eval", "run"]), said, "the same tokens are asked for every time");
    desk.fails(
        65,
        &["sample", "run", "--prompt", "A"],
        &["encoder", "cannot continue a text", "ironmill eval"],
    );
}

#[test]
fn an_encoder_needs_a_mask_token_in_a_given_tokenizer() {
    let desk = Desk::with_config();
    let train = ["tokenizer", "train", "builtin:stories:40KB", "--vocab-size", "300", "--quiet", "--out"];
    desk.ok(&[&train[..], &["without.json"]].concat());
    desk.ok(&[&train[..], &["with.json", "--special", "<|mask|>"]].concat());
    let run = ["run", "encoder.toml", "--out", "run", "--tokenizer.file"];
    desk.fails(65, &[&run[..], &["without.json"]].concat(), &["without.json", "<|mask|>", "--special"]);
    desk.ok(&[&run[..], &["with.json"]].concat());
    let prepare = ["data", "prepare", "builtin:stories:40KB", "--tokenizer", "without.json", "--out", "data"];
    desk.ok(&prepare);
    desk.fails(
        65,
        &["train", "encoder.toml", "--data.input", "data", "--out", "next"],
        &["tokenizer.json", "<|mask|>"],
    );
}

#[test]
fn folders_of_every_kind_that_others_made_are_measured_and_sampled() {
    let desk = Desk::new();
    desk.write("a.txt", CHARACTERS.repeat(60));
    let special = ["--special", "<|endoftext|>", "--special", "<|mask|>"];
    desk.ok(&[&["tokenizer", "train", "a.txt", "--kind", "char", "--out", "t.json"], &special[..]].concat());
    desk.ok(&["data", "prepare", "a.txt", "--tokenizer", "t.json", "--out", "data", "--validation", "0.2"]);
    for name in ["gpt2", "llama", "qwen3", "encoder"] {
        let folder = golden(name);
        let evaluate = ["eval", &folder, "--data", "data", "--tokenizer", "t.json", "--json"];
        let loss = json(&desk.ok(&evaluate))["loss"].as_f64().unwrap();
        assert!(loss > 1.0 && loss < 10.0, "{name}: {loss}");
        let sample = ["sample", &folder, "--prompt", "abc", "--tokenizer", "t.json", "--temperature", "0"];
        if name == "encoder" {
            desk.fails(65, &sample, &["cannot continue a text"]);
        } else {
            // Whether the drawn ids are characters of this tokenizer is up to the model, so one token is asked for.
            let outcome = desk.run(&[&sample[..], &["--max-tokens", "1"]].concat());
            assert!(outcome.code == 0 || outcome.stderr.contains("token id"), "{name}: {outcome:?}");
        }
    }
    let many: String = ('a'..'\u{300}').collect();
    desk.write("many.txt", many.repeat(3));
    desk.ok(&["tokenizer", "train", "many.txt", "--kind", "char", "--out", "many.json"]);
    let sample = ["sample", &golden("gpt2"), "--prompt", "abc", "--tokenizer", "many.json"];
    desk.fails(65, &sample, &["many.json", "the model's own tokenizer"]);
}

#[test]
fn packed_and_bucketed_runs_end_and_say_what_they_do() {
    let desk = Desk::with_config();
    desk.write(
        "short.txt",
        ["A fox.", "An owl sat on a wall.", "The small cat slept near the old red mill all day."]
            .repeat(60)
            .join("\n\n"),
    );
    let run = ["run", "tiny.toml", "--data.input", "short.txt", "--data.document-separator", "\n\n"];
    let bucketed = desk.run(&[&run[..], &["--out", "bucketed", "--data.sampler", "bucketed"]].concat());
    assert_eq!(bucketed.code, 0, "{bucketed:?}");
    for words in [
        "documents in rows of 8, 16 tokens",
        "% of the rows is padding",
        "% of the tokens lie beyond",
        "at most 128 tokens",
    ] {
        assert!(bucketed.stderr.contains(words), "{words:?} is not in: {}", bucketed.stderr);
    }
    let tokens = numbers(&desk, "bucketed", "tokens");
    let steps: std::collections::BTreeSet<u64> =
        tokens.windows(2).map(|pair| (pair[1] - pair[0]) as u64).collect();
    assert_eq!(steps, [64, 128].into());
    desk.ok(&[&run[..], &["--out", "packed", "--data.sampler", "packed", "--quiet"]].concat());
    assert_eq!(numbers(&desk, "packed", "step").len(), 20);
    for out in ["bucketed", "packed"] {
        let epochs = numbers(&desk, out, "epoch");
        assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]) && epochs[0] > 0.0, "{epochs:?}");
    }
}

#[test]
fn a_run_counts_its_epochs() {
    let desk = Desk::with_config();
    let said = desk.ok(&["run", "tiny.toml", "--out", "run", "--train.epochs", "0.25", "--json"]);
    let epochs = json(said.lines().last().unwrap())["epochs"].as_f64().unwrap();
    assert!((0.25..0.26).contains(&epochs), "{epochs}");
    assert_eq!(numbers(&desk, "run", "epoch").last(), Some(&epochs));
}

#[test]
fn the_optimiser_of_a_run_cannot_be_changed() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--out", "run", "--quiet", "--train.optimizer"];
    desk.ok(&[&run[..], &["adam"]].concat());
    let other = [&run[..], &["sgd", "--train.steps", "30"]].concat();
    desk.fails(78, &other, &["train.optimizer \"adam\" → \"sgd\"", "another --out"]);
    desk.ok(&[&run[..], &["adam", "--train.steps", "22"]].concat());
}

#[test]
fn every_optimiser_learns() {
    let desk = Desk::with_config();
    for name in ["adamw", "adam", "sgd"] {
        let mut run = vec!["run", "tiny.toml", "--out", name, "--quiet", "--train.optimizer", name];
        if name == "sgd" {
            run.extend(["--train.learning-rate", "0.5"]);
        }
        desk.ok(&run);
        let losses = numbers(&desk, name, "loss");
        assert!(losses[19] < losses[0] - 0.2, "{name}: {losses:?}");
    }
}

#[test]
fn every_kind_of_tokenizer_trains_a_model() {
    let desk = Desk::with_config();
    desk.write(
        "plain.toml",
        String::from_utf8(desk.read("tiny.toml")).unwrap().replace("vocab_size = 300", ""),
    );
    for (kind, flags, said) in [
        ("char", &[][..], "characters"),
        ("byte", &[], "257 tokens: the 256 bytes"),
        ("word", &[], "words"),
        ("bpe", &["--tokenizer.vocab-size", "300", "--tokenizer.pattern", "qwen2"], "merges"),
    ] {
        let run = ["run", "plain.toml", "--out", kind, "--tokenizer.kind", kind];
        let outcome = desk.run(&[&run[..], flags].concat());
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
        let text = desk.ok(&["sample", kind, "--max-tokens", "5"]);
        assert!(text.starts_with("Once there was"), "{text}");
    }
}

#[test]
fn words_beyond_the_vocabulary_are_an_error_or_counted_and_told() {
    let desk = Desk::with_config();
    let run = ["run", "tiny.toml", "--tokenizer.kind", "word", "--out"];
    let refused = desk.run(&[&run[..], &["refused"]].concat());
    assert_eq!(refused.code, 65, "{refused:?}");
    assert!(refused.stderr.contains("add \"<|unknown|>\" to the special tokens"), "{}", refused.stderr);
    let special = ["--tokenizer.special", "<|endoftext|>", "--tokenizer.special", "<|unknown|>"];
    let told = desk.run(&[&run[..], &["told"], &special[..]].concat());
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.stderr.contains("they become <|unknown|>"), "{}", told.stderr);
    assert!(told.stderr.contains("tokens are <|unknown|>, "), "{}", told.stderr);
    let prepare =
        ["data", "prepare", "builtin:stories:20KB", "--tokenizer", "told/tokenizer.json", "--out", "data"];
    assert!(desk.run(&prepare).stderr.contains("tokens are <|unknown|>, "));
}
