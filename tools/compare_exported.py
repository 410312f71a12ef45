"""Export every golden model and load it elsewhere: `transformers` must give the golden logits, the `gguf` package must read the file.

    python tools/compare_exported.py PROGRAM

Needs torch, transformers, safetensors and gguf. Prints the largest difference of a logit for every kind.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import safetensors.numpy
import torch
import transformers

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
KINDS = [GOLDEN / name for name in ("gpt2", "llama", "qwen3", "encoder")] + sorted((GOLDEN / "models").iterdir())


def export(program, folder, out, *flags):
    subprocess.run([program, "export", folder, "--out", out, "--check", "--quiet", *flags], check=True, capture_output=True)


def main():
    program = sys.argv[1]
    transformers.logging.set_verbosity_error()
    for folder in KINDS:
        with tempfile.TemporaryDirectory() as room:
            export(program, folder, f"{room}/model")
            golden = safetensors.numpy.load_file(folder / "golden.safetensors")
            ids = torch.tensor(golden["ids"].astype("int64"))
            config = transformers.AutoConfig.from_pretrained(f"{room}/model")
            kind = getattr(transformers, config.architectures[0])
            model = kind.from_pretrained(f"{room}/model", attn_implementation="eager", dtype=torch.float32)
            with torch.no_grad():
                if "logits" in golden:
                    difference = (model(ids).logits - torch.tensor(golden["logits"])).abs().max()
                else:
                    mask = (torch.arange(ids.shape[1]) < torch.tensor(golden["lengths"].astype("int64"))[:, None]).long()
                    hidden = model(ids, attention_mask=mask).last_hidden_state * mask[..., None]
                    difference = (hidden - torch.tensor(golden["hidden"])).abs().max()
            types = []
            for dtype in ("f32", "f16", "bf16", "q8_0"):
                if folder.name == "encoder":
                    continue  # GGUF has no place for its head.
                export(program, folder, f"{room}/{dtype}.gguf", "--dtype", dtype)
                reader = gguf.GGUFReader(f"{room}/{dtype}.gguf")
                types.append(f"{dtype}: {len(reader.tensors)} tensors")
            print(f"{folder.name:14} {difference:.2e}   {', '.join(types)}", flush=True)


if __name__ == "__main__":
    main()
