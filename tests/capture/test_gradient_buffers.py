"""Custom functions that add their gradients to buffers of autograd themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

pytestmark = pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"),
    reason="ctx.input_grad_buffers came with torch 2.15",
)
used: list[bool] = []


class Product(torch.autograd.Function):
    """``x @ w``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        buffer, _ = ctx.input_grad_buffers
        used.append(buffer is not None)
        grad_x = gradient @ weight.T
        if buffer is not None:
            buffer.add_(grad_x)
            grad_x = None
        return grad_x, x.T @ gradient


class ByHelper(Product):
    """The product, computed by a helper."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad_x = gradient @ weight.T
        buffer = buffer_of(ctx)
        if buffer is not None:
            buffer.add_(grad_x)
            grad_x = None
        return grad_x, x.T @ gradient


def buffer_of(ctx: Any) -> Tensor | None:
    found: Tensor | None = ctx.input_grad_buffers[0]
    used.append(found is not None)
    return found


class Multiply(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4) * 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.weight)


class Net(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.multiply = Multiply(function)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        y = self.multiply(hidden)
        return (self.last(hidden) + y.sin()).sum()


def gradients(net: nn.Module) -> list[Tensor]:
    used.clear()
    net.zero_grad()
    net(torch.linspace(-1, 1, 12).reshape(3, 4)).backward()
    return [param.grad.clone() for param in net.parameters()]


@pytest.mark.parametrize("function", [Product, ByHelper])
def test_the_gradient_is_absent_with_its_reason_and_training_goes_on(
    function: type[torch.autograd.Function],
) -> None:
    torch.manual_seed(0)
    net = Net(function)
    plain = gradients(net)
    assert used == [True]
    with tt.watch(net, "*:*") as w:
        watched = gradients(net)
    assert len(used) == 1  # A gradient that the watch keeps is no buffer to add to: None then.
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
    reasons = {str(one.site): one.reason for one in w.absent}
    assert "input_grad_buffers" in reasons["multiply:grad_input"]
    assert "multiply:grad_output" not in reasons
    assert w.run["first:grad_output"].shape == (3, 4)
