"""Reads the numbers of a run that a page shows, of each site over the steps and in the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import SiteError
from torchtap.core.site import Site
from torchtap.core.text import count, plural
from torchtap.plot.zero_gradients import zero_by_construction
from torchtap.runs.run import Run
from torchtap.runs.tables.columns import Row

Floats = NDArray[np.float64]
NAMES = ("std", "absmax", "mean", "zeros", "nonfinite")
"""Numbers that a chart shows of each site, over the steps; ``zeros`` as a share."""
OF_UPDATES = "update_ratio"
_READ = ("std", "absmax", "mean", "zeros", "nonfinite", "numel")
_MOST_MEASURED = 200
"""Steps of a site of which values alone were kept: each is read and measured now."""


@dataclass(frozen=True, eq=False)
class SiteNumbers:
    """The numbers of one site.

    Attributes:
        site: where.
        row: of the table of the run: the last step, with its statistics.
        series: name -> ``float64[steps]``; NaN where it was not measured.
        first_bad: the first step in which an element was NaN or infinite.
        num_bad_steps: in how many steps one was.
    """

    site: Site
    row: Row
    series: Mapping[str, Floats]
    first_bad: int | None = None
    num_bad_steps: int = 0

    @property
    def is_gradient(self) -> bool:
        """Return whether it is one of a gradient."""
        return "grad" in self.site.port

    @cached_property
    def last(self) -> dict[str, float]:
        """Return the numbers of the last step in which it was measured."""
        stats = self.row.stats
        numbers = {name: float(getattr(stats, name)) for name in NAMES}
        numbers["zeros"] = stats.zeros / stats.numel if stats.numel else math.nan
        if self.site.port == "update":
            numbers[OF_UPDATES] = stats.update_ratio
        return numbers


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run with the numbers of all its sites.

    Attributes:
        run: which.
        label: that stands beside its numbers where two runs are shown.
        steps: of the run, ascending.
        sites: text of the site -> its numbers, in the order of the run.
        scalars: name -> ``float64[steps]`` of what was logged; NaN where nothing was.
        bad_scalars: name -> ``float64[steps]``, 1 where a number was logged that is NaN or
            infinite; for those alone that ever were.
        known_zero: text of the site -> why its gradient is zero whatever the training does.
        notes: what is to be known of how it was read.
    """

    run: Run
    label: str
    steps: list[int]
    sites: dict[str, SiteNumbers]
    scalars: dict[str, Floats]
    bad_scalars: dict[str, Floats] = field(default_factory=dict)
    known_zero: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure_run(run: Run, label: str) -> MeasuredRun:
    """Read the numbers of a run, and measure values of which no statistics were kept."""
    steps = run.steps
    logged = {name: run.scalars(name) for name in run.scalar_names}
    # Numbers may be logged in steps in which nothing was watched.
    every = sorted({*steps, *(step for own, _ in logged.values() for step in own)})
    measured = MeasuredRun(run, label, every, {}, {})
    for name, (own, values) in logged.items():
        numbers = np.asarray(values, dtype=np.float64)
        measured.scalars[name] = _spread(every, own, numbers)
        bad = ~np.isfinite(numbers)
        if bad.any():
            measured.bad_scalars[name] = np.nan_to_num(_spread(every, own, bad.astype(np.float64)))
    try:
        rows = list(run.table()) if run.sites else []
    except SiteError:
        rows = []  # Sites of another phase alone.
    kept = _steps_of_values(run)
    for row in rows:
        own, series = _series_of(run, row.site, steps, kept, measured.notes)
        series = {name: _spread(every, own, values) for name, values in series.items()}
        bad = np.flatnonzero(np.nan_to_num(series["nonfinite"]) > 0)
        first = every[int(bad[0])] if len(bad) else None
        measured.sites[str(row.site)] = SiteNumbers(row.site, row, series, first, len(bad))
    zero = zero_by_construction(run, [one.site for one in measured.sites.values()])
    measured.known_zero.update((str(site), reason) for site, reason in zero.items())
    return measured


def steps_said(steps: list[int]) -> str:
    """Return how many steps there are, and which: ``12 steps, 0 to 11``, or ``step 3``."""
    if len(steps) == 1:
        return f"step {count(steps[0])}"
    said = plural(len(steps), "step")
    return f"{said}, {count(steps[0])} to {count(steps[-1])}" if steps else said


def _spread(steps: list[int], own: list[int], values: Floats) -> Floats:
    """Return numbers of some steps over all of them, NaN elsewhere."""
    if len(own) == len(steps):
        return values
    spread_out = np.full(len(steps), math.nan)
    spread_out[np.searchsorted(steps, own)] = values
    return spread_out


def _steps_of_values(run: Run) -> dict[Site, list[int]]:
    """Return the steps of each site of which values were kept, read in one pass over them."""
    by_site: dict[Site, dict[int, None]] = {}
    for record in run.records() if len(run) else ():
        by_site.setdefault(record.site, {})[record.step] = None
    return {site: sorted(steps) for site, steps in by_site.items()}


def _series_of(
    run: Run, site: Site, steps: list[int], of_values: Mapping[Site, list[int]], notes: list[str]
) -> tuple[list[int], dict[str, Floats]]:
    names = (*_READ, OF_UPDATES) if site.port == "update" else _READ
    if site in run.series:
        series = {name: run.array(site, name) for name in names}
    else:
        own = of_values.get(site, [])
        kept = own[-_MOST_MEASURED:]
        if len(kept) < len(own):
            note = f"Values without statistics are measured of their last {_MOST_MEASURED} steps."
            notes.extend([note] if note not in notes else [])
        every = [run.stats(site, step=step) for step in kept]
        series = {name: np.array([float(getattr(one, name)) for one in every]) for name in names}
        steps = kept
    numel = series.pop("numel")
    with np.errstate(all="ignore"):
        series["zeros"] = np.where(numel > 0, series["zeros"] / numel, math.nan)
    return steps, series
