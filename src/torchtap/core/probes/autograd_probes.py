"""Tries the private names by which torchtap reads autograd's engine, nodes and saved tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchtap.core import torch_frames, torch_private
from torchtap.core.private_names import find


def in_backward(look: Callable[[], Any]) -> list[Any]:
    """Return the results of a function that a hook of a gradient calls."""
    seen: list[Any] = []
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: seen.append(look()))
    y.sum().backward()
    return seen


def _current_task() -> bool:
    return torch_private.current_task() == -1 and in_backward(torch_private.current_task)[0] >= 0


def _current_node() -> bool:
    return bool(in_backward(torch_private.current_node)[0].name() == "MulBackward0")


def _will_run() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    other: Any = torch.ones(2, requires_grad=True)
    y, aside = x * 3, other * 3
    seen: list[bool] = []
    z = y * 2
    z.register_hook(
        lambda gradient: seen.extend(map(torch_private.will_run, (y.grad_fn, aside.grad_fn)))
    )
    z.sum().backward()
    return seen == [True, False]


def _sequence_number() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    first = torch_private.sequence_number()
    made = x * 3
    return bool(made.grad_fn._sequence_nr() == first)


def _call_after_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    had: list[bool] = []
    y.register_hook(
        lambda gradient: torch_private.call_after_backward(lambda: had.append(x.grad is not None))
    )
    y.sum().backward()
    return had == [True]


def _saved_hooks() -> bool:
    below = torch_private.top_saved_hooks(True)
    pair = (lambda tensor: tensor, lambda packed: packed)
    torch_private.push_saved_hooks(*pair)
    try:
        return tuple(torch_private.top_saved_hooks(True)) == pair
    finally:
        torch_private.pop_saved_hooks()
        assert torch_private.top_saved_hooks(True) == below


def _may_push_saved_hooks() -> bool:
    was_allowed = torch_private.may_push_saved_hooks()
    with torch.autograd.graph.disable_saved_tensors_hooks("a probe"):
        return was_allowed and not torch_private.may_push_saved_hooks()


def _saved_tensor() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    node: Any = (x * x).grad_fn
    return isinstance(node._raw_saved_self, torch_private.saved_tensor_class)


def _node_hooks() -> bool:
    def hook(*_: Any) -> None:
        pass

    node: Any = (torch.ones(2, requires_grad=True) * 3).grad_fn
    node.register_hook(hook)
    with torch_private.node_hooks() as show:
        return show(node) == ([], [hook])


class _PackHook:
    """A pack hook that says whether a selective checkpoint that asks was told nothing."""

    def __init__(self, below: Any) -> None:
        self._user_hooks = below

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor

    @property
    def _checkpoint_internal(self) -> bool:
        return torch_frames.is_left_open(sys._getframe(1))


def _user_hooks_of_a_checkpoint() -> bool:
    """Runs as a method of a selective checkpoint would, told nothing, and told to call them."""
    asked = find("torch.utils.checkpoint._current_user_saved_tensors_hooks")
    holder = type("Selective", (), {"respect_saved_tensors_hooks": None, "ask": None})()
    source = "def ask(self, asked): return asked()"
    scope: dict[str, Any] = {"__name__": torch_frames.CHECKPOINTS}
    exec(source, scope)  # As a function of PyTorch's file: the hook looks at where it is asked.
    below = torch_private.top_saved_hooks(True)
    hook = _PackHook(below)
    torch_private.push_saved_hooks(hook, lambda packed: packed)
    try:
        is_skipped = scope["ask"](holder, asked) == below
        holder.respect_saved_tensors_hooks = True
        return is_skipped and scope["ask"](holder, asked)[0] is hook
    finally:
        torch_private.pop_saved_hooks()


def _checkpoint_hook() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = checkpoint(lambda one: one * one, x, use_reentrant=False)
    hook = y.grad_fn._raw_saved_self.unpack_hook
    number, inputs = torch_private.checkpoint_inputs(hook)
    return number > 0 and len(inputs) == 1


AUTOGRAD: Mapping[str, Callable[[], bool]] = {
    "torch._C._current_graph_task_id": _current_task,
    "torch._C._current_autograd_node": _current_node,
    "torch._C._will_engine_execute_node": _will_run,
    "torch._C._autograd._get_sequence_nr": _sequence_number,
    "torch.autograd.Variable._execution_engine": _call_after_backward,
    "torch._C._autograd._push_saved_tensors_default_hooks": _saved_hooks,
    "torch._C._autograd._pop_saved_tensors_default_hooks": _saved_hooks,
    "torch._C._autograd._top_saved_tensors_default_hooks": _saved_hooks,
    "torch._C._autograd._saved_tensors_hooks_is_enabled": _may_push_saved_hooks,
    "torch._C._autograd.SavedTensor": _saved_tensor,
    "torch.autograd.function._HookMixin": _node_hooks,
    "torch.utils.checkpoint._checkpoint_hook": _checkpoint_hook,
    "torch.utils.checkpoint._current_user_saved_tensors_hooks": _user_hooks_of_a_checkpoint,
}
"""Name -> what tries it."""
