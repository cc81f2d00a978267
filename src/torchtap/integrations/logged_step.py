"""Numbers of one step as loggers take them, of a training that runs and of a finished run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtap.core.record import EVAL, FORWARD
from torchtap.core.site import Site
from torchtap.runs.run import Run
from torchtap.runs.select import Where
from torchtap.stats.histogram import Histogram
from torchtap.stats.one_step import OneStep
from torchtap.stats.row_columns import WITH_WEIGHT
from torchtap.stats.series import Series

NUM_CELLS = 64
"""Cells of a histogram: as many as W&B and Aim take by default."""
_FINITE = "num_finite"


class Logged(NamedTuple):
    """One number that is handed to a logger.

    Attributes:
        name: of the statistic, or as ``w.log`` was given it.
        value: NaN of a statistic where nothing was finite.
        site: of the statistic; ``None`` for a number of ``w.log``.
        phase: ``forward``, or ``eval``.
    """

    name: str
    value: float
    site: Site | None = None
    phase: str = FORWARD

    @property
    def tag(self) -> str:
        """``std/fc:output``, ``eval/std/fc:output``, ``loss``: the part before / makes a group."""
        return tag_of(self.name, self.site, self.phase)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedHistogram:
    """A histogram of equal cells, which all loggers can show.

    Attributes:
        site: where.
        phase: ``forward``, or ``eval``.
        counts: finite elements in each cell, ``int64[64]``; of large tensors those of a sample.
        edges: ends of the cells, ``float64[65]``, from the smallest to the largest element.
        mean: of the finite elements.
        rms: the root of their mean square.
    """

    site: Site
    phase: str
    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    mean: float
    rms: float

    @property
    def tag(self) -> str:
        """Return ``histogram/fc:output``."""
        return tag_of("histogram", self.site, self.phase)


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """All that is handed to a logger of one step.

    Attributes:
        step: its number.
        time: when it ended, in seconds since 1970, UTC.
        numbers: statistics and numbers of ``w.log``.
        histograms: those that are handed on in this step.
    """

    step: int
    time: float
    numbers: Sequence[Logged]
    histograms: Sequence[LoggedHistogram] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The statistics that are handed on.

    Attributes:
        names: of the numbers.
        every: of how many steps one is handed on.
        histograms: of how many steps the histograms of one are; 0 for none.
    """

    names: tuple[str, ...]
    every: int
    histograms: int

    def has_histograms(self, step: int) -> bool:
        """Return whether the histograms of a step are handed on."""
        return self.histograms > 0 and step % self.histograms == 0


def tag_of(name: str, site: Site | None, phase: str = FORWARD) -> str:
    """Return the name of a series, in Unicode that can be written."""
    text = name if site is None else f"{name}/{site}"
    text = f"eval/{text}" if phase == EVAL else text
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def phases_of(series: Series) -> Iterator[tuple[str, Series]]:
    """Yield the phases in which something was measured."""
    yield FORWARD, series
    if series.evaluation is not None:
        yield EVAL, series.evaluation


# ---------------------------------------------------------------------- while it runs


def live_step(
    step: int, ended: float, series: Series, wanted: Wanted, scalars: Mapping[str, float]
) -> LoggedStep:
    """Read a step that has ended.

    Args:
        step: which; where nothing was measured in it, it has its scalars alone.
        ended: when.
        series: of ``tt.Stats``.
        wanted: what is handed on.
        scalars: the numbers that were logged in it.
    """
    numbers = [Logged(name, value) for name, value in scalars.items()]
    histograms: list[LoggedHistogram] = []
    for phase, one in phases_of(series):
        if step not in one.rows or step % wanted.every:
            continue
        one_step = OneStep(one, step)
        finite, numel = one_step.of(_FINITE), one_step.of("numel")
        for name in wanted.names:
            values = one_step.of(name)
            told = _is_told(name, values, finite, numel)
            numbers += [
                Logged(name, value, site, phase)
                for value, site, is_told in zip(
                    values.tolist(), one_step.sites, told.tolist(), strict=True
                )
                if is_told
            ]
        if wanted.has_histograms(step):
            histograms += _histograms_of(one_step, phase)
    return LoggedStep(step, ended, numbers, histograms)


def _histograms_of(found: OneStep, phase: str) -> Iterator[LoggedHistogram]:
    ends = zip(*(found.of(one).tolist() for one in ("min", "max", "mean", "rms")), strict=True)
    for number, (site, (low, high, mean, rms)) in enumerate(zip(found.sites, ends, strict=True)):
        histogram = found.histogram(number)
        if histogram is not None and histogram.num_counted and math.isfinite(high - low):
            yield LoggedHistogram(site, phase, *in_cells(histogram, low, high), mean, rms)


