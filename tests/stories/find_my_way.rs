use crate::program::Desk;
use serde_json::Value;

#[test]
fn a_tokenizer_shows_what_it_is_and_how_it_fits() {
    let desk = Desk::with_tokenizer();
    desk.write("a.txt", "Once there was a fox and a fox.");
    desk.write("b.txt", "\u{1F98A}");
    let said = desk.ok(&["tokenizer", "inspect", "tokenizer.json", "--text", "a.txt", "b.txt"]);
    for words in [
        "bpe, 400 tokens",
        "gpt2",
        "143",
        "0  <|endoftext|>",
        "a.txt: 31 B in",
        "bytes a token",
        "all texts: 35 B",
    ] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
    let said = desk.ok(&[
        "tokenizer",
        "inspect",
        "tokenizer.json",
        "--longest",
        "3",
        "--text",
        "a.txt",
        "b.txt",
        "--json",
    ]);
    let object: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&object["kind"], &object["vocab_size"], &object["merges"]),
        (&"bpe".into(), &400.into(), &143.into())
    );
    assert_eq!(object["pattern"]["name"], "gpt2");
    assert_eq!(object["special"][0]["text"], "<|endoftext|>");
    assert_eq!(object["longest"].as_array().unwrap().len(), 3);
    assert_eq!((&object["texts"][0]["bytes"], &object["texts"][2]["bytes"]), (&31.into(), &35.into()));
    // Nobody taught it foxes in pictures, so that character falls into its four bytes.
    assert_eq!(object["texts"][1]["single_byte_share"], 1.0);
    assert_eq!(object["texts"][1]["bytes_per_token"], 1.0);
}

#[test]
fn unknown_characters_and_words_are_counted_with_their_share() {
    let desk = Desk::new();
    desk.write("a.txt", "the cat sat");
    desk.write("b.txt", "the dog sat");
    for (kind, unknown) in [("char", 3), ("word", 1)] {
        desk.ok(&["tokenizer", "train", "a.txt", "--kind", kind, "--out", "t.json", "-q"]);
        let said = desk.ok(&["tokenizer", "inspect", "t.json", "--text", "b.txt", "--json"]);
        let object: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&object["kind"], &object["texts"][0]["unknown"]), (&kind.into(), &unknown.into()));
        assert!(object["texts"][0]["unknown_share"].as_f64().unwrap() > 0.2, "{object}");
        assert!(desk.ok(&["tokenizer", "inspect", "t.json", "--text", "b.txt"]).contains(" unknown ("));
    }
}

#[test]
fn shells_complete_commands_flags_and_keys() {
    let desk = Desk::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = desk.ok(&["completions", shell]);
        for word in ["tokenizer", "inspect", "vocab-size", "train.learning-rate", "cosine"] {
            assert!(script.contains(word), "{word} is not in the script for {shell}");
        }
    }
    desk.fails(2, &["completions", "cmd"], &["cmd", "bash"]);
}

#[test]
fn bash_takes_the_script_and_completes_with_it() {
    let desk = Desk::new();
    desk.write("complete.sh", desk.ok(&["completions", "bash"]));
    let ask = "source ./complete.sh && COMP_WORDS=(ironmill run --train.learn) && COMP_CWORD=2 \
               && _ironmill ironmill --train.learn run && echo ${COMPREPLY[@]}";
    let Ok(output) = std::process::Command::new("bash").args(["-c", ask]).current_dir(desk.path("")).output()
    else {
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "--train.learning-rate", "{output:?}");
}

#[test]
fn every_command_has_a_manual_page_with_examples() {
    let desk = Desk::new();
    assert!(desk.ok(&["man", "deep/pages"]).starts_with("deep/pages: "));
    for name in
        ["ironmill", "ironmill-run", "ironmill-tokenizer-inspect", "ironmill-config-show", "ironmill-man"]
    {
        let page = String::from_utf8(desk.read(&format!("deep/pages/{name}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains("Examples:"), "{name}: {page}");
    }
    let page = String::from_utf8(desk.read("deep/pages/ironmill-run.1")).unwrap();
    assert!(page.contains("train.learning_rate"), "{page}");
}

#[test]
fn the_doctor_looks_at_everything() {
    let desk = Desk::new();
    let found: Value = serde_json::from_str(&desk.ok(&["doctor", "--json", "--threads", "1"])).unwrap();
    assert_eq!(found["threads"], 1);
    // A machine without a card has all libraries listed, too, with how to get them.
    let cuda = &found["cuda"];
    assert_eq!(cuda["libraries"].as_array().unwrap().len(), 5, "{found}");
    assert_eq!(found["devices"][0] == "cuda", cuda["is_used"] == true, "{found}");
    // Anything that runs these tests does a million and less than a thousand million million a second.
    for rate in ["flops_per_s", "read_bytes_per_s"] {
        let rate = found[rate].as_f64().unwrap();
        assert!((1e6..1e15).contains(&rate), "{found}");
    }
    #[cfg(target_os = "linux")]
    for size in ["memory_bytes", "available_memory_bytes", "free_disk_bytes"] {
        assert!(found[size].as_u64().unwrap() > 1 << 20, "{size} in {found}");
    }
    let said = desk.ok(&["doctor"]);
    for words in [
        "system",
        "processor",
        "kernels use",
        "memory",
        "disk",
        "cache",
        "NVIDIA driver",
        "NVRTC",
        "cuBLASLt",
    ] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}

#[test]
fn the_version_says_what_it_was_built_for() {
    let desk = Desk::new();
    assert_eq!(desk.ok(&["-V"]), format!("ironmill {}\n", env!("CARGO_PKG_VERSION")));
    let said = desk.ok(&["--version"]);
    for words in [env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS, "devices: cpu"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}

#[test]
fn help_goes_to_stdout_and_tells_of_json_and_exit_codes() {
    let desk = Desk::new();
    let said = desk.ok(&["--help"]);
    for words in ["--json", "JSON", "exit_code", "Exit codes: 0 done", "75 stopped", "Examples:"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
    let nothing = desk.run(&[]);
    assert_eq!(nothing.code, 2, "{nothing:?}");
    assert!(nothing.stderr.contains("Usage"), "{nothing:?}");
}
