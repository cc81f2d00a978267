"""Illnesses of AutoTrainer's networks (blobs and circles), as ideas in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.data import rows_of
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import biased, everywhere


@cache
def _made(kind: str) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import make_blobs, make_circles

    if kind == "circles":
        x, y = make_circles(1000, noise=0.1, factor=0.5, random_state=1)
    else:
        x, y = make_blobs(1000, centers=3, cluster_std=2.0, random_state=2)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def _circle(model: nn.Module, step: int) -> Tensor:
    x, y = rows_of(step, 32, *_made("circles"))
    return nn.functional.binary_cross_entropy(model(x)[:, 0], y.float())


def _blob(model: nn.Module, step: int) -> Tensor:
    x, y = rows_of(step, 32, *_made("blobs"))
    return nn.functional.nll_loss(model(x).clamp(min=1e-12).log(), y)


def _squared(model: nn.Module, step: int) -> Tensor:
    """A squared error on classes, whose inputs are far from 1, with large steps."""
    x, y = rows_of(step, 32, *_made("blobs"))
    return nn.functional.mse_loss(model(x), nn.functional.one_hot(y, 3).float() * 100)


def _net(
    act: type[nn.Module], depth: int, outputs: int, last: nn.Module, width: int = 24
) -> nn.Module:
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), act())]
    return nn.Sequential(nn.Linear(2, width), act(), *inner, nn.Linear(width, outputs), last)


def _below(model: nn.Module) -> None:
    """Biases far below zero in each hidden layer."""
    for path in ("0", "2", "4"):
        biased(path, -30.0)(model)


def _large(model: nn.Module) -> None:
    def fill(layer: nn.Module) -> None:
        assert isinstance(layer, nn.Linear)
        nn.init.normal_(layer.weight, std=6.0)

    everywhere(nn.Linear, fill)(model)


CIRCLES = D("circles", lambda: _net(nn.ReLU, 2, 1, nn.Sigmoid()), _circle, adam(1e-2))
BLOBS = D("blobs", lambda: _net(nn.ReLU, 1, 3, nn.Softmax(-1)), _blob, adam(1e-2), seed=1)
BLOBS_SGD = D("blobs_sgd", lambda: _net(nn.Tanh, 1, 3, nn.Softmax(-1)), _blob, sgd(0.05), seed=2)

CASES = [
    healthy(CIRCLES),
    healthy(BLOBS),
    healthy(BLOBS_SGD),
    broken(
        CIRCLES,
        "deep_sigmoids",
        replace(CIRCLES, model=lambda: _net(nn.Sigmoid, 8, 1, nn.Sigmoid()), optimizer=sgd(0.05)),
        "vanishing",
        "collapsed",
        places=("0", "2"),
    ),
    broken(
        CIRCLES,
        "deep_large",
        replace(
            CIRCLES,
            model=lambda: _net(nn.ReLU, 6, 1, nn.Sigmoid()),
            prepare=_large,
            optimizer=sgd(0.01),
        ),
        "large_init",
        "exploding",
        places=("0", "2", "4", "6", "8", "10", "12", "14"),
    ),
    broken(CIRCLES, "dying", replace(CIRCLES, prepare=_below), "dead", places=("1", "0")),
    broken(BLOBS, "oscillates", replace(BLOBS, optimizer=adam(1.0)), "lr_high"),
    broken(BLOBS_SGD, "slow", replace(BLOBS_SGD, optimizer=sgd(1e-7)), "steps_too_small"),
    broken(
        BLOBS,
        "squares_explode",
        replace(
            BLOBS,
            model=lambda: _net(nn.ReLU, 1, 3, nn.Identity()),
            loss=_squared,
            optimizer=sgd(0.5),
        ),
        "lr_high",
        "exploding",
        "nonfinite",
    ),
    broken(
        BLOBS,
        "softmax_twice",
        replace(
            BLOBS, model=lambda: nn.Sequential(_net(nn.ReLU, 1, 3, nn.Softmax(-1)), nn.Softmax(-1))
        ),
        "double_softmax",
        "final_activation",
        places=("1",),
    ),
]
