"""The journal: an Arrow stream whose batches are the commits of an attempt. Needs pyarrow.

A batch has one row for each value, and beside the columns, as JSON, what is known of the commit.
A value that no whole batch names was never written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from torchtap.core.site import Site
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index import (
    CODED,
    DTYPES,
    EMPTY,
    Index,
    Tables,
    number_of,
    parse_dtype,
    parse_labels,
    parse_shape,
)
from torchtap.runs.store.layout import parse_file
from torchtap.runs.store.owner import owned
from torchtap.runs.store.site_text import site_of, site_text
from torchtap.runs.store.streams import (
    Damage,
    Found,
    StreamWriter,
    crc_of,
    parts_of,
    read_stream,
)

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

_MOST_TEMPLATES = 4
_KINDS = {
    **{name: (np.int64, pa.int64()) for name in ("step", "row", "offset")},
    "crc32": (np.uint32, pa.uint32()),
}
"""Columns that are others in each step, as numpy and as Arrow have them."""


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


Head = tuple[Site, int, str, int, tuple[str, ...], str, tuple[int, ...], str]
"""The parts of a value that are mostly the same in each step: site, call, phase, backward, labels,
dtype, shape and file."""


class Template:
    """Columns of the values of a step that are the same in each step like it.

    Args:
        heads: of the values.
        nbytes: of each.
    """

    def __init__(self, heads: Sequence[Head], nbytes: Sequence[int]) -> None:
        self.heads = list(heads)
        self.sizes = list(nbytes)
        self.nbytes = np.array(nbytes, dtype=np.int64)
        of_site = {head[0]: site_text(head[0]) for head in heads}
        known: dict[str, Any] = {
            "site": [of_site[head[0]] for head in heads],
            "call": [head[1] for head in heads],
            "phase": [head[2] for head in heads],
            "backward": [head[3] for head in heads],
            "labels": [json.dumps(head[4]) for head in heads],
            "dtype": [head[5] for head in heads],
            "shape": [json.dumps(head[6]) for head in heads],
            "file": [head[7] for head in heads],
            "nbytes": self.nbytes,
        }
        self.columns = {name: array_of(one, SCHEMA.field(name).type) for name, one in known.items()}
        self.parts = {name: parts_of(column) for name, column in self.columns.items()}
        # Offsets as Arrow's large binary has them: one more than there are values, the first of
        # them 0.
        self.ends = np.zeros(len(heads) + 1, dtype=np.int64)
        np.cumsum(self.nbytes, out=self.ends[1:])
        self.ends_buffer = pa.py_buffer(self.ends)
        self.starts = list(pairwise(self.ends.tolist()))
        self.rows = np.arange(len(heads))
        self.are_alike = len({head[5:7] for head in heads}) == 1

    def batch(self, schema: Any, numbers: Mapping[str, Any]) -> Any:
        """A batch with these columns, and others that are given as arrays."""
        columns = {**numbers, **self.columns}
        return pa.RecordBatch.from_arrays([columns[n] for n in _names_of(schema)], schema=schema)

    def parts_with(self, schema: Any, numbers: Mapping[str, Sequence[Any]]) -> list[Any]:
        """The bytes of the columns of that batch, one after the other; those of others given."""
        if not self.heads:
            return []
        # In the order of the schema, since the checksum of a batch goes over its columns in that
        # order.
        return [part for n in _names_of(schema) for part in (self.parts.get(n) or numbers[n])]


@cache
def _names_of(schema: Any) -> tuple[str, ...]:
    return tuple(schema.names)


class Templates:
    """The templates of the last kinds of steps."""

    def __init__(self) -> None:
        self._known: list[Template] = []

    def of(self, heads: list[Head], nbytes: Sequence[int]) -> Template:
        """The one of some values, which is new or not."""
        for number, one in enumerate(self._known):
            if one.heads == heads and one.sizes == nbytes:
                # A training that alternates (a generator, a discriminator) has few kinds of steps:
                # the last one used is looked at first.
                if number:
                    self._known.insert(0, self._known.pop(number))
                return one
        self._known = [Template(heads, nbytes), *self._known[: _MOST_TEMPLATES - 1]]
        return self._known[0]


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

    def add(self, template: Template, numbers: Mapping[str, Any], commit: Commit) -> None:
        """Make one commit ready to be written with others.

        Args:
            template: of its values.
            numbers: ``step``, ``row``, ``offset`` and ``crc32`` of each.
            commit: what else is known.
        """
        info = commit.as_json()
        columns = {name: np.asarray(one, dtype=_KINDS[name][0]) for name, one in numbers.items()}
        arrays = {
            # No validity bitmap: no number is missing.
            name: pa.Array.from_buffers(_KINDS[name][1], len(one), [None, pa.py_buffer(one)])
            for name, one in columns.items()
        }
        parts = template.parts_with(SCHEMA, {name: [one] for name, one in columns.items()})
        self.stream.add(template.batch(SCHEMA, arrays), info, crc_of([info, *parts]))
        self._info_bytes += len(info)

    @property
    def nbytes(self) -> int:
        """Its bytes, and those of what stands beside its batches, which the index repeats."""
        return self.stream.next + self._info_bytes


def batch_of(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """Rows as a batch, without ``pa.array()``, whose first call imports pandas (0.15 s)."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [array_of(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(column: Any, kind: Any) -> Any:
    """Texts, bytes or numbers as an array."""
    if pa.types.is_string(kind) or pa.types.is_large_binary(kind):
        return texts_of(column, kind)
    values = np.asarray(column, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def texts_of(column: Sequence[Any], kind: Any) -> Any:
    """Texts or bytes as an array."""
    is_text = pa.types.is_string(kind)
    parts = [one.encode() for one in column] if is_text else column
    ends = np.zeros(len(parts) + 1, dtype=np.int32 if is_text else np.int64)
    np.cumsum([len(part) for part in parts], out=ends[1:])
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
        return EMPTY
    table = pa.Table.from_batches(batches)
    tables, columns = Tables(), {}
    for name in DTYPES:
        whole = table.column(name).combine_chunks()
        if name not in CODED:
            columns[name] = _as_numpy(whole).astype(DTYPES[name])
            continue
        # Arrow tells the few distinct texts apart, so that each is parsed once.
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
    column: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=kind)
    # A slice shares the buffers of the whole array and says where in them it begins.
    return column[array.offset : array.offset + len(array)]
