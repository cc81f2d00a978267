"""Compare replicas: those on disk by their checksums, others by their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.equality import same
from torchtap.core.errors import RunError
from torchtap.runs.merging.matching import Matched
from torchtap.runs.merging.merge_absences import Groups, agreeing
from torchtap.runs.merging.placement_rules import Whole
from torchtap.runs.records import Places, Records

Column = NDArray[Any]
Mask = NDArray[np.bool_]
Differing = dict[int, Callable[[], Groups]]
"""Number of a step -> a function that says which ranks agree in it."""


class Replicas:
    """The records of one site, of which some ranks may have the same.

    Args:
        matched: the records of all sites.
        rows: rank -> its number in ``matched``.
        keys: those of the site.
        orders: of each rank and key which record it is; -1 for none.
    """

    def __init__(
        self, matched: Matched, rows: Mapping[int, int], keys: Column, orders: Column
    ) -> None:
        self._matched = matched
        self._rows = rows
        self._steps = matched.columns["step"][keys]
        self._orders = orders

    def compare(self, whole: Whole) -> tuple[Column, Differing]:
        """Compare the replicas of a whole.

        Returns:
            places of the keys of which all its ranks have a value, the same where they are
            replicas; and in which steps replicas differ.
        """
        differing: Differing = {}
        num = len(self._steps)
        if not all(rank in self._rows for rank in whole.ranks):
            return np.zeros(0, dtype=np.int64), differing
        own = self._orders[[self._rows[rank] for rank in whole.ranks]]
        is_whole = np.all(own >= 0, axis=0)
        is_alike = np.ones(num, dtype=bool)
        for ranks in whole.parts.values():
            if len(ranks) > 1 and not is_whole.all():
                self._note_lacking(ranks, differing)
        for ranks in whole.parts.values():
            if len(ranks) > 1:
                is_alike &= self._are_alike(ranks, is_whole, differing)
        return np.flatnonzero(is_whole & is_alike), differing

    # ------------------------------------------------------------------ what one has and others not

    def _there(self, ranks: tuple[int, ...]) -> Mask:
        is_there: Mask = self._orders[[self._rows[rank] for rank in ranks]] >= 0
        return is_there

    def _note_lacking(self, ranks: tuple[int, ...], differing: Differing) -> None:
        there = self._there(ranks)
        is_unlike = there.any(axis=0) & ~there.all(axis=0)
        for step in np.unique(self._steps[is_unlike]).tolist():
            differing[step] = partial(self._having_the_same, ranks, step)

    def _having_the_same(self, ranks: tuple[int, ...], step: int) -> Groups:
        own = self._there(ranks)[:, self._steps == step]
        return agreeing(ranks, [[bool((one == two).all()) for two in own] for one in own])

    # ------------------------------------------------------------------ values

    def _are_alike(self, ranks: tuple[int, ...], is_whole: Mask, differing: Differing) -> Mask:
        """Return where some ranks have equal values; only values that are on all are compared."""
        are_alike = np.ones(len(self._steps), dtype=bool)
        there = np.flatnonzero(is_whole)
        first, *others = ranks
        for rank in others:
            are_alike[there] &= self._equal(first, rank, there)
        unlike = np.flatnonzero(~are_alike)
        orders = self._orders[self._rows[first]]
        # Of a step with several values the first that came.
        for place in unlike[np.argsort(orders[unlike], kind="stable")].tolist():
            step = int(self._steps[place])
            differing.setdefault(step, partial(self._having_equal, ranks, place))
        return are_alike

    def _having_equal(self, ranks: tuple[int, ...], place: int) -> Groups:
        at = np.array([place])
        return agreeing(
            ranks, [[bool(self._equal(rank, two, at)[0]) for two in ranks] for rank in ranks]
        )

    def _equal(self, one: int, two: int, chosen: Column) -> Mask:
        records, places = [], []
        for rank in (one, two):
            row = self._rows[rank]
            records.append(self._matched.held[row].records)
            places.append(self._matched.places(row, self._orders[row][chosen]))
        return _are_equal(records[0], places[0], records[1], places[1])


def _are_equal(one: Records, at: Places, two: Records, there: Places) -> Mask:
    """Return which records of two ranks have the same values."""
    if not (_has_checksums(one) and _has_checksums(two)):
        pairs = zip(at.tolist(), there.tolist(), strict=True)
        return np.array([same(one[a].value, two[b].value) for a, b in pairs], dtype=bool)
    is_equal: Mask = _column(one, "crc32", at) == _column(two, "crc32", there)
    is_equal &= _column(one, "nbytes", at) == _column(two, "nbytes", there)
    for name in ("dtype", "shape"):
        tables = [getattr(records.values.entries.tables, name) for records in (one, two)]
        numbers = {entry: number for number, entry in enumerate(tables[0])}
        codes = np.array([numbers.get(entry, -1) for entry in tables[1]] or [-1])
        is_equal &= _column(one, name, at) == codes[_column(two, name, there)]
    # NaN is equal to NaN, whatever its bits are: what differs is looked at.
    for number in np.flatnonzero(~is_equal).tolist():
        is_equal[number] = _hold_the_same(one, int(at[number]), two, int(there[number]))
    return is_equal


def _has_checksums(records: Records) -> bool:
    """Return whether values are on disk with checksums, which files of earlier versions lack."""
    return records.values.entries is not None and "crc32" in records.values.entries.columns


def _column(records: Records, name: str, places: Places) -> Column:
    column: Column = np.asarray(records.values.entries.columns[name][places])
    return column


def _hold_the_same(one: Records, at: int, two: Records, there: int) -> bool:
    if one.values.fact(at) != two.values.fact(there):
        return False
    try:
        return same(one[at].value, two[there].value)
    except RunError:  # One of them is damaged.
        return False
