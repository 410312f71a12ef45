"""Write tests/golden/gpt2: what PyTorch computes for a tiny GPT-2, for the Rust tests to read.

In a fresh virtual environment:

    pip install torch==2.15.0 transformers==5.22.2 safetensors==0.8.0 numpy==2.4.6
    python tools/make_golden.py

Made with Python 3.11 and exactly these versions; any other is refused. The weights are f32; all that is computed from
them (logits, loss, gradients, AdamW) is computed in float64 from those same f32 numbers. One thread, fixed seeds: a
second run on one machine gives the same bytes; another CPU may differ in the last bits of the f64 numbers.

Loss: with n = the number of targets that are not ignored and have weight > 0,

    loss = (sum over not ignored targets of weight * -log softmax(logits)[target]) / n

so a weight scales its target's part of the loss; the divisor counts targets and is not the sum of the weights.
An ignored target (-100 in PyTorch) is stored as 4294967295, and counts nothing whatever its weight.

A training step: gradient of that loss; times min(1, CLIP / norm), norm over all parameters (torch's clip_grad_norm_
divides by norm + 1e-6, so it is not used); torch.optim.AdamW, decay only for tensors of two dimensions or more.

Each number is computed twice, by `transformers` and by the plain functions below, and the two must agree.
tests/golden/README.md lists the tensors.
"""

import math
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

VERSIONS = {"torch": "2.15.0", "transformers": "5.22.2", "safetensors": "0.8.0", "numpy": "2.4.6"}
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "gpt2"

VOCAB, CONTEXT, WIDTH, HEADS, LAYERS, EPS = 61, 16, 24, 3, 2, 1e-5
BATCH, LENGTH = 3, 11  # 11: not a multiple of any tile
STEPS, LR, BETAS, ADAM_EPS, DECAY, CLIP = 10, 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
PROMPT, NEW = 4, 10
IGNORED = -100


def make_model():
    """A tiny GPT-2 in which no parameter is 0 or 1 everywhere, and whose gradients are not tiny."""
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS,
        activation_function="gelu_new", layer_norm_epsilon=EPS, initializer_range=0.25, tie_word_embeddings=True,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.0,
        bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:  # biases (0 until here) and LayerNorm gains (1)
                p.add_(0.2 * torch.randn_like(p))
    return model


def make_batch(generator):
    """Ids, targets and weights: noisy sequences x -> 7x + 3 mod VOCAB, so that there is something to learn."""

    def random(high, *shape):
        return torch.randint(high, shape, generator=generator)

    tokens = random(VOCAB, BATCH, LENGTH + 1)
    noise = random(4, BATCH, LENGTH + 1) == 0
    for t in range(1, LENGTH + 1):
        tokens[:, t] = torch.where(noise[:, t], tokens[:, t], (7 * tokens[:, t - 1] + 3) % VOCAB)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    targets[random(6, BATCH, LENGTH) == 0] = IGNORED
    weights = torch.tensor([0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64)[random(8, BATCH, LENGTH)]
    return ids, targets, weights


def plain_logits(p, ids):
    """GPT-2 in plain PyTorch over a dict of Hugging Face names; Conv1D weights are [in, out]."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + EPS)
        return unit * p[name + ".weight"] + p[name + ".bias"]

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(x):
        rows, length, _ = x.shape
        q, k, v = (y.view(rows, length, HEADS, -1).transpose(1, 2) for y in x.split(WIDTH, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        return (scores.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(1, 2).reshape(rows, length, WIDTH)

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(LAYERS):
        h = f"transformer.h.{layer}."
        x = x + linear(attention(linear(norm(x, h + "ln_1"), h + "attn.c_attn")), h + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


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


def norm_of(gradients):
    return torch.sqrt(sum((g * g).sum() for g in gradients))


def train(model, batches):
    """Losses and gradient norms (both before the update) of AdamW steps; changes the model."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=ADAM_EPS, foreach=False)
    losses, norms = [], []
    for ids, targets, weights in batches:
        optimizer.zero_grad()
        loss = loss_of(model(ids).logits, targets, weights)
        loss.backward()
        norm = norm_of(p.grad for p in parameters)
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP / norm.item()))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def plain_train(p, batches):
    """The same steps from the formulas; returns the losses and the final parameters."""
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in p.items()}
    losses = []
    for step, (ids, targets, weights) in enumerate(batches, start=1):
        loss, gradients = plain_gradients(p, ids, targets, weights)
        losses.append(loss.item())
        scale = min(1.0, CLIP / norm_of(gradients.values()).item())
        for name, g in gradients.items():
            g, (m, v) = scale * g, moments[name]
            m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
            moments[name] = m, v
            update = (m / (1 - BETAS[0] ** step)) / (torch.sqrt(v / (1 - BETAS[1] ** step)) + ADAM_EPS)
            decay = DECAY if g.ndim >= 2 else 0.0
            p = p | {name: p[name] * (1 - LR * decay) - LR * update}
    return losses, p


