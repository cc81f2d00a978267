"""The journal: an Arrow stream whose batches are the commits of an attempt. Needs pyarrow.

A batch has one row for each value, and beside the columns, as JSON, what is known of the commit.
What no whole batch names was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index import (
    CODED,
    DTYPES,
    Index,
    Tables,
    number_of,
    parse_dtype,
    parse_file,
    parse_labels,
    parse_shape,
)
from torchtap.runs.store.owner import owned
from torchtap.runs.store.site_text import site_of
from torchtap.runs.store.streams import Damage, Found, StreamWriter, read_stream

SCHEMA = pa.schema(
    [
        pa.field("site", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("call", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("backward", pa.int32(), nullable=False),
        pa.field("labels", pa.string(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("crc32", pa.uint32(), nullable=False),
    ]
)


class Entry(NamedTuple):
    """One value, and where its bytes are.

    Attributes:
        site: as text.
        step: the user's counter.
        call: within the step.
        phase: of the call.
        backward: which backward of the step, -1 for forward values.
        labels: as JSON.
        dtype: of the value, without ``torch.``.
        shape: as JSON.
        file: in which it stands.
        row: along dim 0 of the tensor in that file; of small values, which of its batch.
        offset: in bytes from the start of the file.
        nbytes: of the value.
        crc32: of its bytes.
    """

    site: str
    step: int
    call: int
    phase: str
    backward: int
    labels: str
    dtype: str
    shape: str
    file: str
    row: int
    offset: int
    nbytes: int
    crc32: int


class JournalWriter:
    """Appends commits.

    Args:
        path: of the journal, which it makes.
        owner: the number of the attempt that no other has.
    """

    def __init__(self, path: Path, owner: str = "") -> None:
        self.stream = StreamWriter(path, owned(SCHEMA, owner))
        self._info_bytes = 0

    def append(self, entries: Sequence[Entry], commit: Commit) -> None:
        """Write one commit; it holds as soon as this returns."""
        info = commit.as_json()
        self.stream.append(batch_of(entries, SCHEMA), info)
        self._info_bytes += len(info)

    @property
    def nbytes(self) -> int:
        """Its bytes, and those of what stands beside its batches, which the index repeats."""
        return self.stream.end + self._info_bytes


def batch_of(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """Rows as a batch, without ``pa.array()``, whose first call imports pandas (0.15 s)."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        texts_of(column, one.type)
        if pa.types.is_string(one.type) or pa.types.is_large_binary(one.type)
        else _numbers(column, one.type)
        for column, one in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(column: Sequence[Any], kind: Any) -> Any:
    values = np.array(column, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def texts_of(column: Sequence[Any], kind: Any) -> Any:
    """Texts or bytes as an array."""
    is_text = pa.types.is_string(kind)
    parts = [one.encode() for one in column] if is_text else column
    ends = np.zeros(len(parts) + 1, dtype=np.int32 if is_text else np.int64)
    np.cumsum([len(one) for one in parts], out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(kind, len(parts), buffers)


def read_journal(path: Path, start: int = 0) -> Iterator[Found | Damage]:
    """The commits of a journal from a place on, and what is damaged."""
    return read_stream(path, SCHEMA, start)


# ---------------------------------------------------------------------- as columns

_PARSERS: dict[str, Callable[[str], Any]] = {
    "site": site_of,
    "labels": parse_labels,
    "shape": parse_shape,
    "file": parse_file,
    "dtype": parse_dtype,
    "phase": str,
}


def index_of(batches: Sequence[Any]) -> Index:
    """The values of some commits as columns of numbers.

    Raises:
        RunError: a text means nothing.
    """
    if not batches:
        return Index.empty()
    table = pa.Table.from_batches(batches)
    tables, columns = Tables(), {}
    for name in DTYPES:
        whole = table.column(name).combine_chunks()
        if name not in CODED:
            columns[name] = _as_numpy(whole).astype(DTYPES[name])
            continue
        coded = whole.dictionary_encode()
        entries = getattr(tables, name)
        known = {entry: number for number, entry in enumerate(entries)}
        texts = coded.dictionary.to_pylist()
        codes = [number_of(_PARSERS[name](text), known, entries) for text in texts]
        columns[name] = np.array(codes, dtype=DTYPES[name])[_as_numpy(coded.indices)]
    return Index(columns, tables)


def _as_numpy(array: Any) -> NDArray[Any]:
    """Whole numbers, none of which is missing, without ``to_numpy``, which imports pandas too."""
    kind = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.zeros(0, dtype=kind)
    found: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=kind)
    return found[array.offset : array.offset + len(array)]
