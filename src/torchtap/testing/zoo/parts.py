"""Parts of specimens: inputs, small nets, and forwards that several families use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.specimen import Arguments


def normal(
    *shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def given(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


def rows() -> Arguments:
    return given(normal(2, 3))


def rows_with_grad() -> Arguments:
    return given(normal(2, 3, grad=True))


def image() -> Arguments:
    return given(normal(2, 4, 5, 5))


def sequence() -> Arguments:
    return given(normal(2, 5, 8))


def tokens() -> Arguments:
    return given(torch.tensor([[1, 2, 3], [4, 1, 0]]))


def linear(width: int = 3) -> nn.Linear:
    return nn.Linear(width, width)


def two(body: Callable[..., Any]) -> Net:
    """A body with two linear children, ``a`` and ``b``."""
    return Net(body, a=linear(), b=linear())


def wrapped(inner: Callable[..., Any], outer: Callable[..., Any]) -> Net:
    """``inner`` (with children ``a`` and ``b``) called by ``outer``, which has a child ``last``."""
    return Net(outer, inner=two(inner), last=linear())


def a_then_b(m: Any, x: Tensor) -> Any:
    return m.b(m.a(x))


def detached(m: Any, x: Tensor) -> Any:
    return m.b(m.a(x).detach())


def halves(m: Any, x: Tensor) -> Any:
    return x.chunk(2, dim=-1)
