use crate::program::Desk;
use serde_json::Value;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn every_kernel_is_checked_and_measured_against_the_peak() {
    let said = Desk::new().ok(&["bench", "ops", "--quick", "--threads", "2", "--json"]);
    let lines = lines(&said);
    assert!(number(&lines[0]["f32_flops_per_s"]) > 1e6 && number(&lines[0]["copy_bytes_per_s"]) > 1e6);
    let of_kind = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let cases = of_kind("case");
    for kernel in ["linear", "linear_grad_input", "linear_grad_weight", "attention", "attention_grad", "adam"]
    {
        assert!(cases.iter().any(|case| case["kernel"] == kernel), "{kernel}: {said}");
    }
    for case in cases {
        let (median, best) = (number(&case["median_s"]), number(&case["best_s"]));
        assert!(0.0 < best && best <= median && number(&case["share"]) > 0.0, "{case}");
    }
    assert_eq!(of_kind("summary").len(), 5, "{said}");
}

#[test]
fn the_stages_of_a_measured_step_add_up_to_it() {
    let desk = Desk::new();
    let tiny = ["bench", "step", "--quick", "--model", "2x2x32", "--batch", "4", "--context", "16"];
    let said = desk.ok(&[&tiny[..], &["--vocab", "50", "--steps", "4", "--batching", "--json"]].concat());
    let step = &lines(&said)[0];
    assert_eq!((&step["steps"], &step["vocab"], &step["batch"]), (&4.into(), &50.into(), &4.into()));
    let sum =
        |list: &str| step[list].as_array().unwrap().iter().map(|part| number(&part["seconds"])).sum::<f64>();
    let total = number(&step["profiled_s"]);
    for list in ["stages", "kernels"] {
        assert!((sum(list) - total).abs() < 1e-6 * total, "{list}: {} of {total}", sum(list));
    }
    for stage in step["stages"].as_array().unwrap() {
        let (limit, left) = (number(&stage["limit_s"]), number(&stage["left_s"]));
        assert!(limit >= 0.0 && 0.0 <= left && left <= number(&stage["seconds"]), "{stage}");
    }
    // Four products a block and the head, each with two gradients.
    assert_eq!(step["products_per_step"], 27);
    assert!(number(&step["batching"]["ratio"]) > 0.0);
    assert!(number(&step["tokens_per_s"]) > 0.0 && number(&step["share_of_peak"]) > 0.0);

    let table = desk.ok(&[&tiny[..], &["--kernels", "--threads", "1"]].concat());
    for stage in ["embed", "attention", "mlp", "norms", "head", "optimiser", "other", "step"] {
        assert!(table.lines().any(|line| line.starts_with(&format!("  {stage} "))), "{stage}: {table}");
    }
    assert!(table.contains("head_loss") && table.contains("tok/s by cpu time"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("  step ") && line.contains("left")), "{table}");
}

#[test]
fn generation_is_measured_for_every_batch_against_reading_and_arithmetic() {
    let desk = Desk::new();
    for (flag, name) in [("--precision", "fp32"), ("--precision", "bf16"), ("--weights", "int8")] {
        let tiny =
            ["bench", "generate", "--quick", "--model", "llama:2x2x32", "--vocab", "50", "--prompt", "5"];
        let more = [
            "--tokens",
            "4",
            "--batch",
            "1,3",
            "--rounds",
            "1",
            flag,
            name,
            "--json",
            "--log-probabilities",
            "2",
        ];
        let lines = lines(&desk.ok(&[&tiny[..], &more].concat()));
        let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["limits", "model", "generate", "generate"]);
        assert_eq!(lines[1]["precision"], name);
        for (line, batch) in lines[2..].iter().zip([1, 3]) {
            assert_eq!(line["batch"], batch);
            for figure in ["prefill_tokens_per_s", "decode_tokens_per_s", "tokens_per_s", "read_share"] {
                assert!(number(&line[figure]) > 0.0, "{figure}: {line}");
            }
            assert!(line["read_share_meanwhile"].is_null(), "{line}");
        }
    }
}

#[test]
fn generation_is_held_against_what_memory_gave_around_its_rounds() {
    let desk = Desk::new();
    let tiny = ["bench", "generate", "--model", "1x2x16", "--vocab", "50", "--prompt", "4", "--tokens", "4"];
    let said = desk.ok(&[&tiny[..], &["--batch", "1", "--rounds", "1"]].concat());
    assert!(said.contains("% of reading, ") && said.contains("% of what it was meanwhile"), "{said}");
    let lines = lines(&desk.ok(&[&tiny[..], &["--batch", "1", "--rounds", "1", "--json"]].concat()));
    assert!(number(&lines[2]["read_share_meanwhile"]) > 0.0, "{}", lines[2]);
}

#[test]
fn what_cannot_be_measured_is_said() {
    let desk = Desk::new();
    desk.fails(2, &["bench", "step", "--model", "huge"], &["4x4x128"]);
    desk.fails(2, &["bench", "ops", "--quick", "--only", "juggling"], &["juggling", "--only"]);
    desk.fails(69, &["bench", "step", "--quick", "--device", "abacus"], &["abacus", "--device cpu"]);
    desk.fails(78, &["bench", "step", "--quick", "--model", "1x3x32"], &["heads"]);
    desk.fails(2, &["bench", "generate", "--tokens", "1"], &["--tokens"]);
}

#[test]
fn a_bench_of_the_loader_shows_every_sampler_and_what_a_step_waits() {
    let desk = Desk::new();
    let said = desk.ok(&["bench", "loader", "--quick", "--json", "--context", "64", "--step-ms", "1"]);
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let samplers: Vec<&serde_json::Value> = lines.iter().filter(|line| line["kind"] == "sampler").collect();
    assert_eq!(samplers.len(), 5, "{said}");
    for line in samplers {
        assert!(line["stored_bytes_per_s"].as_f64().unwrap() > 0.0 && line["wait_s"].as_f64().unwrap() > 0.0);
    }
    let one =
        desk.ok(&["bench", "loader", "--quick", "--sampler", "packed", "--workers", "0", "--step-ms", "1"]);
    assert!(one.contains("packed") && !one.contains("bucketed"), "{one}");
    desk.fails(2, &["bench", "loader", "--sampler", "best"], &["best", "packed"]);
}
