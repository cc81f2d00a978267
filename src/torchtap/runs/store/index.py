"""Entries of a journal, as columns of numbers. Knows nothing of torch and of pyarrow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.core.record import PHASES
from torchtap.core.site import Site
from torchtap.runs.store.blocks import BlockColumn
from torchtap.runs.store.dtypes import STORED

Columns = Mapping[str, Any]
"""Arrays, or what computes their rows when they are asked for, as ``BlockColumn`` does."""
DTYPES: Mapping[str, Any] = {
    "step": np.int64,
    "offset": np.int64,
    "row": np.int64,
    "nbytes": np.int64,
    "site": np.int32,
    "call": np.int32,
    "backward": np.int32,
    "labels": np.int32,
    "shape": np.int32,
    "file": np.int32,
    "crc32": np.uint32,
    "dtype": np.int16,
    "phase": np.int8,
}
"""The columns, the widest first, so that each is aligned in a file that has one after the other."""
CODED = ("site", "labels", "shape", "file", "dtype", "phase")
"""Columns of numbers that stand for the entries of a table."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tables:
    """The entries that the numbers of an index stand for: entry by number, in each table.

    Attributes:
        site: the sites.
        labels: labels of a value.
        shape: shapes.
        file: names of files.
        dtype: names of dtypes of torch.
        phase: phases of a call; the first are those of :data:`~torchtap.core.record.PHASES`.
    """

    site: list[Site] = field(default_factory=list)
    labels: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    shape: list[tuple[int, ...]] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    dtype: list[str] = field(default_factory=list)
    phase: list[str] = field(default_factory=lambda: list(PHASES))

    def items(self) -> Iterator[tuple[str, list[Any]]]:
        """Name and entries of each."""
        for name in CODED:
            yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class Index:
    """The values of an attempt, or of several.

    Attributes:
        columns: by name, see :data:`DTYPES`, all of one length.
        tables: what their numbers stand for.
    """

    columns: Columns
    tables: Tables

    def __len__(self) -> int:
        return len(self.columns["step"])

    @staticmethod
    def from_values(columns: Mapping[str, Sequence[Any]]) -> Index:
        """Return the index of values whose sites, labels and so on are given as they are."""
        tables, found = Tables(), {}
        for name, column in columns.items():
            if name in CODED:
                entries = getattr(tables, name)
                known = {entry: number for number, entry in enumerate(entries)}
                column = [number_of(entry, known, entries) for entry in column]
            found[name] = np.array(column, dtype=DTYPES[name])
        return Index(found, tables)

    def only(self, chosen: NDArray[Any]) -> Index:
        """Some of its values, and of its sites those that they are of."""
        columns = {name: np.asarray(one)[chosen] for name, one in self.columns.items()}
        is_there = np.bincount(columns["site"], minlength=len(self.tables.site)) > 0
        # The new number of a site is how many of the sites before it stay.
        numbers = np.cumsum(is_there, dtype=np.int32) - 1
        columns["site"] = numbers[columns["site"]].astype(np.int32)
        sites = [site for site, one in zip(self.tables.site, is_there, strict=True) if one]
        return Index(columns, replace(self.tables, site=sites))

    def head(self, count: int) -> Index:
        """The first of its values; rows that are computed stay so."""
        sites = self.columns["site"]
        if not isinstance(sites, BlockColumn):
            return self.only(np.arange(len(self)) < count)
        columns = {
            name: one.head(count) if isinstance(one, BlockColumn) else one[:count]
            for name, one in self.columns.items()
        }
        # As in only(), on the rows that are kept: the repetitions are of the same sites.
        there = columns["site"].distinct()
        numbers = np.zeros(len(self.tables.site), dtype=np.int32)
        numbers[there] = np.arange(len(there))
        columns["site"] = columns["site"].recoded(numbers)
        names = [self.tables.site[number] for number in there.tolist()]
        return Index(columns, replace(self.tables, site=names))


EMPTY = Index({name: np.zeros(0, kind) for name, kind in DTYPES.items()}, Tables())
"""The index of no value."""


