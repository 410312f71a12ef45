#!/usr/bin/env python3
"""Reads the events of a run with TensorBoard's own reader and compares them with the run's metrics.jsonl.

    pip install tensorboard
    python tools/check_tensorboard.py runs/quickstart

Every number of the metrics that has a tag must be there, at its step, rounded to single precision; samples must be texts.
"""

import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {
    "loss": "loss/train",
    "validation_loss": "loss/validation",
    "learning_rate": "optimizer/learning_rate",
    "norm": "optimizer/gradient_norm",
    "tokens": "data/tokens",
    "tokens_per_s": "speed/tokens_per_s",
    "mfu": "speed/mfu",
}


def single(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def main(run):
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    known = events.Tags()
    for key, tag in TAGS.items():
        expected = [(line["step"], single(line[key])) for line in lines if line.get(key) is not None]
        if not expected:
            continue
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == expected, f"{tag}: {len(found)} events, {len(expected)} lines"
        print(f"{tag}: {len(found)} events equal")
    texts = [tag for tag in known["tensors"] if tag.startswith("sample/")]
    for tag in texts:
        values = [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)]
        assert all(values), tag
        print(f"{tag}: {len(values)} texts")
    print(f"{len(known['scalars'])} scalar tags in all")


if __name__ == "__main__":
    main(sys.argv[1])
