"""Hears of the steps of all optimizers, without keeping the listener alive."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from operator import itemgetter
from types import FrameType
from typing import Any, NamedTuple, Protocol

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchtap.core.private_names import code_of
from torchtap.core.shared_state import new_lock
from torchtap.core.stack_frames import innermost_frames
from torchtap.core.torch_frames import profile_hook_step
from torchtap.hooks.module_hook import keep_dynamo_out

_STEP = code_of(profile_hook_step(lambda: None))
"""Code of the function around each step, which calls the hooks."""
_listeners: dict[int, Listening] = {}
"""Number -> a listener, the earliest first."""
_numbers = itertools.count()
_pair: list[RemovableHandle] = []
"""Handles of the two hooks that call all listeners, while there are any."""
_lock = new_lock()  # The collector may finish a listener while the two are put on.


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


class Listening(NamedTuple):
    """A listener, and how it listens.

    Attributes:
        listener: weakly, since the hooks are global and would keep it forever.
        is_last: whether it hears of the end of a step after all others.
    """

    listener: weakref.ref[OptimizerListener]
    is_last: bool


class OptimizerHandle:
    """Takes a listener off.

    Args:
        number: of the listener.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def remove(self) -> None:
        """Call the listener no more."""
        _listeners.pop(self._number, None)
        _take_off()


def listen_to_optimizers(
    listener: OptimizerListener, *, is_last: bool = False
) -> list[OptimizerHandle]:
    """Call a listener around each step of each optimizer, as long as the listener is alive.

    All listeners have one pair of hooks: PyTorch goes through the table of hooks in a loop, and a
    table that changes under it ends the step by a ``RuntimeError``, also where another thread
    changes it. PyTorch does not notice that while it is at the last hook of a table, so a pair
    that stands alone may come and go at any time.

    Args:
        listener: is referred to weakly.
        is_last: hear of the end of a step after all other listeners.

    Returns:
        the handle that takes it off.
    """
    number = next(_numbers)
    _listeners[number] = Listening(weakref.ref(listener), is_last)
    # Not at exit, when modules are torn down in any order and no step follows.
    weakref.finalize(listener, _forget, number).atexit = False
    with _lock:
        if not _is_pair_on():
            _remove_pair()  # An interrupt may have left one of the two.
            _pair.append(register_optimizer_step_pre_hook(_before))
            _pair.append(register_optimizer_step_post_hook(_after))
    return [OptimizerHandle(number)]


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    changed = None
    for number in list(_listeners):
        alive = _alive(number)
        found = None if alive is None else alive.before_step(optimizer, args, kwargs)
        if found is not None:
            args, kwargs = changed = found
    return changed


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    listening = [(number, one.is_last) for number, one in _listeners.copy().items()]
    for number, _ in sorted(listening, key=itemgetter(1)):
        alive = _alive(number)
        if alive is not None:
            alive.after_step(optimizer)


def _alive(number: int) -> OptimizerListener | None:
    """Return a listener, unless it was taken off or is gone by now."""
    listening = _listeners.get(number)
    return None if listening is None else listening.listener()


keep_dynamo_out(_before, _after)


def _forget(number: int) -> None:
    """A listener is gone that was never taken off."""
    _listeners.pop(number, None)
    _take_off(wait=False)  # The collector runs anywhere, also where another thread waits for it.


def _take_off(*, wait: bool = True) -> None:
    """Remove the pair of hooks where nothing listens, now or when this is called the next time."""
    if _listeners or not _lock.acquire(blocking=wait):
        return
    try:
        if not _listeners and (_is_pair_alone() or not _is_any_stepping()):
            _remove_pair()
    finally:
        _lock.release()


def _remove_pair() -> None:
    """Remove the hooks, which are listed until they are off: an interrupt loses neither."""
    for handle in _pair:
        handle.remove()
    _pair.clear()


def _is_pair_on() -> bool:
    on = (handle.id in (handle.hooks_dict_ref() or ()) for handle in _pair)
    return len(_pair) == 2 and all(on)


def _is_pair_alone() -> bool:
    return all(len(handle.hooks_dict_ref() or ()) <= 1 for handle in _pair)


def _is_any_stepping() -> bool:
    return any(_is_stepping(frame) for frame in innermost_frames().values())


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
