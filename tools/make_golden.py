"""Write tests/golden/{gpt2,llama,qwen3,encoder}: what PyTorch computes for tiny models, for the Rust tests to read.

In a fresh virtual environment:

    pip install torch==2.15.0 transformers==5.22.2 safetensors==0.8.0 numpy==2.4.6
    python tools/make_golden.py

Made with Python 3.11 and exactly these versions; any other is refused. The weights are f32; all that is computed from
them (logits, loss, gradients, training) is computed in float64 from those same f32 numbers. One thread, fixed seeds: a
second run on one machine gives the same bytes; another CPU may differ in the last bits of the f64 numbers.

Loss: with n = the number of targets that are not ignored and have weight > 0,

    loss = (sum over not ignored targets of weight * -log softmax(logits)[target]) / n

so a weight scales its target's part of the loss; the divisor counts targets and is not the sum of the weights.
An ignored target (-100 in PyTorch) is stored as 4294967295, and counts nothing whatever its weight.

A training step: gradient of that loss; times min(1, CLIP / norm), norm over all parameters (torch's clip_grad_norm_
divides by norm + 1e-6, so it is not used); a torch optimiser, decay only for tensors of two dimensions or more.

Each number is computed twice, by `transformers` and by the plain functions below, and the two must agree.
tests/golden/README.md lists the tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
import transformers
from torch.overrides import TorchFunctionMode

VERSIONS = {"torch": "2.15.0", "transformers": "5.22.2", "safetensors": "0.8.0", "numpy": "2.4.6"}
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"

VOCAB, CONTEXT, WIDTH, LAYERS = 61, 16, 24, 2
BATCH, LENGTH = 3, 11  # 11: not a multiple of any tile
STEPS, DECAY, CLIP = 10, 0.1, 1.0
ADAM_LR, BETAS, ADAM_EPS = 1e-2, (0.9, 0.95), 1e-8
SGD_LR, MOMENTUM = 1e-1, 0.9
PROMPT, NEW = 4, 10
IGNORED = -100
MASK = VOCAB - 1  # what the encoder sees in place of a hidden id; also an id like any other

ADAM = {"lr": ADAM_LR, "betas": BETAS, "eps": ADAM_EPS}
OPTIMISERS = {
    "adamw": (torch.optim.AdamW, ADAM),
    "adam": (torch.optim.Adam, ADAM),
    "sgd": (torch.optim.SGD, {"lr": SGD_LR, "momentum": MOMENTUM}),
}


# The models, in plain PyTorch over a dict of Hugging Face names.


def layer_norm(p, name, x, eps):
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return unit * p[name + ".weight"] + p[name + ".bias"]


def rms_norm(p, name, x, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * p[name + ".weight"]


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # [rows, heads, length, size]


def attention(q, k, v, causal):
    """Over split heads; with fewer heads of k and v than of q, each serves as many consecutive heads of q."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def rotate(x, rope):
    """RoPE: the pair (i, i + half) is a complex number, turned by position * frequency(i)."""

    def frequency(i):
        f = rope["rope_theta"] ** (-i / half)
        if rope["rope_type"] == "default":
            return f
        assert rope["rope_type"] == "llama3"
        turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return kept * f + (1 - kept) * f / rope["factor"]

    length, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.tensor([[t * frequency(i) for i in range(half)] for t in range(length)], dtype=torch.float64)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def plain_gpt2(c, p, ids):
    """Linear weights are [in, out] (Conv1D)."""

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def norm(x, name):
        return layer_norm(p, name, x, c.layer_norm_epsilon)

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(LAYERS):
        h = f"transformer.h.{layer}."
        q, k, v = (split_heads(y, c.n_head) for y in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(WIDTH, -1))
        x = x + linear(attention(q, k, v, causal=True), h + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def plain_llama(c, p, ids):
    """Llama; and Qwen3, which also norms each head of q and k before turning it."""

    def linear(x, name):
        return x @ p[name + ".weight"].T

    def norm(x, name):
        return rms_norm(p, name, x, c.rms_norm_eps)

    def turned(x, name, heads):
        x = split_heads(linear(x, name + "_proj"), heads)
        return rotate(norm(x, name + "_norm") if name + "_norm.weight" in p else x, c.rope_parameters)

    x = p["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        h = f"model.layers.{layer}."
        y = norm(x, h + "input_layernorm")
        q = turned(y, h + "self_attn.q", c.num_attention_heads)
        k = turned(y, h + "self_attn.k", c.num_key_value_heads)
        v = split_heads(linear(y, h + "self_attn.v_proj"), c.num_key_value_heads)
        x = x + linear(attention(q, k, v, causal=True), h + "self_attn.o_proj")
        y = norm(x, h + "post_attention_layernorm")
        gate = linear(y, h + "mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(y, h + "mlp.up_proj"), h + "mlp.down_proj")
    return norm(x, "model.norm") @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T


def plain_bert(c, p, ids):
    """Norms come after the sums; every position sees every position."""

    def linear(x, name):
        return x @ p[name + ".weight"].T + p[name + ".bias"]

    def norm(x, name):
        return layer_norm(p, name + ".LayerNorm", x, c.layer_norm_eps)

    def gelu(x):
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    e, head = "bert.embeddings", "cls.predictions."
    positions = p[e + ".position_embeddings.weight"][: ids.shape[1]]
    x = norm(p[e + ".word_embeddings.weight"][ids] + positions + p[e + ".token_type_embeddings.weight"][0], e)
    for layer in range(LAYERS):
        h = f"bert.encoder.layer.{layer}."
        q, k, v = (split_heads(linear(x, h + "attention.self." + y), c.num_attention_heads)
                   for y in ("query", "key", "value"))  # fmt: skip
        mixed = linear(attention(q, k, v, causal=False), h + "attention.output.dense")
        x = norm(x + mixed, h + "attention.output")
        x = norm(x + linear(gelu(linear(x, h + "intermediate.dense")), h + "output.dense"), h + "output")
    x = norm(gelu(linear(x, head + "transform.dense")), head + "transform")
    return x @ p[e + ".word_embeddings.weight"].T + p[head + "bias"]


# The models, as the library has them.


@dataclass(frozen=True)
class Case:
    folder: str
    model: type
    config: transformers.PreTrainedConfig
    plain: Callable
    sample: tuple[str, str]  # the parameters stored after training with Adam and SGD: a table, and a gain or bias
    calm: float  # weights of steps 5 and 10 are divided by this, so that those gradients stay below CLIP
    causal: bool = True
    seed: int = 1  # chosen so that no greedy choice is close, and few repeat


COMMON = {
    "vocab_size": VOCAB, "initializer_range": 0.25, "attn_implementation": "eager",
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
SHAPE = {"max_position_embeddings": CONTEXT, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
CASES = [
    Case(
        "gpt2",
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            n_positions=CONTEXT, n_embd=WIDTH, n_head=3, n_layer=LAYERS, activation_function="gelu_new",
            layer_norm_epsilon=1e-5, tie_word_embeddings=True,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.0, **COMMON,
        ),
        plain_gpt2,
        sample=("transformer.wte.weight", "transformer.h.0.ln_1.weight"),
        calm=4,
    ),
    Case(
        "llama",
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=40, rms_norm_eps=1e-5,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8,
            },
            tie_word_embeddings=False, **SHAPE, **COMMON,
        ),
        plain_llama,
        sample=("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"),
        calm=16,
        seed=12,
    ),
    Case(
        "qwen3",
        transformers.Qwen3ForCausalLM,
        transformers.Qwen3Config(
            num_attention_heads=3, num_key_value_heads=1, head_dim=8, intermediate_size=40, rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True, **SHAPE, **COMMON,
        ),
        plain_llama,
        sample=("model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight"),
        calm=16,
        seed=19,
    ),
    Case(
        "encoder",
        transformers.BertForMaskedLM,
        transformers.BertConfig(
            num_attention_heads=3, intermediate_size=96, hidden_act="gelu", layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            tie_word_embeddings=True, **SHAPE, **COMMON,
        ),
        plain_bert,
        sample=("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"),
        calm=16,
        causal=False,
    ),
]  # fmt: skip


def make_model(case):
    """A tiny model in which no parameter is 0 or 1 everywhere, and whose gradients are not tiny."""
    torch.manual_seed(case.seed)
    model = case.model(case.config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:  # biases (0 until here) and gains of norms (1)
                p.add_(0.2 * torch.randn_like(p))
    return model


class Doubles(TorchFunctionMode):
    """Makes the library's code stay in float64 where it asks for f32: in RMS norm, softmax and RoPE."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def widened(x):
            return torch.float64 if x is torch.float32 else x

        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*map(widened, args), **{key: widened(x) for key, x in (kwargs or {}).items()})


def load_model(case, folder):
    """The stored model in float64, with the frequencies of RoPE computed anew in float64 too."""
    model = case.model.from_pretrained(folder, attn_implementation="eager").double()
    if rotary := getattr(model.base_model, "rotary_emb", None):
        with Doubles():
            model.base_model.rotary_emb = type(rotary)(model.config)
        agree(rotary.inv_freq, model.base_model.rotary_emb.inv_freq, 1e-6)
    return model


def logits_of(model, ids):
    with Doubles():
        return model(ids).logits


# Batches, losses, training.


def make_batch(generator, causal):
    """Ids, targets and weights: noisy sequences x -> 7x + 3 mod VOCAB, so that there is something to learn."""

    def random(high, *shape):
        return torch.randint(high, shape, generator=generator)

    tokens = random(VOCAB, BATCH, LENGTH + 1)
    noise = random(4, BATCH, LENGTH + 1) == 0
    for t in range(1, LENGTH + 1):
        tokens[:, t] = torch.where(noise[:, t], tokens[:, t], (7 * tokens[:, t - 1] + 3) % VOCAB)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if causal:
        targets[random(6, BATCH, LENGTH) == 0] = IGNORED
    else:  # a fifth of the ids are targets; three quarters of those are hidden from the model
        chosen = random(5, BATCH, LENGTH) == 0
        targets = torch.where(chosen, ids, IGNORED)
        ids = torch.where(chosen & (random(4, BATCH, LENGTH) > 0), MASK, ids)
    weights = torch.tensor([0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64)[random(8, BATCH, LENGTH)]
    return ids, targets, weights


def loss_of(logits, targets, weights):
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return (weights.flatten() * nll).sum() / count_of(targets, weights)


def count_of(targets, weights):
    return ((targets != IGNORED) & (weights > 0)).sum((-2, -1))


def plain_loss(logits, targets, weights):
    """The same number, one target at a time."""
    total, count = 0.0, 0
    for row, target, weight in zip(logits.flatten(0, 1), targets.flatten().tolist(), weights.flatten().tolist()):
        if target != IGNORED and weight > 0:
            total, count = total + weight * (row.logsumexp(0) - row[target]), count + 1
    return total / count


def plain_gradients(case, p, ids, targets, weights):
    p = {name: w.detach().clone().requires_grad_() for name, w in p.items()}
    loss = plain_loss(case.plain(case.config, p, ids), targets, weights)
    return loss.detach(), dict(zip(p, torch.autograd.grad(loss, list(p.values()))))


def norm_of(gradients):
    return torch.sqrt(sum((g * g).sum() for g in gradients))


def train(model, optimiser, batches):
    """Losses and gradient norms (both before the update) of the steps; changes the model."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind, settings = OPTIMISERS[optimiser]
    stepper = kind(groups, foreach=False, **settings)
    losses, norms = [], []
    for ids, targets, weights in batches:
        stepper.zero_grad()
        loss = loss_of(logits_of(model, ids), targets, weights)
        loss.backward()
        norm = norm_of(p.grad for p in parameters)
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP / norm.item()))
        stepper.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def plain_train(case, p, optimiser, batches):
    """The same steps from the formulas; returns the losses and the final parameters."""
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in p.items()}
    losses = []
    for step, (ids, targets, weights) in enumerate(batches, start=1):
        loss, gradients = plain_gradients(case, p, ids, targets, weights)
        losses.append(loss.item())
        scale = min(1.0, CLIP / norm_of(gradients.values()).item())
        updated = {name: plain_update(optimiser, step, p[name], scale * g, *moments[name])
                   for name, g in gradients.items()}  # fmt: skip
        p = {name: w for name, (w, _, _) in updated.items()}
        moments = {name: (m, v) for name, (_, m, v) in updated.items()}
    return losses, p


