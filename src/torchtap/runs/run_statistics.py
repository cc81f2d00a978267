"""The statistics of a run: as they were measured while it ran, or of the values that were kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError, SiteError
from torchtap.core.record import said_steps
from torchtap.core.site import Site
from torchtap.runs.records import Places
from torchtap.runs.select import Where
from torchtap.stats import read_series
from torchtap.stats.catalogue.results import Extra
from torchtap.stats.named_numbers import NAMES, as_number, further_of, value_of
from torchtap.stats.row_columns import COLUMNS
from torchtap.stats.statistics import Statistics, other_shape, why_no_ratio

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents

Step = int | Iterable[int] | str | None
_OF_VALUES = "not measured while it ran: computed from the values that were kept"
_NONE: Places = np.zeros(0, dtype=np.intp)


class RunStatistics:
    """The statistics in the contents of a run.

    Args:
        held: the contents. They keep no reference to this object: a reference cycle would keep
            tensors alive until garbage collection.
        unmeasured_steps: site -> the steps of which its values alone were kept, as far as known.
    """

    def __init__(self, held: Contents, unmeasured_steps: dict[Site, list[int]]) -> None:
        self._held = held
        self._index = held.index
        self._series = held.series
        self._unmeasured_steps = unmeasured_steps

    def steps_of(self, site: Site) -> list[int]:
        """Steps of which there are statistics of a site, ascending: those in which it was measured
        while it ran, and those of which its values were kept.
        """
        measured = self._series.steps_of(site) if site in self._series else []
        return sorted({*measured, *self.unmeasured_steps(site)})

    def unmeasured_steps(self, site: Site) -> list[int]:
        """Steps of which the values of a site were kept, and it was not measured while it ran.

        There are few such steps of a site that was measured in others: a crash loses the last
        statistics.
        """
        if not self._index.is_recorded(site):
            return []
        if site not in self._unmeasured_steps:
            measured = set(self._series.steps_of(site)) if site in self._series else set()
            self._unmeasured_steps[site] = sorted(self._index.by_step(site).keys() - measured)
        return self._unmeasured_steps[site]

    def stats(self, site: str | Site, *, step: Step = None) -> Statistics:
        """See :meth:`Run.stats <torchtap.runs.run.Run.stats>`.

        All that shows statistics asks here, and :meth:`steps_of`, so that a step that was measured
        counts everywhere, whether its values were kept or not.
        """
        site, step = self._held.resolve(site), as_step(step)
        if site not in self._series:
            return self._measured_now(site, step)
        kept = self.unmeasured_steps(site)
        if isinstance(step, str | list):
            return self._over_several(site, None if isinstance(step, str) else step)
        if step is None and kept:
            step = self.steps_of(site)[-1]
        if step in kept:
            return self._not_measured(site, self._measured_now(site, step))
        return read_series.at(self._series, site, step)

    def over_steps(self, site: str | Site, name: str) -> tuple[list[int], list[Any]]:
        """See :meth:`Run.over_steps <torchtap.runs.run.Run.over_steps>`."""
        series, site = self._series, self._held.resolve(site)
        further = [statistic.name for statistic in series.statistics]
        if name not in NAMES:
            further_of(name, further)
        if site not in series and not self._index.by_step(site):
            raise SiteError(self._no_record(site))
        steps, kept = self.steps_of(site), set(self.unmeasured_steps(site))
        if name in COLUMNS:
            values = self._held.columns.of(site, name).tolist() if site in series else []
            measured = iter(values)
            return steps, [
                value_of(self.stats(site, step=step), name) if step in kept else next(measured)
                for step in steps
            ]
        if name not in NAMES and site in series:  # Of values no further statistics are computed.
            steps, kept = series.steps_of(site), set()
        there = [step for step in steps if step in kept or series.is_kept(step)] or steps[-1:]
        return there, [value_of(self.stats(site, step=step), name) for step in there]

    def array(self, site: str | Site, name: str, steps: Sequence[int]) -> NDArray[np.float64]:
        """See :meth:`Run.array <torchtap.runs.run.Run.array>`; ``steps`` are of all phases."""
        site = self._held.resolve(site)
        if name in COLUMNS and site in self._series and not self.unmeasured_steps(site):
            columns = self._held.columns
            own, values = columns.steps[columns.is_there(site)], columns.of(site, name)
        else:
            there, read = self.over_steps(site, name)
            own = np.array(there, dtype=np.int64)
            values = np.array([as_number(name, value) for value in read], dtype=np.float64)
        numbers = np.full(len(steps), math.nan)
        # A thread that measures may have added a step since the run was read.
        known = np.isin(own, steps)
        numbers[np.searchsorted(steps, own[known])] = values[known]
        return numbers

    def mean_norm(self, where: Where) -> dict[str, float]:
        """See :meth:`Run.mean_norm <torchtap.runs.run.Run.mean_norm>`."""
        import torch

        chosen = self._held.select(where)
        paths = [site.path for site in chosen]
        by_path = len(set(paths)) == len(paths)
        norms = {}
        for site in chosen:
            if self._has_all_values(site):
                joined = self._held.cat(site)
                joined = joined if joined.layout is torch.strided else joined.to_dense()
                wide = joined.to(torch.complex128 if joined.is_complex() else torch.float64)
                norm = float(torch.linalg.vector_norm(wide.mean(dim=0)))
            else:
                norm = self._measured_mean_norm(site)
            norms[(site.path or ".") if by_path else str(site)] = norm
        return norms

    def _over_several(self, site: Site, steps: list[int] | None) -> Statistics:
        """Return the statistics of several steps of a site together, or of all of them.

        Args:
            site: which.
            steps: those that were asked for; ``None`` for all.
        """
        wanted = set(self.steps_of(site) if steps is None else steps)
        kept = [step for step in self.unmeasured_steps(site) if step in wanted]
        own = [step for step in self._series.steps_of(site) if step in wanted]
        if not kept:
            if steps is None:
                return read_series.whole(self._series, site)
            return read_series.window(self._series, site, steps)
        measured_now = self._not_measured(site, self._measured_now(site, kept))
        if own:
            measured = (
                read_series.whole(self._series, site)
                if steps is None
                else read_series.window(self._series, site, own)
            )
            measured_now = read_series.without_ratio(measured.merge(measured_now), site)
        return replace(
            measured_now, notes=(*measured_now.notes, *read_series.part_of([*own, *kept], wanted))
        )

    def _not_measured(self, site: Site, found: Statistics) -> Statistics:
        """Say of statistics of values that the site was measured in other steps."""
        missing = {statistic.name: f"{_OF_VALUES}." for statistic in self._series.statistics}
        return replace(
            found, notes=(*found.notes, _OF_VALUES), extra=Extra(where=str(site), missing=missing)
        )

    def _measured_now(self, site: Site, step: int | list[int] | str | None) -> Statistics:
        """Measure the values that were kept."""
        from torchtap.stats.measure import measure_all

        per_step = self._index.by_step(site)
        if step is None:
            step = max(per_step, default=None)
        if isinstance(step, int):
            places = per_step.get(step, _NONE)
        else:
            wanted = per_step.keys() if step is None or isinstance(step, str) else set(step)
            places = self._index.places_at(site, set(wanted))
        rows = list(self._held.recorded.at(places))
        if not rows:
            only = step if isinstance(step, int) else None
            raise SiteError(self._no_record(site, only))
        measured = measure_all(row.value for row in rows)
        notes = dict.fromkeys(chain.from_iterable(row.labels for row in rows))
        if isinstance(step, list):
            part = read_series.part_of({row.step for row in rows}, step)
            measured = replace(measured, notes=(*measured.notes, *part))
        measured = replace(measured, notes=(*notes, *measured.notes))
        param = site.compared_with
        if param is None:
            return measured
        if len({row.step for row in rows}) > 1:
            return read_series.without_ratio(measured, site)
        before = [*self._held.recorded.at(self._index.by_step(param).get(rows[0].step, _NONE)[:1])]
        norm = measure_all([before[0].value], histogram=False).l2 if before else math.nan
        why = why_no_ratio(norm)
        if before and measured.shape not in (None, shape := tuple(before[0].kept.shape)):
            norm, why = math.nan, other_shape(shape, measured.shape)
        return replace(measured, weight_l2=norm, why_no_ratio=why)

    def _no_record(self, site: Site, step: int | None = None) -> str:
        return self._index.no_record_message(site, step, None, None, self._held.phase)

    def _has_all_values(self, site: Site) -> bool:
        """Return whether the values of a site were kept in every step in which it was measured."""
        if site not in self._series:
            return True
        return set(self._series.steps_of(site)) <= self._index.by_step(site).keys()

    def _measured_mean_norm(self, site: Site) -> float:
        kept = self.unmeasured_steps(site)
        if kept:
            steps = self.steps_of(site)
            raise RunError(
                f"{site} has no mean over samples of all {len(steps)} steps: {said_steps(kept)} "
                f"{'was' if len(kept) == 1 else 'were'} not measured, and of the others not all "
                f"values were kept. Take the steps that were kept: run.cat({str(site)!r}).mean(0)."
            )
        return self._series.of(site).mean_norm()


def as_step(step: Any) -> int | list[int] | str | None:
    """Return one step, several, or ``all``; whole numbers of any kind, such as numpy's."""
    if step is None or (isinstance(step, str) and step == "all"):
        return step
    try:
        return index(step)
    except TypeError:
        pass
    try:
        return [index(one) for one in step]
    except TypeError:
        raise SiteError(
            f"step is {step!r}; expected a number, several of them, or 'all'."
        ) from None
