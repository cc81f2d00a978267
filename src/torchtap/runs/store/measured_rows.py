"""Rows of statistics in the stream of an attempt, as they are read. Knows nothing of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtap.runs.store.layout import JOURNAL, SEALED_STATISTICS, STATISTICS

Rows = NDArray[np.float64]

COLUMNS = (
    *("numel", "num_finite", "mean", "m2", "l1", "sum_squares", "min", "max", "zeros", "nan"),
    *("posinf", "neginf", "subnormal", "num_tensors", "num_counted", "least_bin"),
)
"""The 16 numbers of a row, as ``Statistics`` has them; the last two are the kernel's own."""
DERIVED = ("std", "rms", "l2", "absmax")


def schema_of(*, is_sealed: bool) -> Any:
    """The columns of the stream, or of the table that a closed attempt has."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string()) if is_sealed else pa.string()
    names = (*COLUMNS, *DERIVED) if is_sealed else COLUMNS
    return pa.schema(
        [
            pa.field("site", text, nullable=False),
            pa.field("step", pa.int64(), nullable=False),
            pa.field("phase", text, nullable=False),
            *(pa.field(name, pa.float64(), nullable=False) for name in names),
        ]
    )


class Span(NamedTuple):
    """The first and the last of some steps."""

    first: int
    last: int


def span_of(steps: Sequence[int]) -> Span | None:
    """The span of some steps, if there are any."""
    return Span(min(steps), max(steps)) if steps else None


def together(one: Span | None, two: Span | None) -> Span | None:
    """The span of two."""
    if one is None or two is None:
        return one or two
    return Span(min(one.first, two.first), max(one.last, two.last))


def look_through(folder: Path) -> tuple[Span | None, list[str]]:
    """The steps of which an attempt has rows, and what of them is damaged; keeps no row."""
    from torchtap.runs.store.streams import Damage, read_stream

    if _is_misplaced(folder):
        return None, [_MISPLACED]
    span, damaged = None, []
    try:
        for one in read_stream(folder / STATISTICS, schema_of(is_sealed=False)):
            if isinstance(one, Damage):
                damaged.append(said_damage(one))
            else:
                span = together(span, span_of(one.batch.column("step").to_pylist()))
    except FileNotFoundError:
        return None, []
    return span, damaged


def measured_steps(folder: Path) -> list[int]:
    """The steps of which an attempt has rows; of what is damaged those that can be read."""
    import pyarrow as pa
    import pyarrow.parquet

    found: set[int] = set()
    with suppress(OSError, pa.ArrowException), (folder / SEALED_STATISTICS).open("rb") as stream:
        for batch in pyarrow.parquet.ParquetFile(stream).iter_batches(columns=["step"]):
            found.update(batch.column("step").unique().to_pylist())
    if found:
        return sorted(found)
    from torchtap.runs.store.streams import Damage, read_stream

    with suppress(FileNotFoundError):
        for one in read_stream(folder / STATISTICS, schema_of(is_sealed=False)):
            if not isinstance(one, Damage):
                found.update(one.batch.column("step").unique().to_pylist())
    return sorted(found)


_MISPLACED = (
    f"{STATISTICS} and {JOURNAL} are of different attempts: the journal is believed, and the "
    f"statistics are lost"
)


def _is_misplaced(folder: Path) -> bool:
    """Return whether the rows are of another attempt than the journal."""
    from torchtap.runs.store.owner import are_of_one, owner_of

    return not are_of_one(owner_of(folder / STATISTICS), owner_of(folder / JOURNAL))


def said_damage(one: Any) -> str:
    """Bytes that are no rows."""
    return (
        f"{STATISTICS} is damaged from byte {one.start:,} to {one.end:,}: the statistics that "
        f"stood there are lost"
    )


class RowsReader:
    """The rows that an attempt has written so far.

    Args:
        folder: of the attempt.

    Attributes:
        span: the steps that it has, if any.
        lost: what cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.span: Span | None = None
        self.lost: list[str] = []
        self._path = folder / STATISTICS
        self._end = 0
        self._limit = 0
        self.look()
        self._rows: dict[tuple[str, str], dict[int, Rows]] = {}
        self._sites: dict[tuple[str, str], Sequence[Any]] = {}

    def look(self) -> None:
        """See how far the file goes now; what comes later is not read until the next look.

        Statistics are written after the values of their step. A reader that looks here before it
        reads the journal has the values of every step of which it has statistics.
        """
        try:
            self._limit = self._path.stat().st_size
        except FileNotFoundError:
            self._limit = 0

    def refresh(self) -> bool:
        """Read what was written up to the last look; whether there was anything new."""
        if self._limit <= self._end or self.lost == [_MISPLACED]:
            return False
        if not self._end and _is_misplaced(self._path.parent):
            self.lost = [_MISPLACED]
            return False
        from torchtap.runs.store.streams import Damage, read_stream

        is_news = False
        for one in read_stream(self._path, schema_of(is_sealed=False), self._end, self._limit):
            if isinstance(one, Damage):  # At the end it is what a crash leaves.
                self.lost += [] if one.is_tail else [said_damage(one)]
                continue
            self._take(one.batch, json.loads(one.info)["sites"])
            self._end, is_news = one.end, True
        return is_news

    def rows(self, phase: str) -> dict[str, tuple[Sequence[Any], dict[int, Rows]]]:
        """Site -> what is known of it, and its row in each step."""
        return {
            site: (self._sites[phase, site], rows)
            for (one, site), rows in self._rows.items()
            if one == phase
        }

    def _take(self, batch: Any, sites: Mapping[str, Sequence[Any]]) -> None:
        rows = np.stack([batch.column(name).to_numpy() for name in COLUMNS], axis=1)
        keys = (batch.column(name).to_pylist() for name in ("phase", "site", "step"))
        for phase, site, step, row in zip(*keys, rows, strict=True):
            self._rows.setdefault((phase, site), {})[step] = row
            self._sites[phase, site] = sites[site]
        self.span = together(self.span, span_of(batch.column("step").to_pylist()))
