"""The records of a run as columns: a :class:`Record` is made when it is asked for.

A run may hold millions of records. Objects cost 120 bytes each and are visited by every
full pass of Python's garbage collector; columns cost 41 bytes, with the reference to the
value, and are searched by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from torchtap.core.record import PHASES, UNVERSIONED, Record, nbytes_of, new_record
from torchtap.core.shared_state import new_lock
from torchtap.core.site import Site

if TYPE_CHECKING:
    from torchtap.runs.store.index import Index

Places = NDArray[np.intp]
"""Numbers of records in the order of arrival."""
_COLUMNS = np.dtype(
    [
        ("site", np.int32),
        ("step", np.int64),
        ("call", np.int32),
        ("phase", np.int8),
        ("backward", np.int32),
        ("labels", np.int32),
        ("version", np.int64),
    ]
)
_CHUNK = 4096
"""Records that are turned into columns at a time, so that the tuples between stay in the cache."""


T = TypeVar("T")


class Fact(NamedTuple):
    """The facts about a value that are known without reading it.

    Attributes:
        dtype: without ``torch.``.
        shape: of the tensor.
        nbytes: of its elements.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Stored(Protocol):
    """Values that are read when they are asked for, and of which an index knows the rest."""

    @property
    def entries(self) -> Any:
        """Return the index, as far as there is one."""

    def __len__(self) -> int:
        """Return the number of values."""

    def __getitem__(self, place: int) -> Any:
        """One of them."""

    def in_order(self, places: Sequence[int]) -> Iterator[Any]:
        """Return some of them, one after the other."""

    def fact(self, place: int) -> Fact:
        """Return the facts about one value, without reading it."""

    @property
    def nbytes(self) -> int:
        """Bytes of all."""


