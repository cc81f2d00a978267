"""Reads rows of statistics that an attempt goes on writing: what is new, and keeps none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.runs.store.layout import SEALED_STATISTICS, STATISTICS
from torchtap.runs.store.measured_rows import (
    COLUMNS,
    MISPLACED,
    Rows,
    is_misplaced,
    said_damage,
    schema_of,
)

_STEP = 1
"""The number of the column of steps in the table."""


class NewRows(NamedTuple):
    """Rows of one phase that were written together.

    Attributes:
        phase: ``forward`` or ``eval``.
        sites: text of each site that has a row here.
        described: site -> dtype, shape, bytes per element and notes, where that is new.
        steps: of each row, ``int64[rows]``.
        codes: which of ``sites`` each row is of, ``int64[rows]``.
        rows: ``float64[rows, 16]``.
    """

    phase: str
    sites: Sequence[str]
    described: Mapping[str, Sequence[Any]]
    steps: NDArray[np.int64]
    codes: NDArray[np.int64]
    rows: Rows


class RowsStream:
    """The stream of rows of an attempt, read from where it ended the last time.

    Args:
        folder: of the attempt.

    Attributes:
        lost: what cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.lost: list[str] = []
        self._path = folder / STATISTICS
        self._end = 0
        self._limit = 0
        self.look()

    def look(self) -> None:
        """See how far the file goes now; what comes later is not read until the next look.

        Statistics are written after the values of their step. A reader that looks here before it
        reads the journal has the values of every step of which it has statistics.
        """
        try:
            self._limit = self._path.stat().st_size
        except FileNotFoundError:
            self._limit = 0

    def read(self) -> Iterator[NewRows]:
        """Yield what was written up to the last look, and not read yet."""
        if self._limit <= self._end or self.lost == [MISPLACED]:
            return
        if not self._end and is_misplaced(self._path.parent):
            self.lost = [MISPLACED]
            return
        from torchtap.runs.store.streams import Damage, read_stream

        for one in read_stream(self._path, schema_of(is_sealed=False), self._end, self._limit):
            if isinstance(one, Damage):  # At the end it is what a crash leaves.
                self.lost += [] if one.is_tail else [said_damage(one)]
                continue
            self._end = one.end
            yield from _parts_of(one.batch, json.loads(one.info)["sites"])


def read_sealed_rows(folder: Path, after: int) -> Iterator[NewRows]:
    """Yield the rows of a closed attempt of the steps after one, from its table.

    Raises:
        RunError: the table is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    path = folder / SEALED_STATISTICS
    try:
        with path.open("rb") as stream:
            table = pyarrow.parquet.ParquetFile(stream)
            for number in range(table.num_row_groups):
                said = table.metadata.row_group(number).column(_STEP).statistics
                if said is not None and said.has_min_max and said.max <= after:
                    continue
                group = table.read_row_group(number, columns=["site", "step", "phase", *COLUMNS])
                group = group.filter(pa.compute.greater(group["step"], after))
                for batch in group.combine_chunks().to_batches():
                    yield from _parts_of(batch, {})
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error


def _parts_of(batch: Any, described: Mapping[str, Sequence[Any]]) -> Iterator[NewRows]:
    """Yield the rows of a batch, phase by phase: a batch has one in most cases."""
    rows = np.stack([batch.column(name).to_numpy() for name in COLUMNS], axis=1)
    steps = batch.column("step").to_numpy()
    phases, sites = _coded(batch.column("phase")), _coded(batch.column("site"))
    texts, codes = sites.dictionary.to_pylist(), sites.indices.to_numpy()
    for code, phase in enumerate(phases.dictionary.to_pylist()):
        own = phases.indices.to_numpy() == code
        if own.all():
            yield NewRows(phase, texts, described, steps, codes, rows)
        else:
            yield NewRows(phase, texts, described, steps[own], codes[own], rows[own])


def _coded(column: Any) -> Any:
    """Return a column of texts as numbers of texts; in a table it is one already."""
    return column if hasattr(column, "indices") else column.dictionary_encode()
