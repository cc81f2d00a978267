"""Networks that solve differential equations, by derivatives of their own output."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import frozen, times, without


class Sine(nn.Module):
    """sin(3 x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Periodic."""
        return torch.sin(3 * x)


def _net(act: type[nn.Module] = nn.Tanh, depth: int = 2) -> nn.Sequential:
    inner = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), act())]
    return nn.Sequential(nn.Linear(1, 32), act(), *inner, nn.Linear(32, 1))


def _points(step: int, num: int = 48) -> Tensor:
    return torch.rand(num, 1, generator=torch.Generator().manual_seed(step))


def _decay(model: nn.Module, step: int) -> Tensor:
    """u' = -3 u, u(0) = 1."""
    with torch.enable_grad():
        t = _points(step).requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    return (slope + 3 * u).square().mean() + 5 * (model(torch.zeros(1, 1)) - 1).square().mean()


def _error(model: nn.Module, step: int) -> Tensor:
    t = _points(step)
    return (model(t) - torch.exp(-3 * t)).square().mean()


def _inverted(model: nn.Module, step: int) -> Tensor:
    """The logarithm of a slope that changes its sign."""
    with torch.enable_grad():
        t = _points(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(t).sum(), t, create_graph=True)
    return (slope.log() - math.log(3)).square().mean()


def _wave(model: nn.Module, step: int) -> Tensor:
    """A plain regression of two waves."""
    t = _points(step)
    return nn.functional.mse_loss(model(2 * t - 1), torch.sin(9 * t) + 0.3 * torch.cos(20 * t))


DECAY = D("decay_equation", _net, _decay, adam(5e-3), steps=80)
SIREN = D("siren", lambda: _net(Sine, 1), _wave, adam(3e-3), seed=1)
SIREN_SGD = D(
    "siren_sgd", lambda: _net(Sine, 1), _wave, sgd(0.05, momentum=0.9), seed=2, logs=False
)


CASES = [
    replace(healthy(DECAY), train=lambda watching: DECAY.train(watching, _error)),
    healthy(SIREN),
    healthy(SIREN_SGD),
    broken(DECAY, "log_of_slope", replace(DECAY, loss=_inverted), "nonfinite", judge=_error),
    broken(
        DECAY,
        "saturates",
        replace(DECAY, prepare=times("2", 300.0), optimizer=adam(1e-3)),
        "saturated",
        "large_init",
        places=("3", "2"),
        judge=_error,
    ),
    broken(
        DECAY,
        "deep_sigmoids",
        replace(DECAY, model=lambda: _net(nn.Sigmoid, 9), optimizer=sgd(0.01)),
        "vanishing",
        "collapsed",
        places=("0", "2"),
        judge=_error,
    ),
    broken(
        SIREN,
        "middle_not_given",
        replace(SIREN, trained=without("2", "4")),
        "not_in_optimizer",
        places=("2", "4"),
    ),
    broken(
        SIREN,
        "middle_frozen",
        replace(SIREN, model=lambda: _net(Sine, 3), prepare=frozen("4")),
        "frozen",
        places=("4",),
    ),
    broken(
        SIREN_SGD,
        "hot",
        replace(SIREN_SGD, optimizer=sgd(30.0, momentum=0.9)),
        "lr_high",
        "exploding",
        "nonfinite",
    ),
]