def distinct(column: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending; a column that ascends, as steps do, is not sorted."""
    if not len(column):
        return column
    is_new = column[1:] != column[:-1]
    if (column[1:] < column[:-1]).any():
        values: NDArray[Any] = np.unique(column)
        return values
    chosen: NDArray[Any] = column[np.concatenate([[0], np.flatnonzero(is_new) + 1])]
    return chosen


class _Numbered(Generic[T]):
    """Distinct values, each with a number."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self.values = list(values)
        self._numbers = {value: number for number, value in enumerate(self.values)}

    def number(self, value: T) -> int:
        """Return the number of a value, which is new or not."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class KeptTensors(list[Any]):
    """Values in memory. See :class:`Stored`."""

    entries = None

    def in_order(self, places: Sequence[int]) -> Iterator[Any]:
        """Return some of them, one after the other."""
        return map(self.__getitem__, places)

    def fact(self, place: int) -> Fact:
        """Return dtype, shape and bytes of a value."""
        kept = self[place]
        if kept.is_nested:  # As in a file: its parts have each a shape of their own.
            from torchtap.runs.strided import joined_parts

            kept = joined_parts(kept)
        return Fact(str(kept.dtype).removeprefix("torch."), tuple(kept.shape), nbytes_of(kept))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(map(nbytes_of, self))


class Records(Sequence[Record]):
    """Records in the order of their arrival.

    Attributes:
        values: the tensors, one per record; of a file each is read when it is asked for.
        sites: the distinct sites, by first arrival.
        phase_table: phases by number.
        label_table: labels of a record by number.
    """

    def __init__(self) -> None:
        self.values: Any = KeptTensors()
        self.sites: list[Site] = []
        self._site_numbers: dict[Site, int] = {}
        # The identity of a site is looked up first: hashing one takes longer than all the rest.
        self._site_ids: dict[int, int] = {}
        self._phases = _Numbered(PHASES)
        self._labels: _Numbered[tuple[str, ...]] = _Numbered([()])
        self.phase_table, self.label_table = self._phases.values, self._labels.values
        self._table: Any = np.zeros(0, _COLUMNS)
        self._length = 0
        self._lock = new_lock()  # The collector may close a watch under it.

    @staticmethod
    def from_columns(
        kept: Stored,
        columns: Mapping[str, NDArray[Any]],
        sites: Sequence[Site],
        labels: Sequence[tuple[str, ...]],
        phases: Sequence[str],
        versions: NDArray[np.int64] | None = None,
    ) -> Records:
        """Records of an index, whose columns are used as they are; nothing is appended to them.

        Args:
            kept: their values.
            columns: site, step, call, phase, backward and labels as numbers.
            sites: by number.
            labels: by number; the first is ``()``.
            phases: by number; the first are those of :data:`~torchtap.core.record.PHASES`.
            versions: of values in memory that may be overwritten; by default none may.
        """
        records = Records()
        records.values = kept
        records.sites = list(sites)
        records._site_numbers = {site: number for number, site in enumerate(sites)}
        records._site_ids = {id(site): number for number, site in enumerate(records.sites)}
        records._phases, records._labels = _Numbered(phases), _Numbered(labels)
        records.phase_table, records.label_table = records._phases.values, records._labels.values
        records._length = len(kept)
        if versions is None:
            versions = np.broadcast_to(np.int64(UNVERSIONED), len(kept))
        records._table = {**columns, "version": versions}
        return records

    @staticmethod
    def from_index(kept: Stored, index: Index) -> Records:
        """Records of the values that an index of a file or a folder names."""
        tables = index.tables
        return Records.from_columns(kept, index.columns, tables.site, tables.labels, tables.phase)

    # ------------------------------------------------------------------ filled

    def extend(self, rows: Sequence[Record]) -> None:
        """Append records."""
        for start in range(0, len(rows), _CHUNK):
            *columns, kept, versions = zip(*rows[start : start + _CHUNK], strict=True)
            with self._lock:
                self.values.extend(kept)
                self._append(columns, versions)

    def _append(self, columns: Sequence[Sequence[Any]], versions: Any) -> None:
        sites, steps, calls, phases, backwards, labels = columns
        end = self._length + len(sites)
        if end > len(self._table):
            grown = np.zeros(max(end, len(self._table) * 3 // 2), _COLUMNS)
            grown[: self._length] = self._table[: self._length]
            self._table = grown
        new = self._table[self._length : end]
        numbers = [self._site_ids.get(id(site)) for site in sites]
        if None in numbers:
            numbers = [self._number_of(site) for site in sites]
        new["site"], new["step"], new["call"], new["backward"] = numbers, steps, calls, backwards
        new["phase"] = [self._phases.number(phase) for phase in phases]
        new["labels"] = [self._labels.number(label) for label in labels]
        new["version"] = versions
        self._length = end

    def _number_of(self, site: Site) -> int:
        number = self._site_numbers.setdefault(site, len(self.sites))
        if number == len(self.sites):
            self.sites.append(site)
            self._site_ids[id(site)] = number  # ``sites`` keeps it alive: its id is no other's.
        return number

    # ------------------------------------------------------------------ read

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return list(self.at(np.arange(self._length)[place]))
        return next(self.at(np.array([range(self._length)[place]])))

    def __iter__(self) -> Iterator[Record]:
        return self.at(np.arange(self._length))

    def at(self, places: Places) -> Iterator[Record]:
        """Yield the records at some places, made one by one."""
        sites, phases, labels = self.sites, self.phase_table, self.label_table
        for start in range(0, len(places), _CHUNK):
            chunk = places[start : start + _CHUNK]
            columns = [self._table[name][chunk].tolist() for name in _COLUMNS.names or ()]
            values = self.values.in_order(chunk.tolist())
            for value, site, step, call, phase, backward, label, version in zip(
                values, *columns, strict=True
            ):
                rest = (phases[phase], backward, labels[label], value, version)
                yield new_record(Record, (sites[site], step, call, *rest))

    def column(self, name: str) -> NDArray[Any]:
        """``site`` (number in ``sites``), ``step``, ``call``, ``backward`` or ``version``, and
        ``phase`` and ``labels`` (numbers in ``phase_table`` and ``label_table``).
        """
        column: NDArray[Any] = np.asarray(self._table[name])[: self._length]
        return column

    def column_at(self, name: str, places: Places) -> NDArray[Any]:
        """Return a column at some places; of a large run on disk the others are not computed."""
        column: NDArray[Any] = self._table[name][places]
        return column

    def in_phase(self, phase: str) -> NDArray[np.bool_]:
        """Return which records are of a phase."""
        is_in_phase: NDArray[np.bool_] = self.column("phase") == self._phases.number(phase)
        return is_in_phase

    def number_of(self, site: Site) -> int | None:
        """Return the number of a site, or ``None`` if it has no record."""
        return self._site_numbers.get(site)

    def overwritten_places(self, start: int = 0) -> Places:
        """Return the places of records whose tensor was overwritten since, from one on."""
        versions = self.column("version")[start:]
        aliases = np.flatnonzero(versions != UNVERSIONED)
        lost = [
            place + start
            for place, version in zip(aliases.tolist(), versions[aliases].tolist(), strict=True)
            if self.values[place + start]._version != version
        ]
        return np.array(lost, dtype=np.intp)

    def without_step(self, step: int) -> Records:
        """Return a copy that lacks the records of one step; its columns are taken as a whole."""
        chosen = self.column("step") != step
        rest = Records()
        rest.values.extend(compress(self.values, chosen.tolist()))
        rest.sites = list(self.sites)
        rest._site_numbers, rest._site_ids = dict(self._site_numbers), dict(self._site_ids)
        rest._phases, rest._labels = _Numbered(self.phase_table), _Numbered(self.label_table)
        rest.phase_table, rest.label_table = rest._phases.values, rest._labels.values
        rest._table = self._table[: self._length][chosen]
        rest._length = len(rest.values)
        return rest


def overwritten(records: Records, step: int | None = None) -> Iterator[Record]:
    """Yield the records that were kept without a copy and whose tensor was overwritten since.

    Args:
        records: that are looked at.
        step: look only at those that came after the last one of an earlier step.
    """
    start = 0 if step is None else _start_of(records, step)
    return records.at(records.overwritten_places(start))


def _start_of(records: Records, step: int) -> int:
    """Return the place after the last record of an earlier step, searched from the end."""
    steps, size = records.column("step"), _CHUNK
    while True:
        earlier = np.flatnonzero(steps[-size:] < step)
        first = max(len(steps) - size, 0)
        if len(earlier):
            return first + int(earlier[-1]) + 1
        if not first:
            return 0
        size *= 2


class LiveRecords:
    """The records of a store as columns, brought up to date when they are read.

    Args:
        contents: gives the records that the store holds now, in the order of their arrival.
    """

    def __init__(self, contents: Callable[[], Sequence[Record]]) -> None:
        self._contents = contents
        self._known: Records | None = None
        self._marker: Record | None = None

    def read(self) -> Records:
        """Return all records that the store holds now."""
        rows = self._contents()
        if isinstance(rows, Records):
            return rows
        known = Records() if self._known is None else self._known
        done = len(known)
        if done > len(rows) or (done and rows[done - 1] is not self._marker):
            known, done = Records(), 0  # The store dropped records, or made them anew.
        new = [rows[place] for place in range(done, len(rows))]
        if new:
            known.extend(new)
            self._marker = new[-1]
        self._known = known
        return known
