"""The counters of a running offload: bytes by state, bytes by module, and times."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from torchtap.saved.offload_report import ModuleCounters, OffloadReport, OffloadRow
from torchtap.saved.saved_block import EVICTED, EVICTING, PREFETCHED, RESIDENT, SavedBlock


class Ledger:
    """Every byte that an offload moves is in one state; only this class changes which.

    Not thread-safe, except ``waits``: the engine calls it with its lock held.

    Attributes:
        modules: path -> counters of that module.
        nbytes: state -> bytes of the blocks in it.
        waits: seconds that threads waited for fetches. Threads append without the lock.
        blocked_seconds: time that the training waited for moves, fetches included.
    """

    def __init__(self, tiers: Iterable[str]) -> None:
        self.modules: defaultdict[str, ModuleCounters] = defaultdict(ModuleCounters)
        self.nbytes = dict.fromkeys((RESIDENT, EVICTING, EVICTED, PREFETCHED), 0)
        self.waits: deque[float] = deque()
        self.blocked_seconds = 0.0
        self._moved = dict.fromkeys(tiers, 0)
        self._stored = self._fetched = self._peak = self._plain_peak = 0
        self._num_prefetched = self._num_waited = 0
        self._step_seconds = 0.0
        self._step_start: float | None = None

    @property
    def in_memory(self) -> int:
        """Return bytes of saved tensors that take memory now."""
        nbytes = self.nbytes
        return nbytes[RESIDENT] + nbytes[EVICTING] + nbytes[PREFETCHED]

    def add(self, block: SavedBlock) -> None:
        """Count a new block."""
        self.nbytes[block.state] += block.layout.nbytes
        self._note_peaks()

    def move(self, block: SavedBlock, to: str) -> None:
        """Put a block into another state."""
        nbytes = block.layout.nbytes
        self.nbytes[block.state] -= nbytes
        self.nbytes[to] += nbytes
        block.state = to
        # The only move that adds to memory; all others leave it or take from it.
        if to is PREFETCHED:
            self._note_peaks()

    def remove(self, state: str, nbytes: int) -> None:
        """Take off a block that was freed in this state."""
        self.nbytes[state] -= nbytes

    def evict(self, block: SavedBlock) -> None:
        """Count a block whose copy to a tier has ended."""
        assert block.tier is not None
        self.move(block, EVICTED)
        self._moved[block.tier.name] += block.layout.nbytes
        self._stored += block.stored_nbytes

    def fetch(self, block: SavedBlock, *, was_prefetched: bool) -> None:
        """Count a block that backward needs and that is not resident."""
        self._fetched += block.layout.nbytes
        if was_prefetched:
            self._num_prefetched += 1
        else:
            self._num_waited += 1

    def begin_step(self) -> None:
        """End the step that runs, if any, and begin the next."""
        now = time.perf_counter()
        if self._step_start is not None:
            self._step_seconds += now - self._step_start
        self._step_start = now

    def settle(self) -> None:
        """Add up what threads have waited since."""
        while self.waits:
            self.blocked_seconds += self.waits.popleft()

    def report(self, notes: Sequence[str]) -> OffloadReport:
        """Return the counts so far."""
        self.settle()
        rows = [
            OffloadRow(path or ".", one.count, one.seen, dict(one.kept), one.packed, one.shared)
            for path, one in self.modules.items()
        ]
        kept: Counter[str] = Counter()
        for row in rows:
            kept.update(row.kept)
        running = 0.0 if self._step_start is None else time.perf_counter() - self._step_start
        return OffloadReport(
            rows=tuple(rows),
            seen_nbytes=sum(row.seen for row in rows),
            kept_nbytes=dict(kept),
            packed_nbytes=sum(row.packed for row in rows),
            shared_nbytes=sum(row.shared for row in rows),
            moved_nbytes={name: nbytes for name, nbytes in self._moved.items() if nbytes},
            small_nbytes=self._stored,
            fetched_nbytes=self._fetched,
            peak_nbytes=self._peak,
            plain_peak_nbytes=self._plain_peak,
            num_ahead=self._num_prefetched,
            num_waited=self._num_waited,
            blocked_seconds=self.blocked_seconds,
            step_seconds=self._step_seconds or running,
            notes=tuple(notes),
        )

    def _note_peaks(self) -> None:
        nbytes = self.nbytes
        in_memory = nbytes[RESIDENT] + nbytes[EVICTING] + nbytes[PREFETCHED]
        if in_memory > self._peak:
            self._peak = in_memory
        # Without offloading all of them would be in memory now.
        plain = in_memory + nbytes[EVICTED]
        if plain > self._plain_peak:
            self._plain_peak = plain
