"""Hears of the steps of all optimizers, without keeping the listener alive."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any, Protocol

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchtap.core.private_names import code_of
from torchtap.core.stack_frames import innermost_frames
from torchtap.core.torch_frames import profile_hook_step
from torchtap.hooks.module_hook import keep_dynamo_out

_STEP = code_of(profile_hook_step(lambda: None))
"""Code of the function around each step, which calls the hooks."""
_gone: list[RemovableHandle] = []
"""Handles of listeners that were never closed and are gone, to be removed outside of any step."""


class OptimizerListener(Protocol):
    """Interface of listeners that are called around each step of each optimizer.

    A step may run inside the step of another optimizer, and a step that raises has no end.
    """

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step begins.

        Args:
            optimizer: that makes it.
            args: of the step; the first is the optimizer itself.
            kwargs: of the step.

        Returns:
            the arguments to make the step with, or ``None`` to leave them as they are.
        """

    def after_step(self, optimizer: Optimizer) -> None:
        """Hear that the step returned."""


def listen_to_optimizers(listener: OptimizerListener) -> list[RemovableHandle]:
    """Call a listener around each step of each optimizer, as long as the listener is alive.

    Returns:
        the handles of the hooks.
    """
    _remove_gone([])
    me = weakref.ref(listener)  # The hooks are global: they would keep the listener forever.
    before, after = partial(_before, me), partial(_after, me)
    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    # Not at exit, when modules are torn down in any order and no step follows.
    weakref.finalize(listener, _remove_gone, handles).atexit = False
    return handles


def _before(
    me: weakref.ref[OptimizerListener], optimizer: Optimizer, args: Any, kwargs: Any
) -> Any:
    alive = me()
    return None if alive is None else alive.before_step(optimizer, args, kwargs)


def _after(
    me: weakref.ref[OptimizerListener], optimizer: Optimizer, args: Any, kwargs: Any
) -> None:
    alive = me()
    if alive is not None:
        alive.after_step(optimizer)


keep_dynamo_out(_before, _after)


def _remove_gone(handles: list[RemovableHandle]) -> None:
    """Remove hooks now, or later if the collector ran in the middle of a step.

    PyTorch iterates over the hooks there, and a table that changes under it would end the step by
    a ``RuntimeError``.
    """
    _gone.extend(handles)
    if not _gone:  # Stacks of other threads are looked at only where there is something to decide.
        return
    if not any(_is_stepping(frame) for frame in innermost_frames().values()):
        # The collector, or another thread, may empty the list between a look at it and a `pop`.
        with contextlib.suppress(IndexError):
            while True:
                _gone.pop().remove()


def _is_stepping(frame: FrameType | None) -> bool:
    while frame is not None:
        # Another thread goes on while its stack is read, and Python 3.11 may then hand out anything
        # for a frame that has just ended: nothing is certain, and the hooks go a little later.
        if not isinstance(frame, FrameType) or frame.f_code is _STEP:
            return True
        frame = frame.f_back
    return False


def has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a step of these arguments computes gradients itself, perhaps repeatedly."""
    # The optimizer itself stands first among the arguments of its hooks.
    return any(callable(one) for one in (*args[1:], *kwargs.values()))
