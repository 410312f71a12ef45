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
fn a_prompt_comes_from_stdin_and_stop_texts_end_a_completion_across_tokens() {
    let desk = Desk::with_run();
    let whole = desk.ok(&["sample", "run", "--prompt", "The fox", "--max-tokens", "60"]);
    let given = desk.run_with_input(&["sample", "run", "--prompt", "-", "--max-tokens", "60"], b"The fox\n");
    assert_eq!(given.stdout, whole);
    // Three letters from the middle of what it writes, which several tokens may make up.
    let written: Vec<char> = whole.trim_end_matches('\n')["The fox".len()..].chars().collect();
    let stop: String = written[10..13].iter().collect();
    let until = desk.ok(&["sample", "run", "--prompt", "The fox", "--max-tokens", "60", "--stop", &stop]);
    let written: String = written.into_iter().collect();
    let expected = &written[..written.find(&stop).unwrap()];
    assert_eq!(until, format!("The fox{expected}\n"));
}

#[test]
fn json_tells_tokens_times_and_why_a_completion_ended() {
    let desk = Desk::with_run();
    let said = desk.ok(&["sample", "run", "--prompt", "The fox", "-n", "2", "--max-tokens", "7", "--json"]);
    for line in said.lines() {
        let made: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&made["tokens"], &made["finish"]), (&7.into(), &"length".into()));
        assert_eq!(made["ids"].as_array().unwrap().len(), 7);
        let [first, all] = ["first_token_s", "seconds"].map(|name| made[name].as_f64().unwrap());
        assert!(0.0 < first && first <= all, "{made}");
    }
}

#[test]
fn a_text_longer_than_the_context_goes_on_and_says_so() {
    let desk = Desk::with_run();
    let long = ["sample", "run", "--prompt", "The fox", "--max-tokens", "150", "--json"];
    let made: Value = serde_json::from_str(desk.ok(&long).trim()).unwrap();
    assert_eq!(made["tokens"], 150);
    assert!(made["dropped_tokens"].as_u64().unwrap() > 0, "{made}");
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
