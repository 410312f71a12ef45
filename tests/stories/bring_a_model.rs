use crate::program::Desk;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models").join(name)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn a_run_leaves_as_a_folder_and_comes_back_bit_by_bit() {
    let desk = Desk::with_run();
    desk.ok(&["export", "run", "--out", "folder", "--check"]);
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert!(desk.path("folder").join(file).is_file(), "{file}");
    }
    let before = desk.read("run/checkpoints/step-00000020/model.safetensors");
    assert_eq!(desk.read("folder/model.safetensors"), before);
    desk.ok(&["import", "folder", "--out", "again"]);
    assert_eq!(desk.read("again/model.safetensors"), before);
    assert_eq!(
        desk.ok(&["sample", "again", "--prompt", "Once"]),
        desk.ok(&["sample", "folder", "--prompt", "Once"])
    );
    desk.fails(73, &["export", "run", "--out", "folder"], &["folder", "is there already"]);
    let half = desk.ok(&["export", "run", "--out", "half", "--dtype", "bf16", "--check", "--json"]);
    assert!(json(&half)["check"]["difference"].as_f64().unwrap() > 0.0);
    assert!(desk.read("half/model.safetensors").len() < before.len());
}

#[test]
fn every_kind_passes_through_a_gguf_file() {
    for name in ["llama2", "llama-linear", "smollm2", "mistral", "qwen2", "gemma3", "minilm"] {
        let desk = Desk::new();
        let source = golden(name).display().to_string();
        desk.ok(&["export", &source, "--out", "model.gguf", "--check"]);
        let said = desk.ok(&["import", "model.gguf", "--out", "back", "--check", "--json"]);
        assert_eq!(json(&said)["check"]["difference"], 0.0, "{name}");
        desk.ok(&["import", &source, "--out", "folder", "--check"]);
        let sizes = |path: &str| std::fs::metadata(desk.path(path)).unwrap().len();
        desk.ok(&["export", "folder", "--out", "small.gguf", "--dtype", "q8_0"]);
        assert!(sizes("small.gguf") < sizes("model.gguf"), "{name}");
    }
}

#[test]
fn a_vocabulary_passes_through_a_gguf_file() {
    let desk = Desk::with_run();
    desk.ok(&["export", "run", "--out", "run.gguf", "--check"]);
    desk.ok(&["import", "run.gguf", "--out", "back", "--check"]);
    let how = ["--prompt", "Once there was", "--temperature", "0", "--max-tokens", "9"];
    let sample = |model: &str| desk.ok(&[&["sample", model][..], &how].concat());
    assert_eq!(sample("back"), sample("run/checkpoints/step-00000020"));
    for line in [["sample", "run.gguf", "--prompt", "x"], ["eval", "run.gguf", "--text", "x"]] {
        desk.fails(2, &line, &["`ironmill import run.gguf --out NAME`"]);
    }
    desk.fails(2, &["chat", "run.gguf"], &["`ironmill import run.gguf --out NAME`"]);
    let further = ["train", "tiny.toml", "--data.input", "run/data", "--out", "further", "--quiet"];
    desk.ok(&[&further[..], &["--init-from", "run.gguf", "--train.steps", "1"]].concat());
    desk.fails(2, &["export", "run", "--out", "small", "--dtype", "q8_0"], &["q8_0", ".gguf"]);
}

/// A folder `model` of llama2.c's tiny model, whose tokenizer puts `<s>` before a text.
fn with_llama2c() -> Desk {
    let desk = Desk::new();
    for name in ["tiny.bin", "tokenizer.bin"] {
        desk.write(name, std::fs::read(golden("../llama2c").join(name)).unwrap());
    }
    desk.fails(2, &["sample", "tiny.bin", "--prompt", "x"], &["import tiny.bin --tokenizer FILE --out NAME"]);
    desk.ok(&["import", "tiny.bin", "--tokenizer", "tokenizer.bin", "--out", "model", "--check"]);
    desk
}

