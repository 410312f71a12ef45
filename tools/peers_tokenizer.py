#!/usr/bin/env python3
"""Published BPE trainers beside `ironmill tokenizer train`, on the same file, taking turns.

Every tool trains in a process of its own, with one thread, on documents that `<|endoftext|>` separates; rounds run A B C A B C.
The figure is the processor time (user + system) of the whole process, which neighbours on a shared machine stretch least;
ratios are medians over rounds. Hugging Face and rustbpe get the documents from an iterator, because Hugging Face's own file
reader splits at line ends; the time to read and split the text in Python is theirs, as it is for everybody who uses them, and
is printed apart (`reading`). Merges are compared with Hugging Face's.

    python3 tools/peers_tokenizer.py corpus.txt --ironmill target/release/ironmill
    python3 tools/peers_tokenizer.py corpus.txt --vocab-size 50257 --tools ironmill gigatoken --rounds 5

Needs tokenizers, gigatoken and rustbpe (pip install tokenizers==0.23.3 gigatoken==0.10.0 rustbpe==0.1.0); what is missing is
left out with a message. The product never imports this.
"""

import argparse
import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SEPARATOR = "<|endoftext|>"
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TOOLS = ["ironmill", "gigatoken", "rustbpe", "tokenizers", "reading"]


def documents(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read().split(SEPARATOR)


def train(tool, path, vocab_size, out):
    """One training, in this process; writes the merges as pairs of hexadecimal bytes if the tool gives them."""
    if tool == "reading":
        documents(path)
    elif tool == "tokenizers":
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[SEPARATOR],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents(path), trainer)
        tokenizer.save(out)
    elif tool == "gigatoken":
        import gigatoken

        source = gigatoken.TextFileSource([path], separator=SEPARATOR.encode())
        gigatoken.train_bpe(source, vocab_size, [SEPARATOR])
    elif tool == "rustbpe":
        import rustbpe

        rustbpe.Tokenizer().train_from_iterator(iter(documents(path)), vocab_size, pattern=PATTERN)


def command(tool, args, out):
    if tool == "ironmill":
        return [
            args.ironmill, "tokenizer", "train", args.corpus, "--vocab-size", str(args.vocab_size), "--threads", "1",
            "--document-separator", SEPARATOR, "--quiet", "--out", out,
        ]  # fmt: skip
    return [sys.executable, __file__, args.corpus, "--child", tool, "--vocab-size", str(args.vocab_size), "--out", out]


def measure(tool, args, out):
    environment = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command(tool, args, out), env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start


def merges(path):
    with open(path, encoding="utf-8") as file:
        found = json.load(file)["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--ironmill", default="target/release/ironmill")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return train(args.child, args.corpus, args.vocab_size, args.out)

    tools = []
    for tool in args.tools:
        if tool in ("ironmill", "reading"):
            tools.append(tool)
            continue
        try:
            print(f"{tool} {importlib.metadata.version(tool)}")
            tools.append(tool)
        except importlib.metadata.PackageNotFoundError:
            print(f"{tool} is not installed: left out (pip install {tool})")
    print(f"{args.corpus}: {os.path.getsize(args.corpus) / 1e6:.1f} MB, vocabulary {args.vocab_size}, "
          f"load {os.getloadavg()[0]:.1f}")

    times = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory() as folder:
        outputs = {tool: os.path.join(folder, f"{tool}.json") for tool in tools}
        for number in range(args.rounds):
            for tool in tools:
                cpu, wall = measure(tool, args, outputs[tool])
                times[tool].append(cpu)
                print(f"round {number + 1}: {tool:10} {cpu:7.2f} s processor, {wall:7.2f} s wall", flush=True)
        if "ironmill" in tools and "tokenizers" in tools:
            ours, theirs = merges(outputs["ironmill"]), merges(outputs["tokenizers"])
            same = "identical" if ours == theirs else "DIFFERENT"
            print(f"merges: {len(ours)}, {same} to those of tokenizers")
    for tool in tools:
        line = f"{tool:10} {statistics.median(times[tool]):7.2f} s"
        if "ironmill" in times and tool != "ironmill":
            ratio = statistics.median(theirs / ours for theirs, ours in zip(times[tool], times["ironmill"]))
            line += f"   {ratio:5.1f} × ironmill"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
