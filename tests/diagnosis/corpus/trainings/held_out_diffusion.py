"""Diffusion of points in the plane: a network predicts noise, with an average of its weights."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.data import rows_of, scaled
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import filled, times

LEVELS = 50


class Noise(nn.Module):
    """Predicts noise from a point and a level: float32[B, 2], int64[B] to [B, 2]."""

    def __init__(self, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 48), act())
        self.enter = nn.Linear(2, 48)
        self.body = nn.Sequential(act(), nn.Linear(48, 48), act(), nn.Linear(48, 48), act())
        self.leave = nn.Linear(48, 2)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """The level enters as waves."""
        speeds = torch.exp(torch.linspace(0, math.log(100), 8))
        waves = level[:, None] / LEVELS * speeds
        at = self.time(torch.cat([waves.sin(), waves.cos()], -1))
        return self.leave(self.body(self.enter(x) + at))


class Averaged(nn.Module):
    """A network, and a slow average of its weights beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.slow = Noise(), Noise()
        self.slow.load_state_dict(self.net.state_dict())
        self.slow.requires_grad_(False)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """The average, in eval mode."""
        return (self.net if self.training else self.slow)(x, level)


@torch.no_grad()
def _average(step: int, model: nn.Module) -> None:
    pairs = zip(
        model.get_submodule("slow").parameters(),
        model.get_submodule("net").parameters(),
        strict=True,
    )
    for slow, fast in pairs:
        slow.lerp_(fast, 0.1)


@cache
def _spiral() -> Tensor:
    turn = torch.linspace(0.5, 3 * math.pi, 1000)
    return scaled(torch.stack([turn * turn.cos(), turn * turn.sin()], -1))


def _kept(level: Tensor, floor: float = 1e-3) -> Tensor:
    return (1 - level / LEVELS).clamp(min=floor)[:, None] ** 2


def _denoise(model: nn.Module, step: int) -> Tensor:
    (x,) = rows_of(step, 96, _spiral())
    level, noise = pick(step + 1, LEVELS, 96), draw(step, 96, 2)
    kept = _kept(level)
    return nn.functional.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, level), noise)


def _root(model: nn.Module, step: int) -> Tensor:
    """A schedule that goes one level too far: the root of a negative number."""
    (x,) = rows_of(step, 96, _spiral())
    level, noise = pick(step + 1, LEVELS, 96), draw(step, 96, 2)
    kept = (1 - (level + (step > 30) * 5) / LEVELS)[:, None]
    return nn.functional.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, level), noise)


def _shard(model: nn.Module, step: int) -> Tensor:
    (x,) = rows_of(step, 96, _spiral())
    x = x * (5e3 if step == 40 else 1.0)
    level, noise = pick(step + 1, LEVELS, 96), draw(step, 96, 2)
    kept = _kept(level)
    return nn.functional.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, level), noise)


def _only(model: nn.Module) -> list[nn.Parameter]:
    return list(model.get_submodule("net").parameters())


DIFFUSE = D("diffusion", Noise, _denoise, adam(3e-3))
AVERAGE = D(
    "diffusion_averaged", Averaged, _denoise, adam(5e-3), trained=_only, after_step=_average, seed=1
)

CASES = [
    healthy(DIFFUSE),
    healthy(AVERAGE),
    broken(DIFFUSE, "root_of_negative", replace(DIFFUSE, loss=_root), "nonfinite", "bad_batch"),
    broken(DIFFUSE, "one_shard", replace(DIFFUSE, loss=_shard), "bad_batch"),
    broken(
        AVERAGE,
        "tiny",
        replace(AVERAGE, prepare=times("net.body.1", 1e-4), optimizer=adam(3e-4)),
        "small_init",
        "vanishing",
        places=("net.body.1",),
    ),
    broken(
        DIFFUSE,
        "alike",
        replace(DIFFUSE, prepare=filled(0.05, "enter", "body.1", "body.3", "leave", "time.0")),
        "symmetric",
        places=("time.0", "enter", "body.1", "body.3", "leave"),
    ),
    broken(
        AVERAGE,
        "no_zero",
        replace(AVERAGE, zeroes_grad=False, optimizer=adam(2e-2)),
        "no_zero_grad",
    ),
    broken(
        DIFFUSE,
        "stops",
        replace(
            DIFFUSE,
            schedule=lambda opt: torch.optim.lr_scheduler.MultiplicativeLR(
                opt, lambda step: 0.0 if step == 15 else 1.0
            ),
        ),
        "updates_stop",
    ),
]
