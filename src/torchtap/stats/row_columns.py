"""Reads numbers of many steps at once: columns made of rows, where a loop would make each value."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.site import Site
from torchtap.stats import rows as places
from torchtap.stats.rows_by_step import Snapshot
from torchtap.stats.series import Series
from torchtap.stats.statistics import NUMBERS

Column = NDArray[Any]
RowNumber = Callable[[str], Column]
"""Gives one of the 16 numbers of each row, by the name of its place."""
FLOATS = frozenset(("mean", "std", "rms", "l1", "l2", "min", "max", "absmax"))
"""Numbers that are no counts."""
WITH_WEIGHT = ("update_ratio", "weight_l2")
"""Numbers that only an update has."""
COLUMNS = frozenset((*NUMBERS, "nonfinite", "num_tensors", "nbytes", *WITH_WEIGHT))
"""Names of numbers that are made of rows alone, without a histogram."""


def column_of(name: str, number: RowNumber) -> Column:
    """Make a column as ``Statistics`` has it: NaN where nothing is finite, sums and counts 0."""
    if name == "nonfinite":
        return (number("NUMEL") - number("NUM_FINITE")).astype(np.int64)
    if name not in FLOATS:
        return number(name.upper()).astype(np.int64)
    if name in ("l1", "l2"):
        return number("L1") if name == "l1" else np.sqrt(number("SUM_SQUARES"))
    finite = number("NUM_FINITE")
    with np.errstate(all="ignore"):
        if name in ("std", "rms"):
            column = np.sqrt(number("M2" if name == "std" else "SUM_SQUARES") / finite)
        elif name == "absmax":
            column = np.maximum(np.abs(number("MIN")), np.abs(number("MAX")))
        else:
            column = number(name.upper()).copy()
    column[~(finite > 0)] = math.nan
    return column


class SeriesColumns:
    """The numbers of the sites of a series over all steps, as they were when first asked for."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._by_place: dict[int, Column] = {}

    @cached_property
    def _rows(self) -> Snapshot:
        return self._series.rows.snapshot()

    @property
    def steps(self) -> NDArray[np.int64]:
        """Return the steps in which anything was measured, ascending."""
        return self._rows.steps

    def is_there(self, site: Site) -> NDArray[np.bool_]:
        """Return in which steps a site was measured, ``bool[steps]``."""
        is_measured: NDArray[np.bool_] = self._number("NUM_TENSORS", site) != 0
        return is_measured

    def of(self, site: Site, name: str) -> Column:
        """Return a number of :data:`COLUMNS` of a site in the steps in which it was measured."""
        there = self.is_there(site)
        if name == "nbytes":
            return self.of(site, "numel") * self._series.of(site).itemsize
        if name not in WITH_WEIGHT:
            return column_of(name, lambda one: self._number(one, site)[there])
        weight = self._weight(site)[there]
        if name == "weight_l2":
            return weight
        with np.errstate(all="ignore"):
            return np.where(weight == 0, math.nan, self.of(site, "l2") / weight)

    def _weight(self, site: Site) -> Column:
        """Return the norm of the parameter of an update in each step; NaN where there is none."""
        param = site.compared_with
        if param is None or param not in self._series:
            return np.full(len(self.steps), math.nan)
        shapes = self._series.of(param).shape, self._series.of(site).shape
        if None not in shapes and shapes[0] != shapes[1]:
            return np.full(len(self.steps), math.nan)
        norms = np.sqrt(self._number("SUM_SQUARES", param))
        norms[~self.is_there(param)] = math.nan
        return norms

    def _number(self, name: str, site: Site) -> Column:
        """Return one of the 16 numbers in all steps, ``float64[steps]``.

        All sites are read at once and then kept: their numbers lie beside one another in each
        step, and reading them site by site would fetch the whole memory for every one.
        """
        number = getattr(places, name)
        if number not in self._by_place:
            self._by_place[number] = np.ascontiguousarray(self._rows.column(number).T)
        row: Column = self._by_place[number][self._series.known_place(site)]
        return row