def plain_update(optimiser, step, w, g, m, v):
    """A parameter and its moments after one step. Decay is part of the gradient, but for AdamW."""
    decay = DECAY if w.ndim >= 2 else 0.0
    if optimiser == "adamw":
        w = w * (1 - ADAM_LR * decay)
    else:
        g = g + decay * w
    if optimiser == "sgd":
        m = MOMENTUM * m + g
        return w - SGD_LR * m, m, v
    m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
    return w - ADAM_LR * (m / (1 - BETAS[0] ** step)) / (torch.sqrt(v / (1 - BETAS[1] ** step)) + ADAM_EPS), m, v


def greedy(model, prompt):
    """NEW ids by the whole forward pass each time; and the least lead of a winner over its runner-up."""
    tokens, lead = prompt, math.inf
    for _ in range(NEW):
        (best, second), (winner, _) = logits_of(model, tokens)[0, -1].topk(2)
        lead = min(lead, (best - second).item())
        tokens = torch.cat([tokens, winner.view(1, 1)], dim=1)
    return tokens[:, prompt.shape[1] :], lead


# The files.


class Golden(dict):
    """Tensors by name, on their way to a file."""

    def put(self, name, tensor, dtype=np.float64):
        array = np.atleast_1d(torch.as_tensor(tensor).detach().numpy())
        self[name] = np.ascontiguousarray(array.astype(dtype))

    def put_batch(self, prefix, ids, targets, weights):
        self.put(prefix + "ids", ids, np.uint32)
        self.put(prefix + "targets", torch.where(targets == IGNORED, 2**32 - 1, targets), np.uint32)
        self.put(prefix + "weights", weights, np.float32)
        self.put(prefix + "counts", count_of(targets, weights), np.uint32)
        assert self[prefix + "counts"].all()

    def save(self, path):
        safetensors.numpy.save_file(self, path)
        print(path.relative_to(GOLDEN))
        for name, array in self.items():
            print(f"    {name:72} {array.dtype!s:8} {list(array.shape)}")


