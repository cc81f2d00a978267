"""The calls of modules: their numbers within a step, and the stack of those that are running."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from torchtap.core.modules import is_container
from torchtap.core.record import BACKWARD, FORWARD, RECOMPUTE
from torchtap.core.stack_frames import is_on_stack
from torchtap.core.torch_private import (
    current_node,
    current_task,
    is_in_function,
    sequence_number,
    top_saved_hooks,
)
from torchtap.core.tree import argument_leaves
from torchtap.hooks.module_hook import ModuleHook
from torchtap.hooks.replay import FUNCTION, OTHER, Replay, what_runs
from torchtap.hooks.taps import Tap

UNIDENTIFIED = -1
"""Number of a recomputed call that could not be distinguished from the others of its module."""
_MOST_THREADS = 64
"""Threads whose calls are remembered; DataParallel makes new ones for every forward."""
INSIDE_BACKWARD = -1
"""In the report of an edit, all calls inside a backward that are no recomputation."""
NOT_IDENTIFIED = (
    "an activation checkpoint computed it again, and which call it is could not be determined"
)


class Numbering:
    """Numbers the calls of one step, and recognises those that a checkpoint runs again.

    Other calls inside a backward (in a custom function, or in a hook) are counted apart.
    """

    def __init__(self) -> None:
        self._may_differentiate = True
        self.restart()

    def restart(self) -> None:
        """A new step."""
        self._own = _Own()
        self._own.replay = Replay(sequence_number())
        self._replays = deque([self._own.replay], maxlen=_MOST_THREADS)

    def enter_model(self) -> None:
        """The outermost call begins."""
        self._may_differentiate = torch.is_grad_enabled() or is_in_function()

    def number(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, str]:
        """Return the number of this call and its phase.

        Args:
            tap: of the module.
            args: what it is called with.
            kwargs: likewise.

        Returns:
            the number (:data:`UNIDENTIFIED` where it is not available) and the phase.
        """
        tap.has_run = True
        is_inside_backward = current_task() != -1
        may_recur = not torch.is_grad_enabled() or top_saved_hooks(True) is not None
        if not is_inside_backward and not may_recur:
            return next(tap.calls), FORWARD
        arguments = [tensor for _, tensor in argument_leaves(args, kwargs)]
        if is_inside_backward:
            return self._inside_backward(tap, arguments, may_recur=may_recur)
        call = next(tap.calls)
        self._remember(tap, call, FORWARD, arguments)
        return call, FORWARD

    def _inside_backward(
        self, tap: Tap, arguments: Sequence[Tensor], *, may_recur: bool
    ) -> tuple[int, str]:
        runner = what_runs(current_node())
        if runner is not OTHER:
            place = self._replay_of(tap, arguments, runner).find(tap, arguments, runner)
            if place is not None and place.phase is FORWARD:
                return place.call, RECOMPUTE
            if place is None and runner is not FUNCTION:
                self._remember(tap, UNIDENTIFIED, BACKWARD, arguments)
                return UNIDENTIFIED, RECOMPUTE
        call = next(tap.calls_in_backward)
        if may_recur:
            self._remember(tap, call, BACKWARD, arguments)
        return call, BACKWARD

    def _remember(self, tap: Tap, call: int, phase: str, arguments: Sequence[Tensor]) -> None:
        replay, may = self._own.replay, self._may_differentiate
        if replay is None:
            replay = self._own.replay = Replay(0)
            self._replays.append(replay)
        replay.remember(tap, call, phase, arguments, may_differentiate=may)

    def _replay_of(self, tap: Tap, arguments: Sequence[Tensor], runner: str) -> Replay:
        """Return the replay of the thread that ran the forward; its backward may run in another."""
        every = list(self._replays)
        own = self._own.replay or every[0]
        is_where = (one for one in [own, *every] if one.is_where(tap, arguments, runner))
        return next(is_where, own)


class _Own(threading.local):
    """The thread's replay in this step. Thread-local, as ids of ended threads are given again."""

    replay: Replay | None = None


class EnteredCalls:
    """Numbers calls as they are entered, and gives the number back when they are left.

    Of a module that may call itself, the call that is left is not the last that was entered.
    """

    def __init__(self) -> None:
        self._count = itertools.count()
        self._entered = _Entered()

    def __iter__(self) -> EnteredCalls:
        return self

    def __next__(self) -> int:
        numbers = self._entered.numbers
        return numbers.pop() if numbers else next(self._count)

    def enter(self) -> None:
        """A call is entered. What a checkpoint runs again has a number already."""
        if current_task() == -1:
            self._entered.numbers.append(next(self._count))


class _Entered(threading.local):
    """Numbers of the calls that a thread is inside of; an interrupt leaves its own behind."""

    def __init__(self) -> None:
        self.numbers: deque[int] = deque(maxlen=1 << 12)


def may_call_itself(module: nn.Module) -> bool:
    """Return whether anything runs inside the module that is neither PyTorch's own nor ours."""
    return any(
        not type(one).__module__.startswith("torch.nn.")
        or "forward" in vars(one)
        or _has_other_hooks(one)
        for one in module.modules()
    )


def _has_other_hooks(module: nn.Module) -> bool:
    tables = (module._forward_pre_hooks, module._forward_hooks)
    return any(not isinstance(hook, ModuleHook) for table in tables for hook in table.values())


def counted_as(call: int, phase: str) -> int:
    """The number by which the report of an edit counts a call."""
    return INSIDE_BACKWARD if phase is BACKWARD else call


def outermost_parts(modules: Mapping[str, nn.Module]) -> list[str]:
    """Paths of what programs call where they do not call the model: its parts, not their parts."""
    found: set[str] = set()
    for path, module in modules.items():
        steps = path.split(".")
        above = (".".join(steps[:depth]) for depth in range(1, len(steps)))
        if path and not is_container(module) and found.isdisjoint(above):
            found.add(path)
    return [path for path in modules if path in found]


class Call:
    """One call of a tapped module that has been entered and not yet left.

    Attributes:
        number: within the step; calls inside a backward are numbered apart.
        phase: ``forward``, ``recompute`` or ``backward``.
    """

    __slots__ = ("caller", "number", "phase", "tap")

    def __init__(self, tap: Tap, number: int, phase: str, depth: int) -> None:
        self.tap = tap
        self.number = number
        self.phase = phase
        # nn.Module's own call, which this belongs to; only asked for of the root.
        self.caller: FrameType | None = sys._getframe(depth) if tap.path == "" else None

    @property
    def phase_of_gradients(self) -> str:
        """Return the phase of gradients: a recomputed call has those of its first forward."""
        return BACKWARD if self.phase is BACKWARD else FORWARD


OneCall = TypeVar("OneCall", bound=Call)


class Running(threading.local, Generic[OneCall]):
    """The calls that each thread is inside of.

    Attributes:
        stack: those of this thread, the outermost first.
    """

    def __init__(self) -> None:
        self.stack: list[OneCall] = []

    def pop(self, tap: Tap) -> OneCall | None:
        """Take off the innermost call of ``tap``, and the calls inside of it that raised."""
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
        """Return whether no call of the root is on Python's stack any more.

        They are left behind by a KeyboardInterrupt, which runs no hooks.
        """
        callers = [call.caller for call in self.stack if call.caller is not None]
        return bool(callers) and not is_on_stack(callers, sys._getframe(2))
