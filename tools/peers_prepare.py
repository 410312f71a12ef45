#!/usr/bin/env python3
"""Prepares a text the way nanoGPT does, beside `ironmill data prepare`, and compares the tokens.

    python3 tools/peers_prepare.py --ironmill target/release/ironmill --ranks r50k_base.tiktoken --text novels.txt \
        [--separator '<|endoftext|>'] [--processes 2] [--slow-bytes 50MB] [--rounds 3]

The peer follows nanoGPT's data/openwebtext/prepare.py: tiktoken's encode_ordinary on every document, the end-of-text token appended,
on a pool of processes, then everything written to a numpy memmap of 16-bit tokens in 1,024 batches. It needs tiktoken and numpy. A
document is what stands between separators; without one, the file is cut into documents of about 10 kB at line ends, for both.
The peer gets the first --slow-bytes of the text; rates are of text, by the clock and by the processor time of all processes (the
second says more on a machine that others use). Times are from the start of reading to the end of writing, ironmill's with the start
of the program, checksums and syncs. Both start anew in every round; what start costs is small only where the text is large: give
500 MB or more to see a rate.
"""

import argparse
import base64
import multiprocessing
import os
import subprocess
import tempfile
import time

import numpy as np
import tiktoken

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = 50256
BATCHES = 1024

encoder = None


def start(ranks):
    global encoder
    lines = open(ranks, "rb").read().splitlines()
    table = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in lines if line)}
    encoder = tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=table, special_tokens={"<|endoftext|>": END_OF_TEXT})


def encode(text):
    ids = encoder.encode_ordinary(text)
    ids.append(END_OF_TEXT)
    return np.array(ids, dtype=np.uint16)


class Clock:
    """Seconds by the clock and of the processor, of this process and of its children that have ended."""

    def __init__(self):
        self.began = self.now()

    def now(self):
        times = os.times()
        return time.perf_counter(), times.user + times.system + times.children_user + times.children_system

    def passed(self):
        return [now - began for now, began in zip(self.now(), self.began)]


def as_nanogpt(path, separator, out, ranks, processes):
    clock = Clock()
    documents = [text for text in open(path, encoding="utf-8", newline="").read().split(separator) if text.strip()]
    with multiprocessing.Pool(processes, start, (ranks,)) as pool:
        encoded = pool.map(encode, documents, chunksize=64)
        pool.close()
        pool.join()
    array = np.memmap(out, dtype=np.uint16, mode="w+", shape=(sum(len(ids) for ids in encoded),))
    place = 0
    for batch in range(BATCHES):
        ids = encoded[len(encoded) * batch // BATCHES:len(encoded) * (batch + 1) // BATCHES]
        if ids:
            joined = np.concatenate(ids)
            array[place:place + len(joined)] = joined
            place += len(joined)
    array.flush()
    return clock.passed()


def as_ironmill(binary, path, separator, out, ranks, threads):
    subprocess.run(["rm", "-rf", out], check=True)
    clock = Clock()
    subprocess.run([binary, "data", "prepare", path, "--document-separator", separator, "--tokenizer", ranks,
                    "--out", out, "--validation", "0", "--threads", str(threads), "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)
    return clock.passed()


def size(text):
    return int(text.removesuffix("MB")) * 1_000_000 if text.endswith("MB") else int(text)


def cut(source, n_bytes, target, separator):
    """The first bytes of a text up to a line end, cut into documents unless it has them."""
    text = open(source, "rb").read()[:n_bytes]
    text = text[:text.rfind(b"\n") + 1].decode("utf-8", "ignore")
    if separator not in text:
        parts, part = [], ""
        for line in text.splitlines(keepends=True):
            part += line
            if len(part) >= 10_000:
                parts.append(part)
                part = ""
        text = separator.join(parts + [part])
    open(target, "w", encoding="utf-8", newline="").write(text)
    return os.path.getsize(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironmill", default="target/release/ironmill")
    parser.add_argument("--ranks", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--separator", default="<|endoftext|>")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slow-bytes", default="50MB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, few = os.path.join(folder, "whole.txt"), os.path.join(folder, "few.txt")
        n_whole = cut(args.text, 1 << 62, whole, args.separator)
        n_few = cut(args.text, size(args.slow_bytes), few, args.separator)
        times = {"ironmill": [], "nanoGPT-like": []}
        for _ in range(args.rounds):
            out = os.path.join(folder, "data")
            taken = as_ironmill(args.ironmill, whole, args.separator, out, args.ranks, args.processes)
            times["ironmill"].append([n_whole / seconds for seconds in taken])
            peer = os.path.join(folder, "train.bin")
            taken = as_nanogpt(few, args.separator, peer, args.ranks, args.processes)
            times["nanoGPT-like"].append([n_few / seconds for seconds in taken])
        as_ironmill(args.ironmill, few, args.separator, out, args.ranks, args.processes)
        back = os.path.join(folder, "nanogpt")
        subprocess.run([args.ironmill, "data", "convert", out, "--to", "nanogpt", "--out", back, "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        ours, theirs = np.fromfile(os.path.join(back, "train.bin"), np.uint16), np.fromfile(peer, np.uint16)
        print(f"tokens of the first {n_few:,} bytes: {len(ours):,}, {'identical' if np.array_equal(ours, theirs) else 'DIFFERENT'}")
        for idx, unit in enumerate(["MB/s", "MB a processor second"]):
            medians = {}
            for name, rounds in times.items():
                rates = [rates[idx] for rates in rounds]
                medians[name] = sorted(rates)[len(rates) // 2]
                print(f"{name:14} {medians[name] / 1e6:8.1f} {unit}   ({', '.join(f'{rate / 1e6:.1f}' for rate in rates)})")
            print(f"ironmill is {medians['ironmill'] / medians['nanoGPT-like']:.1f} times as fast")


if __name__ == "__main__":
    main()
