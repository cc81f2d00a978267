"""The calls of modules: their numbers within a step, and the stack of those that are running."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.core.model_layout import Look
from torchtap.core.module_paths import is_container
from torchtap.core.record import BACKWARD, FORWARD, RECOMPUTE
from torchtap.core.torch_frames import is_in_function
from torchtap.core.torch_private import current_node, current_task, sequence_number, top_saved_hooks
from torchtap.core.tree import argument_leaves
from torchtap.hooks.call_follower import FollowedCall
from torchtap.hooks.module_hook import OWN_HOOKS
from torchtap.hooks.tap import Tap

if TYPE_CHECKING:
    from torchtap.hooks.checkpoint_calls import CheckpointCalls

UNIDENTIFIED = -1
"""Number of a recomputed call that could not be distinguished from the others of its module."""
_CALLING_THEMSELVES = "modules that may call themselves"
_MOST_THREADS = 64
"""Threads whose calls are remembered; DataParallel makes new ones for every forward."""
INSIDE_BACKWARD = -1
"""Call number under which an edit's report counts all calls of phase ``backward``. It may equal
:data:`UNIDENTIFIED`, since an edit of an unidentified call raises and is never counted."""
WHY_UNIDENTIFIED = (
    "an activation checkpoint computed it again, and which call it is could not be determined"
)


class CallIdentifier:
    """Numbers the calls of one step, and recognises those that a checkpoint runs again.

    Other calls inside a backward (in a custom function, or in a hook) are counted apart.
    """

    def __init__(self) -> None:
        self._may_differentiate = True
        self._begin()

    def restart(self) -> None:
        """Begin a step."""
        if self._of_threads:  # Nearly always nothing was remembered, in this thread or another.
            self._begin()
        else:
            self._begun = threading.get_ident(), sequence_number()

    def _begin(self) -> None:
        self._own = _ThreadCalls()
        self._begun = threading.get_ident(), sequence_number()
        # That of the thread which began the step is the first.
        self._of_threads: deque[CheckpointCalls] = deque(maxlen=_MOST_THREADS)

    def enter_model(self) -> None:
        """Note the grad mode in which the outermost call begins."""
        self._may_differentiate = torch.is_grad_enabled() or is_in_function()

    def identify(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, str]:
        """Return the number of this call and its phase.

        Args:
            tap: of the module.
            args: what it is called with.
            kwargs: likewise.

        Returns:
            the number (:data:`UNIDENTIFIED` where it is not available) and the phase.
        """
        if not tap.has_run:
            tap.note_first_call()
        is_inside_backward = current_task() != -1
        # May a checkpoint run this call again in a backward? A reentrant one runs its forward
        # without grad mode, the other kind under a pair of saved-tensor hooks
        # (torch/utils/checkpoint.py). Without either nothing of the call has to be remembered.
        may_recur = not torch.is_grad_enabled() or top_saved_hooks(True) is not None
        if not is_inside_backward and not may_recur:
            return next(tap.call_numbers), FORWARD
        arguments = [tensor for _, tensor in argument_leaves(args, kwargs)]
        if is_inside_backward:
            return self._inside_backward(tap, arguments, may_recur=may_recur)
        call = next(tap.call_numbers)
        self._remember(tap, call, FORWARD, arguments)
        return call, FORWARD

    def _inside_backward(
        self, tap: Tap, arguments: Sequence[Tensor], *, may_recur: bool
    ) -> tuple[int, str]:
        from torchtap.hooks.checkpoint_calls import FUNCTION, OTHER, backward_runner

        runner = backward_runner(current_node())
        if runner is not OTHER:
            place = self._calls_of_thread(tap, arguments, runner).find(tap, arguments, runner)
            if place is not None and place.phase is FORWARD:
                return place.call, RECOMPUTE
            # A checkpoint runs it, and it is not known which call of the forward it is.
            if place is None and runner is not FUNCTION:
                self._remember(tap, UNIDENTIFIED, BACKWARD, arguments)
                return UNIDENTIFIED, RECOMPUTE
        call = next(tap.call_numbers_in_backward)
        if may_recur:
            self._remember(tap, call, BACKWARD, arguments)
        return call, BACKWARD

    def _remember(self, tap: Tap, call: int, phase: str, arguments: Sequence[Tensor]) -> None:
        calls, may = self._own.calls, self._may_differentiate
        if calls is None:
            calls = self._own.calls = self._new_calls()
        calls.remember(tap, call, phase, arguments, may_differentiate=may)

    def _new_calls(self) -> CheckpointCalls:
        """Return what takes the calls of this thread."""
        from torchtap.hooks.checkpoint_calls import CheckpointCalls

        thread, first_node = self._begun
        if not self._of_threads:
            self._of_threads.append(CheckpointCalls(first_node))
        if threading.get_ident() != thread:
            self._of_threads.append(CheckpointCalls(0))
        return self._of_threads[-1]

    def _calls_of_thread(
        self, tap: Tap, arguments: Sequence[Tensor], runner: str
    ) -> CheckpointCalls:
        """Return the calls of the thread that ran the forward; its backward may run in another."""
        if not self._of_threads:
            self._new_calls()
        every = list(self._of_threads)
        # A thread of autograd's engine has run no forward itself.
        own = self._own.calls or every[0]
        # Backward of another device than the CPU runs in a thread of autograd's engine, and so
        # does a checkpoint's second forward: the calls are found by memory, not by thread.
        that_know_it = (calls for calls in [own, *every] if calls.knows(tap, arguments, runner))
        return next(that_know_it, own)


class _ThreadCalls(threading.local):
    """Calls of the thread in this step. Thread-local, as ids of ended threads are given again."""

    calls: CheckpointCalls | None = None


def may_call_itself(module: nn.Module) -> bool:
    """Return whether the module may call itself: code of others runs in it, which may call it.

    Code of others is a class, a ``forward`` or a hook that is neither PyTorch's own nor ours.
    """
    return any(_is_of_others(one) or _has_other_hooks(one) for one in module.modules())


def calling_themselves(look: Look, hooked: Iterable[nn.Module]) -> set[int]:
    """Return the ids of the modules of a model that may call themselves.

    Args:
        look: at the model.
        hooked: its modules with hooks, see :func:`~torchtap.hooks.hidden_handle.hooked`.
    """
    every, numbers = look.every, look.layout.kept(_CALLING_THEMSELVES)
    if numbers is None:
        found = _around(every, [one for one in every if _is_of_others(one)])
        numbers = [number for number, one in enumerate(every) if id(one) in found]
        look.layout.keep(_CALLING_THEMSELVES, numbers)
    ids = {id(every[number]) for number in numbers}
    others = [one for one in hooked if _has_other_hooks(one)]
    return ids | _around(every, others) if others else ids


def _around(every: Sequence[nn.Module], inner: list[nn.Module]) -> set[int]:
    """Return the ids of some modules, and of those that hold any of them."""
    holders: dict[int, list[nn.Module]] = {}
    for module in every:
        for child in module._modules.values():
            holders.setdefault(id(child), []).append(module)
    found: set[int] = set()
    while inner:
        module = inner.pop()
        if id(module) not in found:
            found.add(id(module))
            inner.extend(holders.get(id(module), ()))
    return found


def _is_of_others(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.nn.") or "forward" in vars(module)


def _has_other_hooks(module: nn.Module) -> bool:
    tables = (module._forward_pre_hooks, module._forward_hooks)
    if not any(tables):
        return False
    return any(not isinstance(hook, OWN_HOOKS) for table in tables for hook in list(table.values()))


def number_in_report(call: int, phase: str) -> int:
    """Return the number by which the report of an edit counts a call."""
    return INSIDE_BACKWARD if phase is BACKWARD else call


def outermost_parts(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the paths of parts that programs call in place of the model, not of their parts."""
    parts: set[str] = set()
    for path, module in modules.items():
        steps = path.split(".")
        above = (".".join(steps[:depth]) for depth in range(1, len(steps)))
        if path and not is_container(module) and parts.isdisjoint(above):
            parts.add(path)
    return [path for path in modules if path in parts]


class Call(FollowedCall):
    """One call of a module that is tapped by an engine.

    Attributes:
        number: within the step; calls inside a backward are numbered apart.
        phase: ``forward``, ``recompute`` or ``backward``.
    """

    __slots__ = ("number", "phase")

    def __init__(self, tap: Tap, number: int, phase: str, depth: int) -> None:
        # Only those of the model itself are asked whether they are over: a frame is kept for each.
        super().__init__(tap, sys._getframe(depth) if tap.path == "" else None)
        self.number = number
        self.phase = phase

    @property
    def phase_of_gradients(self) -> str:
        """Return the phase of gradients: a recomputed call has those of its first forward."""
        return BACKWARD if self.phase is BACKWARD else FORWARD
