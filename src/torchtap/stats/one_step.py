"""Reads numbers of all sites in one step at once, as what follows a training wants them."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.stats import read_series, rows as places
from torchtap.stats.histogram import Histogram
from torchtap.stats.named_numbers import number_of
from torchtap.stats.row_columns import COLUMNS, WITH_WEIGHT, Column, column_of
from torchtap.stats.series import Series


class OneStep:
    """The numbers of the sites that were measured in a step.

    Args:
        series: that has the step.
        step: which.

    Attributes:
        sites: that were measured in it, in the order of the series.
    """

    def __init__(self, series: Series, step: int) -> None:
        self._series, self._step = series, step
        _, rows = series.rows.as_array([step])
        self._all = rows[0]
        self._places = np.flatnonzero(self._all[:, places.NUM_TENSORS])
        self.sites = [series.measured[place].site for place in self._places.tolist()]

    def of(self, name: str) -> NDArray[np.float64]:
        """Return a number of each site, ``float64[sites]``; NaN where it has none.

        Args:
            name: as in :meth:`Run.over_steps <torchtap.runs.run.Run.over_steps>`.

        Raises:
            SiteError: there is no such number.
            InputError: it is no number.
        """
        if name in WITH_WEIGHT:
            return self._weights if name == "weight_l2" else self._ratios
        if name in COLUMNS and name != "nbytes":
            own = self._all[self._places]
            column = column_of(name, lambda one: own[:, getattr(places, one)])
            return column.astype(np.float64)
        return np.array([self._slowly(site, name) for site in self.sites], dtype=np.float64)

    def histogram(self, number: int) -> Histogram | None:
        """Return the histogram of the site of that number; ``None`` where none was counted."""
        return self._series.histogram(self._step, int(self._places[number]))

    def _slowly(self, site: Site, name: str) -> float:
        try:
            return number_of(read_series.at(self._series, site, self._step), name)
        except RunError:  # A further statistic that has nothing of this tensor.
            return math.nan

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Return the norm of the parameter that each update is of; NaN of all other sites."""
        norms = np.sqrt(self._all[:, places.SUM_SQUARES])
        norms[self._all[:, places.NUM_TENSORS] == 0] = math.nan
        by_place = np.full(len(self.sites), math.nan)
        for number, site in enumerate(self.sites):
            param = site.compared_with
            if param is not None and param in self._series:
                shapes = self._series.of(param).shape, self._series.of(site).shape
                if None in shapes or shapes[0] == shapes[1]:
                    by_place[number] = norms[self._series.known_place(param)]
        return by_place

    @cached_property
    def _ratios(self) -> Column:
        weights = self._weights
        with np.errstate(all="ignore"):
            return np.where(weights == 0, math.nan, self.of("l2") / weights)
