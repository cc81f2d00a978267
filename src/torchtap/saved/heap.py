"""The C library's heap, which keeps what offloading frees.

Between the tensors that leave lie small things that stay, and an aligned block of glibc does not
fit into the hole that an equal one has left: without help a process that offloads can be larger
than one that does not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

EVERY = 32 << 20
"""Bytes freed after which the heap is asked to give back what is free in it."""


def _find() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # Windows has no such name for the process itself.
        return None
    return found if os.name == "posix" else None


_trim = _find()
can_give_back = _trim is not None
"""True where the C library knows how (glibc does)."""


def give_back() -> None:
    """Give pages that hold nothing to the system. Takes milliseconds, without the GIL."""
    if _trim is not None:
        _trim(0)