def agree(a, b, tolerance=1e-11):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def put_gradients(golden, case, model, start, batch):
    """One batch: logits, loss, every gradient."""
    ids, targets, weights = batch
    logits = logits_of(model, ids)
    loss = loss_of(logits, targets, weights)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    agree(logits, case.plain(case.config, start, ids))
    loss_again, gradients_again = plain_gradients(case, start, *batch)
    agree(loss, loss_again)
    golden.put_batch("", *batch)
    golden.put("logits", logits)
    golden.put("logits_f32", logits, np.float32)
    golden.put("loss", loss)
    golden.put("grad_norm", norm_of(gradients.values()))
    for name, g in gradients.items():
        agree(g, gradients_again[name])
        golden.put("grad." + name, g)
    print(case.folder, "loss", loss.item(), "norm", golden["grad_norm"][0], "count", golden["counts"][0])


def put_greedy(golden, case, model, prompt):
    """Greedy continuation, checked against the library's own generation through its cache."""
    with torch.no_grad():
        continued, lead = greedy(model, prompt)
        with Doubles():
            mask = torch.ones_like(prompt)
            cached = model.generate(prompt, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
        assert torch.equal(cached[:, PROMPT:], continued)
        assert lead > 1e-2, f"the greedy choice is too close to call in f32: {lead}"
        golden.put("greedy.prompt", prompt[0], np.uint32)
        golden.put("greedy.ids", continued[0], np.uint32)
        golden.put("greedy.prompt_logits", logits_of(model, prompt)[0, -1])
    print(case.folder, "greedy", prompt[0].tolist(), continued[0].tolist(), "least lead", lead)


def put_training(golden, prefix, dtype, case, model, start, optimiser, batches):
    """Steps of an optimiser, each on its own batch; all parameters after AdamW, the sample after the others."""
    losses, norms = train(model, optimiser, batches)
    print(case.folder, optimiser, "losses", losses, "norms", norms)
    if optimiser == "adamw":
        assert [norm < CLIP for norm in norms] == 2 * [False, False, False, False, True], norms
    losses_again, end_again = plain_train(case, start, optimiser, batches)
    agree(losses, losses_again)
    golden.put(prefix + "losses", torch.tensor(losses, dtype=torch.float64))
    golden.put(prefix + "grad_norms", torch.tensor(norms, dtype=torch.float64))
    for name, p in model.named_parameters():
        agree(p, end_again[name], 1e-9)
        if optimiser == "adamw" or name in case.sample:
            golden.put(prefix + "param." + name, p, dtype)


def write(case):
    folder = GOLDEN / case.folder
    folder.mkdir(parents=True, exist_ok=True)
    make_model(case).save_pretrained(folder)
    model = load_model(case, folder)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}  # a tied head appears once, as the table
    generator = torch.Generator().manual_seed(case.seed + 1)
    golden = Golden()

    put_gradients(golden, case, model, start, make_batch(generator, case.causal))
    if case.causal:
        put_greedy(golden, case, model, torch.randint(VOCAB, (1, PROMPT), generator=generator))

    batches = [make_batch(generator, case.causal) for _ in range(STEPS)]
    for _, _, weights in batches[4::5]:
        weights /= case.calm
    golden.put_batch("train.", *(torch.stack(column) for column in zip(*batches)))
    # GPT-2's golden.safetensors knows AdamW only, under names without it; the other optimisers have their own file.
    gpt2 = case.folder == "gpt2"
    others = Golden() if gpt2 else golden
    for optimiser in OPTIMISERS:
        old = gpt2 and optimiser == "adamw"
        prefix, dtype = ("train.", np.float64) if old else (f"train.{optimiser}.", np.float32)
        model = load_model(case, folder)
        put_training(golden if old else others, prefix, dtype, case, model, start, optimiser, batches)

    golden.save(folder / "golden.safetensors")
    if gpt2:
        others.save(folder / "optimisers.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)


def main():
    for package, pinned in VERSIONS.items():
        if version(package) != pinned:
            raise SystemExit(f"{package} is {version(package)}, but the golden files are made with {pinned}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.disable_progress_bar()
    for case in CASES:
        write(case)


if __name__ == "__main__":
    main()
