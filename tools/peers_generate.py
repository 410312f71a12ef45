#!/usr/bin/env python3
"""llama2.c and PyTorch beside `ironmill bench generate`, taking turns on one machine.

All write tokens one at a time, batch 1, with a model of Llama's style of about 110 million parameters: 12 layers, 12 heads,
768 wide, gate and up 2048, vocabulary 32,000, a head tied to the embedding, random weights. llama2.c reads them from a
file in its own format that this script writes; PyTorch is transformers' LlamaForCausalLM with its cache. Rounds run in
turns (ironmill, llama2.c, PyTorch, …), each in a new process; figures are medians of tokens a second behind the first
token, and llama2.c's is that of its best number of threads.

    git clone https://github.com/karpathy/llama2.c && gcc -Ofast -march=native -fopenmp llama2.c/run.c -lm -o run
    python3 tools/peers_generate.py --ironmill target/release/ironmill --llama2c ./run

Needs PyTorch and transformers for their part; without --llama2c its part is left out. The product never imports this.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

LAYERS, HEADS, WIDTH, HIDDEN, VOCABULARY, CONTEXT = 12, 12, 768, 2048, 32000, 1024


def write_llama2c(path):
    """Random weights in the order of llama2.c's first format: a header of seven numbers, then all tensors in f32."""
    import numpy

    random = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        # A positive vocabulary says that the head is the embedding.
        file.write(struct.pack("7i", WIDTH, HIDDEN, LAYERS, HEADS, HEADS, VOCABULARY, CONTEXT))

        def tensor(*shape, ones=False):
            numbers = numpy.ones(shape) if ones else random.standard_normal(shape, dtype=numpy.float32) * 0.02
            file.write(numbers.astype(numpy.float32).tobytes())

        tensor(VOCABULARY, WIDTH)
        tensor(LAYERS, WIDTH, ones=True)
        for _ in range(4):
            tensor(LAYERS, WIDTH, WIDTH)
        tensor(LAYERS, WIDTH, ones=True)
        for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)):
            tensor(LAYERS, *shape)
        tensor(WIDTH, ones=True)
        # Tables of rotary angles that its reader steps over.
        tensor(CONTEXT, WIDTH // HEADS // 2)
        tensor(CONTEXT, WIDTH // HEADS // 2)


def write_tokenizer(path):
    """A vocabulary that its reader accepts: bytes, letters, which it looks up, then numbers."""
    with open(path, "wb") as file:
        pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n"] + [b"<0x%02X>" % byte for byte in range(256)]
        pieces += [bytes([letter]) for letter in range(32, 127)]
        pieces += [b"t%d" % number for number in range(VOCABULARY - len(pieces))]
        file.write(struct.pack("i", max(map(len, pieces))))
        for piece in pieces:
            file.write(struct.pack("fi", 0.0, len(piece)) + piece)


def ironmill(options, precision):
    command = [options.ironmill, "bench", "generate", "--json", "--quick", "--threads", str(options.threads)]
    command += ["--precision", precision, "--batch", "1", "--prompt", "8", "--tokens", str(options.tokens)]
    command += ["--model", f"llama:{LAYERS}x{HEADS}x{WIDTH}", "--vocab", str(VOCABULARY), "--rounds", "1", "--top-k", "0"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return next(line["decode_tokens_per_s"] for line in lines if line["kind"] == "generate")


def llama2c(options, folder, threads):
    command = [options.llama2c, f"{folder}/model.bin", "-z", f"{folder}/tokenizer.bin", "-t", "0"]
    command += ["-n", str(options.tokens + 8), "-i", "aaaaaaa"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    run = subprocess.run(command, check=True, capture_output=True, env=environment)
    said = run.stderr.decode(errors="replace")
    return float(said.rsplit("tok/s:", 1)[1].split()[0])


def pytorch(options, precision):
    command = [sys.executable, os.path.abspath(__file__), "--worker", precision]
    command += ["--threads", str(options.threads), "--tokens", str(options.tokens)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.strip().splitlines()[-1])


def worker(options):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().to(torch.float32 if options.worker == "fp32" else torch.bfloat16)
    with torch.inference_mode():
        out = model(torch.randint(VOCABULARY, (1, 8)), use_cache=True)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        began = None
        for step in range(options.tokens):
            # The first tokens warm up.
            if step == 4:
                began = time.perf_counter()
            out = model(token, past_key_values=cache, use_cache=True)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        print((options.tokens - 4) / (time.perf_counter() - began))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ironmill", default="target/release/ironmill")
    parser.add_argument("--llama2c", help="llama2.c's program, built from its run.c")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    found = {}

    def measure(name, of):
        found.setdefault(name, []).append(of())

    with tempfile.TemporaryDirectory() as folder:
        if options.llama2c:
            write_llama2c(f"{folder}/model.bin")
            write_tokenizer(f"{folder}/tokenizer.bin")
        for _ in range(options.rounds):
            for precision in ("fp32", "bf16"):
                measure(f"ironmill {precision}", lambda: ironmill(options, precision))
                measure(f"pytorch {precision}", lambda: pytorch(options, precision))
            if options.llama2c:
                for threads in range(1, options.threads + 1):
                    measure(f"llama2.c fp32, threads {threads}", lambda: llama2c(options, folder, threads))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in medians.items():
        print(f"{name:28} {rate:8.1f} tok/s")
    best = max((rate for name, rate in medians.items() if name.startswith("llama2.c")), default=None)
    for precision in ("fp32", "bf16"):
        own = medians[f"ironmill {precision}"]
        beside = f"ironmill {precision}: {own / medians[f'pytorch {precision}']:.2f} of PyTorch {precision}"
        print(beside + (f", {own / best:.2f} of llama2.c fp32" if best else ""))


if __name__ == "__main__":
    main()