def joined_indices(parts: Sequence[Index]) -> Index:
    """The values of several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    tables = Tables()
    columns: dict[str, list[Any]] = {name: [] for name in DTYPES}
    known: dict[str, dict[Any, int]] = {
        name: {entry: number for number, entry in enumerate(entries)}
        for name, entries in tables.items()
    }
    for part in parts:
        for name, column in part.columns.items():
            if name in CODED:
                entries = getattr(part.tables, name)
                codes = [number_of(entry, known[name], getattr(tables, name)) for entry in entries]
                column = _recoded(column, np.array(codes, dtype=DTYPES[name]))
            columns[name].append(column)
    return Index({name: _chained(found) for name, found in columns.items()}, tables)


def _recoded(column: Any, codes: NDArray[Any]) -> Any:
    return column.recoded(codes) if isinstance(column, BlockColumn) else codes[column]


def _chained(columns: Sequence[Any]) -> Any:
    if not any(isinstance(column, BlockColumn) for column in columns):
        return np.concatenate(columns)
    parts = [
        column if isinstance(column, BlockColumn) else BlockColumn.of_rows(column)
        for column in columns
    ]
    return BlockColumn.chained(parts)


def number_of(entry: T, known: dict[T, int], entries: list[T]) -> int:
    """The number of an entry of a table, which is new or not."""
    number = known.setdefault(entry, len(entries))
    if number == len(entries):
        entries.append(entry)
    return number


# ---------------------------------------------------------------------- checked


def checked(index: Index, sizes: Mapping[str, int]) -> tuple[Index, dict[str, int]]:
    """The values that can be read, and how many of each file cannot.

    Args:
        index: of one attempt; what it says is not believed.
        sizes: name of a file -> its bytes; 0 of one that is not there.

    Returns:
        the rest of the index, and file name -> number of values that the file has no bytes of.
    """
    if not len(index):
        return index, {}
    columns = {name: np.asarray(index.columns[name]) for name in ("file", "offset", "nbytes")}
    tables = index.tables
    ends = np.array([sizes.get(name, 0) for name in tables.file], dtype=np.int64)
    start, nbytes = columns["offset"], columns["nbytes"]
    # Not ``start + nbytes <= end``: numbers of a damaged index could overflow in the sum.
    is_there = (nbytes >= 0) & (start >= 0) & (start <= ends[columns["file"]] - nbytes)
    is_there &= nbytes == expected_bytes(index)
    if is_there.all():
        return index, {}
    lost = np.bincount(columns["file"][~is_there], minlength=len(ends)).tolist()
    return index.only(is_there), {
        tables.file[number]: many for number, many in enumerate(lost) if many
    }


def expected_bytes(index: Index) -> NDArray[np.int64]:
    """Bytes that a value of its dtype and shape has; -1 of what cannot be.

    A sparse one has as many as it has.
    """
    stored = [STORED[name] for name in index.tables.dtype]
    widths = np.array([one.itemsize for one in stored] or [0])
    sizes = np.array([_numel(shape) for shape in index.tables.shape] or [0], dtype=np.int64)
    shapes = np.asarray(index.columns["shape"])
    found: NDArray[np.int64]
    is_sparse = np.array([one.is_sparse for one in stored])
    if is_sparse.any():
        dtypes = np.asarray(index.columns["dtype"])
        own = np.maximum(np.asarray(index.columns["nbytes"]), 0)
        found = sizes[shapes] * widths[dtypes]
        return np.where(is_sparse[dtypes] & (sizes[shapes] >= 0), own, found)
    if len(widths) == 1:
        found = (sizes * widths[0])[shapes]
    else:
        found = sizes[shapes] * widths[np.asarray(index.columns["dtype"])]
    return found


def _numel(shape: Sequence[int]) -> int:
    numel = math.prod(shape)
    # Times the 16 bytes of complex128 that still fits into 64 bits.
    return numel if 0 <= numel < 1 << 56 and min(shape, default=0) >= 0 else -1


# ---------------------------------------------------------------------- entries of tables


def parse_labels(text: str) -> tuple[str, ...]:
    """Labels as a journal has them."""
    return tuple(map(str, _list_of(text)))


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape as a journal has it."""
    shape = tuple(_list_of(text))
    if not all(type(one) is int and one >= 0 for one in shape):
        raise RunError(f"The journal names the shape {text!r}, which is none.")
    return shape


def parse_dtype(text: str) -> str:
    """The name of a dtype as a journal has it."""
    if text not in STORED:
        raise RunError(f"The journal names the dtype {text!r}, which is none of PyTorch.")
    return text


def _list_of(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"The journal has {text[:80]!r} where a list is expected.") from error
    if not isinstance(found, list):
        raise RunError(f"The journal has {text[:80]!r} where a list is expected.")
    return found