#[test]
fn a_model_of_llama2c_is_imported_and_used() {
    let desk = with_llama2c();
    let cases = json(&std::fs::read_to_string(golden("../llama2c/tiny.json")).unwrap());
    let case = &cases["encodings"][1];
    let text = case["text"].as_str().unwrap();
    let found = json(&desk.ok(&["eval", "model", "--text", text, "--json"]));
    assert_eq!(found["ids"], case["ids"]);
    let sample = ["sample", "model", "--prompt", text, "--temperature", "0", "--max-tokens", "5", "--json"];
    let made = json(&desk.ok(&sample));
    assert_eq!((made["prompt_tokens"].as_u64(), made["tokens"].as_u64()), (Some(11), Some(5)));
    desk.ok(&["export", "model", "--out", "model.gguf", "--check"]);
    desk.ok(&["import", "model.gguf", "--out", "back", "--check"]);
    let again = desk.ok(&[&["sample", "back"], &sample[2..]].concat());
    assert_eq!(json(&again)["ids"], made["ids"]);
}

#[test]
fn what_a_vocabulary_puts_before_a_text_comes_once_everywhere() {
    let desk = with_llama2c();
    desk.write("a.txt", "Once upon a time there was a big cat. ".repeat(40));
    let prepare = ["data", "prepare", "a.txt", "--tokenizer", "model/tokenizer.json", "--out", "data"];
    desk.ok(&[&prepare[..], &["--validation", "0"]].concat());
    desk.write("model/chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}");
    // The tokens before a text, in a loss, a text, a prompt and a conversation.
    let seen = || {
        let eval = |flags: &[&str]| json(&desk.ok(&[&["eval", "model", "--json"], flags].concat()));
        let data = eval(&["--data", "data", "--split", "train"]);
        let text = eval(&["--text", "Lily saw"]);
        let prompt =
            json(&desk.ok(&["sample", "model", "--prompt", "Lily saw", "--max-tokens", "1", "--json"]));
        let chat = ["chat", "model", "--max-tokens", "1", "--json"];
        let said = desk.run_with_input(&chat, b"Lily saw\n").stdout;
        let said = json(said.lines().next().unwrap());
        let ids = text["ids"].as_array().unwrap();
        let of_prompt = prompt["prompt_tokens"].as_u64() == Some(ids.len() as u64);
        (
            of_prompt && (ids[0] == 1) == (data["before"] == serde_json::json!([1])),
            ids[0] == 1,
            said,
            data["loss"].clone(),
        )
    };
    let (is_everywhere, is_there, said, loss) = seen();
    assert!(is_everywhere && is_there);
    // A folder can say otherwise; its chat template still has the last word in a conversation.
    let path = "model/tokenizer_config.json";
    let mut config = json(&String::from_utf8(desk.read(path)).unwrap());
    config["add_bos_token"] = false.into();
    config["bos_token"] = "<s>".into();
    desk.write(path, config.to_string());
    let (is_everywhere, is_there, said_without, loss_without) = seen();
    assert!(is_everywhere && !is_there);
    assert_eq!(said["prompt_tokens"], said_without["prompt_tokens"]);
    assert_ne!(loss, loss_without);
}

#[test]
fn the_logits_of_a_text_are_written_for_others() {
    let desk = Desk::with_run();
    let of = ["eval", "run", "--text", "Once there was", "--json"];
    let found = json(&desk.ok(&[&of[..], &["--logits", "logits.safetensors"]].concat()));
    let file = desk.read("logits.safetensors");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = json(std::str::from_utf8(&file[8..8 + length]).unwrap());
    let shape: Vec<usize> = serde_json::from_value(header["logits"]["shape"].clone()).unwrap();
    let ids: Vec<usize> = serde_json::from_value(found["ids"].clone()).unwrap();
    let data = &file[file.len() - 4 * shape[0] * shape[1]..];
    let logits: Vec<f32> =
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let nats: f64 = logits
        .chunks_exact(shape[1])
        .zip(&ids[1..])
        .map(|(row, &next)| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln() - f64::from(row[next]))
        .sum();
    assert_eq!(shape[0], ids.len());
    let loss = nats / (ids.len() - 1) as f64;
    assert!((found["loss"].as_f64().unwrap() - loss).abs() < 1e-4, "{found}: {loss}");
    desk.write("a.txt", "Once there was");
    assert_eq!(json(&desk.ok(&["eval", "run", "--text", "@a.txt", "--json"]))["loss"], found["loss"]);
    let half =
        [&["eval", "run", "--text", "@a.txt", "--json"], &["--device", "cpu", "--precision", "bf16"][..]]
            .concat();
    let half = json(&desk.ok(&half))["loss"].as_f64().unwrap();
    assert!(half != loss && (half - loss).abs() < 0.02, "weights in bf16: {half}, {loss}");
    let long = "Once there was a fox. ".repeat(9);
    desk.fails(65, &["eval", "run", "--text", &long], &["tokens", "context of 16", "--data"]);
    desk.fails(65, &["eval", "run", "--text", ""], &["the text has 0 tokens"]);
    desk.fails(2, &["eval", "run", "--logits", "x"], &["--text"]);
    desk.fails(2, &["eval", "run", "--text", "a", "--examples", "3"], &["--examples"]);
}

