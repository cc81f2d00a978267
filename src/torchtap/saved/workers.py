"""The threads that read and write slow tiers, and give freed memory back to the system.

The C library's heap keeps what offloading frees. Between the tensors that leave lie small things
that stay, and an aligned block of glibc does not fit into the hole that an equal one has left:
without help a process that offloads can be larger than one that does not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torchtap.saved.forks import forks
from torchtap.saved.tensor_layout import TensorLayout

NUM_THREADS = 2
_TRIM_EVERY = 32 << 20
"""Bytes freed after which the heap is asked to give back what is free in it."""


class Workers:
    """A small pool of threads, started when it is first needed.

    Attributes:
        is_open: whether optional work (prefetching, trimming the heap) is still accepted.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._freed_nbytes = 0

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``call(*args)`` in a thread of the pool."""
        # Threads do not survive a fork: a child process starts its own.
        if self._pool is None or self._pool[0] != forks.count:
            pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="torchtap-offload")
            self._pool = forks.count, pool
        return self._pool[1].submit(call, *args)

    def trim_heap(self, layout: TensorLayout) -> None:
        """Count a freed tensor; every :data:`_TRIM_EVERY` bytes, trim the heap of the C library."""
        self._freed_nbytes += layout.heap_nbytes
        if self._freed_nbytes > _TRIM_EVERY and can_give_back and self.is_open:
            self._freed_nbytes = 0
            self.submit(give_back)

    def finish(self) -> None:
        """Wait until all submitted work has ended; the next ``submit`` starts new threads."""
        if self._pool is not None and self._pool[0] == forks.count:
            self._pool[1].shutdown(wait=True)
        self._pool = None

    def close(self) -> None:
        """Let the threads end when their work is done, without waiting."""
        self.is_open = False
        if self._pool is not None and self._pool[0] == forks.count:
            # Backward may still fetch what was packed: work that was begun ends, and nobody waits
            # for it here.
            self._pool[1].shutdown(wait=False)
        self._pool = None


def _find_trim() -> Callable[[int], int] | None:
    try:
        # glibc has it, musl and macOS do not; PyTorch's CPU allocator is posix_memalign, whose
        # freed blocks stay in the heap of the process (c10/core/impl/alloc_cpu.cpp).
        trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # Windows has no such name for the process itself.
        return None
    return trim if os.name == "posix" else None


_trim = _find_trim()
can_give_back = _trim is not None
"""True where the C library knows how (glibc does)."""


def give_back() -> None:
    """Give pages that hold nothing to the system. Takes milliseconds, without the GIL."""
    if _trim is not None:
        _trim(0)
