"""Write tests/golden/optimisers/steps.safetensors: twenty steps of every optimiser on given gradients, in float64.

In a fresh virtual environment:

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    python tools/make_golden_optimisers.py

AdamW, Adam and SGD are PyTorch's own. Muon is written out below from its definition (Jordan et al., 2024) with the
rate of Liu et al., 2025, because PyTorch's runs its products in bf16; that one must agree to bf16's accuracy.

Tensors: `start.NAME`, `grad.NAME` [20, ...], and for every optimiser `OPTIMISER.NAME` after ten and after twenty steps
[2, ...]. The learning rate of step s is LR * (1 - s / 40); decay is DECAY for all of them. No clipping.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch

VERSIONS = {"torch": "2.15.0", "safetensors": "0.8.0", "numpy": "2.4.6"}
FILE = Path(__file__).resolve().parent.parent / "tests" / "golden" / "optimisers" / "steps.safetensors"

SHAPES = {"wide": (6, 10), "tall": (12, 5), "square": (7, 7), "vector": (9,)}
STEPS, DECAY = 20, 0.1
ADAM = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": DECAY}
SGD = {"lr": 1e-1, "momentum": 0.9, "weight_decay": DECAY}
MUON_LR, MUON_MOMENTUM = 2e-2, 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-7


def rate(lr: float, step: int) -> float:
    return lr * (1 - step / 40)


def orthogonal(x: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz steps towards the nearest matrix with orthonormal rows (or columns, of a tall one)."""
    a, b, c = COEFFICIENTS
    x = x / (np.linalg.norm(x) + EPS)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def muon(start: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    parameter, momentum, states = start.copy(), np.zeros_like(start), []
    for step, gradient in enumerate(gradients):
        momentum = MUON_MOMENTUM * momentum + (1 - MUON_MOMENTUM) * gradient
        ahead = MUON_MOMENTUM * momentum + (1 - MUON_MOMENTUM) * gradient
        lr = rate(MUON_LR, step)
        shape_scale = 0.2 * max(start.shape) ** 0.5
        parameter = parameter * (1 - lr * DECAY) - lr * shape_scale * orthogonal(ahead)
        states.append(parameter.copy())
    return states


def by_torch(make, lr: float, start: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimiser, states = make([parameter]), []
    for step, gradient in enumerate(gradients):
        optimiser.param_groups[0]["lr"] = rate(lr, step)
        parameter.grad = torch.tensor(gradient)
        optimiser.step()
        states.append(parameter.detach().numpy().copy())
    return states


def main() -> None:
    for name, wanted in VERSIONS.items():
        assert version(name).split("+")[0] == wanted, f"{name} {version(name)} is not {wanted}"
    torch.set_num_threads(1)
    rng = np.random.default_rng(20)
    optimisers = {
        "adamw": (lambda p: torch.optim.AdamW(p, **ADAM), ADAM["lr"]),
        "adam": (lambda p: torch.optim.Adam(p, **ADAM), ADAM["lr"]),
        "sgd": (lambda p: torch.optim.SGD(p, **SGD), SGD["lr"]),
    }
    tensors = {}
    for name, shape in SHAPES.items():
        # Numbers of f32, so that every backend begins with the same.
        start = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
        gradients = rng.standard_normal((STEPS, *shape)).astype(np.float32).astype(np.float64)
        tensors[f"start.{name}"], tensors[f"grad.{name}"] = start, gradients
        for optimiser, (make, lr) in optimisers.items():
            states = by_torch(make, lr, start, gradients)
            tensors[f"{optimiser}.{name}"] = np.stack([states[9], states[19]])
        if len(shape) == 2:
            states = muon(start, gradients)
            settings = {"momentum": MUON_MOMENTUM, "weight_decay": DECAY, "adjust_lr_fn": "match_rms_adamw"}
            theirs = by_torch(lambda p: torch.optim.Muon(p, lr=MUON_LR, **settings), MUON_LR, start, gradients)
            apart, moved = np.abs(states[19] - theirs[19]).max(), np.abs(states[19] - start).max()
            assert apart < 0.02 * moved, (name, apart, moved)
            tensors[f"muon.{name}"] = np.stack([states[9], states[19]])
    FILE.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(tensors, FILE)


if __name__ == "__main__":
    main()
