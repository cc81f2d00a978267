"""State of the process that several threads, and the collector, change at any moment."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")


def members(weak: WeakSet[T]) -> list[T]:
    """Return what a weak set holds now, while other threads put in and take out.

    An iteration over the set itself runs Python for each member and raises where another thread
    changes the set meanwhile. The set of references inside is copied in one call of C.
    """
    held = weak.data.copy()  # type: ignore[attr-defined]
    return [one for reference in held if (one := reference()) is not None]


_locks: WeakSet[Any] = WeakSet()


def new_lock() -> threading.RLock:
    """Make a lock that a child process finds free, whichever thread held it at the fork.

    That thread does not run in the child, which would wait for it for ever. One may take the lock
    twice, since the collector may run code of ours while its own thread holds it.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in members(_locks):
        if not lock._is_owned():  # By the thread that forked, which runs in the child.
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_free_locks)


def once(function: Callable[[], T]) -> Callable[[], T]:
    """Have a function run once in the process; threads that call it meanwhile wait for its result.

    ``functools.cache`` alone runs it in each of them.

    Example:
        >>> from torchtap.core.shared_state import once
        >>> @once
        ... def setting():
        ...     print("read")
        ...     return 3
        >>> setting() + setting()
        read
        6
    """
    lock, cached = new_lock(), functools.cache(function)

    @functools.wraps(function)
    def call() -> T:
        with lock:
            return cached()

    return call
