#!/usr/bin/env python3
"""Every figure that training and generation on one H200 are held to, measured and set beside its floor and its goal.

    python3 tools/floors_on_a_card.py --ironmill target/release/ironmill
    python3 tools/floors_on_a_card.py --parts llama generate --beside target/before/ironmill
    python3 tools/floors_on_a_card.py --parts tests --tests target/debug/deps

Lines come as they are measured; the table is printed last, so that a part that is cut off costs no other. With --beside another
program is measured by turns with ours (theirs, ours, ours, theirs), which is how a change is decided: cards differ by more than
most changes are worth. What training takes is memory that is in use, beside nanoGPT's at the same batch.

A part that cannot be measured, or a test that fails, is status 1; a floor that is missed is a figure like any other.

`peer` takes turns with tools/peers_gpu.py's PyTorch and says whether a run counts: PyTorch within 5 % of what nanoGPT was measured at. It needs PyTorch with
CUDA. `tests` runs the test programs that lie in --tests, which must find a card. It is run only where it is asked for.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import time

from peers_gpu import CONTEXT, MODELS, NANOGPT, VOCABULARY, Torch

# Tokens a second: floor and goal.
BF16 = {"124M": (640_000, 690_000), "350M": (230_000, 250_000), "774M": (106_000, 115_000), "1558M": (56_000, 60_000)}
EIGHT_BITS = {"fp8": 800_000, "fp8-head": 900_000}
GENERATION = {1: 6_000, 64: 200_000}
LLAMA_PER_FLOP, PEER_WITHIN, OF_COPY_RATE, KERNELS_OF_STEP = 0.95, 0.05, 0.85, 0.98
# Kernels below the copy rate are named from this share of a step on.
WORTH_NAMING = 0.002
TESTS = ["cuda_matches_reference", "whole_model"]
PARTS = ["peer", "124M", "llama", "350M", "774M", "1558M", "fp8", "fp8-head", "generate", "tests"]


class Table:
    """What was measured, printed as it comes and together at the end."""

    def __init__(self):
        self.lines = []

    def add(self, what, value, floor=None, goal=None, note=""):
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
        verdict = "" if floor is None else ("holds" if value >= floor else f"misses by {1 - value / floor:.1%}")
        if goal is not None and value >= goal:
            verdict = "goal"
        bounds = " ".join(f"{bound:>10,}" if bound is not None else " " * 10 for bound in (floor, goal))
        line = f"{what:<34} {number:>10} {bounds}  {verdict:<16} {note}".rstrip()
        self.lines.append(line)
        print(line, flush=True)

    def say(self, what, words):
        self.lines.append(f"{what:<34} {words}")
        print(self.lines[-1], flush=True)

    def end(self):
        heading = f"\n{'':<34} {'measured':>10} {'floor':>10} {'goal':>10}"
        print("\n".join([heading, *self.lines]), flush=True)


def lines_of(command):
    output = subprocess.run(command, capture_output=True, text=True)
    if output.returncode:
        raise RuntimeError(output.stderr.strip().splitlines()[-1] if output.stderr.strip() else f"exit {output.returncode}")
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


def step(binary, model, batch, precision, steps):
    command = [binary, "bench", "step", "--json", "--device", "cuda", "--quick", "--precision", precision, "--model", model]
    command += ["--batch", str(batch), "--context", str(CONTEXT), "--vocab", str(VOCABULARY), "--steps", str(steps)]
    measured = next(line for line in lines_of(command) if line["kind"] == "step")
    measured["rate"] = batch * CONTEXT / measured["wall_s"]["median"]
    return measured


def turns(arguments, measure):
    """Ours and what stands beside it: both measured twice by turns, or ours once."""
    if not arguments.beside:
        return [measure(arguments.ironmill)], []
    theirs = [measure(arguments.beside)]
    ours = [measure(arguments.ironmill), measure(arguments.ironmill)]
    return ours, theirs + [measure(arguments.beside)]


def rates(results):
    return ", ".join(f"{result['rate']:,.0f}" for result in results)


def notes(ours, theirs):
    return f"({rates(ours)}" + (f" beside {rates(theirs)})" if theirs else ")")


def mean(results):
    return sum(result["rate"] for result in results) / len(results)


def shape(name):
    layers, heads, width, batch = MODELS[name]
    return f"{layers}x{heads}x{width}", batch


def training(table, arguments, name, precision):
    model, batch = shape(name)
    ours, theirs = turns(arguments, lambda binary: step(binary, model, batch, precision, arguments.steps))
    floor, goal = BF16[name] if precision == "bf16" else (EIGHT_BITS[precision], None)
    what = f"{name} {precision}, tok/s"
    table.add(what, mean(ours), floor, goal, notes(ours, theirs))
    last = ours[-1]
    gib, nanogpt = last["used_bytes"] / 2**30, NANOGPT[name][1]
    table.add(f"{name} {precision}, nanoGPT's memory / ours", nanogpt / gib, 1.0, None, f"({gib:.1f} GiB)")
    # A step taken apart shows what lies between kernels as one of them.
    between = sum(kernel["seconds"] for kernel in last["kernels"] if kernel["kernel"] == "host")
    table.add(f"{name} {precision}, kernels of the step", 1.0 - between / last["profiled_s"], KERNELS_OF_STEP)
    slow_copies(table, name, precision, last)


def slow_copies(table, name, precision, measured):
    """Kernels that memory bounds, and that stay below what they are asked for."""
    peak = measured["peak"]
    for kernel in measured["kernels"]:
        is_bound = kernel["bytes"] > 0 and kernel["bytes"] / peak["copy_bytes_per_s"] > kernel["flops"] / peak["flops_per_s"]
        share = kernel["share_of_roofline"]
        is_large = kernel["seconds"] > WORTH_NAMING * measured["profiled_s"]
        if is_bound and is_large and share < OF_COPY_RATE:
            what = f"{name} {precision}, {kernel['kernel']}"[:34]
            table.add(what, share, OF_COPY_RATE, None, f"({1e3 * kernel['seconds']:.2f} ms in {kernel['calls']})")


def llama(table, arguments):
    """A Llama-style model of GPT-2's size beside GPT-2, by turns: tokens a second times FLOPs a token."""
    model, batch = shape("124M")
    both = {"gpt2": [], "llama": []}
    for style in ["gpt2", "llama", "llama", "gpt2"]:
        named = model if style == "gpt2" else f"llama:{model}"
        both[style].append(step(arguments.ironmill, named, batch, "bf16", arguments.steps))
    per_flop = {style: sum(of["rate"] * of["flops_per_token"] for of in runs) for style, runs in both.items()}
    note = f"(gpt2 {rates(both['gpt2'])}; llama {rates(both['llama'])} tok/s)"
    table.add("llama 124M per FLOP of gpt2's", per_flop["llama"] / per_flop["gpt2"], LLAMA_PER_FLOP, 1.0, note)
    if arguments.beside:
        ours, theirs = turns(arguments, lambda binary: step(binary, f"llama:{model}", batch, "bf16", arguments.steps))
        table.add("llama 124M bf16, tok/s", mean(ours), None, None, notes(ours, theirs))
    slow_copies(table, "llama", "bf16", both["llama"][-1])


