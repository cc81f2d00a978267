"""Calls of modules inside a backward: custom functions, and hooks on tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import linear, rows
from torchtap.testing.zoo.specimen import Specimen, specimen


class ComputedAgain(torch.autograd.Function):
    """A checkpoint of its own making: its backward runs the module again."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor) -> Any:
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Runs it with grad, and a backward of its own through that."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(x)
        torch.autograd.backward(output, grads)
        return None, x.grad


class _Adjoint(torch.autograd.Function):
    """Follows ``dx/dt = field(x)`` by steps of Euler, and back again without what was computed."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, x: Tensor, *params: Tensor) -> Any:
        ctx.field = field
        for _ in range(3):
            x = x + 0.25 * field(x)
        ctx.save_for_backward(x, *params)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *params = ctx.saved_tensors
        adjoint, sums = grads[0], [torch.zeros_like(param) for param in params]
        for _ in range(3):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                slope = ctx.field(x)
            found = torch.autograd.grad(slope, [x, *params], 0.25 * adjoint)
            x = x - 0.25 * slope
            adjoint = adjoint + found[0]
            sums = [total + part for total, part in zip(sums, found[1:], strict=True)]
        return None, adjoint, *sums


class _Reversible(torch.autograd.Function):
    """Adds to each half what a module makes of the other; its backward computes the halves."""

    @staticmethod
    def forward(ctx: Any, f: nn.Module, g: nn.Module, x: Tensor) -> Any:
        ctx.f, ctx.g = f, g
        first, second = x.chunk(2, -1)
        first = first + f(second)
        out = torch.cat([first, second + g(first)], -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first, second = ctx.saved_tensors[0].chunk(2, -1)
        grad_first, grad_second = grads[0].chunk(2, -1)
        first = first.detach().requires_grad_()
        with torch.enable_grad():
            change = ctx.g(first)
        change.backward(grad_second)
        second, grad_first = second - change.detach(), grad_first + first.grad
        second.requires_grad_()
        with torch.enable_grad():
            change = ctx.f(second)
        change.backward(grad_first)
        return None, None, torch.cat([grad_first, grad_second + second.grad], -1)


def _computed_again(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(2):
        hidden = ComputedAgain.apply(m.block, hidden)  # type: ignore[no-untyped-call]
    return m.last(hidden)


def _solved(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    return m.last(_Adjoint.apply(m.field, hidden, *m.field.parameters()))  # type: ignore[no-untyped-call]


def _reversed(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(2):
        hidden = _Reversible.apply(m.f, m.g, hidden)  # type: ignore[no-untyped-call]
    return m.last(hidden)


def _called_by_hook(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)

    def look(gradient: Tensor) -> None:
        m.a(gradient.detach())

    if hidden.requires_grad:
        hidden.register_hook(look)
    return m.b(hidden)


def specimens() -> list[Specimen]:
    return [
        specimen(
            "custom_checkpoint",
            lambda: Net(_computed_again, first=linear(), block=linear(), last=linear()),
            rows,
            "a custom function that computes again",
            recomputes=True,
            reentrant=True,
        ),
        specimen(
            "adjoint",
            lambda: Net(
                _solved,
                first=linear(),
                field=nn.Sequential(linear(), nn.Tanh()),
                last=linear(),
            ),
            rows,
            "a solver whose backward calls the module on other values",
            recomputes=True,
            reentrant=True,
        ),
        specimen(
            "reversible",
            lambda: Net(
                _reversed,
                first=nn.Linear(3, 6),
                f=linear(),
                g=nn.Sequential(linear(), nn.Tanh()),
                last=nn.Linear(6, 3),
            ),
            rows,
            "blocks whose backward computes their input from their output",
            recomputes=True,
            reentrant=True,
        ),
        specimen(
            "hook_calls_module",
            lambda: Net(_called_by_hook, a=linear(), b=linear()),
            rows,
            "a hook on a tensor calls a module",
            recomputes=True,
        ),
    ]
