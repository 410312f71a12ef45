use crate::program::Desk;
use serde_json::Value;

#[test]
fn the_same_seed_writes_the_same_text() {
    let desk = Desk::with_run();
    let sample = |seed: &str| desk.ok(&["sample", "run", "--prompt", "The fox", "--seed", seed]);
    assert_eq!(sample("1"), sample("1"));
    assert_ne!(sample("1"), sample("2"));
    assert!(sample("1").starts_with("The fox"));
}

#[test]
fn a_checkpoint_and_its_run_write_the_same() {
    let desk = Desk::with_run();
    let sample = |model: &str| desk.ok(&["sample", model, "--prompt", "A", "--temperature", "0"]);
    assert_eq!(sample("run"), sample("run/checkpoints/step-00000020"));
}

#[test]
fn a_copied_checkpoint_needs_nothing_else() {
    let desk = Desk::with_run();
    std::fs::create_dir(desk.path("alone")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        desk.write(&format!("alone/{name}"), desk.read(&format!("run/checkpoints/step-00000020/{name}")));
    }
    let text = desk.ok(&["sample", "alone", "--prompt", "Once", "--max-tokens", "5"]);
    assert!(text.starts_with("Once"), "{text}");
    desk.fails(2, &["sample", "alone"], &["--prompt"]);
    desk.fails(2, &["eval", "alone"], &["--data"]);
}

#[test]
fn several_prompts_and_samples_come_out_in_order() {
    let desk = Desk::with_run();
    desk.write("begin.txt", "From a file");
    let said = desk.ok(&[
        "sample",
        "run",
        "--prompt",
        "First",
        "--prompt",
        "@begin.txt",
        "-n",
        "2",
        "--max-tokens",
        "4",
        "--json",
    ]);
    let prompts: Vec<String> = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["prompt"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(prompts, ["First", "First", "From a file", "From a file"]);
}

#[test]
fn the_run_s_own_settings_are_the_defaults() {
    let desk = Desk::with_run();
    let text = desk.ok(&["sample", "run"]);
    assert!(text.starts_with("Once there was"), "{text}");
    let whole = String::from_utf8(desk.read("run/samples/step-00000020.txt")).unwrap();
    assert_eq!(text, whole);
}

#[test]
fn an_empty_prompt_begins_a_document() {
    let desk = Desk::with_run();
    let said = desk.ok(&["sample", "run", "--prompt", "", "--json"]);
    assert!(serde_json::from_str::<Value>(said.trim()).unwrap()["tokens"].as_u64().unwrap() > 0);
}
