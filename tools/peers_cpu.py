#!/usr/bin/env python3
"""PyTorch beside `ironmill bench step`, on the same shapes, taking turns.

For every shape, number of threads, precision and way of running PyTorch (eager, fused: eager with the fused AdamW,
compiled: torch.compile with the fused AdamW), rounds run A B A B: a few steps of ironmill in a new process, then a few
steps of a PyTorch worker that lives through all rounds, so that compiling counts for nothing. One thread is compared by
the processor time of a step, which neighbours on a shared machine do not stretch; two and more by the wall clock. The
figures are medians over all steps of all rounds; the ratio is PyTorch's time over ironmill's, so more than 1 means that
ironmill is faster.

The model is GPT-2's, in plain PyTorch: nn.Linear and LayerNorm with biases, GELU (tanh), scaled_dot_product_attention,
a head tied to the embedding, cross-entropy, gradients clipped to norm 1, AdamW with decay on matrices; no dropout.
bf16 is torch.autocast over single-precision parameters.

    python3 tools/peers_cpu.py --ironmill target/release/ironmill
    python3 tools/peers_cpu.py --models baby --threads 1 --ways fused compiled --rounds 5
    python3 tools/peers_cpu.py --quick

Needs PyTorch (pip install torch). The product never imports this.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time

# layers, heads, width, batch, context, vocabulary: the shapes of `ironmill bench step`.
SHAPES = {
    "cpu": (4, 4, 128, 12, 64, 65),
    "baby": (6, 6, 384, 16, 256, 65),
    "gpt2": (12, 12, 768, 4, 256, 50304),
    "tiny": (2, 2, 32, 4, 16, 65),
}
# Steps of one round, so that a round takes about a second or two.
STEPS = {"cpu": 25, "baby": 2, "gpt2": 1, "tiny": 3}
WAYS = ("eager", "fused", "compiled")


def build(torch, shape):
    """The model, on random tokens: gives a function that takes one step and the model's parameters."""
    from torch import nn
    from torch.nn import functional

    layers, heads, width, _, context, vocabulary = shape

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
            q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    scale = 0.02 / math.sqrt(2 * layers) if name.endswith(("projection.weight", "down.weight")) else 0.02
                    nn.init.normal_(parameter, std=scale)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)
            self.register_buffer("order", torch.arange(context), persistent=False)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(self.order)
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))

    return Gpt()


