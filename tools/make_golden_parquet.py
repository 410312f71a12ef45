#!/usr/bin/env python3
"""Small parquet files in the ways that writers make them, for the tests of `crates/data`.

    python3 tools/make_golden_parquet.py tests/golden/parquet

Needs pyarrow. Every file holds the same rows: the column `text`, in which some rows have none, the numbers `id`, and
`inner.text` inside a struct. `rows.json` has the texts.
"""

import json
import pathlib
import sys

import pyarrow
import pyarrow.parquet

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
words = ["otter", "harbour", "naïve", "Привіт", "世界", "", "it's"]
texts = [None if i % 11 == 5 else " ".join(words[(i * k) % 7] for k in range(i % 9)) + f" {i % 50}" for i in range(600)]
inner = [{"text": text} for text in texts]
table = pyarrow.table({"id": list(range(len(texts))), "text": texts, "inner": inner})
ways = {
    "plain": dict(compression="none", use_dictionary=False),
    "snappy-dictionary": dict(compression="snappy", use_dictionary=True),
    "gzip": dict(compression="gzip", use_dictionary=False),
    "zstd-v2": dict(compression="zstd", use_dictionary=True, data_page_version="2.0"),
    "delta-v2": dict(compression="snappy", use_dictionary=False, data_page_version="2.0",
                     column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY", "inner.text": "PLAIN", "id": "PLAIN"}),
    "lz4": dict(compression="lz4", use_dictionary=False),
}  # fmt: skip
for name, options in ways.items():
    pyarrow.parquet.write_table(table, out / f"{name}.parquet", row_group_size=250, data_page_size=1500, **options)
required = pyarrow.schema([pyarrow.field("text", pyarrow.string(), nullable=False)])
whole = pyarrow.table({"text": [text for text in texts if text is not None]}, schema=required)
pyarrow.parquet.write_table(whole, out / "required.parquet", compression="snappy")
(out / "rows.json").write_text(json.dumps(texts, ensure_ascii=False) + "\n")