def plain_gradients(p, ids, targets, weights):
    p = {name: w.detach().clone().requires_grad_() for name, w in p.items()}
    loss = plain_loss(plain_logits(p, ids), targets, weights)
    return loss.detach(), dict(zip(p, torch.autograd.grad(loss, list(p.values()))))


def greedy(model, prompt):
    """NEW ids by the whole forward pass each time; and the least lead of a winner over its runner-up."""
    tokens, lead = prompt, math.inf
    for _ in range(NEW):
        (best, second), (winner, _) = model(tokens).logits[0, -1].topk(2)
        lead = min(lead, (best - second).item())
        tokens = torch.cat([tokens, winner.view(1, 1)], dim=1)
    return tokens[:, prompt.shape[1] :], lead


def agree(a, b, tolerance=1e-11):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def main():
    for package, pinned in VERSIONS.items():
        if version(package) != pinned:
            raise SystemExit(f"{package} is {version(package)}, but the golden files are made with {pinned}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.disable_progress_bar()
    FOLDER.mkdir(parents=True, exist_ok=True)

    make_model().save_pretrained(FOLDER)
    model = GPT2LMHeadModel.from_pretrained(FOLDER, attn_implementation="eager").double()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}  # the tied head appears once, as wte
    generator = torch.Generator().manual_seed(2)
    golden = {}

    def put(name, tensor, dtype=np.float64):
        array = np.atleast_1d(torch.as_tensor(tensor).detach().numpy())
        golden[name] = np.ascontiguousarray(array.astype(dtype))

    def put_batch(prefix, ids, targets, weights):
        put(prefix + "ids", ids, np.uint32)
        put(prefix + "targets", torch.where(targets == IGNORED, 2**32 - 1, targets), np.uint32)
        put(prefix + "weights", weights, np.float32)
        put(prefix + "counts", count_of(targets, weights), np.uint32)

    # One batch: logits, loss, every gradient.
    ids, targets, weights = batch = make_batch(generator)
    logits = model(ids).logits
    loss = loss_of(logits, targets, weights)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    agree(logits, plain_logits(start, ids))
    loss_again, gradients_again = plain_gradients(start, *batch)
    agree(loss, loss_again)
    put_batch("", *batch)
    put("logits", logits)
    put("logits_f32", logits, np.float32)
    put("loss", loss)
    put("grad_norm", norm_of(gradients.values()))
    for name, g in gradients.items():
        agree(g, gradients_again[name])
        put("grad." + name, g)

    # Greedy continuation, checked against the library's own generation through its cache.
    prompt = torch.randint(VOCAB, (1, PROMPT), generator=generator)
    with torch.no_grad():
        continued, lead = greedy(model, prompt)
        cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False)
        assert torch.equal(cached[:, PROMPT:], continued)
        assert lead > 1e-2, f"the greedy choice is too close to call in f32: {lead}"
        put("greedy.prompt", prompt[0], np.uint32)
        put("greedy.ids", continued[0], np.uint32)
        put("greedy.prompt_logits", model(prompt).logits[0, -1])

    # AdamW steps, each on its own batch.
    batches = [make_batch(generator) for _ in range(STEPS)]
    for _, _, weights in batches[4::5]:
        weights /= 4  # so that steps 5 and 10 stay below CLIP
    losses, norms = train(model, batches)
    assert [norm < CLIP for norm in norms] == 2 * [False, False, False, False, True], norms
    losses_again, end_again = plain_train(start, batches)
    agree(losses, losses_again)
    put_batch("train.", *(torch.stack(column) for column in zip(*batches)))
    put("train.losses", torch.tensor(losses, dtype=torch.float64))
    put("train.grad_norms", torch.tensor(norms, dtype=torch.float64))
    for name, p in model.named_parameters():
        agree(p, end_again[name], 1e-9)
        put("train.param." + name, p)

    safetensors.numpy.save_file(golden, FOLDER / "golden.safetensors")
    for file in FOLDER.iterdir():
        file.chmod(0o644)
    for name, array in golden.items():
        print(f"{name:48} {array.dtype!s:8} {list(array.shape)}")
    print("loss", loss.item(), "norm", golden["grad_norm"][0], "count", golden["counts"][0])
    print("train losses", losses, "norms", norms, sep="\n")
    print("greedy", prompt[0].tolist(), continued[0].tolist(), "least lead", lead)


if __name__ == "__main__":
    main()
