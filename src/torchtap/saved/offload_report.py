"""Report the effect of offloading by module: counted while it runs, read at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchtap.core.outline import outline
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Page
from torchtap.core.text import NONE, count, plural, size


class ModuleCounters:
    """Counters of one module.

    Attributes:
        seen: bytes that were saved.
        count: tensors that were saved.
        kept: reason -> bytes that stayed.
        packed: bytes that were taken in hand.
        shared: bytes that were taken in hand before.
    """

    __slots__ = ("count", "kept", "packed", "seen", "shared")

    def __init__(self, kept: Counter[str]) -> None:
        self.count = self.seen = self.packed = self.shared = 0
        self.kept = kept


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


@dataclass(frozen=True, slots=True, repr=False)
class OffloadReport(Printed):
    """The gain and the cost of offloading. Printing it shows it.

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
        """Return all in one line, for a progress display."""
        return show_line(self)

    def _page(self) -> Page:
        return show_offload(self)


MOST_ROWS = 40
_HEADERS = ("module", "saved", "bytes", "packed", "shared", "kept", "why kept")


def show_offload(report: OffloadReport) -> Page:
    """Return one line per module, totals below."""
    rows = [row for row in report.rows if row.count]
    notes = [Line(f"Note: {note}.", rest="  ") for note in report.notes]
    if not rows:
        return Page(Line("Nothing was saved for backward while offloading was on."), *notes)
    cells = [
        (
            label,
            count(row.count),
            size(row.seen),
            size(row.packed) if row.packed else NONE,
            size(row.shared) if row.shared else NONE,
            size(sum(row.kept.values())) if row.kept else NONE,
            ", ".join(row.kept),
        )
        for label, row in zip(labels_of([row.path for row in rows]), rows, strict=True)
    ]
    table = Grid(cells, _HEADERS, "lrrrrrl", elastic={0: 16, 6: 12}, limit=MOST_ROWS, noun="module")
    return Page(table, BLANK, Grid(_totals(report)), *notes)


def _totals(report: OffloadReport) -> list[tuple[str, str]]:
    kept = ", ".join(f"{size(nbytes)} {why}" for why, nbytes in report.kept_nbytes.items())
    twice = f", of which {size(report.shared_nbytes)} twice" if report.shared_nbytes else ""
    totals = [("Saved", f"{size(report.seen_nbytes)}{twice}"), ("Kept", kept or "nothing")]
    if not report.packed_nbytes:
        return [*totals, ("Moved", "nothing")]
    ahead, waited = count(report.num_ahead), count(report.num_waited)
    back = f"; {ahead} were there when asked for, {waited} were waited for"
    small = f", where they take {size(report.small_nbytes)}" if report.moved_nbytes else ""
    slower = "" if math.isnan(report.slow_down) else f": {report.slow_down:.2f}x"
    return [
        *totals,
        ("Moved", f"{_moved(report, 'nothing')}{small}"),
        ("Fetched", f"{size(report.fetched_nbytes)}{back if report.fetched_nbytes else ''}"),
        ("Peak", f"{size(report.peak_nbytes)} in memory; plain {size(report.plain_peak_nbytes)}"),
        (
            "Time",
            f"{report.blocked_seconds:.3f} s waited{_threads(report)} in "
            f"{report.step_seconds:.3f} s{slower}",
        ),
    ]


def _moved(report: OffloadReport, none: str) -> str:
    moved = [f"{size(nbytes)} to {name}" for name, nbytes in report.moved_nbytes.items()]
    return ", ".join(moved) or none


def _threads(report: OffloadReport) -> str:
    """Several threads can wait for more than the time that passes."""
    is_more = report.blocked_seconds > report.step_seconds > 0
    return ", all threads together," if is_more else ""


def show_line(report: OffloadReport) -> str:
    """Return all in one line."""
    if report.packed_nbytes:
        peak = f", peak {size(report.peak_nbytes)} of {size(report.plain_peak_nbytes)}"
    else:
        peak = ""
    share = report.blocked_seconds / report.step_seconds if report.step_seconds else 0.0
    waited = f"{share:.0%}" if share <= 1 else f"{report.blocked_seconds:.3f} s{_threads(report)}"
    notes = f"; {plural(len(report.notes), 'note')} in the report" if report.notes else ""
    return (
        f"offload: {size(report.seen_nbytes)} saved, {_moved(report, 'nothing moved')}{peak}, "
        f"waited {waited.rstrip(',')}{notes}"
    )


def labels_of(paths: Sequence[str]) -> list[str]:
    """Return paths of modules as an outline."""
    return outline(["" if path == "." else path for path in paths])


def show_gradients(errors: Mapping[str, float], *, packed_nbytes: int) -> Page:
    """Return a page with the largest errors, the worst first."""
    worst = sorted(errors.items(), key=lambda item: -item[1])[:20]
    exact = sum(error == 0 for error in errors.values())
    head = f"Gradients of {len(errors)} parameters: {exact} equal to the bit"
    if not packed_nbytes:
        head += "; but nothing was offloaded, so this proves nothing"
    rows = [(name, f"{error:.2e}") for name, error in worst if error]
    return Page(Line(head), Grid(rows, indent="  "))
