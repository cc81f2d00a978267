"""Small trainings, healthy or with one planted fault, watched as ``tt.diagnose`` wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt

WHERE = "*:*,param,param_grad,update"
Loss = Callable[[Tensor, Tensor], Tensor]


def classifier(*middle: nn.Module, width: int = 32) -> nn.Sequential:
    """A network for :func:`blobs`: 12 features, one hidden layer, further ones, 4 classes."""
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), *middle, nn.Linear(width, 4))


def linear(model: nn.Sequential, place: int) -> nn.Linear:
    """A linear layer of a network."""
    found = model[place]
    assert isinstance(found, nn.Linear)
    return found


def blobs(seed: int = 0, num: int = 256) -> tuple[Tensor, Tensor]:
    """Points of 12 features of unit variance, and which of the first four is the largest."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 12, generator=generator)
    return x, x[:, :4].argmax(1)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    loss: Loss = nn.functional.cross_entropy,
    steps: int = 40,
    zero: bool = True,
    between: Callable[[int], Any] = lambda step: None,
    logs: bool = True,
    to: Any = None,
    batch: int = 32,
) -> tt.Run:
    """Train a model in plain PyTorch, and return what a watch measured.

    Args:
        model: any.
        optimizer: Adam with a rate of 3e-3 by default.
        data: inputs and targets; :func:`blobs` by default.
        loss: of outputs and targets.
        steps: how many.
        zero: whether gradients are set to zero.
        between: called before each step with its number.
        logs: whether the loss is logged.
        to: sinks; ``tt.Stats()`` by default.
        batch: samples in each step.
    """
    x, y = blobs() if data is None else data
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3) if optimizer is None else optimizer
    with tt.watch(model, WHERE, to=tt.Stats() if to is None else to) as w:
        for step in range(steps):
            between(step)
            rows = torch.arange(batch * step, batch * (step + 1)) % len(x)
            found = loss(model(x[rows]), y[rows])
            if zero:
                optimizer.zero_grad()
            found.backward()
            optimizer.step()
            if logs:
                w.log(loss=found)
            w.step()
    return w.run
