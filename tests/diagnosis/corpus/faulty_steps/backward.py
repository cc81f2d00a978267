"""Faults that the forward does not show: all is finite until a gradient is not."""

from __future__ import annotations

from typing import Any

import torch
from faulty_steps.planted import Planted, Training, sequence
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BACKWARD = ("backward",)


class _Ratio(torch.autograd.Function):
    """Passes values on; its backward divides zero by zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Gives back the values that it gets."""
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Relative to something that is zero."""
        (x,) = ctx.saved_tensors
        zero = x - x
        return grad * (zero / zero)  # here: custom_backward


def _custom() -> Training:
    return sequence(lambda x: _Ratio.apply(x))


def _sqrt() -> Training:
    return sequence(lambda x: (x * 0).sqrt() + x)  # here: sqrt_at_zero


def _where() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x * (x > 0)
        logs = y.log()  # here: where_once
        return torch.where(y > 0, logs, 0.0)

    return sequence(op)


def _norm() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x * torch.tensor([1.0, 0, 0, 0, 0]).unsqueeze(-1)
        return x + y.square().sum(-1, keepdim=True).sqrt()  # here: norm_at_zero

    return sequence(op)


def _acos() -> Training:
    return sequence(lambda x: torch.acos(x * 0 + 1) + x)  # here: acos_at_one


def _power() -> Training:
    def op(x: Tensor) -> Tensor:
        return (x * (x > 0)) ** 0.5 + x  # here: power_at_zero

    return sequence(op)


def _checkpointed(x: Tensor) -> Tensor:
    return (x * (x > 0)).sqrt() + x  # here: sqrt_in_checkpoint


def _in_checkpoint() -> Training:
    return sequence(lambda x: checkpoint(_checkpointed, x, use_reentrant=False))


def _fine_angle() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x * (x > 0)
        return torch.atan2(y, y * 0) + x

    return sequence(op)


def _rsqrt() -> Training:
    """Fine in the forward, and too large in its derivative."""
    return sequence(lambda x: (x * 0 + 1e-30).rsqrt() * 1e-15 * x)  # here: rsqrt_of_tiny


def _asin() -> Training:
    return sequence(lambda x: torch.asin(x.clamp(-1, 1) * 0 - 1) * x)  # here: asin_at_minus_one


def _log1p() -> Training:
    """The derivative of a logarithm of a subnormal number."""

    def op(x: Tensor) -> Tensor:
        y = x * 0 + 1e-40
        return y.log() + x  # here: log_of_subnormal

    return sequence(op)


def _fine_norm() -> Training:
    return sequence(lambda x: x + (x * 0).norm(dim=-1, keepdim=True))


def _fine_prod() -> Training:
    return sequence(lambda x: x + (x * (x > 0)).prod(-1, keepdim=True))


def _fine_double_where() -> Training:
    def op(x: Tensor) -> Tensor:
        safe = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, safe.log(), 0.0)

    return sequence(op)


def _fine_relu() -> Training:
    """A ReLU selects in backward, and so hides what is not finite."""
    return sequence(lambda x: nn.functional.relu(x) + 1)


FAULTS = [
    Planted("custom_backward", _custom, BACKWARD, ("div",)),
    Planted("sqrt_at_zero", _sqrt, BACKWARD, ("mul",), cause=("div",)),
    Planted("where_once", _where, BACKWARD, ("div",)),
    Planted("norm_at_zero", _norm, BACKWARD, ("mul",), cause=("div",)),
    Planted("acos_at_one", _acos, BACKWARD, ("mul",), cause=("rsqrt",)),
    Planted("power_at_zero", _power, BACKWARD, ("mul",), cause=("pow",)),
    Planted("sqrt_in_checkpoint", _in_checkpoint, BACKWARD, ("mul",), cause=("div",)),
    Planted("rsqrt_of_tiny", _rsqrt, BACKWARD, ("pow", "mul")),
    Planted("asin_at_minus_one", _asin, BACKWARD, ("mul",), cause=("rsqrt",)),
    Planted("log_of_subnormal", _log1p, BACKWARD, ("div",)),
]
FINE = [
    Planted("angle_at_zero", _fine_angle),
    Planted("norm_has_a_subgradient", _fine_norm),
    Planted("product_with_a_zero", _fine_prod),
    Planted("where_twice", _fine_double_where),
    Planted("relu", _fine_relu),
]
