"""Tries the functions of PyTorch that torchtap looks for on the stack, and reads variables of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchtap.core import private_names, torch_frames, torch_nodes
from torchtap.core.probes.autograd_probes import in_backward

# Classes of torch whose methods have no annotations.
_Function: Any = torch.autograd.Function
_DispatchMode: Any = TorchDispatchMode


def _on_stack(ask: Callable[[FrameType], Any]) -> Any:
    """Return a function's answer for the innermost frame for which it has one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        answer = ask(frame)
        if answer is not None:
            return answer
        frame = frame.f_back
    return None


def _given_to_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    given = torch.full((2,), 5.0)
    seen: list[Any] = []
    y.register_hook(lambda gradient: seen.append(_on_stack(torch_frames.given_to_backward)))
    y.backward(given, retain_graph=True)
    torch.autograd.grad(y, x, given)
    return len(seen) == 2 and all(len(one) == 1 and one[0] is given for one in seen)


def _asked_of_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    seen: list[Any] = []
    y.register_hook(lambda gradient: seen.append(_on_stack(torch_frames.asked_of_backward)))
    torch.autograd.grad(y.sum(), [x])
    return len(seen) == 1 and seen[0][0] is x


def _run_backward() -> bool:
    def ask(frame: FrameType) -> Any:
        return frame.f_code in torch_frames.RUN_BACKWARD or None

    return in_backward(lambda: _on_stack(ask)) == [True]


def _make_gradients() -> bool:
    seen: list[Any] = []

    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._opname == "ones_like":
                seen.append(
                    _on_stack(lambda one: one.f_code is torch_frames.MAKES_GRADIENTS or None)
                )
            return func(*args, **(kwargs or {}))

    x: Any = torch.ones(2, requires_grad=True)
    loss = (x * 3).sum()
    with Mode():
        loss.backward()
    return seen == [True]


class _Triple(_Function):  # type: ignore[misc]
    """A custom function that notes which frames run it."""

    seen: list[Any]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _Triple.seen = [torch_frames.is_in_function()]
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        def ask(frame: FrameType) -> Any:
            return frame.f_code is torch_frames.FUNCTION_BACKWARD or None

        _Triple.seen += [_on_stack(ask), torch_frames.is_in_function()]
        return gradient * 3


def _function_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    _Triple.apply(x).sum().backward()
    return _Triple.seen == [True, True, False] and not torch_frames.is_in_function()


def _profile_hook_step() -> bool:
    code = private_names.code_of(torch_frames.profile_hook_step(lambda: None))
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(_on_stack(lambda frame: frame.f_code is code or None))
    )
    optimizer.step()
    return seen == [True]


def _checkpoint_forward() -> bool:
    seen: list[Any] = []

    def ask(frame: FrameType) -> Any:
        is_it = frame.f_code is torch_frames.CHECKPOINT_FORWARD
        return frame.f_locals["args"] if is_it else None

    def function(x: Tensor) -> Tensor:
        seen.append(_on_stack(ask))
        return x * 3

    x: Any = torch.ones(2, requires_grad=True)
    y = checkpoint(function, x, use_reentrant=True)
    is_named = type(y.grad_fn).__name__ == torch_nodes.CHECKPOINT
    return is_named and seen[0][0] is x


FRAMES: Mapping[str, Callable[[], bool]] = {
    "torch.autograd.backward": _given_to_backward,
    "torch.autograd.grad": _asked_of_backward,
    "torch.autograd.graph._engine_run_backward": _run_backward,
    "torch.autograd._make_grads": _make_gradients,
    "torch.autograd.function.BackwardCFunction.apply": _function_backward,
    "torch.optim.Optimizer.profile_hook_step": _profile_hook_step,
    "torch.utils.checkpoint.CheckpointFunction.forward": _checkpoint_forward,
}
"""Name -> what tries it."""
