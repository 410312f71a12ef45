"""Compare an imported model with `transformers` on the same weights: logits, greedy tokens, loss on a text; or sentence vectors.

    ironmill import MODEL.gguf --out FOLDER
    ironmill data prepare TEXT --tokenizer FOLDER/tokenizer.json --validation 0 --out DATA     # for --loss
    python tools/compare_imported.py PROGRAM FOLDER --prompt 'The capital of France is'
    python tools/compare_imported.py PROGRAM FOLDER --logits 'The capital of France is Paris.'
    python tools/compare_imported.py PROGRAM FOLDER --loss DATA --text TEXT --tokens 20000 --context 512
    python tools/compare_imported.py PROGRAM FOLDER --sentences
    python tools/compare_imported.py PROGRAM FOLDER --gguf FILE      # the dequantised weights against the `gguf` package

`--device cuda` runs both sides on a card, `--precision fp32 bf16` ours in both; the other side is always f32. Needs torch and
transformers (and gguf); prints both sides and the difference.
"""

import argparse
import json
import subprocess
import tempfile

import torch
import transformers


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json", "--quiet"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def place(args, precision="fp32"):
    return ["--device", args.device, "--precision", precision]


def plain_ids(tokenizer, text, **how):
    """The tokens of a text in which the texts of special tokens mean nothing, between those that stand around one."""
    return tokenizer(text, split_special_tokens=True, **how)["input_ids"]


def compare_logits(args, model, tokenizer, precision):
    import safetensors.torch

    with tempfile.TemporaryDirectory() as room:
        found = run(args.program, "eval", args.folder, "--text", args.logits, "--logits", f"{room}/logits", *place(args, precision))[0]
        ours = safetensors.torch.load_file(f"{room}/logits")["logits"]
    ids = plain_ids(tokenizer, args.logits)
    print(f"{len(ids)} tokens, the same: {found['ids'] == ids}; the first of them: {ids[:3]}")
    window = torch.tensor([ids], device=args.device)
    with torch.no_grad():
        made = model(window, labels=window)
    theirs = made.logits[0].float().cpu()
    largest = theirs.abs().max().item()
    worst = (ours - theirs).abs().max().item()
    # Of a row, so that a row of small logits is not measured by another's large ones.
    relative = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
    print(f"logits differ by at most {worst:.2e} (the largest is {largest:.2f}: {worst / largest:.2e}), a row by {relative:.2e} of its length")
    print(f"the likeliest token is the same behind {(ours.argmax(-1) == theirs.argmax(-1)).sum()} of {len(ids)}")
    print(f"loss: ours {found['loss']:.6f}, theirs {made.loss.item():.6f}, difference {abs(found['loss'] - made.loss.item()):.2e}")


def compare_greedy(args, model, tokenizer, precision):
    ids = tokenizer(args.prompt, return_tensors="pt").to(args.device)
    made = model.generate(**ids, max_new_tokens=24, do_sample=False)
    theirs = tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    ours = run(args.program, "sample", args.folder, "--prompt", args.prompt, "--temperature", 0, "--max-tokens", 24, *place(args, precision))[0]["text"]
    print("ours  ", repr(ours))
    print("theirs", repr(theirs))
    print("same" if ours == theirs else "DIFFERENT")


def compare_loss(args, model, tokenizer):
    """The same windows as `eval`: the context less what stands before a text, every token but the first predicted once."""
    ids = plain_ids(tokenizer, open(args.text, encoding="utf-8").read(), add_special_tokens=False)
    asked = min(args.tokens, len(ids) - 1)
    evaluated = [
        run(args.program, "eval", args.folder, "--data", args.loss, "--split", "train", "--tokens", asked, "--context", args.context,
            "--rows", args.rows, *place(args, precision))[0]
        for precision in args.precision
    ]  # fmt: skip
    before = evaluated[0]["before"]
    room, total, count = args.context - len(before), 0.0, 0
    with torch.no_grad():
        for start in range(0, asked, room):
            window = ids[start : min(start + room, asked) + 1]
            logits = model(torch.tensor([before + window[:-1]], device=args.device)).logits[0, len(before) :].float()
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:], device=args.device), reduction="sum").item()
            count += len(window) - 1
    print(f"loss over {count} tokens, {before} before every window of {args.context}: theirs {total / count:.6f}")
    for precision, ours in zip(args.precision, evaluated):
        print(f"ours in {precision}: {ours['loss']:.6f} over {ours['tokens']}, difference {abs(ours['loss'] - total / count):.2e}")


def compare_sentences(args):
    texts = ["A fox in the snow.", "Winter animals", "The derivative of a sum is the sum of the derivatives.", "naïve café"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModel.from_pretrained(args.folder, dtype=torch.float32).to(args.device)
    batch = tokenizer(texts, padding=True, return_tensors="pt").to(args.device)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    theirs = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    flags = [word for text in texts for word in ("--text", text)]
    ours = torch.tensor([line["vector"] for line in run(args.program, "embed", args.folder, "--device", args.device, *flags)])
    print(f"largest difference of a number: {(ours - theirs.cpu()).abs().max():.2e}; of length {ours.shape[1]}")


def compare_weights(args):
    """Every tensor of the folder against the package's dequantiser, and the logits of `transformers` on those weights."""
    import gguf
    import safetensors.torch
    from gguf.quants import dequantize

    ours = safetensors.torch.load_file(args.folder + "/model.safetensors")
    heads = json.load(open(args.folder + "/config.json", encoding="utf-8"))
    worst = 0.0
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip
    for tensor in gguf.GGUFReader(args.gguf).tensors:
        data = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        stem = tensor.name.split(".")
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif stem[0] == "blk" and stem[2] in names:
            name = f"model.layers.{stem[1]}.{names[stem[2]]}.weight"
            if stem[2] in ("attn_q", "attn_k") and heads["model_type"] == "llama":
                n = heads["num_attention_heads" if stem[2] == "attn_q" else "num_key_value_heads"]
                data = data.reshape(n, -1, 2, data.shape[-1]).transpose(1, 2).reshape(data.shape)
        else:
            continue
        worst = max(worst, (ours[name] - data).abs().max().item())
    print(f"largest difference of a matrix element: {worst}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--prompt")
    parser.add_argument("--logits", metavar="TEXT")
    parser.add_argument("--loss")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--sentences", action="store_true")
    parser.add_argument("--gguf")
    args = parser.parse_args()
    if args.sentences:
        return compare_sentences(args)
    if args.gguf:
        compare_weights(args)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32, attn_implementation="eager")
    model = model.to(args.device)
    for precision in args.precision:
        print(f"{precision} on {args.device}")
        if args.logits:
            compare_logits(args, model, tokenizer, precision)
        if args.prompt:
            compare_greedy(args, model, tokenizer, precision)
    if args.loss:
        compare_loss(args, model, tokenizer)


if __name__ == "__main__":
    main()
