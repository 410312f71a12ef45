#!/usr/bin/env python3
"""Published BPE trainers beside `ironmill tokenizer train`, or encoders beside ours, on the same file, taking turns.

Every tool trains in a process of its own, with one thread, on documents that `<|endoftext|>` separates; rounds run A B C A B C.
The figure is the processor time (user + system) of the whole process, which neighbours on a shared machine stretch least;
ratios are medians over rounds. Hugging Face and rustbpe get the documents from an iterator, because Hugging Face's own file
reader splits at line ends; the time to read and split the text in Python is theirs, as it is for everybody who uses them, and
is printed apart (`reading`). Merges are compared with Hugging Face's.

    python3 tools/peers_tokenizer.py corpus.txt --ironmill target/release/ironmill
    python3 tools/peers_tokenizer.py corpus.txt --vocab-size 50257 --tools ironmill gigatoken --rounds 5

With --encode the tools encode the second half of each corpus with each tokenizer.json instead, in processes of their own that
make one first pass and three more, one thread, the text as one document; the figures are megabytes (10^6) a second of the
process's processor time in the passes alone. Ours expects the frequent pieces of the first half; its tables are made before
the first pass, in the time that the column `start` has, reading the tokenizer included. `threads` is how many times as fast two
threads are as one, by the wall clock. tiktoken and tokenizers get the first --slow-bytes of the text. --adversarial adds a
megabyte each of what encoders fear, without expected pieces. Rank files have no part in this: convert them with
`ironmill tokenizer convert`.

    python3 tools/peers_tokenizer.py english.txt code.txt --encode gpt2.json cl100k.json --adversarial

Needs tokenizers, gigatoken and rustbpe (pip install tokenizers==0.23.3 gigatoken==0.10.0 rustbpe==0.1.0); what is missing is
left out with a message. The product never imports this.
"""

import argparse
import importlib.metadata
import json
import math
import os
import random
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


