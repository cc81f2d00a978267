"""What offloading did, module by module: counted while it runs, read at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class Tally:
    """Counters of one module.

    Attributes:
        seen: bytes that were saved.
        count: tensors that were saved.
        kept: reason -> bytes that stayed.
        packed: bytes that were taken in hand.
        shared: bytes that were taken in hand before.
    """

    __slots__ = ("count", "kept", "packed", "seen", "shared")

    def __init__(self) -> None:
        self.count = self.seen = self.packed = self.shared = 0
        self.kept: Counter[str] = Counter()


IN_HOST = "in host memory already"
"""Why a tensor stays that is where it was to go."""


@dataclass(frozen=True, slots=True)
class OffloadRow:
    """One module.

    Attributes:
        path: of the module; ``"."`` for what no attached module saved.
        count: saved tensors.
        seen: their bytes.
        kept: reason -> bytes that stayed where they were.
        packed: bytes taken in hand, each memory once.
        shared: bytes whose memory had been taken in hand before.
    """

    path: str
    count: int
    seen: int
    kept: Mapping[str, int]
    packed: int
    shared: int


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """What offloading gained and what it cost. Printing it shows it.

    Attributes:
        rows: one per module.
        seen_nbytes: bytes that were saved.
        kept_nbytes: reason -> bytes that stayed.
        packed_nbytes: bytes taken in hand, each memory once.
        shared_nbytes: bytes whose memory had been taken in hand before.
        moved_nbytes: where -> bytes that left.
        small_nbytes: bytes that they took there.
        fetched_nbytes: bytes that came back.
        peak_nbytes: most bytes of saved tensors in memory at one time: kept, leaving, fetched
            ahead.
        plain_peak_nbytes: the same, had nothing left.
        num_ahead: fetches that were there already when they were asked for.
        num_waited: fetches that had to be waited for.
        blocked_seconds: time that the training waited for moves.
        step_seconds: time of the steps in which that was.
        notes: what went another way than asked.
    """

    rows: tuple[OffloadRow, ...] = ()
    seen_nbytes: int = 0
    kept_nbytes: Mapping[str, int] = field(default_factory=dict)
    packed_nbytes: int = 0
    shared_nbytes: int = 0
    moved_nbytes: Mapping[str, int] = field(default_factory=dict)
    small_nbytes: int = 0
    fetched_nbytes: int = 0
    peak_nbytes: int = 0
    plain_peak_nbytes: int = 0
    num_ahead: int = 0
    num_waited: int = 0
    blocked_seconds: float = 0.0
    step_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def slow_down(self) -> float:
        """Time with the waiting, to time without; NaN before the first step has ended."""
        rest = self.step_seconds - self.blocked_seconds
        return self.step_seconds / rest if rest > 0 else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def line(self) -> str:
        """All in one line, for a progress display."""
        from torchtap.view.offload import show_line

        return show_line(self)

    def __repr__(self) -> str:
        from torchtap.view.offload import show_offload

        return show_offload(self)
