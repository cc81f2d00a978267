"""Match the records of several ranks by moment: columns are compared, and no value is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.record import PHASES
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.records import Places, Records

Column = NDArray[Any]
_NAMES = ("step", "site", "phase", "call", "backward")
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class RankRecords:
    """The records of one rank that are to be merged.

    Attributes:
        records: all of the rank.
        places: of those to be merged, in the order in which its run gives them.
    """

    records: Records
    places: Places

    def labels(self, orders: Column) -> tuple[str, ...]:
        """Return all labels of some of them, the first that came first."""
        table = self.records.label_table
        if len(table) == 1:
            return table[0]
        codes = self._label_codes(orders)
        if (codes == codes[0]).all():
            return tuple(dict.fromkeys(table[codes[0]]))
        codes, first = np.unique(codes, return_index=True)
        names = (table[code] for code in codes[np.argsort(first)].tolist())
        return tuple(dict.fromkeys(label for labels in names for label in labels))

    def labels_of_each(self, orders: Column) -> tuple[list[tuple[str, ...]], Column]:
        """Return the distinct labels of some of them, and of each which."""
        if len(self.records.label_table) == 1:
            return [self.records.label_table[0]], np.zeros(len(orders), dtype=np.int64)
        codes, which = np.unique(self._label_codes(orders), return_inverse=True)
        return [self.records.label_table[code] for code in codes.tolist()], which

    def _label_codes(self, orders: Column) -> Column:
        return self.records.column_at("labels", self.places[orders])


@dataclass(frozen=True, slots=True)
class Matched:
    """The records of several ranks, side by side: a key is a site at one moment.

    Attributes:
        ranks: whose, ascending.
        held: what each of them has, in the same order.
        sites: by number, the first that came first.
        phases: by number.
        columns: of each key the number of its step among those that are merged, the numbers of its
            site and phase, its call and its backward.
        orders: ``int64[ranks, keys]``, which of the records of a rank is of a key; -1 for none.
    """

    ranks: Sequence[int]
    held: Sequence[RankRecords]
    sites: Sequence[Site]
    phases: Sequence[str]
    columns: Mapping[str, Column]
    orders: Column

    def keys_of_sites(self) -> list[Column]:
        """Return the keys of each site, by its number."""
        sites = self.columns["site"]
        if len(self.sites) < 1 << 16:
            sites = sites.astype(np.uint16)  # Numbers of 16 bits are sorted in one pass.
        order = np.argsort(sites, kind="stable")
        ends = np.cumsum(np.bincount(sites, minlength=len(self.sites)))
        return np.split(order, ends[:-1]) if len(self.sites) else []

    def places(self, rank: int, orders: Column) -> Places:
        """Return where the records of a rank, given by its place in ``ranks``, are in its run."""
        return self.held[rank].places[orders]


def match(sources: Mapping[int, Contents], steps: Sequence[int]) -> Matched:
    """Match the records of some ranks that nothing has overwritten.

    Args:
        sources: rank -> what it has.
        steps: those that are merged, ascending.
    """
    held = [
        RankRecords(source.recorded, source.index.places_in_steps(steps, source.sites))
        for source in sources.values()
    ]
    sites = list(dict.fromkeys(site for one in held for site in _sites_of(one)))
    names = (name for one in held for name in one.records.phase_table)
    phases = list(dict.fromkeys([*PHASES, *names]))
    numbers = {site: number for number, site in enumerate(sites)}
    columns = [_columns_of(one, np.asarray(steps, dtype=np.int64), numbers, phases) for one in held]
    codes = _codes([[column[name] for name in _NAMES] for column in columns])
    repeats = [_repeats(one) for one in codes]
    if any(repeat.any() for repeat in repeats):  # Of a recomputation that is repeated, for example.
        codes = _codes([[code, number] for code, number in zip(codes, repeats, strict=True)])
    first = codes[0]
    if all(np.array_equal(first, one) for one in codes[1:]):  # The usual case: nothing is sorted.
        orders = np.broadcast_to(np.arange(len(first)), (len(codes), len(first)))
        return Matched(list(sources), held, sites, phases, columns[0], orders)
    every = np.unique(np.concatenate(codes))
    orders = np.full((len(codes), len(every)), -1, dtype=np.int64)
    merged_columns = {name: np.zeros(len(every), dtype=np.int64) for name in _NAMES}
    for number, (code, own) in enumerate(zip(codes, columns, strict=True)):
        # Each code is there, so this is its place.
        keys = np.searchsorted(every, code)
        orders[number, keys] = np.arange(len(code))
        for name in _NAMES:
            merged_columns[name][keys] = own[name]
    return Matched(list(sources), held, sites, phases, merged_columns, orders)


def _sites_of(one: RankRecords) -> list[Site]:
    """Return the sites of some records, the first that came first."""
    there, first = np.unique(one.records.column("site")[one.places], return_index=True)
    return [one.records.sites[number] for number in there[np.argsort(first)].tolist()]


def _columns_of(
    one: RankRecords, steps: Column, numbers: Mapping[Site, int], phases: Sequence[str]
) -> dict[str, Column]:
    records, places = one.records, one.places
    columns = {name: records.column(name)[places] for name in _NAMES}
    sites = np.array([numbers.get(site, -1) for site in records.sites], dtype=np.int32)
    codes = np.array([phases.index(name) for name in records.phase_table], dtype=np.int8)
    return {
        **columns,
        "step": np.searchsorted(steps, columns["step"]).astype(np.int32),
        "site": sites[columns["site"]] if len(sites) else columns["site"],
        "phase": codes[columns["phase"]],
    }


def _codes(ranks: Sequence[Sequence[Column]]) -> list[Column]:
    """One number for each row of some columns, alike on all ranks, and ascending as the rows do."""
    num_columns = len(ranks[0])
    if not any(len(rank[0]) for rank in ranks):
        return [np.zeros(0, dtype=np.int64) for _ in ranks]
    low = [min(int(rank[n].min()) for rank in ranks if len(rank[n])) for n in range(num_columns)]
    high = [max(int(rank[n].max()) for rank in ranks if len(rank[n])) for n in range(num_columns)]
    sizes = [top - bottom + 1 for bottom, top in zip(low, high, strict=True)]
    if prod(sizes) >= _MOST:  # Calls of a journal that lies, for example.
        return _ranked_codes(ranks)
    codes = []
    for rank in ranks:
        code = np.zeros(len(rank[0]), dtype=np.int64)
        for column, bottom, size in zip(rank, low, sizes, strict=True):
            # A number in mixed radix: rows compare as their codes do.
            code *= size
            code += column
            code -= bottom
        codes.append(code)
    return codes


def _ranked_codes(ranks: Sequence[Sequence[Column]]) -> list[Column]:
    """Number the keys of each rank where their columns are too large to be put into one number."""
    ends = np.cumsum([len(rank[0]) for rank in ranks])
    code: Column = np.zeros(int(ends[-1]), dtype=np.int64)
    for columns in zip(*ranks, strict=True):
        _, place = np.unique(np.concatenate(columns), return_inverse=True)
        # After each column the codes are made small again, so that the next product cannot
        # overflow.
        _, code = np.unique(code * (int(place.max()) + 1) + place, return_inverse=True)
    return np.split(code, ends[:-1])


def _repeats(code: Column) -> Column:
    """Return for each record how many of its key came before it on its rank."""
    repeats = np.zeros(len(code), dtype=np.int64)
    if not len(code) or bool((code[1:] > code[:-1]).all()):
        return repeats
    order = np.argsort(code, kind="stable")
    is_new = np.concatenate([[True], np.diff(code[order]) != 0])
    starts = np.maximum.accumulate(np.where(is_new, np.arange(len(code)), 0))
    repeats[order] = np.arange(len(code)) - starts
    return repeats
