"""What ``tt.Stats`` measured, on disk: rows while it grows, all of it once it is closed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtap.core.errors import RunError
from torchtap.core.record import EVAL, FORWARD
from torchtap.runs.contents import Contents
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.store.checksum import crc32_of_file
from torchtap.runs.store.layout import SEALED_STATISTICS, SERIES, STATISTICS
from torchtap.runs.store.site_text import site_of, site_text
from torchtap.stats.series import Rows, Series
from torchtap.stats.statistics import (
    M2,
    MAX,
    MIN,
    NUM_FINITE,
    NUM_TENSORS,
    ROW_WIDTH,
    SUM_SQUARES,
    blank_rows,
)

COLUMNS = (
    *("numel", "num_finite", "mean", "m2", "l1", "sum_squares", "min", "max", "zeros", "nan"),
    *("posinf", "neginf", "subnormal", "num_tensors", "num_counted", "least_bin"),
)
"""The 16 numbers of a row, as ``Statistics`` has them; the last two are the kernel's own."""
DERIVED = ("std", "rms", "l2", "absmax")
EVERY = 50
"""Steps whose rows are written together."""
_NOT_CLOSED = (
    "the run was not closed, or began several times: of the numbers all steps are there; "
    "histograms, sums over samples and further statistics are not"
)


class Measured(NamedTuple):
    """Rows of some steps.

    Attributes:
        phase: ``forward`` or ``eval``.
        steps: which.
        rows: ``float64[steps, sites, 16]``.
        sites: dtype, shape, bytes per element and notes of each, by its text.
    """

    phase: str
    steps: list[int]
    rows: Rows
    sites: Mapping[str, Sequence[Any]]


def measured_since(series: Series, steps: Iterable[int]) -> list[Measured]:
    """The rows of a series, and of its evaluation forwards, but for those of some steps."""
    done = set(steps)
    found = []
    for phase, one in ((FORWARD, series), (EVAL, series.evaluation)):
        if one is None:
            continue
        with one.lock:
            every, rows = one.as_array(without=done)
            sites = {
                site_text(entry.site): [
                    entry.dtype,
                    None if entry.shape is None else list(entry.shape),
                    entry.itemsize,
                    list(entry.notes),
                ]
                for entry in one.measured
            }
        if every:
            found.append(Measured(phase, every, rows, sites))
    return found


# ---------------------------------------------------------------------- written


class StatisticsWriter:
    """Appends rows to the stream of an attempt, and closes it.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        from torchtap.runs.store.streams import StreamWriter

        self._folder = folder
        self.stream = StreamWriter(folder / STATISTICS, _schema(is_sealed=False))

    def append(self, measured: Measured) -> None:
        """Write the rows of some steps."""
        info = json.dumps({"sites": measured.sites}).encode("ascii")
        self.stream.append(_batch(measured, is_sealed=False), info)


def seal(folder: Path, series: Series, meta: Meta) -> dict[str, int]:
    """Write all that was measured: as a table for everybody, and as a run without values.

    Returns:
        bytes and checksum of the latter.
    """
    import pyarrow.parquet

    from torchtap.runs.file import save_run

    path = folder / SEALED_STATISTICS
    half = path.with_name(f".{path.name}.part")
    try:
        schema = _schema(is_sealed=True)
        with pyarrow.parquet.ParquetWriter(half, schema, compression="zstd") as writer:
            for measured in measured_since(series, ()):
                for part in _parts(measured):
                    writer.write_batch(_batch(part, is_sealed=True))
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    save_run(Contents(Records(), series, meta, tuple), Scalars(), folder / SERIES)
    return crc32_of_file(folder / SERIES)


def _parts(measured: Measured) -> Iterator[Measured]:
    """By so many steps as are one row group."""
    for start in range(0, len(measured.steps), EVERY):
        chosen = slice(start, start + EVERY)
        yield measured._replace(steps=measured.steps[chosen], rows=measured.rows[chosen])


def _schema(*, is_sealed: bool) -> Any:
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


def _batch(measured: Measured, *, is_sealed: bool) -> Any:
    """One row per step and site that was measured in it."""
    import pyarrow as pa

    at, place = np.nonzero(measured.rows[..., NUM_TENSORS])
    rows = measured.rows[at, place]
    columns = [rows[:, number] for number in range(ROW_WIDTH)]
    if is_sealed:
        columns += _derived(rows)
    steps = np.asarray(measured.steps, dtype=np.int64)[at]
    texts = [
        _coded(place, list(measured.sites), is_sealed=is_sealed),
        _coded(np.zeros(len(at), dtype=np.int32), [measured.phase], is_sealed=is_sealed),
    ]
    arrays = [texts[0], _plain(pa.int64(), steps), texts[1]]
    arrays += [_plain(pa.float64(), np.ascontiguousarray(one)) for one in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(is_sealed=is_sealed))


def _derived(rows: Rows) -> list[Any]:
    """What ``Statistics`` computes of a row: std, rms, l2 and absmax."""
    with np.errstate(divide="ignore", invalid="ignore"):
        finite = rows[:, NUM_FINITE]
        largest = np.maximum(abs(rows[:, MIN]), abs(rows[:, MAX]))
        return [
            np.sqrt(rows[:, M2] / finite),
            np.sqrt(rows[:, SUM_SQUARES] / finite),
            np.sqrt(rows[:, SUM_SQUARES]),
            np.where(finite > 0, largest, math.nan),
        ]


def _plain(kind: Any, values: Any) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _coded(codes: Any, texts: Sequence[str], *, is_sealed: bool) -> Any:
    """Texts by their numbers; in a stream, whose batches stand by themselves, written out."""
    import pyarrow as pa

    from torchtap.runs.store.journal import texts_of

    if not is_sealed:
        return texts_of([texts[code] for code in codes.tolist()], pa.string())
    numbers = _plain(pa.int32(), np.ascontiguousarray(codes, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(numbers, texts_of(texts, pa.string()))


# ---------------------------------------------------------------------- read


class RowsReader:
    """The rows that an attempt has written so far.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: Path) -> None:
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
        if self._limit <= self._end:
            return False
        from torchtap.runs.store.streams import Found, read_stream

        is_news = False
        for one in read_stream(self._path, _schema(is_sealed=False), self._end, self._limit):
            if isinstance(one, Found):
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


