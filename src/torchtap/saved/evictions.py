"""Copies blocks to the tiers, and frees their memory when that is done."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch

from torchtap.saved.copy_streams import event_on
from torchtap.saved.ledger import Ledger
from torchtap.saved.saved_block import (
    EVICTING,
    RESIDENT,
    SavedBlock,
    free_memory,
    is_overwritten,
    put,
)
from torchtap.saved.tier_chain import TierChain
from torchtap.saved.tiers import Tier
from torchtap.saved.workers import Workers


class Evictions:
    """The blocks that are on their way from memory to a tier.

    Not thread-safe: the engine calls it with its lock held, which the threads that write take too.

    Args:
        chain: chooses the tier of a block.
        ledger: counts the bytes.
        workers: write to slow tiers.
        lock: of the engine.

    Attributes:
        copying: those whose copy a device makes, in the order in which the copies began and end.
    """

    def __init__(
        self, chain: TierChain, ledger: Ledger, workers: Workers, lock: threading.RLock
    ) -> None:
        self.copying: deque[SavedBlock] = deque()
        self._chain = chain
        self._ledger = ledger
        self._workers = workers
        self._writing: set[SavedBlock] = set()
        self._use_lock(lock)

    def _use_lock(self, lock: threading.RLock) -> None:
        self._lock = lock
        # On the engine's lock, so that waiting releases it to the threads that write.
        self._written = threading.Condition(lock)

    def after_fork(self, lock: threading.RLock) -> None:
        """No thread ends what was begun: what it was to write stays in memory.

        Args:
            lock: in place of the one that no thread may release.
        """
        self._use_lock(lock)
        # What a thread of the parent was writing is half in a file that is the parent's.
        for block in self._writing:
            if block.state == EVICTING:
                self._ledger.move(block, RESIDENT)
        self._writing.clear()

    def begin(self, block: SavedBlock) -> None:
        """Begin to copy a block to a tier; without one that has space for it, it stays."""
        layout = block.layout
        tier = self._chain.claim(layout)
        if tier is None:
            return
        if tier.is_slow and not layout.is_small:
            self._ledger.move(block, EVICTING)
            self._writing.add(block)
            self._workers.submit(self._write, block, tier, event_on(layout.device))
            return
        start = time.perf_counter()
        try:
            ticket = put(block, tier)
        except BaseException as error:
            if self.fail(block, tier, error):
                raise
        else:
            if ticket is None:
                self._end(block)
            else:
                block.ticket = ticket
                self._ledger.move(block, EVICTING)
                self.copying.append(block)
        self._ledger.blocked_seconds += time.perf_counter() - start

    def _write(self, block: SavedBlock, tier: Tier, ready: torch.cuda.Event | None) -> None:
        """Copy a block to a slow tier. Runs in a thread of the workers."""
        try:
            # The device may not have computed the tensor yet when its eviction was asked for.
            if ready is not None:
                ready.synchronize()
            put(block, tier)
        except BaseException as error:
            with self._lock:
                goes_on = self.fail(block, tier, error)
            if goes_on:
                raise
        else:
            with self._lock:
                self._end(block)
        finally:
            with self._lock:
                self._writing.discard(block)
                self._written.notify_all()

    def _end(self, block: SavedBlock) -> None:
        """Free the memory of a block that was copied, unless it was overwritten meanwhile."""
        block.ticket = None
        if is_overwritten(block):
            self._ledger.move(block, RESIDENT)  # Its unpack raises autograd's error.
            return
        self._ledger.evict(block)
        free_memory(block)
        self._workers.count_freed(block.layout.heap_nbytes)

    def fail(self, block: SavedBlock, tier: Tier, error: BaseException) -> bool:
        """Keep a block resident that its tier did not take; says whether the error is to go on."""
        self._chain.failed(tier, block.layout, error)
        self._ledger.move(block, RESIDENT)
        return not (tier.is_slow and isinstance(error, OSError))

    def settle(self) -> None:
        """Free the memory of the blocks whose copies have ended."""
        # In order: copies on one stream end in the order in which they began.
        while self.copying and self.copying[0].ticket.is_done():  # type: ignore[union-attr]
            self._end(self.copying.popleft())

    def wait(self) -> None:
        """Wait until one block has been copied; :meth:`settle` frees its memory."""
        if self.copying:
            ticket = self.copying[0].ticket
            assert ticket is not None
            ticket.wait()
        else:
            # With a timeout, since a worker that was interrupted notifies nobody, and Python
            # handles signals between waits.
            self._written.wait(timeout=1.0)
