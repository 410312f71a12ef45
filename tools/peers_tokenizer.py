#!/usr/bin/env python3
"""Published BPE trainers beside `ironmill tokenizer train`, or encoders beside ours, on the same file, taking turns.

Every tool trains in a process of its own, with one thread, on documents that `<|endoftext|>` separates; rounds run A B C A B C.
The figure is the processor time (user + system) of the whole process, which neighbours on a shared machine stretch least;
ratios are medians over rounds. Hugging Face and rustbpe get the documents from an iterator, because Hugging Face's own file
reader splits at line ends; the time to read and split the text in Python is theirs, as it is for everybody who uses them, and
is printed apart (`reading`). Merges are compared with Hugging Face's.

    python3 tools/peers_tokenizer.py corpus.txt --ironmill target/release/ironmill
    python3 tools/peers_tokenizer.py corpus.txt --vocab-size 50257 --tools ironmill gigatoken --rounds 5

With --encode the tools encode the corpus with a tokenizer.json instead: each in a process of its own that makes one first pass
and three more, one thread, the text as one document; the figures are megabytes (10^6) a second of the process's processor time
in the passes alone. tiktoken and tokenizers get the first --slow-bytes of the text. Rank files have no part in this: convert
them with `ironmill tokenizer convert`, which also keeps the frequent pieces of other text beside the tokenizer.

    python3 tools/peers_tokenizer.py corpus.txt --encode tokenizer.json

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
ENCODERS = ["ironmill", "gigatoken", "tiktoken", "tokenizers"]


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


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed_encoder(tool, tokenizer):
    """A function that encodes the text of a file once and gives the number of bytes."""
    if tool == "gigatoken":
        import gigatoken

        encoder = gigatoken.Tokenizer(tokenizer)

        def encode(path, text):
            encoder.encode_files(gigatoken.TextFileSource([path]), parallel=False)
    elif tool == "tiktoken":
        import tiktoken

        encoder = tiktoken.Encoding("peer", pat_str=pattern_of(tokenizer), mergeable_ranks=ranks_of(tokenizer), special_tokens={})

        def encode(path, text):
            encoder.encode_ordinary(text)
    else:
        from tokenizers import Tokenizer

        encoder = Tokenizer.from_file(tokenizer)

        def encode(path, text):
            encoder.encode_batch_fast([text], add_special_tokens=False)

    return encode


def pattern_of(tokenizer):
    with open(tokenizer, encoding="utf-8") as file:
        before = json.load(file)["pre_tokenizer"]
    steps = before.get("pretokenizers", [before])
    return steps[0]["pattern"]["Regex"] if steps[0]["type"] == "Split" else PATTERN


def ranks_of(tokenizer):
    """Tokens by their bytes, from the printable names of a byte-level vocabulary."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    byte_of = {chr(byte): byte for byte in printing} | {chr(256 + idx): byte for idx, byte in enumerate(others)}
    with open(tokenizer, encoding="utf-8") as file:
        content = json.load(file)
    added = {token["content"] for token in content["added_tokens"]}
    vocab = content["model"]["vocab"].items()
    return {bytes(byte_of[character] for character in name): id for name, id in vocab if name not in added}


def encode_in_this_process(tool, path, tokenizer, slow_bytes):
    encode = timed_encoder(tool, tokenizer)
    with open(path, "rb") as file:
        text = file.read() if tool == "gigatoken" else file.read(slow_bytes)
    n_bytes = len(text)
    text = text.decode("utf-8", errors="ignore")
    rates = []
    for _ in range(4):
        before = cpu_seconds()
        encode(path, text)
        rates.append(n_bytes / 1e6 / (cpu_seconds() - before))
    print(json.dumps({"first": rates[0], "again": statistics.median(rates[1:])}))


def encode_rates(tool, args):
    if tool == "ironmill":
        command = [args.ironmill, "bench", "tokenizer", args.corpus, "--tokenizer", args.encode, "--threads", "1", "--quick", "--json"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        rates = {line["phase"]: line["bytes_per_s"] / 1e6 for line in map(json.loads, lines) if line.get("kind") == "phase"}
        return {"first": rates["encode, first time"], "again": rates["encode, again"]}
    command = [sys.executable, __file__, args.corpus, "--child", tool, "--encode", args.encode, "--slow-bytes", str(args.slow_bytes)]
    environment = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def compare_encoders(args, tools):
    rates = {tool: {"first": [], "again": []} for tool in tools}
    for number in range(args.rounds):
        for tool in tools:
            for phase, rate in encode_rates(tool, args).items():
                rates[tool][phase].append(rate)
            print(f"round {number + 1}: {tool:10} first {rates[tool]['first'][-1]:7.1f}, again {rates[tool]['again'][-1]:7.1f} MB/CPU-s", flush=True)
    for tool in tools:
        line = f"{tool:10}"
        for phase in ("first", "again"):
            line += f"   {phase} {statistics.median(rates[tool][phase]):7.1f} MB/CPU-s"
            if "ironmill" in rates and tool != "ironmill":
                line += f" ({statistics.median(o / t for o, t in zip(rates['ironmill'][phase], rates[tool][phase])):.2f} × slower)"
        print(line)


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
    parser.add_argument("--tools", nargs="+", choices=sorted({*TOOLS, *ENCODERS}))
    parser.add_argument("--encode", metavar="TOKENIZER", help="compare encoders with this tokenizer.json instead of trainers")
    parser.add_argument("--slow-bytes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child and args.encode:
        return encode_in_this_process(args.child, args.corpus, args.encode, args.slow_bytes)
    if args.child:
        return train(args.child, args.corpus, args.vocab_size, args.out)

    tools = []
    for tool in args.tools or (ENCODERS if args.encode else TOOLS):
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
    if args.encode:
        return compare_encoders(args, tools)

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
