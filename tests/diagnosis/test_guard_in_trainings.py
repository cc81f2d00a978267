"""A guard in whole trainings: beside others, and closed."""

from __future__ import annotations

import gc
import weakref

import torch
from models import seeded
from random_numbers import normal
from torch import nn

import torchtap as tt

INF = float("inf")


def _net(norm: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 2)))


def _steps(model: nn.Module, *, bad: int) -> None:
    """Four steps of Adam; in one of them, row 2 of the batch is not finite."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        x = normal(5, 6, seed=step)
        if step == bad:
            x[2] = INF
        model(x).square().mean().backward()
        optimizer.step()


def test_two_guards_and_a_watch_stand_beside_each_other() -> None:
    first, second = _net(nn.Identity()), _net(nn.Identity())
    both = nn.ModuleList([first, second])
    with (
        tt.guard(first, on=lambda origin: None) as one,
        tt.guard(second, on=lambda origin: None) as other,
        tt.watch(both, "*:update", to=tt.Stats()),
    ):
        _steps(first, bad=9)
        _steps(second, bad=1)
    assert one.origin is None
    assert other.origin is not None
    assert other.origin.phase == "input"


def test_a_closed_guard_keeps_no_batch() -> None:
    model, x = _net(nn.Identity()), normal(5, 6, seed=0)
    alive = weakref.ref(x)
    guard = tt.guard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(x).mean().backward()
    optimizer.step()
    guard.close()
    del x
    gc.collect()
    assert alive() is None
