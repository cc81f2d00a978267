"""Offloading in tests: everything is moved, and what comes back is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from bits import bits
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.saved.copy_streams import use_streams
from torchtap.testing import FakeStreams


def offloads(to: str = "disk", *, delay: int = 3, **kwargs: Any) -> tt.Offload:
    """Everything is moved, however small."""
    kwargs.setdefault("min_bytes", 0)
    with use_streams(FakeStreams(delay)):
        return tt.offload(to, **kwargs)


def noise(*shape: int, **kwargs: Any) -> Tensor:
    """Random numbers that the shape fixes; ``kwargs`` go to ``Tensor.to``."""
    return normal(*shape, seed=math.prod(shape) + len(shape)).to(**kwargs)


class Keeps(torch.autograd.Function):
    """Saves each tensor that it is given, and shows what it got back."""

    seen: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        Keeps.seen = ctx.saved_tensors
        return (grad, *[None] * len(Keeps.seen))


def kept_through(off: tt.Offload, *tensors: Tensor) -> Sequence[Tensor]:
    """Tensors that backward gets in place of these, which are offloaded."""
    x = torch.ones(1, requires_grad=True)
    with off:
        loss = Keeps.apply(x, *tensors)
    off.flush()
    loss.backward(retain_graph=True)
    first = Keeps.seen
    loss.backward()
    for one, other in zip(first, Keeps.seen, strict=True):
        assert type(one) is type(other)
    found, Keeps.seen = Keeps.seen, None
    return found


def facts(tensor: Tensor) -> Any:
    """All that must come back: also strides and lazy bits."""
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
        bits(tensor),
    )


def gradients(
    model: nn.Module, loss: Tensor, *, retain_graph: bool = False, create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients of the parameters that require grad."""
    params = [param for param in model.parameters() if param.requires_grad]
    retain_graph |= create_graph
    return torch.autograd.grad(
        loss, params, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
    )
