"""Laws of physics: an equation of heat, energy that is kept, a principle of least energy."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.case import Case
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, sgd
from trainings.faults import everywhere, frozen, times
from trainings.parts import mse, perceptron


def _uniform(step: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(step))


def _slope(y: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return slope


def _heat(*, edge: float = 1.0, start: float = 1.0, order: int = 2) -> Loss:
    """Heat flows along a rod whose ends are cold; it starts as a half wave."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x = _uniform(step, 96, 2).requires_grad_()
        with torch.enable_grad():
            first = _slope(model(x), x)
            second = _slope(first[:, 0], x)[:, 0] if order == 2 else first[:, 0]
        law = (first[:, 1] - 0.3 * second).square().mean()
        place = _uniform(step + 1, 48, 1)
        begins = model(torch.cat([place, torch.zeros(48, 1)], 1))
        time = _uniform(step + 2, 48, 1)
        ends = model(torch.cat([(place > 0.5).float(), time], 1))
        wave = torch.sin(math.pi * place)
        return law + start * 10 * mse(begins, wave) + edge * 10 * ends.square().mean()

    return loss


def _temperature(model: nn.Module, step: int) -> Tensor:
    """How far it is from the solution."""
    x = _uniform(step, 256, 2)
    with torch.no_grad():
        truth = torch.sin(math.pi * x[:, :1]) * torch.exp(-0.3 * math.pi**2 * x[:, 1:])
        return mse(model(x), truth)


def _pendulum(*, mixes: bool = False, scale: float = 1.0) -> Loss:
    """The slopes of a learnt energy are the motion of a pendulum."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x = (4 * _uniform(step, 96, 2) - 2).requires_grad_()
        with torch.enable_grad():
            slope = _slope(model(x), x)
        motion = torch.stack([x[:, 1], -torch.sin(x[:, 0])], 1).detach() * scale
        found = torch.stack([slope[:, 1], -slope[:, 0]], 1)
        return mse(found, motion.flip(1) if mixes else motion)

    return loss


def _ritz(*, sign: float = 1.0) -> Loss:
    """The energy of a loaded string: its least value is below zero."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x = _uniform(step, 128, 1).requires_grad_()
        with torch.enable_grad():
            y = model(x) * x * (1 - x)
            bend = _slope(y, x)
        return sign * (0.5 * bend.square() - 8 * torch.sin(math.pi * x) * y).mean()

    return loss


def _inverse(step: int) -> tuple[Tensor, Tensor]:
    """Times and measured heights of a damped spring."""
    time = 6 * _uniform(step, 64, 1)
    return time, torch.exp(-0.3 * time) * torch.cos(2 * time) + 0.05 * draw(step, 64, 1)


class Spring(nn.Module):
    """Two numbers of a law that is known, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.damping, self.pace = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.7))

    def forward(self, time: Tensor) -> Tensor:
        """float32[B, 1] to heights."""
        return torch.exp(-self.damping * time) * torch.cos(self.pace * time)


def _spring(model: nn.Module, step: int) -> Tensor:
    time, height = _inverse(step)
    return mse(model(time), height)


def _whole(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    """A decay whose division has no remainder."""
    return lr_scheduler.LambdaLR(optimizer, lambda step: max(0, 1 - step // 10))


HEAT = D(
    "heat_equation",
    lambda: perceptron(2, 32, 32, 1, act=nn.Tanh),
    _heat(),
    adam(1e-2),
    steps=100,
    seed=211,
)
PENDULUM = D(
    "pendulum",
    lambda: perceptron(2, 48, 48, 1, act=nn.Softplus),
    _pendulum(),
    adam(1e-2),
    steps=90,
    seed=212,
)
RITZ = D(
    "string", lambda: perceptron(1, 24, 24, 1, act=nn.Tanh), _ritz(), adam(5e-3), steps=90, seed=213
)
SPRING = D("spring", Spring, _spring, sgd(0.3, momentum=0.5), steps=80, seed=214)

CASES = [
    Case("heat_equation", lambda watching: HEAT.train(watching, _temperature)),
    *(healthy(each) for each in (PENDULUM, RITZ, SPRING)),
    broken(
        HEAT,
        "all_alike",
        replace(
            HEAT,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.1)
            ),
        ),
        "symmetric",
        places=("0", "2", "4"),
        judge=_temperature,
    ),
    broken(
        HEAT,
        "stiff_from_the_start",
        replace(HEAT, prepare=times("0", 80.0)),
        "large_init",
        "saturated",
        "exploding",
        places=("0", "1"),
        judge=_temperature,
    ),
    broken(
        HEAT, "hot", replace(HEAT, optimizer=adam(2.0)), "lr_high", "exploding", judge=_temperature
    ),
    broken(
        HEAT, "never_cleared", replace(HEAT, zeroes_grad=False), "no_zero_grad", judge=_temperature
    ),
    broken(
        PENDULUM,
        "coordinates_exchanged",
        replace(PENDULUM, loss=_pendulum(mixes=True)),
        "labels",
        judge=PENDULUM.loss,
    ),
    broken(
        PENDULUM,
        "in_micrometres",
        replace(PENDULUM, loss=_pendulum(scale=1e6)),
        "data_scale",
        "steps_too_small",
        judge=lambda model, step: _pendulum(scale=1e6)(model, step) / 1e12,
    ),
    broken(
        PENDULUM,
        "inner_frozen",
        replace(PENDULUM, prepare=frozen("0", "2")),
        "frozen",
        places=("0", "2"),
    ),
    broken(
        PENDULUM,
        "whole_numbers_divided",
        replace(PENDULUM, schedule=_whole),
        "updates_stop",
        "steps_too_small",
    ),
    broken(
        RITZ,
        "most_energy",
        replace(RITZ, loss=_ritz(sign=-1.0)),
        "loss_rises",
        "exploding",
        judge=RITZ.loss,
    ),
    broken(RITZ, "slow", replace(RITZ, optimizer=adam(1e-7)), "steps_too_small"),
    broken(
        SPRING, "hot", replace(SPRING, optimizer=sgd(300.0)), "lr_high", "exploding", "nonfinite"
    ),
]
