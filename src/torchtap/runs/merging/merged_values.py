"""Values of several ranks, each read from its rank when it is asked for; shards are joined then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.placement import Axis
from torchtap.runs.merging.placement_rules import NO_PLACE, Coordinate, Refused, fold
from torchtap.runs.records import Fact, Places, Records
from torchtap.runs.store.index import DTYPES, Index, Tables

Column = NDArray[Any]


@dataclass(slots=True)
class FactTable:
    """Distinct dtypes and shapes, each with a number."""

    facts: list[Fact] = field(default_factory=list)
    _known: dict[Fact, int] = field(default_factory=dict)

    def number(self, fact: Fact) -> int:
        """Return the number of one, which is new or not."""
        number = self._known.setdefault(fact, len(self.facts))
        if number == len(self.facts):
            self.facts.append(fact)
        return number

    def of(self, records: Records, places: Places) -> Column:
        """The numbers of some records; of values on disk without looking at them one by one."""
        index, fact = records.values.entries, records.values.fact
        if index is None:
            return np.array([self.number(fact(place)) for place in places.tolist()], int)
        columns = [np.asarray(index.columns[name][places]) for name in ("dtype", "shape", "nbytes")]
        if not len(places):
            return np.zeros(0, dtype=np.int64)
        if all((column == column[0]).all() for column in columns):  # As of nearly every site.
            return np.full(len(places), self.number(fact(int(places[0]))), dtype=np.int64)
        rows = np.stack([column.astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        numbers = [self.number(fact(place)) for place in places[first].tolist()]
        facts: Column = np.array(numbers, dtype=np.int64)[which.reshape(-1)]
        return facts


@dataclass(frozen=True, slots=True)
class Cut:
    """Values that are cut into shards.

    Attributes:
        axes: the dims of the mesh along which they are.
        shards: place in the mesh -> the rank that has the shard, by its number among all, and where
            each of its values stands there.
    """

    axes: tuple[Axis, ...]
    shards: Mapping[Coordinate, tuple[int, Places]]

    def value(self, row: int, records: Sequence[Records]) -> Tensor:
        """Return one whole value."""
        parts = {
            where: records[rank][int(places[row])].value
            for where, (rank, places) in self.shards.items()
        }
        return fold(parts, self.axes, joined_shards)

    def facts(self, records: Sequence[Records], table: FactTable) -> Column:
        """Return the dtype and shape of each whole value, by number.

        Raises:
            Refused: the shards do not fit together.
        """
        numbers = [table.of(records[rank], places) for rank, places in self.shards.values()]
        rows = np.stack(numbers, axis=1)
        kinds, which = np.unique(rows, axis=0, return_inverse=True)
        wholes = []
        for kind in kinds.tolist():
            shards = [table.facts[number] for number in kind]
            whole = fold(dict(zip(self.shards, shards, strict=True)), self.axes, _joined_fact)
            wholes.append(table.number(whole))
        codes: Column = np.array(wholes, dtype=np.int64)[which.reshape(-1)]
        return codes


def joined_shards(parts: list[Tensor], axis: Axis) -> Tensor:
    """Shards along one dim of the mesh, in their order, as one tensor.

    Raises:
        Refused: they do not fit together.
    """
    if axis.dim is None:
        raise Refused(NO_PLACE)
    try:
        return torch.cat(parts, axis.dim)
    except RuntimeError as error:
        raise _unlike([tuple(part.shape) for part in parts]) from error


def _joined_fact(parts: list[Fact], axis: Axis) -> Fact:
    """Join dtypes and shapes alone, as :func:`joined_shards` joins values."""
    if axis.dim is None:
        raise Refused(NO_PLACE)
    try:
        whole = torch.cat([_blank(part) for part in parts], axis.dim)
    except RuntimeError as error:
        raise _unlike([part.shape for part in parts]) from error
    return Fact(str(whole.dtype).removeprefix("torch."), tuple(whole.shape), whole.nbytes)


def _blank(fact: Fact) -> Tensor:
    return torch.empty(fact.shape, dtype=getattr(torch, fact.dtype), device="meta")


def _unlike(shapes: Sequence[tuple[int, ...]]) -> Refused:
    said = ", ".join(map(str, shapes))
    return Refused(f"its shards do not fit together, their shapes are {said}")


class MergedValues:
    """The values of a merged run.

    Args:
        records: of each rank.
        owners: of each value the rank that has it, by its number; of one that is cut into shards
            -1 - which cut.
        places: where it stands on that rank, or in that cut.
        cuts: values that are cut.
        facts: of each value its number in ``table``.
        table: dtypes and shapes.
        sites: of each value, by number.
        index: gives the columns and tables of an index, without those of files.
    """

    def __init__(
        self,
        records: Sequence[Records],
        owners: Column,
        places: Column,
        cuts: Sequence[Cut],
        facts: Column,
        table: FactTable,
        index: tuple[Mapping[str, Column], Tables],
    ) -> None:
        self._records = list(records)
        self._owners = owners
        self._places = places
        self._cuts = list(cuts)
        self._facts = facts
        self._table = table
        self._index = index

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, place: Any) -> Any:
        owner, where = int(self._owners[place]), int(self._places[place])
        if owner >= 0:
            return self._records[owner].values[where]
        return self._cuts[-1 - owner].value(where, self._records)

    def in_order(self, places: Sequence[int]) -> Iterator[Any]:
        """Return some of them, one after the other."""
        return (self[place] for place in places)

    def gather(self, places: Any, within: Any) -> Tensor | None:
        """Rows of several values at once, if one rank has them in one file.

        Args:
            places: for each row, the place of its value.
            within: for each row, where in that value.
        """
        owner = int(self._owners[places[0]])
        if owner < 0 or (self._owners[places] != owner).any():
            return None
        stored = getattr(self._records[owner].values, "gather", None)
        values: Tensor | None = stored and stored(self._places[places], within)
        return values

    def fact(self, place: int) -> Fact:
        """Dtype, shape and bytes of a value, without reading it."""
        return self._table.facts[int(self._facts[place])]

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        times = np.bincount(self._facts, minlength=len(self._table.facts)).tolist()
        return sum(n * one.nbytes for n, one in zip(times, self._table.facts, strict=True))

    @property
    def entries(self) -> Index | None:
        """The index, as far as lists of a run need it; ``None`` where values are in memory."""
        if any(record.values.entries is None for record in self._records):
            return None
        columns, tables = self._index
        dtypes: dict[str, int] = {}
        shapes: dict[tuple[int, ...], int] = {}
        for fact in self._table.facts:
            dtypes.setdefault(fact.dtype, len(dtypes))
            shapes.setdefault(fact.shape, len(shapes))
        own = {
            "dtype": [dtypes[fact.dtype] for fact in self._table.facts],
            "shape": [shapes[fact.shape] for fact in self._table.facts],
            "nbytes": [fact.nbytes for fact in self._table.facts],
        }
        coded = {name: np.array(of, dtype=DTYPES[name])[self._facts] for name, of in own.items()}
        named = Tables(tables.site, tables.labels, [*shapes], [], [*dtypes], tables.phase)
        return Index({**columns, **coded}, named)
