"""Compare an imported model with `transformers` on the same weights: logits, greedy tokens, loss on a text; or sentence vectors.

    ironmill import MODEL.gguf --out FOLDER
    ironmill data prepare TEXT --tokenizer FOLDER/tokenizer.json --validation 0 --out DATA     # for --loss
    python tools/compare_imported.py PROGRAM FOLDER --prompt 'The capital of France is'
    python tools/compare_imported.py PROGRAM FOLDER --loss DATA --text TEXT --tokens 20000 --context 512
    python tools/compare_imported.py PROGRAM FOLDER --sentences
    python tools/compare_imported.py PROGRAM FOLDER --gguf FILE      # the dequantised weights against the `gguf` package

Needs torch and transformers (and gguf); prints both sides and the difference.
"""

import argparse
import json
import subprocess

import torch
import transformers


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json", "--quiet"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare_greedy(args, model, tokenizer):
    ids = tokenizer(args.prompt, return_tensors="pt")
    made = model.generate(**ids, max_new_tokens=24, do_sample=False)
    theirs = tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    ours = run(args.program, "sample", args.folder, "--prompt", args.prompt, "--temperature", 0, "--max-tokens", 24)[0]["text"]
    print("ours  ", repr(ours))
    print("theirs", repr(theirs))
    print("same" if ours == theirs else "DIFFERENT")


def compare_loss(args, model, tokenizer):
    """The same windows as `eval`: windows of the context, every token but the first predicted once."""
    evaluated = run(args.program, "eval", args.folder, "--data", args.loss, "--split", "train", "--tokens", args.tokens,
                    "--context", args.context, "--rows", 1)[0]  # fmt: skip
    ids = tokenizer(open(args.text, encoding="utf-8").read(), add_special_tokens=False)["input_ids"]
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, args.tokens, args.context):
            window = torch.tensor([ids[start : min(start + args.context, args.tokens) + 1]])
            logits = model(window[:, :-1]).logits
            total += torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
            count += window.shape[1] - 1
    print(f"ours   {evaluated['loss']:.6f} over {evaluated['tokens']} tokens")
    print(f"theirs {total / count:.6f} over {count} tokens")
    print(f"difference {abs(evaluated['loss'] - total / count):.2e}")


def compare_sentences(args):
    texts = ["A fox in the snow.", "Winter animals", "The derivative of a sum is the sum of the derivatives.", "naïve café"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModel.from_pretrained(args.folder, dtype=torch.float32)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    theirs = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    flags = [word for text in texts for word in ("--text", text)]
    ours = torch.tensor([line["vector"] for line in run(args.program, "embed", args.folder, *flags)])
    print(f"largest difference of a number: {(ours - theirs).abs().max():.2e}; of length {ours.shape[1]}")


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
    parser.add_argument("--loss")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--sentences", action="store_true")
    parser.add_argument("--gguf")
    args = parser.parse_args()
    if args.sentences:
        return compare_sentences(args)
    if args.gguf:
        compare_weights(args)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32, attn_implementation="eager")
    if args.prompt:
        compare_greedy(args, model, tokenizer)
    if args.loss:
        compare_loss(args, model, tokenizer)


if __name__ == "__main__":
    main()
