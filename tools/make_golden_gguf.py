"""Write tests/golden/gguf: a file with a tensor of every type that is read, by the `gguf` package, and what the package makes of it.

    pip install gguf==0.19.0 safetensors==0.8.0
    python tools/make_golden_gguf.py

`types.gguf` has metadata of every type and tensors [3, 256] (and [2, 3, 4] in f32); those of quantised types are random blocks
with scales of a sane size. `values.safetensors` has the dequantised numbers. `eight_bits.safetensors` has numbers and their Q8_0
blocks as the package quantises them.
"""

from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
from gguf.quants import dequantize, quantize

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "gguf"
TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
# Where a block has numbers of half precision.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # fmt: skip


def blocks(rng, kind, rows, columns):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        scales = rng.normal(0, 0.05, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def main():
    rng = np.random.default_rng(1)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(GOLDEN / "types.gguf", "test")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -7)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -300)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 2**60)
    writer.add_int64("a.i64", -(2**60))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "größer")
    writer.add_array("a.texts", ["a", "", "ß"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.floats", [0.25, -1.5])
    writer.add_array("a.bools", [True, False])
    values = {"f32": rng.normal(0, 1, (2, 3, 4)).astype(np.float32)}
    writer.add_tensor("f32", values["f32"])
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        if name in HALVES:
            data = blocks(rng, kind, 3, 256)
        else:
            data = quantize(rng.normal(0, 1, (3, 256)).astype(np.float32), kind)
        values[name] = dequantize(data, kind).astype(np.float32).reshape(3, 256)
        if name == "F16":
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    safetensors.numpy.save_file(values, GOLDEN / "values.safetensors")
    numbers = rng.normal(0, 1, (4, 64)).astype(np.float32)
    numbers[1, :32] = 0.0
    eight = quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    safetensors.numpy.save_file({"numbers": numbers, "blocks": eight}, GOLDEN / "eight_bits.safetensors")


if __name__ == "__main__":
    main()
