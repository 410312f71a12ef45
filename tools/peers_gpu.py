#!/usr/bin/env python3
"""PyTorch beside `ironmill bench step` on one card, on the same shapes, taking turns.

For every model, rounds run A B A B: a few steps of a PyTorch worker that lives through all rounds, so that compiling
counts for nothing, then a few steps of ironmill in a new process. A step is a whole one (forward, backward, clipping,
AdamW) in bf16 on random tokens, without dropout. The figures are medians over all steps of all rounds; the ratio is
ironmill's tokens a second over PyTorch's.

The model is GPT-2's, in plain PyTorch (that of peers_cpu.py): torch.compile, scaled_dot_product_attention, autocast to
bf16 over single-precision parameters, fused AdamW, a vocabulary padded to 50304.

Cards and their cooling differ. A run counts when its PyTorch is as fast as PyTorch is known to be: the last column is
its share of nanoGPT's figure on an H200, which must be within 5 % for the 124M model.

    python3 tools/peers_gpu.py --ironmill target/release/ironmill
    python3 tools/peers_gpu.py --models 124M 350M --rounds 3 --steps 10

Needs PyTorch with CUDA (pip install torch). The product never imports this.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time

from peers_cpu import build

CONTEXT, VOCABULARY = 1024, 50304
# layers, heads, width, batch
MODELS = {
    "124M": (12, 12, 768, 64),
    "350M": (24, 16, 1024, 32),
    "774M": (36, 20, 1280, 16),
    "1558M": (48, 25, 1600, 16),
}
# Tokens a second of nanoGPT with torch.compile on one H200 (PyTorch 2.11), and its peak memory in GiB.
NANOGPT = {"124M": (519_430, 40.8), "350M": (195_992, 41.2), "774M": (90_827, 40.4), "1558M": (49_305, 67.6)}


def worker(name):
    """Answers every number n on stdin with the times of n steps on stdout, as JSON lines."""
    import torch

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    layers, heads, width, batch = MODELS[name]
    with torch.device("cuda"):
        model = build(torch, (layers, heads, width, batch, CONTEXT, VOCABULARY))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model)

    def step():
        tokens = torch.randint(VOCABULARY, (batch, CONTEXT + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    print(json.dumps({"ready": True, "torch": torch.__version__, "card": torch.cuda.get_device_name()}), flush=True)
    for line in sys.stdin:
        count = int(line)
        torch.cuda.synchronize()
        # The host runs ahead, as it does in training; only the whole run is timed.
        begin = time.perf_counter()
        for _ in range(count):
            loss = step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / count
        if not math.isfinite(loss.item()):
            raise SystemExit("the loss is no number any more")
        print(json.dumps({"seconds": seconds, "bytes": torch.cuda.max_memory_allocated()}), flush=True)


class Torch:
    """A PyTorch worker in a process of its own."""

    def __init__(self, name):
        command = [sys.executable, __file__, "--worker", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the PyTorch worker ended with status {self.process.wait()}")
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def ironmill(binary, name, steps):
    """One process of `bench step`: seconds of a step, and bytes in use."""
    layers, heads, width, batch = MODELS[name]
    command = [binary, "bench", "step", "--json", "--device", "cuda", "--precision", "bf16", "--steps", str(steps)]
    command += ["--model", f"{layers}x{heads}x{width}", "--batch", str(batch), "--context", str(CONTEXT)]
    command += ["--vocab", str(VOCABULARY)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    result = next(line for line in lines if line.get("kind") == "step")
    return result["wall_s"]["median"], result["used_bytes"]


def compare(name, binary, rounds, steps):
    tokens = MODELS[name][3] * CONTEXT
    torch = Torch(name)
    theirs, ours = [], []
    for _ in range(rounds):
        result = torch.run(steps)
        theirs.append(result["seconds"])
        seconds, our_bytes = ironmill(binary, name, steps)
        ours.append(seconds)
    torch.end()
    their_rate, our_rate = tokens / statistics.median(theirs), tokens / statistics.median(ours)
    known, _ = NANOGPT[name]
    gib = 1 << 30
    print(
        f"{name:>6} {our_rate:>12,.0f} {their_rate:>12,.0f} {our_rate / their_rate:>7.3f} "
        f"{our_bytes / gib:>10.1f} {result['bytes'] / gib:>10.1f} {their_rate / known:>12.3f}",
        flush=True,
    )
    return torch.about


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ironmill", default="target/release/ironmill", help="the binary (default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["124M"], help="default: 124M")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (default: %(default)s)")
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    print(f"{'model':>6} {'ironmill':>12} {'PyTorch':>12} {'ratio':>7} {'GiB':>10} {'GiB theirs':>10} {'of nanoGPT':>12}")
    for name in arguments.models:
        about = compare(name, arguments.ironmill, arguments.rounds, arguments.steps)
    print(f"tokens a second; {about['card']}, PyTorch {about['torch']}, torch.compile, bf16, T = {CONTEXT}")


if __name__ == "__main__":
    main()
