"""Gives memory that was freed back to the system.

The C library's heap keeps what offloading frees. Between the tensors that leave lie small things
that stay, and an aligned block of glibc does not fit into the hole that an equal one has left:
without help a process that offloads can be larger than one that does not.

A page that was given back costs a page fault when it is used again, and tensors of equal size use
each other's memory step by step. So the heap is trimmed only when it holds more unused memory than
it did after the last time.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

_WORTH = 16 << 20
"""Least unused bytes for which the heap is trimmed."""
_STATM = Path("/proc/self/statm")


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class _Heap:
    """The heap of the C library, in which PyTorch allocates tensors of the CPU.

    Attributes:
        can_give_back: true where the C library knows how (glibc does).
    """

    def __init__(self) -> None:
        self._trim = _c_function("malloc_trim")
        self._mallinfo = _c_function("mallinfo2")  # From glibc 2.33 on.
        if self._mallinfo is not None:
            self._mallinfo.restype = _Mallinfo
        self.can_give_back = self._trim is not None
        self._unused = -_WORTH

    def holds_unused(self) -> bool:
        """Return whether trimming it is worth its cost."""
        unused = self._unused_nbytes()
        if unused is None or unused - self._unused >= _WORTH:
            return True
        self._unused = min(self._unused, unused)
        return False

    def give_back(self) -> None:
        """Give pages that hold nothing to the system. Takes milliseconds, without the GIL."""
        if self._trim is not None:
            self._trim(0)
            self._unused = self._unused_nbytes() or -_WORTH

    def _unused_nbytes(self) -> int | None:
        """Return bytes of the process that no allocation of the heap uses, or ``None``.

        Code that was written to, stacks and Python's own arenas count too: only its growth tells.
        """
        if self._mallinfo is None or not _STATM.exists():
            return None
        _, resident, shared, *_ = map(int, _STATM.read_bytes().split())
        use = self._mallinfo()
        anonymous = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        return int(anonymous - use.uordblks - use.hblkhd)


def _c_function(name: str) -> Any:
    """Return a function of the C library, or ``None`` where it has none of that name."""
    try:
        # glibc has them, musl and macOS do not; PyTorch's CPU allocator is posix_memalign, whose
        # freed blocks stay in the heap of the process (c10/core/impl/alloc_cpu.cpp).
        found = getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # Windows has no such name for the process itself.
        return None
    return found if os.name == "posix" else None


heap = _Heap()
