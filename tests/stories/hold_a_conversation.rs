use crate::program::{Desk, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A model whose template says who speaks, and ends every turn with the only special token.
const TURNS: &str = "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ eos_token ~ '\n' }}{% endfor %}\
                     {% if add_generation_prompt %}a:{% endif %}";

/// A desk with a folder `model` that has a context of 128 tokens and a chat template.
fn with_model() -> Desk {
    let desk = Desk::with_config();
    let larger = "--model.context 128 --train.batch-tokens 256 --train.micro-batch 2 --train.eval-tokens 512 --train.steps 4";
    let larger: Vec<&str> = larger.split(' ').collect();
    desk.ok(&[&["run", "tiny.toml", "--out", "run", "--quiet"][..], &larger].concat());
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        desk.write(&format!("model/{name}"), desk.read(&format!("run/checkpoints/step-00000004/{name}")));
    }
    desk.write("model/chat_template.jinja", TURNS);
    desk.write("model/tokenizer_config.json", r#"{"eos_token": "<|endoftext|>"}"#);
    desk
}

fn chat(desk: &Desk, flags: &[&str], lines: &str) -> Outcome {
    desk.run_with_input(&[&["chat", "model", "--max-tokens", "8"][..], flags].concat(), lines.as_bytes())
}

fn answers(desk: &Desk, flags: &[&str], lines: &str) -> Vec<Value> {
    let outcome = chat(desk, &[flags, &["--json"]].concat(), lines);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn lines_are_answered_in_turn_and_remembered() {
    let desk = with_model();
    let said = answers(&desk, &[], "Hello\n\nWho are you?\n");
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[..2].iter().all(|answer| answer["role"] == "assistant"), "{said:?}");
    let tokens = |idx: usize| said[idx]["prompt_tokens"].as_u64().unwrap();
    assert!(
        tokens(1) > tokens(0) + said[0]["tokens"].as_u64().unwrap(),
        "the first turn is part of the second prompt"
    );
    let stats = &said[2];
    assert_eq!((stats["answers"].as_u64(), stats["messages"].as_u64()), (Some(2), Some(4)));
    assert!(stats["prompt_tokens_remembered"].as_u64().unwrap() >= tokens(0), "{stats}");
    // The same lines give the same words, as text too.
    let text = chat(&desk, &[], "Hello\n\nWho are you?\n").stdout;
    let expected: String =
        said[..2].iter().map(|answer| answer["content"].as_str().unwrap().to_owned() + "\n").collect();
    assert_eq!(text, expected);
}

#[test]
fn commands_work_and_mistakes_do_not_end_the_conversation() {
    let desk = with_model();
    let lines = "/system Be kind\nHello\n/save talk.json\n/clear\n/stats\n/load talk.json\n/stats\n/system\n/nonsense\n/load none.json\n/save\n/help\n/exit\nnever said\n";
    let outcome = chat(&desk, &[], lines);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    for part in ["0 messages", "2 messages", "Be kind", "/system TEXT"] {
        assert!(outcome.stdout.contains(part), "{part}: {outcome:?}");
    }
    for part in ["there is no command /nonsense", "cannot find none.json", "/save needs the name of a file"] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
    let saved: Value = serde_json::from_slice(&desk.read("talk.json")).unwrap();
    let roles: Vec<&str> = saved["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    // A conversation that is loaded goes on as if it had never ended.
    let whole = answers(&desk, &["--system", "Be kind"], "Hello\nAnd then?\n");
    let resumed = answers(&desk, &["--seed", "1"], "/load talk.json\nAnd then?\n");
    let resumed = resumed.iter().find(|object| object["role"] == "assistant").unwrap();
    assert_eq!(whole[1]["prompt_tokens"], resumed["prompt_tokens"]);
}

#[test]
fn a_long_conversation_forgets_its_beginning_and_keeps_the_system_text() {
    let desk = with_model();
    let lines = "Once there was a fox who lived under the hill\n".repeat(12);
    let outcome = chat(&desk, &["--system", "Tell the truth", "--json"], &lines);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("no longer sees the first"), "{}", outcome.stderr);
    let stats: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((stats["answers"].as_u64(), stats["context"].as_u64()), (Some(12), Some(128)));
    assert!(stats["last_prompt_tokens"].as_u64().unwrap() <= 120, "{stats}");
    // One message that does not fit is refused, and the conversation goes on.
    let outcome = chat(&desk, &["--json"], &format!("{}\nHi\n", "fox ".repeat(400)));
    assert!(outcome.stderr.contains("there is room for 120"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("\"role\":\"assistant\""), "{}", outcome.stdout);
}

#[test]
fn every_flag_of_chat_changes_something() {
    let desk = with_model();
    desk.write("told.txt", "Speak like a pirate\n");
    desk.write("other.jinja", "{{ messages[-1].content }}");
    let plain = answers(&desk, &[], "Hello\n");
    for flags in [
        &["--system", "Be kind"][..],
        &["--system", "@told.txt"],
        &["--template", "chatml"],
        &["--template", "@other.jinja"],
        &["--temperature", "0"],
        &["--top-k", "1"],
        &["--top-p", "0.01"],
        &["--seed", "9"],
    ] {
        let other = answers(&desk, flags, "Hello\n");
        let told = |said: &[Value]| (said[0]["content"].clone(), said[0]["prompt_tokens"].clone());
        assert_ne!(told(&plain), told(&other), "{flags:?}");
    }
    let short = desk.run_with_input(&["chat", "model", "--max-tokens", "2", "--json"], b"Hello\n");
    assert!(short.stdout.contains("\"tokens\":2"), "{short:?}");
    // Weights that are rounded may say the same.
    for flags in [["--precision", "bf16"], ["--weights", "int8"]] {
        assert_eq!(answers(&desk, &flags, "Hello\n")[0]["role"], "assistant", "{flags:?}");
    }
    let of_both = ["chat", "model", "--weights", "int8", "--precision", "bf16", "--device", "cpu"];
    desk.fails(2, &of_both, &["--weights int8", "leave out --precision bf16"]);
    desk.fails(69, &["chat", "model", "--device", "none"], &["there is no device \"none\""]);
    desk.fails(66, &["chat", "model", "--tokenizer", "none.json"], &["none.json"]);
}

#[test]
fn what_is_missing_is_said_before_the_first_line() {
    let desk = with_model();
    desk.fails(65, &["chat", "run"], &["has no chat template", "--template @FILE", "ironmill sample"]);
    desk.fails(2, &["chat", "model", "--template", "rag"], &["no chat template \"rag\"", "default, chatml"]);
    desk.fails(66, &["chat", "model", "--template", "@none.jinja"], &["cannot find none.jinja"]);
    desk.fails(2, &["chat", "model", "--max-tokens", "0"], &["--max-tokens 0"]);
    desk.write("model/chat_template.jinja", "{% if %}");
    desk.fails(65, &["chat", "model"], &["the chat template does not work"]);
}

#[test]
fn a_template_may_refuse_a_message() {
    let desk = with_model();
    let picky = "{% if messages[-1].content == 'bad' %}{{ raise_exception('not that word') }}{% endif %}{{ messages[-1].content }}";
    desk.write("model/chat_template.jinja", picky);
    let outcome = chat(&desk, &["--json"], "bad\ngood\n");
    assert!(outcome.stderr.contains("refuses this conversation: not that word"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("\"messages\":2"), "{}", outcome.stdout);
}

#[test]
fn hostile_templates_end_soon_and_without_the_memory() {
    let desk = with_model();
    let doubling = "{% set a = 'x' %}".to_owned() + &"{% set a = a ~ a %}".repeat(60) + "{{ a|length }}";
    let in_a_loop =
        "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}";
    let deep = format!("{{{{ {}1 }}}}", "-".repeat(100_000));
    for hostile in [&*doubling, in_a_loop, &deep, "{{ '%1000000000d'|format(1) }}"] {
        desk.write("model/chat_template.jinja", hostile);
        let started = Instant::now();
        desk.fails(65, &["chat", "model"], &["which no honest one needs"]);
        assert!(started.elapsed() < Duration::from_secs(60), "{:.40}", hostile);
    }
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let desk = with_model();
    let mut child = desk
        .command(&["chat", "model", "--max-tokens", "1M", "--temperature", "2"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"Hello\n").unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    stdin.write_all(b"/save talk.json\n/stats\n").unwrap();
    drop(stdin);
    let mut rest = String::new();
    for line in stdout.lines() {
        rest += &String::from_utf8_lossy(&line.map(String::into_bytes).unwrap_or_default());
        rest.push('\n');
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(rest.contains("2 messages"), "{rest}");
    let saved: Value = serde_json::from_slice(&desk.read("talk.json")).unwrap();
    assert!(!saved["messages"][1]["content"].as_str().unwrap().is_empty());
}
