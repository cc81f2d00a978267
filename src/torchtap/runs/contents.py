"""The contents of a run at one moment, and the lookup in them.

A run of a live watch is read while it fills, and reading it brings the statistics up to date. So
every operation of :class:`~torchtap.runs.run.Run` asks for the contents once and works on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError, RunError, SiteError
from torchtap.core.record import EVAL, FORWARD, PHASES, Record, said_steps, steps_there
from torchtap.core.site import Site
from torchtap.runs.meta import Meta
from torchtap.runs.records import Fact, Places, Records, distinct
from torchtap.runs.rows import SiteRows, without_jags
from torchtap.runs.select import Selection, Where
from torchtap.stats import reading
from torchtap.stats.catalogue.results import Extra
from torchtap.stats.numbers import NAMES, further_of, value_of
from torchtap.stats.series import Series
from torchtap.stats.statistics import Statistics, other_shape, why_no_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.merging.rank_numbers import RankNumbers
    from torchtap.runs.tables.statistics_columns import StatisticsIndex

Step = int | Iterable[int] | str | None
_SEARCHED = 8
"""Sites whose records are searched for one by one, before those of all are sorted."""
_OF_VALUES = "not measured while it ran: computed from the values that were kept"
_NONE: Places = np.zeros(0, dtype=np.intp)


class Contents:
    """The contents of a run at one moment.

    Args:
        records: in the order of their arrival.
        series: what was measured.
        meta: what is known of the model.
        absent: asks what was selected and not seen.
        expected: asks for sites in the order in which calls have them, as far as that is known.
        phase: of the records and statistics that are looked up where none is named.
        ranks: of a merged run, the numbers of each rank.
    """

    def __init__(
        self,
        records: Records,
        series: Series,
        meta: Meta,
        absent: Callable[[], Sequence[Absence]],
        expected: Callable[[], Sequence[Site]] = tuple,
        phase: str = FORWARD,
        ranks: RankNumbers | None = None,
    ) -> None:
        self.series = series
        self.ranks = ranks
        self.phase = phase
        self.meta = meta
        self.absent = absent
        self._records = records
        self._length = len(records)
        self._revision = series.revision
        self._expected = expected
        self._of_site: dict[Site, Places] = {}
        self._steps_of: dict[Site, Mapping[int, Places]] = {}
        self._unmeasured_steps: dict[Site, list[int]] = {}

    def in_phase(self, phase: str) -> Contents:
        """Return the contents of the same run, of which another phase is looked up."""
        if phase == self.phase:
            return self
        if phase not in PHASES:
            raise InputError(f"phase is {phase!r}; expected one of {', '.join(PHASES)}.")
        series = (self.series.evaluation if phase == EVAL else None) or Series(1)
        if not series.sites and not self._records.in_phase(phase).any() and self.sites:
            raise SiteError(f"Nothing was recorded in the phase {phase!r}.")
        return Contents(self._records, series, self.meta, self.absent, self._expected, phase)

    def is_of(self, records: Records, series: Series) -> bool:
        """Return whether records and series are still those of this moment."""
        length, revision = len(records), series.revision
        return records is self._records and (length, revision) == (self._length, self._revision)

    def __len__(self) -> int:
        return self._length

    def _column(self, name: str) -> NDArray[Any]:
        return self._records.column(name)[: self._length]

    def _at(self, name: str, places: Places) -> NDArray[Any]:
        return self._records.column_at(name, places)

    @cached_property
    def selection(self) -> Selection:
        """The sites that were recorded or measured, and how they are looked up."""
        known = dict.fromkeys([*self._records.sites, *self.series.sites])
        in_order = [site for site in dict.fromkeys(self._expected()) if site in known]
        known = {**dict.fromkeys(in_order), **known}
        meta = self.meta
        return Selection(known, meta.modules, meta.aliases, self.absent, watched=meta.where)

    @property
    def sites(self) -> Sequence[Site]:
        """Sites that were recorded or measured, by module, port and leaf."""
        return self.selection.sites

    @cached_property
    def statistics_index(self) -> StatisticsIndex:
        """The index of the sites and steps that have statistics."""
        from torchtap.runs.tables.statistics_columns import StatisticsIndex

        return StatisticsIndex(self, self.select(None))

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return sorted({*distinct(self._column("step")).tolist(), *self.series.steps})

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._records.nbytes

    @property
    def kept(self) -> Records:
        """All records."""
        return self._records

    def places_in(self, steps: Sequence[int]) -> Places:
        """Places of the records of some steps that nothing has overwritten, as :meth:`records`."""
        places: Places = np.arange(self._length)
        own = distinct(self._column("step"))
        if not np.isin(own, steps).all():
            places = self._among(places, None, steps)
        lost = self._records.overwritten_places()
        if len(lost):
            places = places[~np.isin(places, lost)]
        return self._in_call_order(places)

    @property
    def entries(self) -> Any:
        """The index of values that are on disk (see ``runs/store``), ``None`` of others."""
        return self._records.entries

    def select(self, where: Where) -> list[Site]:
        """See :meth:`Run.select <torchtap.runs.run.Run.select>`."""
        return self.selection.select(where)

    def resolve(self, site: str | Site) -> Site:
        """The one site that is meant."""
        return self.selection.resolve(site)

    # ------------------------------------------------------------------ places of records

    def _places_of(self, site: Site) -> Places:
        """Places of the records of a site, in the order of their arrival."""
        number = self._records.number_of(site)
        if number is None:
            return np.zeros(0, dtype=np.intp)
        if site not in self._of_site:
            if len(self._of_site) < _SEARCHED:
                self._of_site[site] = np.flatnonzero(self._column("site") == number)
            else:
                self._of_site[site] = self._by_site[number]
        return self._of_site[site]

    @cached_property
    def _by_site(self) -> list[Places]:
        """The places of the records of every site, by its number."""
        numbers = self._column("site")
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._records.sites)))
        return np.split(order, ends[:-1])

    def _is_recorded(self, site: Site) -> bool:
        return self._records.number_of(site) is not None

    def _among(
        self, places: Places, phase: str | None, steps: Collection[int] | None = None
    ) -> Places:
        """Return the places that are of a phase and of some steps."""
        if phase is not None:
            places = places[self._records.in_phase(phase)[places]]
        if steps is not None:
            places = places[np.isin(self._at("step", places), list(steps))]
        return places

    def _in_call_order(self, places: Places) -> Places:
        """Reorder the places so that the gradients of one call are in the order of its arguments.

        Each gradient takes the place of one of its own call, so that nothing else moves.
        """
        sides: dict[tuple[str, str], int] = {}
        side, rank, times = {}, {}, Counter[int]()
        for position, site in enumerate(self.sites):
            number = self._records.number_of(site)
            if number is not None and site.is_gradient:
                side[number] = sides.setdefault((site.path, site.port), len(sides))
                rank[number] = position
                times[side[number]] += 1
        several = [number for number in side if times[side[number]] > 1]
        if not several:
            return places
        of_number = np.full((2, len(self._records.sites)), -1)
        of_number[:, several] = [[side[n] for n in several], [rank[n] for n in several]]
        slots = np.flatnonzero(of_number[0][self._at("site", places)] >= 0)
        movable = places[slots]
        sites = self._at("site", movable)
        call = [self._at(name, movable) for name in ("backward", "phase", "call", "step")]
        call.append(of_number[0][sites])
        moved = places.copy()
        moved[slots[np.lexsort((movable, *call))]] = movable[
            np.lexsort((movable, of_number[1][sites], *call))
        ]
        return moved

    # ------------------------------------------------------------------ values

    def record(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Record:
        """See :meth:`Run.record <torchtap.runs.run.Run.record>`."""
        place = self.resolve(site)
        self._refuse_measured(place)
        found = self._among(self._places_of(place), phase)
        for name, wanted in (("step", step), ("call", call), ("backward", backward)):
            if wanted is not None:
                found = found[self._at(name, found) == wanted]
        if not len(found):
            raise SiteError(self._nothing_like(place, step, call, backward, phase))
        # Of several backwards the one that came last.
        steps, calls = self._at("step", found), self._at("call", found)
        return self._records[int(found[np.lexsort((found, calls, steps))[-1]])]

    def records(
        self,
        where: Where = None,
        *,
        steps: int | Iterable[int] | None = None,
        phase: str | None = FORWARD,
    ) -> Iterator[Record]:
        """See :meth:`Run.records <torchtap.runs.run.Run.records>`."""
        wanted = None if steps is None else {steps} if isinstance(steps, int) else set(steps)
        places: Places = np.arange(self._length)
        if where is not None:
            numbers = [self._records.number_of(site) for site in self.select(where)]
            chosen = np.zeros(len(self._records.sites), dtype=bool)
            chosen[[number for number in numbers if number is not None]] = True
            places = np.flatnonzero(chosen[self._column("site")])
        return self._records.at(self._in_call_order(self._among(places, phase, wanted)))

    def records_of(self, site: Site, steps: Collection[int] | None = None) -> list[Record]:
        """The records of one site, in the order of their arrival."""
        return list(self._records.at(self._among(self._places_of(site), self.phase, steps)))

    def cat(self, site: str | Site, *, steps: int | Iterable[int] | None = None) -> Tensor:
        """See :meth:`Run.cat <torchtap.runs.run.Run.cat>`."""
        import torch

        place = self.resolve(site)
        self._refuse_measured(place)
        wanted = [steps] if isinstance(steps, int) else steps
        rows = self.records_of(place, None if wanted is None else set(wanted))
        last = {(row.step, row.call): row for row in rows}
        if not last:
            missing = steps if isinstance(steps, int) else None
            own = sorted(self._by_step(place))
            if not own:
                raise SiteError(self._nothing_like(place, None, None, None, self.phase))
            raise SiteError(
                f"{place} has no record in steps {steps!r}. {steps_there(own, missing)}"
            )
        values = [
            without_jags(row.value) for _, row in sorted(last.items(), key=lambda item: item[0])
        ]
        kinds = (torch.strided, torch.sparse_coo)  # Others are joined as sparse ones.
        values = [one if one.layout in kinds else one.to_sparse() for one in values]
        try:
            return torch.cat([value.reshape(1) if value.dim() == 0 else value for value in values])
        except RuntimeError as error:
            shapes = sorted({str(tuple(value.shape)) for value in values})
            raise RunError(
                f"The {len(values)} values of {place} cannot be joined along dim 0: their shapes "
                f"are {', '.join(shapes)}. Read them one by one with run.records({str(place)!r})."
            ) from error

    def facts(self) -> Iterator[tuple[Site, int, str, Fact]]:
        """Site, step, phase, and dtype, shape and bytes of every record, as :meth:`records`."""
        places = self._in_call_order(np.arange(self._length))
        sites, steps = (self._at(name, places).tolist() for name in ("site", "step"))
        phases = self._records.phases()[places].tolist()
        for place, site, step, phase in zip(places.tolist(), sites, steps, phases, strict=True):
            yield self._records.sites[site], step, phase, self._records.fact(place)

    def site_rows(self, site: str | Site) -> SiteRows:
        """The rows of a site, numbered as :meth:`cat` joins them."""
        place = self.resolve(site)
        self._refuse_measured(place)
        found = self._among(self._places_of(place), self.phase)
        steps, calls = self._at("step", found), self._at("call", found)
        found = found[np.lexsort((found, calls, steps))]
        steps, calls = self._at("step", found), self._at("call", found)
        # Of several backwards through one call the last.
        is_last = np.ones(len(found), dtype=bool)
        is_last[:-1] = (np.diff(steps) != 0) | (np.diff(calls) != 0)
        return SiteRows(self._records, found[is_last], place)

    def mean_norm(self, where: Where) -> dict[str, float]:
        """See :meth:`Run.mean_norm <torchtap.runs.run.Run.mean_norm>`."""
        import torch

        chosen = self.select(where)
        paths = [site.path for site in chosen]
        by_path = len(set(paths)) == len(paths)
        norms = {}
        for site in chosen:
            if self._has_all_values(site):
                joined = self.cat(site)
                joined = joined if joined.layout is torch.strided else joined.to_dense()
                wide = joined.to(torch.complex128 if joined.is_complex() else torch.float64)
                norm = float(torch.linalg.vector_norm(wide.mean(dim=0)))
            else:
                norm = self._measured_mean_norm(site)
            norms[(site.path or ".") if by_path else str(site)] = norm
        return norms

    def _has_all_values(self, site: Site) -> bool:
        """Return whether the values of a site were kept in every step in which it was measured."""
        if site not in self.series:
            return True
        return set(self.series.steps_of(site)) <= self._by_step(site).keys()

    def _measured_mean_norm(self, site: Site) -> float:
        kept = self.only_kept(site)
        if kept:
            steps = self.steps_of(site)
            raise RunError(
                f"{site} has no mean over samples of all {len(steps)} steps: {said_steps(kept)} "
                f"{'was' if len(kept) == 1 else 'were'} not measured, and of the others not all "
                f"values were kept. Take the steps that were kept: run.cat({str(site)!r}).mean(0)."
            )
        return self.series.of(site).mean_norm()

    # ------------------------------------------------------------------ statistics

    def steps_of(self, site: Site) -> list[int]:
        """Steps of which there are statistics of a site, ascending: those in which it was measured
        while it ran, and those of which its values were kept.
        """
        measured = self.series.steps_of(site) if site in self.series else []
        return sorted({*measured, *self.only_kept(site)})

    def only_kept(self, site: Site) -> list[int]:
        """Steps of which the values of a site were kept, and it was not measured while it ran.

        Those of a site that was measured in others are few: a crash loses the last statistics.
        """
        if not self._is_recorded(site):
            return []
        if site not in self._unmeasured_steps:
            measured = set(self.series.steps_of(site)) if site in self.series else set()
            self._unmeasured_steps[site] = sorted(self._by_step(site).keys() - measured)
        return self._unmeasured_steps[site]

    def stats(self, site: str | Site, *, step: Step = None) -> Statistics:
        """See :meth:`Run.stats <torchtap.runs.run.Run.stats>`.

        All that shows statistics asks here, and :meth:`steps_of`, so that a step that was measured
        counts everywhere, whether its values were kept or not.
        """
        place, step = self.resolve(site), as_step(step)
        if place not in self.series:
            return self._measured_now(place, step)
        kept = self.only_kept(place)
        if isinstance(step, str | list):
            return self._over_several(place, None if isinstance(step, str) else step)
        if step is None and kept:
            step = self.steps_of(place)[-1]
        if step in kept:
            return self._not_measured(place, self._measured_now(place, step))
        return reading.at(self.series, place, step)

    def _over_several(self, site: Site, steps: list[int] | None) -> Statistics:
        """Return the statistics of several steps of a site together, or of all of them.

        Args:
            site: which.
            steps: those that were asked for; ``None`` for all.
        """
        wanted = set(self.steps_of(site) if steps is None else steps)
        kept = [step for step in self.only_kept(site) if step in wanted]
        own = [step for step in self.series.steps_of(site) if step in wanted]
        if not kept:
            if steps is None:
                return reading.whole(self.series, site)
            return reading.window(self.series, site, steps)
        found = self._not_measured(site, self._measured_now(site, kept))
        if own:
            measured = (
                reading.whole(self.series, site)
                if steps is None
                else reading.window(self.series, site, own)
            )
            found = reading.without_ratio(measured.merge(found), site)
        return replace(found, notes=(*found.notes, *reading.part_of([*own, *kept], wanted)))

    def _not_measured(self, site: Site, found: Statistics) -> Statistics:
        """Say of statistics of values that the site was measured in other steps."""
        missing = {one.name: f"{_OF_VALUES}." for one in self.series.statistics}
        return replace(
            found, notes=(*found.notes, _OF_VALUES), extra=Extra(where=str(site), missing=missing)
        )

    def _measured_now(self, site: Site, step: int | list[int] | str | None) -> Statistics:
        """Measure the values that were kept."""
        from torchtap.stats.measure import measure_all

        per_step = self._by_step(site)
        if step is None:
            step = max(per_step, default=None)
        if isinstance(step, int):
            places = per_step.get(step, _NONE)
        else:
            wanted = per_step.keys() if step is None or isinstance(step, str) else set(step)
            places = self._among(self._places_of(site), self.phase, set(wanted))
        rows = list(self._records.at(places))
        if not rows:
            only = step if isinstance(step, int) else None
            raise SiteError(self._nothing_like(site, only, None, None, self.phase))
        found = measure_all(row.value for row in rows)
        notes = dict.fromkeys(chain.from_iterable(row.labels for row in rows))
        if isinstance(step, list):
            part = reading.part_of({row.step for row in rows}, step)
            found = replace(found, notes=(*found.notes, *part))
        found = replace(found, notes=(*notes, *found.notes))
        if site.port != "update":
            return found
        if len({row.step for row in rows}) > 1:
            return reading.without_ratio(found, site)
        param = Site(site.path, "param", site.leaf)
        before = [*self._records.at(self._by_step(param).get(rows[0].step, _NONE)[:1])]
        norm = measure_all([before[0].value], histogram=False).l2 if before else math.nan
        why = why_no_ratio(norm)
        if before and found.shape not in (None, shape := tuple(before[0].kept.shape)):
            norm, why = math.nan, other_shape(shape, found.shape)
        return replace(found, weight_l2=norm, why_no_ratio=why)

    def _by_step(self, site: Site) -> Mapping[int, Places]:
        """Places of the records of a site in each step."""
        if site not in self._steps_of:
            places = self._among(self._places_of(site), self.phase)
            steps = self._at("step", places)
            order = np.argsort(steps, kind="stable")
            known, starts = np.unique(steps[order], return_index=True)
            parts = np.split(places[order], starts[1:])
            self._steps_of[site] = dict(zip(known.tolist(), parts, strict=False))
        return self._steps_of[site]

    def over_steps(self, site: str | Site, name: str) -> tuple[list[int], list[Any]]:
        """See :meth:`Run.over_steps <torchtap.runs.run.Run.over_steps>`."""
        series, place = self.series, self.resolve(site)
        further = [one.name for one in series.statistics]
        if name not in NAMES:
            further_of(name, further)
        if place not in series and not self._by_step(place):
            raise SiteError(self._nothing_like(place, None, None, None, self.phase))
        steps, kept = self.steps_of(place), set(self.only_kept(place))
        if name in NAMES and not NAMES[name].needs_histogram:
            per_step = (
                self.stats(place, step=step)
                if step in kept
                else reading.numbers_at(series, place, step)
                for step in steps
            )
            return steps, [value_of(stats, name) for stats in per_step]
        if name not in NAMES and place in series:  # Of values no further statistics are computed.
            steps, kept = series.steps_of(place), set()
        there = [step for step in steps if step in kept or series.is_kept(step)] or steps[-1:]
        return there, [value_of(self.stats(place, step=step), name) for step in there]

    def over_ranks(
        self, site: str | Site, name: str, step: int | None
    ) -> tuple[list[int], list[float]]:
        """See :meth:`Run.over_ranks <torchtap.runs.run.Run.over_ranks>`."""
        if self.ranks is None:
            raise RunError(
                f"This run is of rank {self.meta.rank} alone, and of no other. Merge the runs of "
                f"all ranks first: tt.merge([...]).over_ranks({str(site)!r}, {name!r})."
            )
        known = Selection(self.ranks.sites, self.meta.modules, self.meta.aliases, self.absent)
        return self.ranks.over_ranks(known.resolve(site), name, step)

    # ------------------------------------------------------------------ what is missing

    def _refuse_measured(self, site: Site) -> None:
        if not self._is_recorded(site) and site in self.series:
            raise RunError(
                f"{site} was measured and its values were not kept. Read run.stats({str(site)!r}), "
                f"or watch with to=[tt.Memory(), tt.Stats()]."
            )

    def _nothing_like(
        self, site: Site, step: int | None, call: int | None, backward: int | None, phase: str
    ) -> str:
        places = self._places_of(site)
        steps, calls = (self._at(name, places).tolist() for name in ("step", "call"))
        phases = self._records.phases()[places].tolist()
        rows = list(zip(steps, calls, phases, strict=True))
        have = sorted({(step, number) for step, number, one in rows if one == phase})
        asked = [
            f"{name} {value}"
            for name, value in (("step", step), ("call", call), ("backward", backward))
            if value is not None
        ]
        shown = ", ".join(f"step {s} call {c}" for s, c in have[:6]) or f"none in phase {phase}"
        more = f" and {len(have) - 6} more" if len(have) > 6 else ""
        others = sorted(set(phases) - {phase})
        hint = f" Others have phase={' and '.join(map(repr, others))}." if others else ""
        return (
            f"{site} has no record in {', '.join(asked) or phase}. There are: {shown}{more}.{hint}"
        )


def as_step(step: Any) -> int | list[int] | str | None:
    """One step, several, or ``all``; whole numbers of any kind, such as numpy's."""
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
