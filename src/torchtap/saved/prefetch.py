"""Fetches evicted blocks before backward asks for them."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import pairwise
from typing import Any

from torchtap.saved.ledger import Ledger
from torchtap.saved.saved_block import EVICTED, PREFETCHED, BlockRef, SavedBlock, fetch
from torchtap.saved.workers import Workers

NUM_PREFETCHED = 8
"""Most blocks that are prefetched at one time."""


class Prefetch:
    """Fetches what backward is expected to ask for next.

    That is the order of the step before, or else the reverse of the order of saving. A wrong guess
    costs memory and disk time, never a result: a block that was not prefetched is fetched when
    backward asks for it.

    Not thread-safe: the engine calls it with its lock held.

    Args:
        ledger: counts prefetched bytes.
        workers: read the slow tiers.
        max_bytes: limit on saved bytes in memory. One prefetched block takes at most half of what
            the limit leaves at that moment.
    """

    def __init__(self, ledger: Ledger, workers: Workers, max_bytes: int) -> None:
        self._ledger = ledger
        self._workers = workers
        self._max_bytes = max_bytes
        # Weak: a block holds what was prefetched of it, so that it is freed with the graph.
        self._prefetched: dict[int, weakref.ref[BlockRef]] = {}
        self._first = 0
        self._refs: list[weakref.ref[BlockRef]] = []
        self._order: deque[int] = deque(maxlen=1 << 16)
        self._after: dict[int, int] = {}
        self._position = -1

    def begin_step(self) -> None:
        """Forget the blocks of the step before; expect its order of requests again."""
        self.drop_all()
        # By place within the step, not by block: every step makes new blocks, in the same order.
        self._after = dict(pairwise(self._order))
        self._order.clear()
        self._first += len(self._refs)
        self._refs.clear()
        self._position = -1

    def add(self, block: SavedBlock, reference: weakref.ref[BlockRef]) -> None:
        """Number a new block."""
        block.number = self._first + len(self._refs)
        self._refs.append(reference)

    def note_request(self, block: SavedBlock, *, was_prefetched: bool) -> None:
        """Backward asks for a block."""
        position = block.number - self._first
        if position >= 0:
            self._order.append(position)
            if not was_prefetched:  # Otherwise prefetching is already past this block.
                self._position = position

    def start(self) -> None:
        """Begin to fetch the blocks that are expected next, as far as the limit allows."""
        if not self._workers.is_open:
            return
        prefetched, refs = self._prefetched, self._refs
        for _ in range(NUM_PREFETCHED):
            # In the first step there is no order to go by: backward asks for what was saved last.
            position = self._after.get(self._position, self._position - 1)
            if len(prefetched) >= NUM_PREFETCHED or not 0 <= position < len(refs):
                return
            ref = refs[position]()
            if ref is not None and ref.block.state == EVICTED and not self._fetch(ref):
                return
            self._position = position

    def _fetch(self, ref: BlockRef) -> bool:
        """Begin to fetch a block; says whether there was room."""
        block = ref.block
        # Half of what is left: one large block does not take the room of all that come after.
        if block.layout.nbytes > (self._max_bytes - self._ledger.in_memory) // 2:
            return False
        assert block.tier is not None
        # Copies from host memory and codecs only launch kernels; a thread would add its waking.
        is_slow = block.tier.is_slow
        block.prefetched = self._workers.submit(fetch, block) if is_slow else fetch(block)
        # The block holds the result, and the table only says which blocks have one.
        self._prefetched[block.number] = self._refs[block.number - self._first]
        self._ledger.move(block, PREFETCHED)
        return True

    def take_and_start(self, block: SavedBlock) -> Any:
        """Take a prefetched block that backward asks for, and begin to fetch the next."""
        found = self.take(block)
        self.note_request(block, was_prefetched=True)
        self.start()
        return found

    def take(self, block: SavedBlock) -> Any:
        """Take the prefetched content of a block: ``fetch()``'s result, or a future of it."""
        found, block.prefetched = block.prefetched, None
        del self._prefetched[block.number]
        self._ledger.move(block, EVICTED)
        return found

    def forget(self, number: int) -> None:
        """Forget a block that was freed while it was prefetched."""
        self._prefetched.pop(number, None)

    def drop_all(self) -> None:
        """Free all that was prefetched."""
        for reference in list(self._prefetched.values()):
            ref = reference()
            if ref is not None:
                self.take(ref.block)
