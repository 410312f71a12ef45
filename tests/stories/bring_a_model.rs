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
    desk.fails(2, &["sample", "run.gguf", "--prompt", "x"], &["run.gguf", "ironmill import"]);
    desk.fails(2, &["export", "run", "--out", "small", "--dtype", "q8_0"], &["q8_0", ".gguf"]);
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
