"""The calls of modules: their numbers within a step, and the stack of those that are running."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from torchtap.hooks.backwards import current_task
from torchtap.hooks.replay import Replay
from torchtap.hooks.spots import Tap
from torchtap.record import FORWARD, RECOMPUTE
from torchtap.tree import argument_leaves

_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks

UNTOLD = -1
"""Number of a recomputed call that could not be told from the others of its module."""


class Numbering:
    """Numbers the calls of one step, and recognises those that a checkpoint runs again."""

    def __init__(self) -> None:
        self._replay = Replay()

    def restart(self) -> None:
        """A new step."""
        self._replay = Replay()

    def number(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, str]:
        """Which call this is, and whether it is the first time or a recomputation.

        Args:
            tap: of the module.
            args: what it is called with.
            kwargs: likewise.

        Returns:
            the number (:data:`UNTOLD` where it cannot be had) and the phase.
        """
        is_again = current_task() != -1 and tap.has_run
        may_recur = not torch.is_grad_enabled() or _saved_tensor_hooks(True) is not None
        if not is_again and not may_recur:
            tap.has_run = True
            return next(tap.calls), FORWARD
        found = argument_leaves(args, kwargs)
        argument = found[0][1] if found else None
        if is_again:
            call = self._replay.find(tap, argument)
            if call is not None:
                return call, RECOMPUTE
            tap.reason = "a recomputed call could not be told from the others of this module"
            return UNTOLD, RECOMPUTE
        call = next(tap.calls)
        tap.has_run = True
        self._replay.remember(tap, call, argument)
        return call, FORWARD


class NestedCalls:
    """Numbers the calls of a module that may call itself, in the order in which they were entered.

    To be asked when a call is left, where nobody saw it being entered. The Python stack says how
    many calls of the module it was inside of; those that were left since the last one at its own
    depth were inside of it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._code = getattr(module.forward, "__code__", None)
        self._num_left = 0
        # (depth, how many were left there or deeper), of what may yet turn out to be inside.
        self._left: list[tuple[int, int]] = []

    def __iter__(self) -> NestedCalls:
        return self

    def __next__(self) -> int:
        depth = self._depth()
        num_inside = 0
        while self._left and self._left[-1][0] > depth:
            num_inside += self._left.pop()[1]
        before = self._left.pop()[1] if self._left and self._left[-1][0] == depth else 0
        self._left.append((depth, before + num_inside + 1))
        number = depth + self._num_left - num_inside
        self._num_left += 1
        return number

    def _depth(self) -> int:
        module, code = self._module(), self._code
        depth = 0
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is code and _is_about(frame, module):
                depth += 1
            frame = frame.f_back
        return depth


def _is_about(frame: FrameType, module: nn.Module | None) -> bool:
    """Whether a frame of a forward (or of what wraps it) is one of this module."""
    return any(
        value is module or (type(value) is tuple and len(value) > 0 and value[0] is module)
        for value in frame.f_locals.values()
    )


def number_when_left(tap: Tap, module: nn.Module) -> None:
    """Nobody will see the calls of this tap being entered: number them all the same."""
    stock = (
        type(one).__module__.startswith("torch.nn.") and "forward" not in vars(one)
        for one in module.modules()
    )
    if not all(stock):  # PyTorch's own do not call themselves.
        tap.count = partial(NestedCalls, module)


class Call:
    """One call of a tapped module that has been entered and not yet left."""

    __slots__ = ("caller", "number", "phase", "tap")

    def __init__(self, tap: Tap, number: int, phase: str, depth: int) -> None:
        self.tap = tap
        self.number = number
        self.phase = phase
        # nn.Module's own call, which this belongs to; only asked for of the root.
        self.caller: FrameType | None = sys._getframe(depth) if tap.path == "" else None


OneCall = TypeVar("OneCall", bound=Call)


class Running(threading.local, Generic[OneCall]):
    """The calls that each thread is inside of.

    Attributes:
        stack: those of this thread, the outermost first.
    """

    def __init__(self) -> None:
        self.stack: list[OneCall] = []

    def pop(self, tap: Tap) -> OneCall | None:
        """The innermost call of ``tap``, and with it all inside that raised and did not come by."""
        stack = self.stack
        if stack and stack[-1].tap is tap:
            return stack.pop()
        if not any(call.tap is tap for call in stack):
            return None
        while True:
            call = stack.pop()
            if call.tap is tap:
                return call

    def is_stale(self) -> bool:
        """Whether no call of the root is on Python's stack any more.

        They are left behind by a KeyboardInterrupt, which runs no hooks.
        """
        callers = [call.caller for call in self.stack if call.caller is not None]
        python: FrameType | None = sys._getframe(2)
        while python is not None and not any(python is caller for caller in callers):
            python = python.f_back
        return python is None and bool(callers)
