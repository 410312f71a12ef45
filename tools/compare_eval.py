"""Score a model with transformers and with ironmill on the same questions, and compare.

    pip install torch==2.15.0 transformers==5.22.2
    python tools/compare_eval.py target/release/ironmill MODEL_FOLDER SQUAD_JSON [--examples 500] [--out FOLDER] [--device cuda --rows 64]

MODEL_FOLDER is a Hugging Face folder with a tokenizer, such as `ironmill import` writes; SQUAD_JSON is SQuAD v1.1's dev set. Two files of questions
are made of it: the first questions whose paragraph has at most 600 characters, answered from the paragraph, and the same questions without it, with
three other answers of the article to choose from. Both programs work in f32, take the likeliest token, and count the first line as the
answer; the scores here are written after SQuAD's own script and EleutherAI's harness.
"""

import argparse
import json
import re
import string
import subprocess
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_TOKENS = 16


def questions(path: Path, count: int) -> tuple[list[dict], list[dict]]:
    """Questions with answers, and with choices."""
    answers, choices = [], []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        others = sorted({qa["answers"][0]["text"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]})
        for paragraph in article["paragraphs"]:
            if len(paragraph["context"]) > 600:
                continue
            for qa in paragraph["qas"]:
                if len(answers) == count:
                    return answers, choices
                gold = qa["answers"][0]["text"]
                prompt = f"{paragraph['context']}\nQuestion: {qa['question']}\nAnswer:"
                answers.append({"prompt": prompt, "answers": [answer["text"] for answer in qa["answers"]]})
                number = len(answers)
                rest = [other for other in others if other != gold]
                picked = [rest[(number * step) % len(rest)] for step in (7, 11, 13)]
                listed = picked[: number % 4] + [gold] + picked[number % 4 :]
                choices.append({"prompt": f"Question: {qa['question']}\nAnswer:", "choices": [" " + choice for choice in listed], "answer": number % 4})
    return answers, choices


def normalise(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(answer: str, reference: str) -> float:
    answer, reference = normalise(answer).split(), normalise(reference).split()
    same = sum((Counter(answer) & Counter(reference)).values())
    if not answer or not reference:
        return float(answer == reference)
    return 2 * same / (len(answer) + len(reference))


def batches(examples: list, rows: int):
    return (examples[start : start + rows] for start in range(0, len(examples), rows))


@torch.no_grad()
def answer_all(model, tokenizer, examples: list[dict], rows: int) -> list[dict]:
    ends = model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or [])
    found = []
    for batch in batches(examples, rows):
        prompts = tokenizer([example["prompt"] for example in batch], return_tensors="pt", padding=True, padding_side="left").to(model.device)
        made = model.generate(**prompts, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        for example, tokens in zip(batch, made[:, prompts["input_ids"].shape[1] :].tolist()):
            end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
            lines = tokenizer.decode(tokens[:end]).lstrip().splitlines()
            answer = lines[0].strip() if lines else ""
            found.append({
                "answer": answer,
                "exact_match": any(normalise(answer) == normalise(reference) for reference in example["answers"]),
                "f1": max(f1(answer, reference) for reference in example["answers"]),
            })
    return found


@torch.no_grad()
def choose_all(model, tokenizer, examples: list[dict], rows: int) -> list[dict]:
    texts = [example["prompt"] + choice for example in examples for choice in example["choices"]]
    before = [len(tokenizer(example["prompt"])["input_ids"]) for example in examples for _ in example["choices"]]
    sums = []
    for batch in batches(list(zip(texts, before)), rows):
        # What is behind a text cannot be seen by it.
        ids = tokenizer([text for text, _ in batch], return_tensors="pt", padding=True, padding_side="right").to(model.device)
        likelihoods = model(**ids).logits.float().log_softmax(-1)[:, :-1].gather(-1, ids["input_ids"][:, 1:, None])[..., 0].double()
        for (_, begin), row, mask in zip(batch, likelihoods, ids["attention_mask"]):
            sums.append(row[begin - 1 : int(mask.sum()) - 1].sum().item())
    found = []
    for example in examples:
        of, sums = sums[: len(example["choices"])], sums[len(example["choices"]) :]
        by_length = [total / len(choice) for total, choice in zip(of, example["choices"])]
        found.append({
            "log_likelihoods": of,
            "chosen": of.index(max(of)),
            "chosen_normalised": by_length.index(max(by_length)),
            "answer": example["answer"],
        })
    return found


def ours(args, flag: str, file: Path, details: Path, *more: str) -> tuple[dict, list[dict]]:
    line = [args.binary, "eval", args.model, flag, file, "--details", details, "--device", args.device, "--json", "--quiet", *more]
    done = subprocess.run(line, capture_output=True, check=True)
    return json.loads(done.stdout), [json.loads(line) for line in details.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("squad", type=Path)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("compare-eval"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    answers, choices = questions(args.squad, args.examples)
    for name, examples in [("answers", answers), ("choices", choices)]:
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    score, found = ours(args, "--choices", args.out / "choices.jsonl", args.out / "choices-ours.jsonl")
    theirs = choose_all(model, tokenizer, choices, args.rows)
    largest = max(abs(a - b) for x, y in zip(found, theirs) for a, b in zip(x["log_likelihoods"], y["log_likelihoods"]))
    for key in ("chosen", "chosen_normalised"):
        same = sum(x[key] == y[key] for x, y in zip(found, theirs))
        right = [sum(x[key] == x["answer"] for x in side) for side in (found, theirs)]
        print(f"choices, {key}: {same} of {len(choices)} alike; right: ironmill {right[0]}, transformers {right[1]}")
    print(f"log-likelihoods differ by at most {largest:.2e}; {score}")

    score, found = ours(args, "--answers", args.out / "answers.jsonl", args.out / "answers-ours.jsonl", "--max-tokens", str(MAX_TOKENS))
    theirs = answer_all(model, tokenizer, answers, args.rows)
    same = sum(x["answer"] == y["answer"] for x, y in zip(found, theirs))
    match = [sum(x["exact_match"] for x in side) for side in (found, theirs)]
    mean = [sum(x["f1"] for x in side) / len(side) for side in (found, theirs)]
    print(f"answers: {same} of {len(answers)} alike; exact match {match[0]} and {match[1]}; F1 {mean[0]:.6f} and {mean[1]:.6f}; {score}")
    for x, y, example in zip(found, theirs, answers):
        if x["answer"] != y["answer"]:
            print(f"  {example['prompt'][-60:]!r}: ironmill {x['answer']!r}, transformers {y['answer']!r}")


if __name__ == "__main__":
    main()
