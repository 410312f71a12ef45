#!/usr/bin/env python3
"""Runs a test program on a card again and again, and keeps what failed and what it said.

    python3 tools/repeat_on_a_card.py target/debug/deps/whole_model-* --seconds 200
    python3 tools/repeat_on_a_card.py whole_model --filters decode:: generation:: --ways many one --seconds 120

Tests of one program use the card beside each other, which a program for people never does. So runs take turns: with as many threads as
there are (`many`), with many that find no choices of algorithms on disk (`fresh`), and with one (`one`). The table says how many runs of each
there were, which tests failed in how many of them, and what the first of each said. Status 1 where any did.
"""

import argparse
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

WAYS = ["many", "fresh", "one"]
MOST_SAID = 1500


def failures(output):
    """The tests that failed, with what they said."""
    said = dict(re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", output, re.M | re.S))
    failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", output, re.M)
    return {test: said.get(test, "").strip()[:MOST_SAID] for test in failed}


def run(program, filters, way):
    # Where tests keep kernels that they compiled, and choices.
    kept = os.path.join(tempfile.gettempdir(), "ironmill-test-kernels")
    if way == "fresh":
        for file in glob.glob(f"{kept}/choices-*"):
            os.remove(file)
    command = [program, *filters, *(["--test-threads", "1"] if way == "one" else [])]
    environment = {**os.environ, "IRONMILL_REQUIRE_CUDA": "1", "RUST_BACKTRACE": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    failed = failures(ended.stdout)
    if ended.returncode and not failed:
        failed = {"the program itself": f"status {ended.returncode}: {(ended.stdout + ended.stderr)[-MOST_SAID:]}"}
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="a test program of a build")
    parser.add_argument("--filters", nargs="*", default=[], help="parts of tests' names (default: all tests)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all, by turns")
    parser.add_argument("--seconds", type=float, default=120, help="no run begins after so many (default: %(default)s)")
    arguments = parser.parse_args()
    runs, failed, said = collections.Counter(), collections.Counter(), {}
    begin = time.perf_counter()
    while time.perf_counter() - begin < arguments.seconds:
        way = arguments.ways[sum(runs.values()) % len(arguments.ways)]
        at = time.perf_counter()
        found = run(arguments.program, arguments.filters, way)
        runs[way] += 1
        failed.update((way, test) for test in found)
        said.update({test: words for test, words in found.items() if test not in said})
        print(f"{way:<6} {time.perf_counter() - at:6.1f} s  {', '.join(found) or 'all passed'}", flush=True)
    for test, words in said.items():
        print(f"\n{test}:\n{words}")
    print("\n" + ", ".join(f"{count} runs with {way}" for way, count in runs.items()))
    for (way, test), count in sorted(failed.items()):
        print(f"{test:<90} failed in {count} of {runs[way]} with {way}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
