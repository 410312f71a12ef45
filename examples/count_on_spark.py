#!/usr/bin/env python3
"""Counts the pieces of a corpus on Spark and learns a BPE tokenizer from the sum.

Every partition of the text goes through `ironmill tokenizer count -` on its worker; the counts files, which are small beside the
text, come back and are merged by `ironmill tokenizer merge`. The merged file has the same bytes however Spark shares out the
text, so the tokenizer is the one that a single machine would learn. The ironmill binary must be on every worker.

    spark-submit examples/count_on_spark.py 'hdfs:///corpus/*.txt' --vocab-size 32000 --out tokenizer.json
    python3 examples/count_on_spark.py 'texts/*.txt' --ironmill target/release/ironmill --vocab-size 8192 --out tokenizer.json

Each text file is one document (`wholeTextFiles`); documents must not contain the record separator U+001E.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

SEPARATOR = "\x1e"


def count(documents, ironmill, pattern, memory):
    """The counts file of one partition, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "part.counts")
        command = [
            ironmill, "tokenizer", "count", "-", "--out", str(out), "--pattern", pattern, "--threads", "1",
            "--memory", memory, "--document-separator", SEPARATOR, "--quiet",
        ]  # fmt: skip
        counter = None
        for _, text in documents:
            if not text.strip():
                continue
            if counter is None:
                counter = subprocess.Popen(command, stdin=subprocess.PIPE)
            counter.stdin.write(text.encode() + SEPARATOR.encode())
        if counter is None:
            return
        counter.stdin.close()
        if counter.wait() != 0:
            raise RuntimeError(f"ironmill ended with {counter.returncode}: its messages are in the worker's log")
        yield out.read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--pattern", default="gpt2")
    parser.add_argument("--ironmill", default="ironmill")
    parser.add_argument("--memory", default="1GiB", help="for each worker's counter")
    parser.add_argument("--partitions", type=int, default=None)
    args = parser.parse_args()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        sys.exit("pyspark is not installed: pip install pyspark, or run this with spark-submit")

    spark = SparkSession.builder.appName("ironmill-count").getOrCreate()
    texts = spark.sparkContext.wholeTextFiles(args.input, args.partitions)
    options = (args.ironmill, args.pattern, args.memory)
    counted = texts.mapPartitions(lambda documents: count(documents, *options))
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for number, content in enumerate(counted.toLocalIterator()):
            parts.append(pathlib.Path(folder, f"{number}.counts"))
            parts[-1].write_bytes(content)
        merged = str(pathlib.Path(folder, "all.counts"))
        subprocess.run([args.ironmill, "tokenizer", "merge", *map(str, parts), "--out", merged], check=True)
        learn = ["tokenizer", "train", "--counts", merged, "--pattern", args.pattern]
        learn += ["--vocab-size", str(args.vocab_size), "--out", args.out]
        subprocess.run([args.ironmill, *learn], check=True)
    spark.stop()


if __name__ == "__main__":
    main()
