"""State of the process that several threads, and the collector, change at any moment."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


def members(weak: WeakSet[T]) -> list[T]:
    """Return what a weak set holds now, while other threads put in and take out.

    An iteration over the set itself runs Python for each member and raises where another thread
    changes the set meanwhile. The set of references inside is copied in one call of C.
    """
    held = weak.data.copy()  # type: ignore[attr-defined]
    return [one for reference in held if (one := reference()) is not None]


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
    lock, cached = threading.RLock(), functools.cache(function)

    @functools.wraps(function)
    def call() -> T:
        with lock:
            return cached()

    return call