def halves(path, max_bytes, folder):
    """The corpus as two files of at most `max_bytes`, cut at a line's end."""
    with open(path, "rb") as file:
        text = file.read(2 * max_bytes)
    middle = text.rfind(b"\n", 0, len(text) // 2) + 1
    paths = []
    for name, part in (("first", text[:middle]), ("second", text[middle:])):
        paths.append(os.path.join(folder, f"{os.path.basename(path)}.{name}"))
        with open(paths[-1], "wb") as file:
            file.write(part.decode("utf-8", errors="ignore").encode())
    return paths


def adversarial(folder):
    """A megabyte each of what has no spaces, no repetitions or nothing else."""
    draw = random.Random(9)
    letters = "abcdefghijklmnopqrstuvwxyz"
    chinese = [chr(code) for code in range(0x4E00, 0x9FA0)]
    emoji = [chr(code) for code in range(0x1F600, 0x1F650)]
    texts = {
        "a": "a" * 1_000_000,
        # Blanks around a document are not its text.
        "blanks": "a" + " " * 999_998 + "a",
        "ab": "ab" * 500_000,
        "digits": "".join(draw.choices("0123456789", k=1_000_000)),
        "random letters": "".join(draw.choices(letters, k=1_000_000)),
        "random Chinese": "".join(draw.choices(chinese, k=333_000)),
        "Chinese and commas": "".join(draw.choice(chinese) + ("," if draw.random() < 0.2 else "") for _ in range(310_000)),
        "random emoji": "".join(draw.choices(emoji, k=250_000)),
        "unique words": " ".join("".join(draw.choices(letters, k=draw.randint(3, 10))) for _ in range(133_000)),
    }
    for name, text in texts.items():
        path = os.path.join(folder, name.replace(" ", "-") + ".txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        yield name, path


def with_pieces(args, tokenizer, text, folder):
    """A copy of the tokenizer with the frequent pieces of `text` beside it."""
    out = os.path.join(folder, f"{os.path.basename(text)}.{os.path.basename(tokenizer)}")
    command = [args.ironmill, "tokenizer", "convert", tokenizer, "--pieces-from", text, "--out", out, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def ironmill_rates(args, path, tokenizer):
    command = [args.ironmill, "bench", "tokenizer", path, "--tokenizer", tokenizer, "--threads", "2", "--quick", "--json"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    lines = [json.loads(line) for line in lines]
    phases = {line["phase"]: line for line in lines if line.get("kind") == "phase"}
    return {
        "start": phases["encoder start"]["median_s"],
        "first": phases["encode, first time"]["bytes_per_s"] / 1e6,
        "again": phases["encode, again"]["bytes_per_s"] / 1e6,
        "threads": next(line["speedup"] for line in lines if line.get("kind") == "threads"),
    }


def encode_rates(tool, args, path, tokenizer):
    if tool == "ironmill":
        return ironmill_rates(args, path, tokenizer)
    command = [sys.executable, __file__, path, "--child", tool, "--encode", tokenizer, "--slow-bytes", str(args.slow_bytes)]
    environment = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    # Some peers refuse a megabyte of blanks.
    return json.loads(done.stdout) if done.returncode == 0 else {"first": math.nan, "again": math.nan}


def encoder_row(args, tools, name, path, tokenizer_of):
    """One row of the table: medians over rounds in which the tools take turns, and how many times slower than ours."""
    rounds = []
    for _ in range(args.rounds):
        rounds.append({tool: encode_rates(tool, args, path, tokenizer_of(tool)) for tool in tools})
    middle = lambda value: statistics.median(map(value, rounds))
    cells = [name]
    if "ironmill" in tools:
        ours = {field: middle(lambda found: found["ironmill"][field]) for field in ("start", "first", "again", "threads")}
        cells += [f"{ours['start']:.2f} s", f"{ours['first']:.1f}", f"{ours['again']:.1f}", f"{ours['threads']:.2f} ×"]
    for tool in tools:
        for phase in ("first", "again") if tool != "ironmill" else ():
            cell = f"{middle(lambda found: found[tool][phase]):.1f}"
            if "ironmill" in tools:
                cell += f" ({middle(lambda found: found['ironmill'][phase] / found[tool][phase]):.2f} ×)"
            cells.append(cell)
    print("| " + " | ".join(cells) + " |", flush=True)


def compare_encoders(args, tools):
    columns = ["text, vocabulary"]
    if "ironmill" in tools:
        columns += ["start", "ironmill first", "again", "threads"]
    columns += [f"{tool} {phase}" for tool in tools if tool != "ironmill" for phase in ("first", "again")]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        for corpus in args.corpus:
            first, second = halves(corpus, args.half_bytes, folder)
            for tokenizer in args.encode:
                ours = with_pieces(args, tokenizer, first, folder) if "ironmill" in tools else tokenizer
                name = f"{os.path.basename(corpus)}, {os.path.basename(tokenizer)}"
                encoder_row(args, tools, name, second, lambda tool: ours if tool == "ironmill" else tokenizer)
        for name, path in adversarial(folder) if args.adversarial else ():
            for tokenizer in args.encode:
                encoder_row(args, tools, f"{name}, {os.path.basename(tokenizer)}", path, lambda tool: tokenizer)
    return 0


def command(tool, args, out):
    if tool == "ironmill":
        return [
            args.ironmill, "tokenizer", "train", args.corpus[0], "--vocab-size", str(args.vocab_size), "--threads", "1",
            "--document-separator", SEPARATOR, "--quiet", "--out", out,
        ]  # fmt: skip
    return [sys.executable, __file__, args.corpus[0], "--child", tool, "--vocab-size", str(args.vocab_size), "--out", out]


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
    parser.add_argument("corpus", nargs="+", help="one to train on, or several to encode")
    parser.add_argument("--ironmill", default="target/release/ironmill")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--tools", nargs="+", choices=sorted({*TOOLS, *ENCODERS}))
    parser.add_argument("--encode", nargs="+", metavar="TOKENIZER", help="compare encoders with these tokenizer.json instead of trainers")
    parser.add_argument("--adversarial", action="store_true", help="with --encode, also a megabyte each of what encoders fear")
    parser.add_argument("--half-bytes", type=int, default=60_000_000, help="the most bytes of a half of a corpus to encode")
    parser.add_argument("--slow-bytes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child and args.encode:
        return encode_in_this_process(args.child, args.corpus[0], args.encode[0], args.slow_bytes)
    if args.child:
        return train(args.child, args.corpus[0], args.vocab_size, args.out)
    if len(args.corpus) > 1 and not args.encode:
        parser.error("trainers take one corpus: give one, or --encode")

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
    if args.encode:
        print(f"load {os.getloadavg()[0]:.1f}; megabytes a processor second")
        return compare_encoders(args, tools)
    corpus = args.corpus[0]
    print(f"{corpus}: {os.path.getsize(corpus) / 1e6:.1f} MB, vocabulary {args.vocab_size}, load {os.getloadavg()[0]:.1f}")

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
