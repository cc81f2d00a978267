"""Signals of one dimension: gated dilated convolutions predict the next value."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy
from trainings.faults import biased, times


class Gated(nn.Module):
    """A causal convolution, tanh times sigmoid, added to its input: float32[B, C, T]."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((dilation, 0), 0.0)
        self.signal = nn.Conv1d(width, width, 2, dilation=dilation)
        self.gate = nn.Conv1d(width, width, 2, dilation=dilation)
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Gate the past."""
        past = self.pad(x)
        return x + self.tanh(self.signal(past)) * self.sigmoid(self.gate(past))


def _wavenet(width: int = 16) -> nn.Module:
    blocks = [Gated(width, 2**i) for i in range(4)]
    return nn.Sequential(nn.Conv1d(1, width, 1), *blocks, nn.ReLU(), nn.Conv1d(width, 1, 1))


def _deep(act: type[nn.Module], depth: int = 5) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv1d(1, 12, 1)]
    for _ in range(depth):
        layers += [nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(12, 12, 3), act()]
    return nn.Sequential(*layers, nn.Conv1d(12, 1, 1))


def _waves(step: int, num: int = 8, length: int = 48) -> Tensor:
    t = torch.arange(length + 1) / 6
    speed, phase = draw(step, num, 1).abs() + 0.5, 3 * draw(step + 1, num, 1)
    return (torch.sin(speed * t + phase) + 0.05 * draw(step + 2, num, length + 1))[:, None]


def _next(model: nn.Module, step: int) -> Tensor:
    x = _waves(step)
    return nn.functional.mse_loss(model(x[..., :-1]), x[..., 1:])


def _tiny_half(model: nn.Module, step: int) -> Tensor:
    x = _waves(step).half()
    return (model(x[..., :-1]).float() - x[..., 1:].float()).square().mean() * 1e-5


def _half_next(model: nn.Module, step: int) -> Tensor:
    dtype = next(model.parameters()).dtype
    x = _waves(step)
    return nn.functional.mse_loss(model(x[..., :-1].to(dtype)).float(), x[..., 1:])


WAVES = D("waves", _wavenet, _next, adam(3e-3), steps=40)
HALF = D(
    "waves_half",
    lambda: _wavenet().half(),
    _half_next,
    lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    steps=40,
    seed=1,
    clip=1.0,
)
CONVS = D("waves_deep", lambda: _deep(nn.ELU), _next, adam(3e-3), steps=50, seed=2)

CASES = [
    healthy(WAVES),
    healthy(HALF),
    healthy(CONVS),
    broken(
        CONVS,
        "sigmoids",
        replace(CONVS, model=lambda: _deep(nn.Sigmoid, 10)),
        "vanishing",
        "collapsed",
        places=("0", "2"),
    ),
    broken(
        WAVES,
        "signal_saturates",
        replace(WAVES, prepare=times("1.signal", 300.0)),
        "saturated",
        "large_init",
        places=("1.tanh", "1.signal"),
    ),
    broken(
        WAVES,
        "relu_dies",
        replace(WAVES, model=lambda: _dead()),
        "dead",
        places=("5", "4"),
    ),
    broken(
        HALF, "loss_tiny", replace(HALF, loss=_tiny_half, clip=None), "underflow", "steps_too_small"
    ),
]


def _dead() -> nn.Module:
    model = _wavenet()
    biased("0", -25.0)(model)
    return model
