"""The threads that read and write slow tiers, and trim the heap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torchtap.saved.forks import forks
from torchtap.saved.heap import heap

NUM_THREADS = 2
_TRIM_EVERY = 32 << 20
"""Bytes freed after which the heap is asked to give back what is unused in it."""


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

    def count_freed(self, nbytes: int) -> None:
        """Count memory of the heap that was freed; every :data:`_TRIM_EVERY` bytes, trim it."""
        self._freed_nbytes += nbytes
        if self._freed_nbytes > _TRIM_EVERY and heap.can_give_back and self.is_open:
            self._freed_nbytes = 0
            if heap.holds_unused():
                self.submit(heap.give_back)

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