def worker(model_name, way, precision, threads):
    """Answers every number n on stdin with the times of n steps on stdout, as JSON lines."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    shape = SHAPES[model_name]
    _, _, _, batch, context, vocabulary = shape
    model = build(torch, shape)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=way != "eager")
    run = torch.compile(model) if way == "compiled" else model
    tokens = torch.randint(vocabulary, (50 * batch * context + 1,))

    def step():
        starts = torch.randint(len(tokens) - context - 1, (batch,)).tolist()
        ids = torch.stack([tokens[s : s + context] for s in starts])
        targets = torch.stack([tokens[s + 1 : s + 1 + context] for s in starts])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = run(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(2):
        step()
    print(json.dumps({"ready": True, "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            wall, processor = time.perf_counter(), time.process_time()
            loss = step()
            times.append((time.perf_counter() - wall, time.process_time() - processor))
        if not math.isfinite(loss):
            raise SystemExit("the loss is no number any more")
        print(json.dumps({"times": times}), flush=True)


class Torch:
    """A PyTorch worker in a process of its own."""

    def __init__(self, *job):
        environment = dict(os.environ, OMP_NUM_THREADS=str(job[-1]), MKL_NUM_THREADS=str(job[-1]))
        command = [sys.executable, os.path.abspath(__file__), "--worker", *map(str, job)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.parameters = self.answer()["parameters"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the PyTorch worker ended with code {self.process.wait()}")
        return json.loads(line)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.answer()["times"]

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def ironmill(arguments, model, precision, threads, steps):
    """The medians of a few steps of ours: wall and processor time, and the whole report. None if it has no such precision."""
    layers, heads, width, batch, context, vocabulary = SHAPES[model]
    command = [arguments.ironmill, "bench", "step", "--json", "--model", f"{layers}x{heads}x{width}"]
    command += ["--batch", str(batch), "--context", str(context), "--vocab", str(vocabulary)]
    # A glance at the machine's peak is enough here, so that turns follow closely.
    command += ["--precision", precision, "--threads", str(threads), "--steps", str(steps), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 69:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(arguments, model, way, precision, threads):
    """One line of the table: rounds that take turns."""
    steps = arguments.steps or STEPS[model]
    if ironmill(arguments, model, precision, threads, 1) is None:
        return None
    peer = Torch(model, way, precision, threads)
    clock = 1 if threads == 1 else 0
    ours, theirs, parameters = [], [], None
    for _ in range(arguments.rounds):
        report = ironmill(arguments, model, precision, threads, steps)
        parameters = report["parameters"]
        ours.append(report["cpu_s" if threads == 1 else "wall_s"]["median"])
        theirs += [times[clock] for times in peer.steps(steps)]
    peer.stop()
    if parameters != peer.parameters:
        raise SystemExit(f"not the same model: {parameters} parameters and {peer.parameters}")
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    line = {"model": model, "threads": threads, "clock": "cpu" if threads == 1 else "wall", "precision": precision}
    return {**line, "way": way, "ironmill_ms": 1e3 * ours, "torch_ms": 1e3 * theirs, "ratio": theirs / ours}


def warn_if_busy(load, allowed):
    """Says so when other programs run: two threads then measure the neighbours, and one thread their use of the caches."""
    if load > allowed:
        print(
            f"warning: the load is {load:.1f}, so other programs are running: two threads' times say little, and one "
            "thread's processor time is stretched by shared caches and memory",
            file=sys.stderr,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironmill", default="target/release/ironmill", help="the program to measure")
    parser.add_argument("--models", nargs="+", default=["cpu", "baby", "gpt2"], choices=SHAPES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--steps", type=int, help="steps of a turn [default: by the model]")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    parser.add_argument("--quick", action="store_true", help="a tiny model and two rounds, to see that it works")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        model, way, precision, threads = arguments.worker
        return worker(model, way, precision, int(threads))
    if arguments.quick:
        arguments.models, arguments.threads, arguments.rounds = ["tiny"], [1], 2
        arguments.ways = [way for way in arguments.ways if way != "compiled"]
    try:
        import torch
    except ImportError:
        sys.exit(
            "PyTorch is missing, so there is nothing to compare with: pip install torch "
            "(the CPU wheel is enough), then run this again"
        )
    if not os.path.exists(arguments.ironmill):
        sys.exit(f"cannot find {arguments.ironmill}: cargo build --release, or pass --ironmill")

    version = subprocess.run([arguments.ironmill, "--version"], capture_output=True, text=True).stdout.strip()
    load = os.getloadavg()[0]
    warn_if_busy(load, 0.5)
    told = f"{version}, torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}"
    print(json.dumps({"versions": told}) if arguments.json else told + "\n", flush=True)
    if not arguments.json:
        print(f"{'model':6} {'threads':>7} {'clock':5} {'type':5} {'PyTorch':9} {'ironmill ms':>11} {'torch ms':>10} {'ratio':>7}")
    rows = []
    for model in arguments.models:
        for threads in arguments.threads:
            for precision in arguments.precisions:
                for way in arguments.ways:
                    row = compare(arguments, model, way, precision, threads)
                    if row is None:
                        print(f"{model}: ironmill has no {precision} here, so it is left out", file=sys.stderr)
                        break
                    rows.append(row)
                    # The comparison itself keeps as many cores busy as it has threads.
                    warn_if_busy(os.getloadavg()[0], threads + 0.8)
                    if arguments.json:
                        print(json.dumps(row), flush=True)
                    else:
                        print(
                            "{model:6} {threads:7} {clock:5} {precision:5} {way:9} {ironmill_ms:11.2f} {torch_ms:10.2f} "
                            "{ratio:6.2f}×".format(**row),
                            flush=True,
                        )
    if arguments.json or not rows:
        return None
    print("\nagainst the fastest way of PyTorch:")
    for key in dict.fromkeys((row["model"], row["threads"], row["precision"]) for row in rows):
        of_key = [row for row in rows if (row["model"], row["threads"], row["precision"]) == key]
        fastest = min(of_key, key=lambda row: row["ratio"])
        model, threads, precision = key
        print(f"  {model:6} {threads} thread{'s' if threads > 1 else ' '} {precision}: {fastest['ratio']:.2f}× ({fastest['way']})")
    return None


if __name__ == "__main__":
    sys.exit(main())