def generation(table, arguments):
    batches = ",".join(str(batch) for batch in GENERATION)
    command = "bench generate --json --device cuda --precision bf16 --model gpt2 --prompt 32 --tokens 256 --rounds 3 --quick --batch".split()

    def measure(binary):
        measured = [line for line in lines_of([binary, *command, batches]) if line["kind"] == "generate"]
        return {line["batch"]: {"rate": line["tokens_per_s"], "step": line["step_s"]} for line in measured}

    ours, theirs = turns(arguments, measure)
    for batch, floor in GENERATION.items():
        own, other = ([run[batch] for run in runs] for runs in (ours, theirs))
        steps = ", ".join(f"{1e6 * run['step']:.1f}" for run in own)
        table.add(f"writing, {batch} at once, tok/s", mean(own), floor, None, f"{notes(own, other)} steps of {steps} µs")


def peer(table, arguments):
    torch = Torch("124M")
    ours, theirs = [], []
    model, batch = shape("124M")
    for _ in range(2):
        theirs.append({"rate": batch * CONTEXT / torch.run(arguments.steps)["seconds"]})
        ours.append(step(arguments.ironmill, model, batch, "bf16", arguments.steps))
    torch.end()
    of_nanogpt = mean(theirs) / NANOGPT["124M"][0]
    counts = "the run counts" if abs(of_nanogpt - 1.0) <= PEER_WITHIN else "THE RUN DOES NOT COUNT"
    table.add("PyTorch 124M of nanoGPT's", of_nanogpt, None, None, f"({rates(theirs)}): {counts}")
    table.add("124M beside PyTorch", mean(ours) / mean(theirs), None, None, f"({rates(ours)})")


def tests(table, arguments):
    if not arguments.tests:
        raise RuntimeError("--tests names no folder with test programs")
    have_failed = []
    environment = {**os.environ, "IRONMILL_REQUIRE_CUDA": "1"}
    for name in TESTS:
        programs = [path for path in glob.glob(f"{arguments.tests}/{name}-*") if os.access(path, os.X_OK) and "." not in os.path.basename(path)]
        if not programs:
            raise RuntimeError(f"{arguments.tests} has no program {name}")
        begin = time.perf_counter()
        ended = subprocess.run([max(programs, key=os.path.getmtime)], env=environment, capture_output=True, text=True)
        summary = [line for line in ended.stdout.splitlines() if line.startswith(("test result", "test ")) and not line.endswith("ok")]
        table.say(f"tests, {name}", f"{time.perf_counter() - begin:.0f} s: " + "; ".join(summary[-8:]))
        have_failed += [name] if ended.returncode else []
    if have_failed:
        raise RuntimeError(f"{', '.join(have_failed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ironmill", default="target/release/ironmill", help="the binary (default: %(default)s)")
    parser.add_argument("--beside", help="another binary, measured by turns with it")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1], help="default: all but the tests, in this order")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run (default: %(default)s)")
    parser.add_argument("--tests", help="a folder with the test programs of a build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no part begins after so many")
    arguments = parser.parse_args()
    table, begin, failed = Table(), time.perf_counter(), False
    for part in arguments.parts:
        if time.perf_counter() - begin > arguments.seconds:
            table.say(part, "not begun: no time left")
            continue
        try:
            if part in BF16:
                training(table, arguments, part, "bf16")
            elif part in EIGHT_BITS:
                training(table, arguments, "124M", part)
            else:
                {"peer": peer, "llama": llama, "generate": generation, "tests": tests}[part](table, arguments)
        except (Exception, SystemExit) as error:  # whatever it is, the other parts are measured
            failed = True
            table.say(part, f"failed: {error!r}")
        print(f"  {part}: {time.perf_counter() - begin:.0f} s in all", file=sys.stderr, flush=True)
    table.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
