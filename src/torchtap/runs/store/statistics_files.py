"""Measurements of ``tt.Stats`` on disk: rows while a run grows, all of them once it is closed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.record import EVAL, FORWARD
from torchtap.runs.contents import Contents
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.source import HeldSource
from torchtap.runs.store.checksum import crc32_of_file
from torchtap.runs.store.growing_rows import RowsReader, described
from torchtap.runs.store.layout import SEALED_STATISTICS, SERIES, SERIES_DAMAGED, STATISTICS
from torchtap.runs.store.measured_rows import schema_of
from torchtap.runs.store.site_text import site_text
from torchtap.stats.algebra import Rows
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.rows import M2, MAX, MIN, NUM_FINITE, NUM_TENSORS, ROW_WIDTH, SUM_SQUARES
from torchtap.stats.series import Series

if TYPE_CHECKING:
    from torchtap.runs.single_file.file_source import FileSource

EVERY = 50
"""Steps whose rows are written together, at most, while a run grows."""
_TOLD_AGAIN = 64
"""Batches after which all sites are described again: one that is damaged loses no more."""


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


def measured_in(series: Series, phase: str, steps: Sequence[int] | None = None) -> Measured:
    """Return the rows of a series in all steps, or in some."""
    with series.lock:
        every, rows = series.rows.as_array(steps)
        sites = {site_text(entry.site): described(entry) for entry in series.measured}
    return Measured(phase, every, rows, sites)


def phases_of(series: Series) -> list[tuple[str, Series]]:
    """Return the series of training forwards, and that of evaluation forwards if there were any."""
    evaluation = series.evaluation
    return [(FORWARD, series), *([] if evaluation is None else [(EVAL, evaluation)])]


# ---------------------------------------------------------------------- written


class StatisticsWriter:
    """Appends rows to the stream of an attempt, and closes it.

    Args:
        folder: of the attempt.
        owner: its number that no other has.
    """

    def __init__(self, folder: Path, owner: str = "") -> None:
        from torchtap.runs.store.owner import owned
        from torchtap.runs.store.streams import StreamWriter

        self._folder = folder
        schema = owned(schema_of(is_sealed=False), owner)
        self.stream = StreamWriter(folder / STATISTICS, schema)
        self._told: dict[str, dict[str, Sequence[Any]]] = {}
        self._num_batches = 0

    def append(self, measured: Measured) -> None:
        """Write the rows of some steps; sites are described where anything of them is new."""
        if self._num_batches % _TOLD_AGAIN == 0:
            self._told.clear()
        self._num_batches += 1
        told = self._told.setdefault(measured.phase, {})
        new = {site: one for site, one in measured.sites.items() if told.get(site) != one}
        told |= new
        info = json.dumps({"sites": new}).encode("ascii")
        self.stream.append(_batch(measured, is_sealed=False), info)


def seal(folder: Path, series: Series, meta: Meta) -> dict[str, dict[str, int]]:
    """Write all that was measured: as a table that any program reads, and as a run without values.

    Returns:
        bytes and checksum of both, as ``statistics`` and ``series``.
    """
    import pyarrow.parquet

    from torchtap.runs.single_file.write_run import save_run

    path = folder / SEALED_STATISTICS
    half = path.with_name(f".{path.name}.part")
    try:
        schema = schema_of(is_sealed=True)
        with pyarrow.parquet.ParquetWriter(half, schema, compression="zstd") as writer:
            for phase, one in phases_of(series):
                steps = one.steps
                for start in range(0, len(steps), EVERY):  # One row group; never all of them.
                    measured = measured_in(one, phase, steps[start : start + EVERY])
                    writer.write_batch(_batch(measured, is_sealed=True))
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    source = HeldSource(Records(), meta, series)
    save_run(Contents(source, source.records, series), folder / SERIES)
    return {"statistics": crc32_of_file(path), "series": crc32_of_file(folder / SERIES)}


def _batch(measured: Measured, *, is_sealed: bool) -> Any:
    """Return one row per step and site that was measured in it."""
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
    arrays += [_plain(pa.float64(), np.ascontiguousarray(column)) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(is_sealed=is_sealed))


def _derived(rows: Rows) -> list[Any]:
    """Compute std, rms, l2 and absmax of rows, as ``Statistics`` does."""
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
    """Code texts by numbers; in a stream, whose batches stand by themselves, write them out."""
    import pyarrow as pa

    from torchtap.runs.store.journal import texts_of

    if not is_sealed:
        return texts_of([texts[code] for code in codes.tolist()], pa.string())
    numbers = _plain(pa.int32(), np.ascontiguousarray(codes, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(numbers, texts_of(texts, pa.string()))


# ---------------------------------------------------------------------- read


def read_sealed(folder: Path, expected: Any, own: Sequence[Statistic] = ()) -> FileSource | None:
    """Read all that was measured, of a closed attempt; ``None`` if it is not as written.

    Args:
        folder: of the attempt.
        expected: the checksum that the writer says its file has.
        own: user-defined statistics, needed to unpack their saved states.
    """
    from torchtap.runs.single_file.file_source import FileSource

    path = folder / SERIES
    try:
        if crc32_of_file(path) != expected:
            return None
        return FileSource(path, verify=False, own=own)  # All of its bytes were just compared.
    except (OSError, RunError):
        return None


class MeasuredReader:
    """Reader of the measurements of one attempt: all of them once that is closed, rows before.

    Args:
        folder: of the attempt.
        own: user-defined statistics, needed to unpack their saved states.

    Attributes:
        rows: those that were written so far.
        sealed: all of it, once the attempt is closed.
        unwritten: states of further statistics that could not be written.
        lost: what cannot be read.
    """

    def __init__(self, folder: Path, own: Sequence[Statistic] = ()) -> None:
        self.rows = RowsReader(folder)
        self.sealed: Series | None = None
        self.unwritten: Sequence[Absence] = ()
        self.lost: list[str] = []
        self._folder = folder
        self._own = own

    def refresh(self, facts: Mapping[str, Any]) -> bool:
        """Read what was written since the last time; whether there was anything.

        Args:
            facts: what the writer says of the attempt.
        """
        if self.sealed is not None:
            return False
        expected = facts.get("series")
        if expected is not None and not self.lost:
            source = read_sealed(self._folder, expected, self._own)
            if source is not None:
                self.sealed, self.unwritten = source.series, source.absent
                return True
            self.lost.append(SERIES_DAMAGED)
        return self.rows.refresh()
