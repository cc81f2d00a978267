"""Deep sets: the variance of a set of numbers, and which of some shapes a cloud of points has."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick, sgd
from trainings.faults import times


class DeepSet(nn.Module):
    """Features of each element, pooled, and a head: float32[B, N, in] to [B, out]."""

    def __init__(self, inputs: int, outputs: int, pool: str = "mean", linear: bool = False) -> None:
        super().__init__()
        self.pool = pool
        first, second = nn.Linear(inputs, 32), nn.Linear(32, 32)
        acts = nn.LeakyReLU(0.1), nn.ReLU()
        layers = (first, second) if linear else (first, acts[0], second, acts[1])
        self.each = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Hardswish(), nn.Linear(32, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Pool over the elements."""
        h = self.each(x)
        return self.head({"mean": h.mean(1), "sum": h.sum(1), "max": h.amax(1)}[self.pool])


def _spread(model: nn.Module, step: int, unit: float = 1.0) -> Tensor:
    scale = draw(step + 1, 24, 1, 1).abs() + 0.2
    x = draw(step, 24, 16, 1) * scale
    return nn.functional.smooth_l1_loss(model(x * unit), scale[:, 0])


def _millimetres(model: nn.Module, step: int) -> Tensor:
    return _spread(model, step, 1000.0)


def _cloud(model: nn.Module, step: int) -> Tensor:
    y = pick(step, 3, 24)
    angle = 3.14 * draw(step, 24, 32, 1)
    ring = torch.cat([angle.cos(), angle.sin()], -1)
    line = torch.cat([angle / 3, angle / 3], -1)
    shapes = torch.stack([ring, line, draw(step + 1, 24, 32, 2)])
    x = shapes[y, torch.arange(24)] + 0.05 * draw(step + 2, 24, 32, 2)
    return nn.functional.cross_entropy(model(x), y)


SPREAD = D("set_spread", lambda: DeepSet(1, 1), _spread, adam(3e-3))
CLOUD = D("set_cloud", lambda: DeepSet(2, 3, "max"), _cloud, adam(3e-3), seed=1)
SUMS = D(
    "set_sums", lambda: DeepSet(2, 3, "sum"), _cloud, sgd(0.01, momentum=0.9), seed=2, clip=0.5
)

CASES = [
    healthy(SPREAD),
    healthy(CLOUD),
    healthy(SUMS),
    broken(
        SPREAD, "millimetres", replace(SPREAD, loss=_millimetres), "data_scale", judge=_millimetres
    ),
    broken(
        SUMS,
        "head_large",
        replace(SUMS, prepare=times("head.2", 500.0), clip=None),
        "large_init",
        places=("head.2",),
    ),
    broken(
        SPREAD,
        "never_zeroed",
        replace(SPREAD, zeroes_grad=False, optimizer=sgd(0.05), logs=False),
        "no_zero_grad",
    ),
    broken(
        SPREAD,
        "linear",
        replace(SPREAD, model=lambda: DeepSet(1, 1, linear=True)),
        "no_activation",
        places=("each.0",),
    ),
    broken(
        SUMS,
        "crawls",
        replace(SUMS, optimizer=sgd(1e-7)),
        "steps_too_small",
    ),
]
