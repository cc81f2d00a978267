"""Rows of statistics in the stream of an attempt, and their steps. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the columns of the stream, or of the table that a closed attempt has."""
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
    """Return the span of some steps, if there are any."""
    return Span(min(steps), max(steps)) if steps else None


def together(one: Span | None, two: Span | None) -> Span | None:
    """Return the span of two."""
    if one is None or two is None:
        return one or two
    return Span(min(one.first, two.first), max(one.last, two.last))


def look_through(folder: Path) -> tuple[Span | None, list[str]]:
    """Return the steps of which an attempt has rows, and what of them is damaged; keeps no row."""
    from torchtap.runs.store.streams import Damage, read_stream

    if is_misplaced(folder):
        return None, [MISPLACED]
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
    """Return the steps of which an attempt has rows; of what is damaged those that can be read."""
    import pyarrow as pa
    import pyarrow.parquet

    steps: set[int] = set()
    with suppress(OSError, pa.ArrowException), (folder / SEALED_STATISTICS).open("rb") as stream:
        for batch in pyarrow.parquet.ParquetFile(stream).iter_batches(columns=["step"]):
            steps.update(batch.column("step").unique().to_pylist())
    if steps:
        return sorted(steps)
    from torchtap.runs.store.streams import Damage, read_stream

    with suppress(FileNotFoundError):
        for one in read_stream(folder / STATISTICS, schema_of(is_sealed=False)):
            if not isinstance(one, Damage):
                steps.update(one.batch.column("step").unique().to_pylist())
    return sorted(steps)


MISPLACED = (
    f"{STATISTICS} and {JOURNAL} are of different attempts: the journal is believed, and the "
    f"statistics are lost"
)


def is_misplaced(folder: Path) -> bool:
    """Return whether the rows are of another attempt than the journal."""
    from torchtap.runs.store.owner import are_of_one, owner_of

    return not are_of_one(owner_of(folder / STATISTICS), owner_of(folder / JOURNAL))


def said_damage(one: Any) -> str:
    """Bytes that are no rows."""
    return (
        f"{STATISTICS} is damaged from byte {one.start:,} to {one.end:,}: the statistics that "
        f"stood there are lost"
    )
