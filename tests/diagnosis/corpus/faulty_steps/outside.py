"""Faults outside of the model: in the loss, in clipping, in the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from faulty_steps.planted import Planted, Training, sequence
from torch import Tensor, nn


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def _with(loss: Any, *, after: Any = None, **settings: Any) -> Training:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss(model, x).backward()
        if after is not None:
            after(model)
        optimizer.step()

    return Training(model, step, (torch.randn(5, 4),))


def _huge() -> Training:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(x), torch.full((5, 3), 1e30))  # here: huge_target

    return _with(loss)


def _divergence() -> Training:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        q = model(x).softmax(-1)
        p = torch.tensor([0.5, 0.5, 0.0])
        return (p * (p / q).log()).sum(-1).mean()  # here: zero_times_log  # cause: zero_times_log

    return _with(loss)


def _clipping() -> Training:
    def clip(model: nn.Module) -> None:
        for param in model.parameters():
            param.grad = param.grad / param.grad.norm()  # here: clipping_a_zero

    return _with(lambda model, x: 0 * model(x).sum(), after=clip)


def _adam() -> Training:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].bias.fill_(-50)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=0.0)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # here: adam_without_eps

    return Training(model, step, (torch.randn(5, 4),))


def _penalty() -> Training:
    """A gradient penalty whose gradient has the norm 0."""
    made = sequence(lambda x: x.relu() * 0)
    optimizer = torch.optim.SGD(made.model.parameters(), 0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(made.model(x).sum(), x, create_graph=True)
        norm = grad.square().sum(-1).sqrt()  # here: gradient_penalty  # cause: gradient_penalty
        (norm - 1).square().mean().backward()
        optimizer.step()

    return Training(made.model, step, made.batch)


def _weights_sum_to_zero() -> Training:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        each = model(x).square().mean(-1)
        mask = torch.zeros(5)
        return (each * mask).sum() / mask.sum()  # here: mean_over_nothing

    return _with(loss)


def _probability() -> Training:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        p = (model(x) * 1e4).sigmoid()
        return -(1 - p).log().mean()  # here: log_of_a_saturated

    return _with(loss)


def _averaged() -> Training:
    """A slow average divided by a correction that is 0 in the first step."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for param in model.parameters():
                param.div_(torch.tensor(1 - 0.9**0))  # here: correction_of_zero

    return Training(model, step, (torch.randn(5, 4),))


OUTSIDE = ("forward", "backward", "optimizer")
FAULTS = [
    Planted("huge_target", _huge, operations=("mse_loss", "pow"), module=None, seen_by_guard=False),
    Planted(
        "zero_times_log",
        _divergence,
        operations=("mul",),
        module=None,
        cause=("log",),
        seen_by_guard=False,
    ),
    Planted("clipping_a_zero", _clipping, OUTSIDE, ("div",), None, seen_by_guard=False),
    Planted(
        "adam_without_eps",
        _adam,
        ("optimizer",),
        ("div", "addcdiv", "_foreach_addcdiv", "_foreach_div"),
        None,
        seen_by_guard=False,
    ),
    Planted(
        "gradient_penalty",
        _penalty,
        ("backward",),
        ("mul",),
        None,
        cause=("div",),
        seen_by_guard=False,
    ),
    Planted(
        "mean_over_nothing",
        _weights_sum_to_zero,
        operations=("div",),
        module=None,
        seen_by_guard=False,
    ),
    Planted(
        "log_of_a_saturated", _probability, operations=("log",), module=None, seen_by_guard=False
    ),
    Planted("correction_of_zero", _averaged, OUTSIDE, ("div",), None, seen_by_guard=False),
]
