"""Forwards that do more than compute: they raise, have their own backward, or choose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, linear, normal, rows, two
from torchtap.testing.zoo.specimen import Specimen, specimen


class _Cube(torch.autograd.Function):
    """A function with its own backward, which multiplies by 3 instead of 3 x^2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def _custom_function(m: Any, x: Tensor) -> Any:
    return m.b(m.cube(m.a(x)))


def _cube(m: Any, x: Tensor) -> Any:
    return _Cube.apply(x)  # type: ignore[no-untyped-call]


def _refuses(m: Any, x: Tensor) -> Any:
    m.a(x)
    raise ValueError("this model raises in the middle")


def _reaches_refusal(m: Any, x: Tensor) -> Any:
    return m.last(m.inner(m.last(x)))


def _survives_refusal(m: Any, x: Tensor) -> Any:
    try:
        m.inner(x)
    except ValueError:
        return m.last(x)
    raise AssertionError("the inner module should have raised")


def _experts(m: Any, x: Tensor) -> Any:
    chosen = m.router(x).argmax(-1)
    out = torch.zeros_like(x)
    for index, expert in enumerate(m.experts):
        own = (chosen == index).nonzero()[:, 0]
        out = out.index_add(0, own, expert(x[own]))
    return out


def specimens() -> list[Specimen]:
    return [
        specimen(
            "raises",
            lambda: Net(_reaches_refusal, inner=two(_refuses), last=linear()),
            rows,
            "an exception in the middle of the forward",
            raises=ValueError,
            backward=False,
            silent=("inner.b",),
        ),
        specimen(
            "raises_and_survives",
            lambda: Net(_survives_refusal, inner=two(_refuses), last=linear()),
            rows,
            "an exception that the parent catches",
            silent=("inner.b",),
        ),
        specimen(
            "custom_function",
            lambda: Net(_custom_function, a=linear(), cube=Net(_cube), b=linear()),
            rows,
            "a backward that is not the derivative",
        ),
        specimen(
            "mixture_of_experts",
            lambda: Net(
                _experts, router=nn.Linear(3, 4), experts=nn.ModuleList(linear() for _ in range(4))
            ),
            lambda: given(normal(5, 3, grad=True)),
            "children get a varying number of rows, perhaps none",
            silent=("experts",),
        ),
    ]
