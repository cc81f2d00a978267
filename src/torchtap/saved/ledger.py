"""The counters of a running offload: bytes by state, bytes by module, and times."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from torchtap.saved.offload_report import ModuleCounters, OffloadReport, OffloadRow
from torchtap.saved.saved_block import EVICTED, EVICTING, PREFETCHED, RESIDENT, SavedBlock


class Totals:
    """Bytes in each state, and the step.

    Attributes:
        resident: bytes of the blocks in that state, as ``evicting``, ``evicted``, ``prefetched``.
        peak: most bytes in memory.
        plain_peak: the same, had none left.
        stored: bytes that the evicted took in their tiers.
        fetched: bytes that came back.
        num_prefetched: fetches that had been made when they were asked for.
        num_waited: fetches that were waited for.
        is_step_over: backward has asked for a block since one was packed.
    """

    __slots__ = (
        "evicted",
        "evicting",
        "fetched",
        "is_step_over",
        "num_prefetched",
        "num_waited",
        "peak",
        "plain_peak",
        "prefetched",
        "resident",
        "stored",
    )

    def __init__(self) -> None:
        self.resident = self.evicting = self.evicted = self.prefetched = 0
        self.peak = self.plain_peak = self.stored = self.fetched = 0
        self.num_prefetched = self.num_waited = 0
        self.is_step_over = False

    def add(self, state: str, nbytes: int) -> None:
        """Add bytes to a state."""
        setattr(self, state, getattr(self, state) + nbytes)

    def move(self, block: SavedBlock, to: str) -> None:
        """Put a block into another state."""
        self.add(block.state, -block.layout.nbytes)
        self.add(to, block.layout.nbytes)
        block.state = to
        # The only move that adds to memory; all others leave it or take from it.
        if to is PREFETCHED:
            self.note_peaks()

    def note_peaks(self) -> None:
        """Note how much there is, if it was never more."""
        in_memory = self.resident + self.evicting + self.prefetched
        self.peak = max(self.peak, in_memory)
        # Without offloading all of them would be in memory now.
        self.plain_peak = max(self.plain_peak, in_memory + self.evicted)


class Ledger:
    """Every byte that an offload moves is in one state; only this class changes which.

    Not thread-safe, except ``waits``: the engine calls it with its lock held.

    Args:
        tiers: their names.
        native: the binary that counts in the same objects, or ``None``.

    Attributes:
        modules: path -> counters of that module.
        totals: bytes of the blocks by state.
        move: puts a block into another state.
        moved: tier -> bytes that left.
        waits: seconds that threads waited for fetches. Threads append without the lock.
        blocked_seconds: time that the training waited for moves, fetches included.
    """

    def __init__(self, tiers: Iterable[str], native: Any) -> None:
        kind = native.ModuleCounters if native else ModuleCounters
        self.modules: defaultdict[str, ModuleCounters] = defaultdict(lambda: kind(Counter()))
        self.totals: Totals = native.Totals() if native else Totals()
        self.move = self.totals.move
        self.moved = dict.fromkeys(tiers, 0)
        self.waits: deque[float] = deque()
        self.blocked_seconds = 0.0
        self._step_seconds = 0.0
        self._step_start: float | None = None

    @property
    def nbytes(self) -> dict[str, int]:
        """Return state -> bytes of the blocks in it."""
        states = RESIDENT, EVICTING, EVICTED, PREFETCHED
        return {state: getattr(self.totals, state) for state in states}

    @property
    def in_memory(self) -> int:
        """Return bytes of saved tensors that take memory now."""
        totals = self.totals
        return totals.resident + totals.evicting + totals.prefetched

    def add(self, block: SavedBlock) -> None:
        """Count a new block."""
        self.totals.add(block.state, block.layout.nbytes)
        self.totals.note_peaks()

    def remove(self, state: str, nbytes: int) -> None:
        """Take off a block that was freed in this state."""
        self.totals.add(state, -nbytes)

    def evict(self, block: SavedBlock) -> None:
        """Count a block whose copy to a tier has ended."""
        assert block.tier is not None
        self.move(block, EVICTED)
        self.moved[block.tier.name] += block.layout.nbytes
        self.totals.stored += block.stored_nbytes

    def fetch(self, block: SavedBlock, *, was_prefetched: bool) -> None:
        """Count a block that backward needs and that is not resident."""
        self.totals.fetched += block.layout.nbytes
        if was_prefetched:
            self.totals.num_prefetched += 1
        else:
            self.totals.num_waited += 1

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
            moved_nbytes={name: nbytes for name, nbytes in self.moved.items() if nbytes},
            small_nbytes=self.totals.stored,
            fetched_nbytes=self.totals.fetched,
            peak_nbytes=self.totals.peak,
            plain_peak_nbytes=self.totals.plain_peak,
            num_ahead=self.totals.num_prefetched,
            num_waited=self.totals.num_waited,
            blocked_seconds=self.blocked_seconds,
            step_seconds=self._step_seconds or running,
            notes=tuple(notes),
        )
