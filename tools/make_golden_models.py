"""Write tests/golden/models/: what `transformers` computes for a tiny model of every kind that can be imported.

In the environment of tools/make_golden.py:

    python tools/make_golden_models.py

Each folder holds a model of random weights as `save_pretrained` writes it (some in parts, some in 16 bits) and
`golden.safetensors`: ids, targets, logits, the mean loss, its gradients by name; a greedy continuation; for a bare encoder the
hidden states and the mean of each text's states, brought to length 1. All numbers are computed in float64 from the stored weights.
"""

import shutil

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
import transformers
from make_golden import COMMON, GOLDEN, VOCAB, Doubles

BATCH, LENGTH, NEW = 2, 13, 8
FOLDER = GOLDEN / "models"
SHAPE = {"max_position_embeddings": 32, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}

CASES = {
    "llama2": (transformers.LlamaForCausalLM, transformers.LlamaConfig(
        num_attention_heads=3, num_key_value_heads=3, rms_norm_eps=1e-5, rope_parameters=DEFAULT,
        tie_word_embeddings=False, **SHAPE, **COMMON), {}),
    "llama-linear": (transformers.LlamaForCausalLM, transformers.LlamaConfig(
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        tie_word_embeddings=False, **HEADS, **SHAPE, **COMMON), {"dtype": torch.bfloat16}),
    "smollm2": (transformers.LlamaForCausalLM, transformers.LlamaConfig(
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True, **HEADS, **SHAPE, **COMMON), {"dtype": torch.float16}),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(
        rms_norm_eps=1e-5, rope_parameters=DEFAULT, sliding_window=5, head_dim=8,
        tie_word_embeddings=False, **HEADS, **SHAPE, **COMMON), {"parts": "20KB"}),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, use_sliding_window=False,
        tie_word_embeddings=True, **HEADS, **SHAPE, **COMMON), {}),
    "gemma3": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(
        rms_norm_eps=1e-6, head_dim=8, query_pre_attn_scalar=6, sliding_window=5, hidden_activation="gelu_pytorch_tanh",
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        tie_word_embeddings=True, **HEADS, **(SHAPE | {"num_hidden_layers": 4}), **COMMON), {}),
    "minilm": (transformers.BertModel, transformers.BertConfig(
        num_attention_heads=3, hidden_act="gelu", layer_norm_eps=1e-12, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **SHAPE, **COMMON), {}),
}  # fmt: skip


def store(name, kind, config, options):
    """A model in which no parameter is 0 or 1 everywhere, as the library writes it."""
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.to(options.get("dtype", torch.float32)).save_pretrained(folder, max_shard_size=options.get("parts", "1GB"))
    return folder


def load(kind, folder):
    """The stored weights in float64, with the frequencies of RoPE computed anew in float64 too."""
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).double()
    if rotary := getattr(model.base_model, "rotary_emb", None):
        with Doubles():
            model.base_model.rotary_emb = type(rotary)(model.config)
    return model


def put_causal(golden, model, ids):
    tokens = torch.cat([ids, (7 * ids[:, -1:] + 3) % VOCAB], dim=1)
    targets = tokens[:, 1:]
    with Doubles():
        logits = model(ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    golden["targets"] = targets
    golden["logits"] = logits
    golden["loss"] = loss.reshape(1)
    for name, p in model.named_parameters():
        golden["grad." + name] = p.grad
    prompt = ids[:1, :4]
    with torch.no_grad(), Doubles():
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False)
    golden["greedy.ids"] = made[0, 4:]


def put_encoder(golden, model, ids):
    lengths = torch.tensor([LENGTH, 5])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    with torch.no_grad(), Doubles():
        hidden = model(ids, attention_mask=mask).last_hidden_state
    means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    golden["lengths"] = lengths
    golden["hidden"] = hidden * mask[..., None]
    golden["sentences"] = F.normalize(means, dim=-1)


def main():
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    for name, (kind, config, options) in CASES.items():
        folder = store(name, kind, config, options)
        model = load(kind, folder)
        ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))
        golden = {"ids": ids}
        (put_encoder if name == "minilm" else put_causal)(golden, model, ids)
        arrays = {
            key: value.detach().numpy().astype(np.uint32 if value.dtype == torch.int64 else np.float32)
            for key, value in golden.items()
        }
        safetensors.numpy.save_file(arrays, folder / "golden.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)
            print(file.relative_to(GOLDEN), file.stat().st_size)


if __name__ == "__main__":
    main()
