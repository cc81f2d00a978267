"""A mixture density network: one x has two y."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick, sgd
from trainings.faults import times


class Mixture(nn.Module):
    """Weights, means and log deviations of 4 normals: float32[B, 1] to three of [B, 4]."""

    def __init__(self, act: type[nn.Module] = nn.Softplus) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(1, 40), nn.LayerNorm(40), act(), nn.Linear(40, 40), act()
        )
        self.parts = nn.Linear(40, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Three parts of one layer."""
        return self.parts(self.body(x)).chunk(3, -1)


def _data(step: int, num: int = 64) -> tuple[Tensor, Tensor]:
    x = draw(step, num, 1)
    sign = pick(step, 2, num, 1) * 2 - 1
    return x, sign * (1 + x.sin()) + 0.1 * draw(step + 1, num, 1)


def _likelihood(model: nn.Module, step: int) -> Tensor:
    x, y = _data(step)
    weights, means, logs = model(x)
    logs = logs.clamp(-4, 4)
    each = -0.5 * ((y - means) / logs.exp()) ** 2 - logs - 0.5 * math.log(2 * math.pi)
    return -(weights.log_softmax(-1) + each).logsumexp(-1).mean()


def _unsafe(model: nn.Module, step: int) -> Tensor:
    """Densities that underflow to 0 before their logarithm is taken."""
    x, y = _data(step)
    weights, means, logs = model(x)
    deviation = 0.02 + 0 * logs
    density = torch.exp(-0.5 * ((y - means) / deviation) ** 2) / deviation
    return -(weights.softmax(-1) * density).sum(-1).log().mean()


MIX = D("mixture", Mixture, _likelihood, adam(5e-3))
MIX_TANH = D(
    "mixture_tanh", lambda: Mixture(nn.Tanh), _likelihood, sgd(0.05, momentum=0.9), seed=2, clip=2.0
)

CASES = [
    healthy(MIX),
    healthy(MIX_TANH),
    broken(MIX, "log_of_zero", replace(MIX, loss=_unsafe), "nonfinite"),
    broken(
        MIX_TANH,
        "hot",
        replace(MIX_TANH, optimizer=sgd(20.0, momentum=0.9), clip=None),
        "lr_high",
        "exploding",
    ),
    broken(
        MIX_TANH,
        "second_saturates",
        replace(MIX_TANH, prepare=times("body.3", 200.0)),
        "saturated",
        "large_init",
        places=("body.4", "body.3"),
    ),
]
