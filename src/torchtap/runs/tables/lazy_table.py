"""Statistics as a table of Arrow of which a query reads the columns it needs. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from torchtap.runs.store.journal import texts_of
from torchtap.runs.tables.statistics_columns import NAMES, StatisticsColumns
from torchtap.stats.row_columns import FLOATS, Column

_TEXT = pa.dictionary(pa.int32(), pa.string())
_ROW = "row"


class LazyTable(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """Columns that are made when duckdb scans them.

    duckdb takes a data set of Arrow and asks its ``scanner`` for columns and rows; this is one of
    which nothing else is there.

    Args:
        columns: what is in it.
    """

    def __init__(self, columns: StatisticsColumns) -> None:
        self._columns = columns

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        return pa.schema([(name, _kind(name)) for name in NAMES])

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        **how: Any,
    ) -> Any:
        """Return some columns of some rows.

        Args:
            columns: names; all by default.
            filter: an expression over columns.
            how: how a data set in files would be read.
        """
        names = list(NAMES if columns is None else columns)
        rows = None if filter is None else self._rows(filter)
        arrays = {name: self._column(name, rows) for name in names}
        schema = pa.schema([(name, _kind(name)) for name in names])
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)
        return pyarrow.dataset.Scanner.from_batches([batch], schema=schema)

    def _rows(self, filter: Any) -> Any:
        """Return the rows that an expression is true of."""
        said = str(filter)
        arrays = {name: self._column(name, None) for name in NAMES if name in said}
        arrays[_ROW] = plain(np.arange(len(self._columns)))
        filtered = pyarrow.dataset.dataset(pa.table(arrays)).to_table(columns=[_ROW], filter=filter)
        parts = [chunk for chunk in filtered.column(_ROW).chunks if len(chunk)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *map(_as_numpy, parts)])

    def _column(self, name: str, rows: Any) -> Any:
        if name not in ("site", "dtype"):
            return plain(self._columns.column(name, rows))
        index = self._columns.index
        codes, texts = (index.site, index.names) if name == "site" else self._columns.dtypes
        chosen = codes if rows is None else codes[rows]
        return pa.DictionaryArray.from_arrays(plain(chosen), texts_of(texts, pa.string()))


def plain(values: Column) -> Any:
    """Numbers as an array, without ``pa.array()``, whose first call imports pandas (0.15 s)."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _as_numpy(array: Any) -> Column:
    column: Column = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return column[array.offset : array.offset + len(array)]


def _kind(name: str) -> Any:
    if name in ("site", "dtype"):
        return _TEXT
    return pa.float64() if name in FLOATS else pa.int64()