#[test]
fn bytes_without_a_token_are_told() {
    let desk = Desk::new();
    desk.write("a.txt", "abab ".repeat(200));
    desk.ok(&["tokenizer", "train", "a.txt", "--vocab-size", "258", "--out", "whole.json"]);
    let mut file = json(&String::from_utf8(desk.read("whole.json")).unwrap());
    // Tab and vertical tab, by the names that byte-level vocabularies have for them, and a byte that no text has.
    for name in ["\u{109}", "\u{10b}", "\u{fe}"] {
        assert!(file["model"]["vocab"].as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    desk.write("partial.json", file.to_string());
    let inspect = |name: &str| desk.ok(&["tokenizer", "inspect", name]);
    assert!(inspect("partial.json").contains("3 bytes without a token, left out of a text: 0x09 0x0b 0xfe"));
    assert!(!inspect("whole.json").contains("without a token"));
    let prepare = |name: &str| {
        let line = ["data", "prepare", "a.txt", "--tokenizer", name, "--out", &name.replace(".json", "")];
        let outcome = desk.run(&line);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        outcome.stderr
    };
    let said = prepare("partial.json");
    assert_eq!(said.matches("no token for 2 bytes (0x09 0x0b)").count(), 1, "{said}");
    assert!(!prepare("whole.json").contains("no token"));
}

#[test]
fn an_imported_model_can_be_trained_further() {
    let desk = Desk::with_run();
    let steps = ["--train.steps", "2", "--quiet"];
    for (name, context) in [("gemma3", "8"), ("qwen2", "16"), ("mistral", "8")] {
        // The golden models know 61 tokens.
        desk.ok(&[
            "tokenizer",
            "train",
            "builtin:stories:30KB",
            "--kind",
            "char",
            "--vocab-size",
            "60",
            "--out",
            "char.json",
        ]);
        let data = format!("{name}-data");
        desk.ok(&[
            "data",
            "prepare",
            "builtin:stories:30KB",
            "--tokenizer",
            "char.json",
            "--validation",
            "0.1",
            "--out",
            &data,
        ]);
        let source = golden(name).display().to_string();
        let input =
            ["train", "tiny.toml", "--data.input", &data, "--tokenizer.file", "char.json", "--out", name];
        let start = ["--init-from", &source, "--model.context", context];
        desk.ok(&[&input[..], &start, &steps].concat());
        desk.ok(&["eval", name, "--data", &data]);
    }
}

#[test]
fn pickles_and_damaged_files_are_refused_with_advice() {
    let desk = Desk::new();
    desk.write("model/config.json", std::fs::read(golden("llama2").join("config.json")).unwrap());
    desk.write("model/pytorch_model.bin", b"PK\x03\x04");
    desk.fails(65, &["import", "model", "--out", "out"], &["pytorch_model.bin", "save_pretrained"]);
    desk.fails(65, &["import", "model/pytorch_model.bin", "--out", "out"], &["pickle"]);
    desk.write("bad.gguf", b"GGUF\x03\0\0\0");
    desk.fails(65, &["import", "bad.gguf", "--out", "out"], &["bad.gguf", "GGUF"]);
    assert!(!desk.path("out").exists());
}

#[test]
fn texts_become_vectors() {
    let desk = Desk::with_run();
    desk.write("lines.txt", "Once there was\na fox\n");
    let lines = desk.ok(&["embed", "run", "lines.txt", "--rows", "1"]);
    let vectors: Vec<Vec<f64>> =
        lines.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(vectors.len(), 2);
    for vector in &vectors {
        assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-4);
    }
    let vector = |flags: &[&str]| desk.ok(&[&["embed", "run", "--text", "a fox"], flags].concat());
    let plain = vector(&[]);
    assert_eq!(plain, lines.lines().nth(1).unwrap().to_string() + "\n");
    for flags in [&["--raw"][..], &["--pooling", "first"], &["--pooling", "last"]] {
        assert_ne!(vector(flags), plain, "{flags:?}");
    }
    assert_eq!(vector(&["--device", "cpu", "--tokenizer", "run/tokenizer.json"]), plain);
}
