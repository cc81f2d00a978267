"""Wine, three classes: a SELU network, and one of learnt splines."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import rows_of, scaled, wine
from trainings.design import Design as D, adam, broken, healthy
from trainings.faults import filled, shuffled, times


class Splines(nn.Module):
    """Each edge is a sum of bumps, as in a KAN: float32[B, in] to float32[B, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(-2, 2, 6))
        self.mix = nn.Linear(inputs * 6, outputs)
        self.base = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Bumps at fixed centres, mixed, and a plain path."""
        bumps = torch.exp(-((x[..., None] - self.centres) ** 2))
        return self.mix(bumps.flatten(1)) + self.base(nn.functional.silu(x))


def _selu() -> nn.Module:
    return nn.Sequential(
        nn.Linear(13, 40),
        nn.SELU(),
        nn.AlphaDropout(0.05),
        nn.Linear(40, 40),
        nn.SELU(),
        nn.Linear(40, 3),
    )


def _splines() -> nn.Module:
    return nn.Sequential(Splines(13, 8), Splines(8, 3))


def _wine_loss(model: nn.Module, step: int) -> Tensor:
    x, y = wine()
    x, y = rows_of(step, 16, scaled(x), y)
    return nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)


def _raw(model: nn.Module, step: int) -> Tensor:
    x, y = wine()
    x, y = rows_of(step, 16, x, y)
    return nn.functional.cross_entropy(model(x), y)


def _shuffled(model: nn.Module, step: int) -> Tensor:
    x, y = wine()
    x, y = rows_of(step, 16, scaled(x), y)
    return nn.functional.cross_entropy(model(x), shuffled(step, y))


def _tanh() -> nn.Module:
    return nn.Sequential(
        nn.Linear(13, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )


SELU = D("wine_selu", _selu, _wine_loss, adam(2e-3))
SPLINES = D("wine_splines", _splines, _wine_loss, adam(5e-3), seed=2)
RMSPROP = D(
    "wine_rmsprop", _tanh, _wine_loss, lambda p: torch.optim.RMSprop(p, lr=2e-3), seed=4, logs=False
)
ADAGRAD = D("wine_adagrad", _selu, _wine_loss, lambda p: torch.optim.Adagrad(p, lr=0.02), seed=5)

CASES = [
    healthy(SELU),
    healthy(SPLINES),
    healthy(RMSPROP),
    healthy(ADAGRAD),
    broken(
        SELU,
        "two_softmaxes",
        replace(SELU, model=lambda: nn.Sequential(_selu(), nn.Softmax(-1))),
        "double_softmax",
        places=("1",),
    ),
    broken(SPLINES, "raw", replace(SPLINES, loss=_raw), "data_scale", judge=_raw),
    broken(
        RMSPROP,
        "alike",
        replace(RMSPROP, prepare=filled(0.05, "0", "2", "4")),
        "symmetric",
        places=("0", "2", "4"),
    ),
    broken(SELU, "order_lost", replace(SELU, loss=_shuffled), "labels"),
    broken(
        RMSPROP,
        "saturates",
        replace(RMSPROP, prepare=times("2", 400.0)),
        "saturated",
        "large_init",
        places=("3", "2"),
    ),
    broken(SPLINES, "no_zero", replace(SPLINES, zeroes_grad=False), "no_zero_grad"),
]