def read_sealed(folder: Path, expected: Any) -> Series | None:
    """All that was measured, of an attempt that was closed; ``None`` if it is not as written."""
    from torchtap.runs.file import read_run

    path = folder / SERIES
    try:
        if crc32_of_file(path) != expected:
            return None
        return read_run(path).series()
    except (OSError, RunError):
        return None


class MeasuredReader:
    """What was measured in one attempt: all of it once that is closed, and rows before.

    Args:
        folder: of the attempt.

    Attributes:
        rows: those that were written so far.
        sealed: all of it, once the attempt is closed.
        lost: what cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = RowsReader(folder)
        self.sealed: Series | None = None
        self.lost: list[str] = []
        self._folder = folder

    def refresh(self, facts: Mapping[str, Any]) -> bool:
        """Read what was written since the last time; whether there was anything.

        Args:
            facts: what the writer says of the attempt.
        """
        if self.sealed is not None:
            return False
        expected = facts.get("series")
        if expected is not None and not self.lost:
            self.sealed = read_sealed(self._folder, expected)
            if self.sealed is not None:
                return True
            self.lost.append(f"{SERIES} is damaged: of the statistics the numbers alone are there")
        return self.rows.refresh()


Known = Sequence[tuple["RowsReader | Series", int | None]]
"""What was measured in one attempt after the other, and the step before which it counts."""


def joined(parts: Known) -> Series:
    """The numbers of several attempts as one series, without what is kept of the last steps."""
    series = _joined(parts, FORWARD)
    evaluation = _joined(parts, EVAL)
    series.evaluation = evaluation if evaluation.sites else None
    return series


def _joined(parts: Known, phase: str) -> Series:
    series = Series(1)
    series.has_histograms = False
    by_step: dict[int, dict[int, Rows]] = {}
    for part, limit in parts:
        rows_of = part.rows(phase) if isinstance(part, RowsReader) else _rows_of(part, phase)
        for text, (known, rows) in rows_of.items():
            place = series.place_of(site_of(text))
            _describe(series, place, known)
            for step, row in rows.items():
                if limit is None or step < limit:
                    by_step.setdefault(step, {})[place] = row
    steps = sorted(by_step)
    whole = blank_rows(len(steps), len(series.measured))
    for number, step in enumerate(steps):
        for place, row in by_step[step].items():
            whole[number, place] = row
    series.restore(steps, whole, [False] * len(steps), lambda step: {}, lambda step, place: None)
    return series


def _rows_of(series: Series, phase: str) -> dict[str, tuple[Sequence[Any], dict[int, Rows]]]:
    found: dict[str, tuple[Sequence[Any], dict[int, Rows]]] = {}
    for measured in measured_since(series, ()):
        if measured.phase == phase:
            for place, (site, known) in enumerate(measured.sites.items()):
                column = measured.rows[:, place]
                own = zip(measured.steps, column, strict=True)
                found[site] = known, {step: row for step, row in own if row[NUM_TENSORS]}
    return found


def _describe(series: Series, place: int, known: Sequence[Any]) -> None:
    measured = series.measured[place]
    dtype, shape, itemsize, notes = known
    is_new = not measured.dtype
    dims = None if shape is None else tuple(shape)
    measured.dtype = dtype if is_new or measured.dtype == dtype else "mixed"
    measured.shape = dims if is_new or measured.shape == dims else None
    measured.itemsize = itemsize
    measured.note(notes)
    measured.why_no_mean = _NOT_CLOSED
