"""Python's stacks: of this thread, and of all others."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torchtap.core.shared_state import new_lock

_OWN = f"{Path(__file__).parents[1]}{os.sep}"
_RUNNER = f"{_OWN}{os.path.join('cli', 'script', 'as_main.py')}"
_lock = new_lock()


def innermost_frames() -> dict[int, FrameType]:
    """Thread -> the innermost frame of its stack.

    A function that keeps the result in a variable makes a cycle: its own frame is in there.
    """
    # Python 3.11 makes the frames while it holds the lock of the interpreter's threads. If the
    # collector ran there and freed a threading.local, which takes that lock, the process would wait
    # for itself for ever (https://github.com/python/cpython/issues/106883). The lock here keeps
    # another thread from switching the collector on again too early.
    with _lock:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


def caught_in(frame: FrameType | None) -> BaseException | None:
    """Return the error that a frame is handling now, and not a frame further out.

    PyTorch calls forward hooks with ``always_call`` while it handles what the module raised.
    """
    error = sys.exception()
    traceback = None if error is None else error.__traceback__
    return error if traceback is not None and traceback.tb_frame is frame else None


def is_on_stack(callers: Sequence[FrameType], innermost: FrameType | None) -> bool:
    """Return whether any of these frames is on the stack of Python calls ending in ``innermost``.

    A call of a module whose frame is not there any more was left by a BaseException, such as a
    KeyboardInterrupt: PyTorch then runs no forward hooks, not even those with ``always_call``.
    """
    while innermost is not None and not any(innermost is caller for caller in callers):
        innermost = innermost.f_back
    return innermost is not None


def is_inside_own(frame: FrameType | None) -> bool:
    """Return whether a frame is inside a function of torchtap, other than the one of a script."""
    while frame is not None and frame.f_code.co_filename != _RUNNER:
        if frame.f_code.co_filename.startswith(_OWN):
            return True
        frame = frame.f_back
    return False


def outside_stacklevel() -> int:
    """Return the ``stacklevel`` by which the caller's warning points at the line outside torchtap.

    Hooks of optimizers and modules are called by PyTorch, whose frames are no one's line either.
    """
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and _is_no_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _is_no_users(file: str) -> bool:
    import torch

    return file.startswith((_OWN, f"{Path(torch.__file__).parent}{os.sep}"))