def _is_told(
    name: str,
    values: NDArray[np.float64],
    finite: NDArray[np.float64],
    numel: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return what is handed on: numbers, and NaN where nothing was finite.

    Any other NaN says that there is no such number, as the ``update_ratio`` of what is no update.
    """
    told: NDArray[np.bool_] = ~np.isnan(values)
    return told if name in WITH_WEIGHT else told | ((finite == 0) & (numel > 0))


def in_cells(
    histogram: Histogram, low: float, high: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count in equal cells from the smallest to the largest element.

    An element stands in the cell of the middle of its bin, at most 3.1 % of itself away.
    """
    if low == high:  # As numpy.histogram does.
        low, high = low - 0.5, high + 0.5
    inside = (histogram.middles - low) / (high - low)
    cells = np.clip((inside * NUM_CELLS).astype(np.int64), 0, NUM_CELLS - 1)
    counts = np.bincount(cells, weights=histogram.counts, minlength=NUM_CELLS)
    return counts.astype(np.int64), np.linspace(low, high, NUM_CELLS + 1)


# ---------------------------------------------------------------------- a finished run


def steps_of_run(run: Run, where: Where, wanted: Wanted) -> Iterator[LoggedStep]:
    """Yield the steps of a run as :func:`live_step` gave them while it ran.

    Raises:
        SiteError: nothing was recorded or measured that fits ``where``, or a name is unknown.
        InputError: a name is no number.
    """
    tables = _tables_of(run, where, wanted.names)
    scalars = {name: dict(zip(*run.scalars(name), strict=True)) for name in run.scalar_names}
    times = dict(zip(*run.times, strict=True))
    now = time.time()
    measured = [step for table in tables for step in table.steps if step % wanted.every == 0]
    logged = [step for own in scalars.values() for step in own]
    for step in sorted({*measured, *logged}):
        numbers = [Logged(name, own[step]) for name, own in scalars.items() if step in own]
        histograms: list[LoggedHistogram] = []
        if step % wanted.every == 0:
            numbers += [one for table in tables for one in table.at(step)]
            if wanted.has_histograms(step):
                histograms += _histograms_in(run, step, {site for t in tables for site in t.sites})
        yield LoggedStep(step, times.get(step, now), numbers, histograms)


def _histograms_in(run: Run, step: int, sites: set[Site]) -> Iterator[LoggedHistogram]:
    for phase, series in phases_of(run.series):
        if step in series.rows:
            histograms = _histograms_of(OneStep(series, step), phase)
            yield from (histogram for histogram in histograms if histogram.site in sites)


class _Table:
    """All numbers of a phase: of each name ``float64[steps, sites]``, and which are handed on."""

    def __init__(self, run: Run, sites: list[Site], names: Iterable[str], phase: str) -> None:
        self.sites, self.phase = sites, phase
        columns = {
            site: {name: run.over_steps(site, name, phase=phase) for name in (*names, _FINITE)}
            for site in sites
        }
        counts = {site: run.over_steps(site, "numel", phase=phase) for site in sites}
        self.steps = sorted({step for own, _ in counts.values() for step in own})
        self._row = {step: row for row, step in enumerate(self.steps)}
        numel = self._filled([counts[site] for site in sites])
        finite = self._filled([columns[site][_FINITE] for site in sites])
        self._values = {
            name: self._filled([columns[site][name] for site in sites]) for name in names
        }
        self._told = {
            name: _is_told(name, own, finite, numel) & (numel >= 0)
            for name, own in self._values.items()
        }

    def _filled(self, columns: Sequence[tuple[list[int], list[float]]]) -> NDArray[np.float64]:
        filled = np.full((len(self.steps), len(columns)), math.nan)
        for place, (steps, values) in enumerate(columns):
            filled[[self._row[step] for step in steps], place] = values
        return filled

    def at(self, step: int) -> Iterator[Logged]:
        """Yield the numbers of a step, by name."""
        row = self._row.get(step)
        for name, values in self._values.items() if row is not None else ():
            for place in np.flatnonzero(self._told[name][row]).tolist():
                yield Logged(name, float(values[row, place]), self.sites[place], self.phase)


def _tables_of(run: Run, where: Where, names: tuple[str, ...]) -> list[_Table]:
    if not run.sites and where is None:  # Numbers that were logged alone.
        return []
    chosen = run.select(where)
    tables = [_Table(run, chosen, names, FORWARD)]
    if run.series.evaluation is not None:
        known = set(run.series.evaluation.sites)
        tables.append(_Table(run, [one for one in chosen if one in known], names, EVAL))
    return tables
