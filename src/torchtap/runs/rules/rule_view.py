"""The view of a run that rules read: series by path and port, the loss, types and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchtap.core.absence import WHOLE_RUN
from torchtap.core.errors import InputError, RunError, SiteError
from torchtap.core.site import Site
from torchtap.runs.rules.loss_curve import LossCurve
from torchtap.runs.rules.loss_operations import LossOperations
from torchtap.runs.rules.module_facts import Modules

if TYPE_CHECKING:
    from torchtap.runs.run import Run

Floats = NDArray[np.float64]
NO_STEP = "no_step"
"""The code of an update that was watched for, and that no optimizer made."""
SIGNATURE = ("l1", "l2", "min", "max")
"""Numbers that tell two tensors apart: equal ones are of the same elements, but for their order."""


class View:
    """A run as rules read it.

    Every series is ``float64[steps]`` with NaN where there is nothing, so that a comparison with
    what a run lacks is false and the rule stays silent.

    Args:
        run: which.
        since: the first step that is looked at; all by default.

    Attributes:
        run: as given.
        steps: ``int64[steps]``, ascending.
        meta: of the run.
        modules: of the run.
        loss: the loss over its own steps, or what stands in for it.
        judged: the operations of the loss, and how outputs meet its targets.
    """

    def __init__(self, run: Run, *, since: int | None = None) -> None:
        self.run = run
        self.meta = run.meta
        steps = np.array(run.steps, dtype=np.int64)
        self._chosen = np.ones(len(steps), dtype=bool) if since is None else steps >= since
        self.steps = steps[self._chosen]
        self.since = since
        self._sites: dict[tuple[str, str], list[Site]] = {}
        for site in run.sites:
            self._sites.setdefault((site.path, site.port), []).append(site)
        self._series: dict[tuple[Site, str], Floats] = {}
        self._shapes: dict[Site, tuple[tuple[int, ...], str]] = {}
        self.modules = Modules(self)
        self.judged = LossOperations(self)
        self.loss = LossCurve(self)

    # ------------------------------------------------------------------ steps

    @property
    def first(self) -> int:
        """The first step; 0 of an empty run."""
        return int(self.steps[0]) if len(self.steps) else 0

    @property
    def last(self) -> int:
        """The last step; 0 of an empty run."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def span(self) -> tuple[int, ...]:
        """The first and the last step."""
        return tuple(dict.fromkeys((self.first, self.last))) if len(self.steps) else ()

    @property
    def sees_beginning(self) -> bool:
        """Return whether the first step that is looked at is the first of the training."""
        return self.since is None and self.first == 0

    # ------------------------------------------------------------------ sites and numbers

    def sites(self, port: str) -> Iterator[Site]:
        """Yield the sites of a port, in the order of their modules."""
        for (_, own), found in self._sites.items():
            if own == port:
                yield from found

    def site(self, path: str, port: str, leaf: str | None = None) -> Site | None:
        """Return a site of a module: its first of the port, or the one with that leaf."""
        found = self._sites.get((path, port), ())
        return next((one for one in found if leaf is None or one.leaf == leaf), None)

    def series(self, site: Site | None, name: str) -> Floats:
        """Return a number of a site over the steps; NaN where there is none, or no site."""
        if site is None:
            return np.full(len(self.steps), math.nan)
        if (site, name) not in self._series:
            try:
                found = self.run.array(site, name)[self._chosen]
            except (SiteError, RunError, InputError):
                found = np.full(len(self.steps), math.nan)
            # A run that goes on may have a step more by now.
            self._series[site, name] = found[: len(self.steps)]
        return self._series[site, name]

    def share(self, site: Site | None, name: str) -> Floats:
        """Return a count of a site as its share of all elements."""
        with np.errstate(all="ignore"):
            return self.series(site, name) / self.series(site, "numel")

    def start(self, site: Site | None, name: str) -> float:
        """Return a number of a site in the first step in which it is there; NaN for none."""
        found = self.series(site, name)
        there = np.flatnonzero(~np.isnan(found))
        return float(found[there[0]]) if len(there) else math.nan

    def shape(self, site: Site | None) -> tuple[int, ...]:
        """Return the shape of a site's tensors; empty where it is not known, or changes."""
        return () if site is None else self._described(site)[0]

    def dtype(self, site: Site | None) -> str:
        """Return the dtype of a site's tensors, as PyTorch names it; empty for no site."""
        return "" if site is None else self._described(site)[1]

    def _described(self, site: Site) -> tuple[tuple[int, ...], str]:
        if site not in self._shapes:
            series = self.run.series
            if site in series:
                known = series.of(site)
                self._shapes[site] = known.shape or (), known.dtype
            else:
                stats = self.run.stats(site)
                self._shapes[site] = tuple(stats.shape or ()), stats.dtype
        return self._shapes[site]

    def are_equal(self, one: Site | None, two: Site | None) -> bool:
        """Return whether two sites had the same elements in every step, as far as numbers tell."""
        if one is None or two is None:
            return False
        for name in SIGNATURE:
            a, b = self.series(one, name), self.series(two, name)
            there = ~np.isnan(a) & ~np.isnan(b)
            if not there.any() or (a[there] != b[there]).any():
                return False
        return self.start(one, "numel") == self.start(two, "numel")

    # ------------------------------------------------------------------ parameters

    @cached_property
    def matrices(self) -> list[Site]:
        """The parameters with two dims or more, in the order of first calls."""
        found = [one for one in self.sites("param") if len(self.shape(one)) >= 2]
        return sorted(found, key=lambda one: self.modules.order.get(one.path, 0))

    def beside(self, site: Site, port: str) -> Site | None:
        """Return the site of another port of the same parameter."""
        return self.site(site.path, port, site.leaf)

    def norm(self, port: str) -> Floats:
        """Return the norm of all sites of a port together, in each step; NaN without any."""
        parts = [self.series(one, "l2") for one in self.sites(port)]
        if not parts:
            return np.full(len(self.steps), math.nan)
        squares = np.stack(parts) ** 2
        total = np.nansum(squares, axis=0)
        total[np.isnan(squares).all(axis=0)] = math.nan
        norms: Floats = np.sqrt(total)
        return norms


def why_absent(view: View, port: str) -> dict[str, str]:
    """Return why a port without sites has none: codes and reasons; empty if not watched."""
    if any(True for _ in view.sites(port)):
        return {}
    found = (one for one in view.run.absent if one.site.port == port and one.site != WHOLE_RUN)
    return {one.code: one.reason for one in found}


def median(values: Iterable[float] | Floats) -> float:
    """Return the median of what is finite; NaN of nothing."""
    found = np.asarray(list(values) if not isinstance(values, np.ndarray) else values, dtype=float)
    found = found[np.isfinite(found)]
    return float(np.median(found)) if len(found) else math.nan


def largest(values: Floats) -> float:
    """Return the largest of what is finite; NaN of nothing."""
    found = values[np.isfinite(values)]
    return float(found.max()) if len(found) else math.nan


def shown(path: str) -> str:
    """The path of a module as findings have it: ``.`` for the model."""
    return path or "."
