#!/usr/bin/env python3
"""Ids of `ironmill tokenizer encode` against those of tiktoken and Hugging Face, on drawn texts.

Texts are drawn from all scripts, with combining marks, emoji, control characters, digits, contractions, white space of every
kind, long runs, and cuts of a corpus if one is given. They are joined by a special token of the vocabulary, around which every
stretch is encoded as if it stood alone, so one run of the program encodes them all.

    python3 tools/parity_tokenizer.py --ironmill target/release/ironmill r50k_base.tiktoken llama3/tokenizer.json
    python3 tools/parity_tokenizer.py cl100k_base.tiktoken --cases 200000 --corpus book.txt

A rank file is compared with tiktoken, a tokenizer.json of any kind with tokenizers (pip install tiktoken tokenizers). With
--decode the ids are turned back into text, too, and compared with what tokenizers makes of them. The product never imports this.
"""

import argparse
import array
import base64
import os
import random
import subprocess
import sys
import tempfile

PATTERNS = {
    "r50k": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
}
PATTERNS["p50k"] = PATTERNS["r50k"]
PATTERNS["llama3"] = PATTERNS["cl100k"]
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x00, 0x1F), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x2190, 0x21FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFE00, 0xFE0F),
    (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x20000, 0x2A6DF),
]  # fmt: skip
SNIPPETS = ["'s", "'LL", "'re", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "123", "1234567", "e\u0301", "...", "//", "don't",
            "\u200d", "\U0001f468\u200d\U0001f469", "ﬁ", "İ", "ſ", "'ſ", "\u2028", "_", "The", " the", "for(i=0;", "ÅNGSTRÖM"]  # fmt: skip


def drawn_text(rng, corpus):
    kind = rng.random()
    if corpus and kind < 0.3:
        start = rng.randrange(len(corpus))
        return corpus[start : start + rng.randrange(1, 200)]
    if kind < 0.4:
        return rng.choice(SNIPPETS + [chr(rng.randint(*rng.choice(RANGES)))]) * rng.randrange(1, 120)
    parts = []
    for _ in range(rng.randrange(1, 30)):
        if rng.random() < 0.4:
            parts.append(rng.choice(SNIPPETS))
        else:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 8))))
    return "".join(parts)


def peer_of(path):
    """A function from text to ids, a special token with its id, and a function from ids to text."""
    if path.endswith(".tiktoken"):
        import tiktoken

        name = os.path.basename(path).split("_")[0].removesuffix(".tiktoken")
        with open(path, "rb") as file:
            lines = (line.split() for line in file if line.strip())
            ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        special = {"r50k": 50256, "p50k": 50256, "cl100k": 100257, "o200k": 199999, "llama3": 128001}[name]
        encoding = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
        return encoding.encode_ordinary, "<|end_of_text|>" if name == "llama3" else "<|endoftext|>", special, encoding.decode
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added = [(id, token.content) for id, token in tokenizer.get_added_tokens_decoder().items()]
    special, text = min(added)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, text, special, tokenizer.decode


def compare(path, args):
    encode, separator, special, decode = peer_of(path)
    rng = random.Random(args.seed)
    corpus = open(args.corpus, encoding="utf-8", errors="ignore").read(50_000_000) if args.corpus else ""
    texts = []
    while len(texts) < args.cases:
        text = drawn_text(rng, corpus)
        if "<" not in text and text:
            texts.append(text)
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "texts"), os.path.join(folder, "ids")
        with open(source, "w", encoding="utf-8", newline="") as file:
            file.write(separator.join(texts))
        command = [args.ironmill, "tokenizer", "encode", source, "--tokenizer", path, "--allow-special", "--out", out, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ids = array.array("I")
        with open(out, "rb") as file:
            ids.frombytes(file.read())
    stretches, current = [], []
    for id in ids:
        if id == special:
            stretches.append(current)
            current = []
        else:
            current.append(id)
    stretches.append(current)
    if len(stretches) != len(texts):
        print(f"{path}: {len(stretches)} stretches of {len(texts)} texts")
        return False
    n_different = 0
    for text, ours in zip(texts, stretches):
        theirs = encode(text)
        if list(theirs) != ours:
            n_different += 1
            if n_different <= 5:
                print(f"{path}: {text!r}: {ours} instead of {list(theirs)}")
    if args.decode:
        n_different += compare_texts(path, args, stretches, decode)
    n_bytes = sum(len(text.encode()) for text in texts)
    print(f"{path}: {len(texts)} texts, {n_bytes} bytes, {len(ids)} tokens, {n_different} different", flush=True)
    return n_different == 0


def compare_texts(path, args, stretches, decode):
    """How many stretches decode to another text than there; each goes through the program as a line of ids."""
    n_different = 0
    for ids in stretches[:: max(1, len(stretches) // args.decode)]:
        line = " ".join(map(str, ids)).encode()
        command = [args.ironmill, "tokenizer", "decode", "--tokenizer", path, "--quiet"]
        ours = subprocess.run(command, check=True, input=line, stdout=subprocess.PIPE).stdout.decode(errors="replace")
        theirs = decode(ids, skip_special_tokens=False) if ids else ""
        if ours.rstrip("\n") != theirs.rstrip("\n"):
            n_different += 1
            print(f"{path}: {ids} decode to {ours!r} instead of {theirs!r}")
    return n_different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--ironmill", default="target/release/ironmill")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus")
    parser.add_argument("--decode", type=int, default=0, help="how many of the texts are decoded, too (tokenizer.json only)")
    args = parser.parse_args()
    return 0 if all([compare(path, args) for path in args.tokenizers]) else 1


if __name__ == "__main__":
    sys.exit(main())
