use std::fs;

use crate::program::Desk;
use serde_json::{Value, json};

fn scored(desk: &Desk, line: &[&str]) -> Value {
    let said = desk.ok(&[&["eval", "run", "--json", "--quiet"], line].concat());
    serde_json::from_str(said.trim()).unwrap()
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// A desk with a run, questions with choices and questions with answers.
fn with_questions() -> Desk {
    let desk = Desk::with_run();
    let choices = [
        json!({"prompt": "Once there was", "choices": [" a fox", "qzx"], "answer": 0}),
        json!({"prompt": "The ", "choices": ["qqqq", "fox"], "answer": "fox"}),
        json!({"prompt": "Once there was a long beginning that does not fit a context of sixteen tokens at all", "choices": [" a", " the"], "answer": 1}),
    ];
    desk.write("choices.jsonl", lines(&choices));
    let answers = [
        json!({"prompt": "Once there was", "answers": ["nothing like it", "none"]}),
        json!({"prompt": "Who?", "answer": "Nora"}),
    ];
    desk.write("answers.jsonl", lines(&answers));
    desk
}

#[test]
fn choices_are_scored_by_likelihood() {
    let desk = with_questions();
    let found = scored(&desk, &["--choices", "choices.jsonl", "--details", "found.jsonl"]);
    assert_eq!(found["examples"], 3);
    let accuracy = found["accuracy"]["value"].as_f64().unwrap();
    let interval = [0, 1].map(|end| found["accuracy"]["interval"][end].as_f64().unwrap());
    assert!(accuracy >= 2.0 / 3.0 - 1e-9 && interval[0] < accuracy && accuracy <= interval[1], "{found}");
    let details: Vec<Value> = String::from_utf8(desk.read("found.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(details.len(), 3);
    assert_eq!((&details[0]["chosen"], &details[1]["answer"]), (&json!(0), &json!(1)));
    // The number of rows changes rounding and nothing else.
    let other = scored(&desk, &["--choices", "choices.jsonl", "--rows", "1"]);
    let likelihood = |found: &Value| found["log_likelihood"].as_f64().unwrap();
    assert!((likelihood(&found) - likelihood(&other)).abs() < 1e-4);
    let outcome = desk.run(&["eval", "run", "--choices", "choices.jsonl"]);
    assert!(
        outcome.stdout.contains("accuracy") && outcome.stderr.contains("do not fit the context"),
        "{outcome:?}"
    );
}

#[test]
fn answers_are_compared_with_references() {
    let desk = with_questions();
    let plain =
        scored(&desk, &["--answers", "answers.jsonl", "--max-tokens", "4", "--details", "found.jsonl"]);
    assert_eq!((plain["examples"].as_u64(), plain["exact_match"]["value"].as_f64()), (Some(2), Some(0.0)));
    let found = String::from_utf8(desk.read("found.jsonl")).unwrap();
    let answer = serde_json::from_str::<Value>(found.lines().next().unwrap()).unwrap()["answer"].clone();
    // What the model says is right if it is a reference; any of several will do.
    desk.write(
        "right.jsonl",
        lines(&[json!({"prompt": "Once there was", "answers": ["something else", answer]})]),
    );
    let right = scored(&desk, &["--answers", "right.jsonl", "--max-tokens", "4"]);
    assert_eq!(
        (right["exact_match"]["value"].as_f64(), right["f1"]["value"].as_f64()),
        (Some(1.0), Some(1.0))
    );
    let together = scored(&desk, &["--answers", "answers.jsonl", "--max-tokens", "4", "--rows", "1"]);
    assert_eq!(together["f1"], plain["f1"]);
}

#[test]
fn questions_can_be_messages() {
    let desk = with_questions();
    desk.write("short.jinja", "{{ messages[0].content }}?");
    for file in [["--choices", "choices.jsonl"], ["--answers", "answers.jsonl"]] {
        let plain = scored(&desk, &[&file[..], &["--examples", "2"]].concat());
        let asked = scored(
            &desk,
            &[&file[..], &["--examples", "2", "--chat", "--template", "@short.jinja"]].concat(),
        );
        let figure =
            |found: &Value| [found["log_likelihood"].clone(), found["f1"].clone(), found["tokens"].clone()];
        assert!(plain["examples"] == 2 && asked["examples"] == 2);
        if file[0] == "--choices" {
            assert_ne!(figure(&plain), figure(&asked), "{file:?}");
        }
    }
    desk.fails(65, &["eval", "run", "--choices", "choices.jsonl", "--chat"], &["has no chat template"]);
}

#[test]
fn messages_are_made_into_tokens_once_unless_they_tell_the_time() {
    let desk = with_questions();
    let files = || fs::read_dir(desk.path("cache/ironmill/tokens")).map_or(0, Iterator::count);
    let asked = |template: &str| {
        desk.write("asked.jinja", template);
        let arguments =
            ["eval", "run", "--choices", "choices.jsonl", "--chat", "--template", "@asked.jinja", "--json"];
        let output = desk.command(&arguments).env("XDG_CACHE_HOME", desk.path("cache")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    asked("{{ messages[0].content }} {{ strftime_now('%Y') }}?");
    assert_eq!(files(), 0);
    let (first, other) = (asked("{{ messages[0].content }}?"), asked("{{ messages[0].content }}!"));
    assert!(files() == 1 && first != other);
    let name = fs::read_dir(desk.path("cache/ironmill/tokens")).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(&name).unwrap();
    assert_eq!([asked("{{ messages[0].content }}?"), asked("{{ messages[0].content }}!")], [first, other]);
    assert_eq!(fs::read(&name).unwrap(), kept);
}

#[test]
fn mistakes_in_questions_are_explained() {
    let desk = with_questions();
    for (file, line) in [
        ("a", "{}"),
        ("b", r#"{"prompt": "x", "choices": ["a"], "answer": 3}"#),
        ("c", r#"{"prompt": "x", "choices": ["a"], "answer": "b"}"#),
        ("d", r#"{"prompt": "x", "choices": ["a", ""], "answer": 0}"#),
    ] {
        desk.write(file, line);
        desk.fails(65, &["eval", "run", "--choices", file], &[&format!("{file}:1:"), "a line looks like"]);
    }
    desk.write("e", r#"{"prompt": "x", "answers": []}"#);
    desk.fails(65, &["eval", "run", "--answers", "e"], &["e:1: it has no answer"]);
    desk.write("f", "\n");
    desk.fails(66, &["eval", "run", "--answers", "f"], &["has no example"]);
    desk.fails(66, &["eval", "run", "--answers", "none.jsonl"], &["cannot find none.jsonl"]);
    desk.fails(2, &["eval", "run", "--chat"], &["--chat is about questions"]);
    desk.fails(2, &["eval", "run", "--answers", "e", "--choices", "a"], &["cannot be used with"]);
    desk.fails(2, &["eval", "run", "--answers", "answers.jsonl", "--max-tokens", "0"], &["--max-tokens 0"]);
}
