"""The statistics of a run as columns: one row for each site and step.

Numbers that were measured while it ran lie in arrays already. A column is taken out of them when it
is asked for, and a query asks for a few. Rows of values that were kept are measured at the
beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchtap.core.site import Site
from torchtap.stats import rows as places
from torchtap.stats.row_columns import Column, column_of
from torchtap.stats.statistics import NUMBERS

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents
    from torchtap.stats.rows_by_step import Snapshot
    from torchtap.stats.statistics import Statistics

NAMES = ("site", "step", "dtype", *NUMBERS)
"""The columns."""


def unicode_names(sites: Iterable[Site]) -> list[str]:
    """Return sites as texts for files, no two alike; lone surrogates are written as ``\\udXXX``."""
    names: dict[str, None] = {}
    for site in sites:
        name = text = str(site).encode("utf-8", "backslashreplace").decode()
        number = 1
        while name in names:
            name, number = f"{text}.{number}", number + 1
        names[name] = None
    return list(names)


class StatisticsIndex:
    """The rows that there are: of each site, in the order of the run, its steps, ascending.

    Args:
        held: the run at one moment.
        sites: of these.

    Attributes:
        names: of the sites, as text.
        dtypes: of the sites, but for those whose values are to be measured.
        site: the number of its site in ``names``, for each row.
        step: of each row.
        kept: rows of which values were kept, and nothing was measured: row -> site and step.
    """

    def __init__(self, held: Contents, sites: Sequence[Site]) -> None:
        self.names = unicode_names(sites)
        self.rows: Snapshot = held.series.rows.snapshot()
        known = [held.series.known_place(s) if s in held.series else -1 for s in sites]
        self.dtypes = [held.series.of(s).dtype if s in held.series else "" for s in sites]
        is_there = np.zeros((len(sites), len(self.rows.steps)), dtype=bool)
        is_known = np.array(known, dtype=np.intp) >= 0
        if is_known.any():
            counted = self.rows.column(places.NUM_TENSORS) != 0
            is_there[is_known] = counted.T[np.array(known, dtype=np.intp)[is_known]]
        site, self._at = np.nonzero(is_there)
        self.site, self.step = site.astype(np.int32), self.rows.steps[self._at]
        self._place = np.array(known, dtype=np.intp)[site]
        self.kept: dict[int, tuple[Site, int]] = {}
        only_kept = ((n, held.statistics.unmeasured_steps(one)) for n, one in enumerate(sites))
        self._add_kept({n: steps for n, steps in only_kept if steps}, sites)

    def __len__(self) -> int:
        return len(self.site)

    def _add_kept(self, steps: Mapping[int, Sequence[int]], sites: Sequence[Site]) -> None:
        if not steps:
            return
        own = np.concatenate([np.full(len(some), n, dtype=np.int32) for n, some in steps.items()])
        more = np.concatenate([np.array(some, dtype=np.int64) for some in steps.values()])
        nowhere = np.full(len(own), -1, dtype=np.intp)
        site, step = np.concatenate([self.site, own]), np.concatenate([self.step, more])
        order = np.lexsort((step, site))
        self.site, self.step = site[order], step[order]
        self._at = np.concatenate([self._at, nowhere])[order]
        self._place = np.concatenate([self._place, nowhere])[order]
        for row in np.flatnonzero(self._at < 0).tolist():
            self.kept[row] = sites[self.site[row]], int(self.step[row])

    def number(self, place: int, rows: Column) -> Column:
        """Return a number of the 16 of some rows; it means nothing of those not measured."""
        at, sites = self._at[rows], self._place[rows]
        if not len(self.rows.steps):
            return np.zeros(len(rows))
        values: Column = self.rows.column(place)[at, sites]
        return values


class StatisticsColumns:
    """The rows of an index with what is known of them; columns are made when they are asked for.

    Args:
        index: which rows.
        measure: gives the statistics of values that were kept; it is asked at once.
    """

    def __init__(self, index: StatisticsIndex, measure: Callable[[Site, int], Statistics]) -> None:
        self.index = index
        self._measured = {row: measure(*where) for row, where in index.kept.items()}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def dtypes(self) -> tuple[Column, list[str]]:
        """Return the dtype of each row as a number, and what the numbers stand for."""
        texts = list(dict.fromkeys(self.index.dtypes))
        known = {text: number for number, text in enumerate(texts)}
        of_site = np.array([known[text] for text in self.index.dtypes], dtype=np.int32)
        codes = of_site[self.index.site] if len(of_site) else np.zeros(0, dtype=np.int32)
        for row, stats in self._measured.items():
            codes[row] = known.setdefault(stats.dtype, len(known))
        return codes, list(known)

    def column(self, name: str, rows: Column | None = None) -> Column:
        """Return one of ``NUMBERS``, or ``step``.

        Args:
            name: which.
            rows: of these rows; by default of all.
        """
        chosen = np.arange(len(self)) if rows is None else rows
        if name == "step":
            return self.index.step[chosen]
        values = column_of(name, lambda one: self.index.number(getattr(places, one), chosen))
        if self._measured:
            where = np.flatnonzero(np.isin(chosen, list(self._measured)))
            for at in where.tolist():
                values[at] = getattr(self._measured[int(chosen[at])], name)
        return values

    def texts(self) -> dict[str, list[str]]:
        """Return the columns of texts."""
        codes, dtypes = self.dtypes
        names = self.index.names
        return {
            "site": [names[code] for code in self.index.site.tolist()],
            "dtype": [dtypes[code] for code in codes.tolist()],
        }


def columns_of(held: Contents, index: StatisticsIndex) -> StatisticsColumns:
    """Return the columns of an index of a run."""
    return StatisticsColumns(index, lambda site, step: held.statistics.stats(site, step=step))
