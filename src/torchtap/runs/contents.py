"""The contents of a run at one moment, and the lookup in them.

A run of a live watch is read while it fills, and reading it brings the statistics up to date. So
every operation of :class:`~torchtap.runs.run.Run` asks for the contents once and works on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torchtap.core.errors import InputError, RunError, SiteError
from torchtap.core.record import EVAL, FORWARD, PHASES, Record, steps_there
from torchtap.core.site import Site
from torchtap.runs.record_index import RecordIndex
from torchtap.runs.records import Places, Records, distinct
from torchtap.runs.run_statistics import RunStatistics
from torchtap.runs.select import Selection, Where
from torchtap.runs.site_rows import SiteRows, without_jags
from torchtap.stats.row_columns import SeriesColumns
from torchtap.stats.series import Series

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.source import Source
    from torchtap.runs.tables.statistics_columns import StatisticsIndex


class Contents:
    """The contents of a run at one moment.

    Args:
        source: that the run is read from.
        records: of the source, at this moment.
        series: of the source, or of another phase.
        phase: of the records and statistics that are looked up where none is named.

    Attributes:
        index: finds the places of records.
        recorded: the records, of all phases.
    """

    def __init__(
        self, source: Source, records: Records, series: Series, phase: str = FORWARD
    ) -> None:
        self.source = source
        self.series = series
        self.phase = phase
        self.meta = source.meta
        self.index = RecordIndex(records, phase)
        self.recorded = records
        self._revision = series.revision
        self._unmeasured_steps: dict[Site, list[int]] = {}
        self._of_phase: dict[str, Contents] = {}
        self._last_rows: tuple[Site, SiteRows] | None = None

    def in_phase(self, phase: str) -> Contents:
        """Return the contents of the same run, of which another phase is looked up."""
        if phase == self.phase:
            return self
        if phase in self._of_phase:
            return self._of_phase[phase]
        if phase not in PHASES:
            raise InputError(f"phase is {phase!r}; expected one of {', '.join(PHASES)}.")
        series = (self.series.evaluation if phase == EVAL else None) or Series(1)
        if not series.sites and not self.recorded.in_phase(phase).any() and self.sites:
            raise SiteError(f"Nothing was recorded in the phase {phase!r}.")
        return self._of_phase.setdefault(phase, Contents(self.source, self.recorded, series, phase))

    def is_current(self, records: Records, series: Series) -> bool:
        """Return whether this snapshot still describes ``records`` and ``series``."""
        is_same = records is self.recorded and len(records) == len(self)
        return is_same and series.revision == self._revision

    def __len__(self) -> int:
        return self.index.length

    @cached_property
    def selection(self) -> Selection:
        """The sites that were recorded or measured, and how they are looked up."""
        known = dict.fromkeys([*self.recorded.sites, *self.series.sites])
        in_order = [site for site in dict.fromkeys(self.source.expected) if site in known]
        known = {**dict.fromkeys(in_order), **known}
        meta = self.meta
        return Selection(
            known, meta.modules, meta.aliases, lambda: self.source.absent, watched=meta.where
        )

    @property
    def sites(self) -> Sequence[Site]:
        """Sites that were recorded or measured, by module, port and leaf."""
        return self.selection.sites

    @cached_property
    def columns(self) -> SeriesColumns:
        """The numbers that were measured, over the steps."""
        return SeriesColumns(self.series)

    @property
    def statistics(self) -> RunStatistics:
        """Return the statistics of this snapshot."""
        return RunStatistics(self, self._unmeasured_steps)

    @cached_property
    def statistics_index(self) -> StatisticsIndex:
        """The index of the sites and steps that have statistics."""
        from torchtap.runs.tables.statistics_columns import StatisticsIndex

        return StatisticsIndex(self, self.select(None))

    @cached_property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return sorted({*distinct(self.index.column("step")).tolist(), *self.columns.steps.tolist()})

    def select(self, where: Where) -> list[Site]:
        """See :meth:`Run.select <torchtap.runs.run.Run.select>`."""
        return self.selection.select(where)

    def resolve(self, site: str | Site) -> Site:
        """The one site that is meant."""
        wanted = Site.parse(site) if isinstance(site, str) else site
        if isinstance(wanted, Site) and self.index.is_recorded(wanted):
            return wanted  # Nothing else can be meant, and no list of all sites is made.
        return self.selection.resolve(site)

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
        site = self.resolve(site)
        places = self.index.filter_places(self.index.places_of(site), phase)
        for name, wanted in (("step", step), ("call", call), ("backward", backward)):
            if wanted is not None:
                places = places[self.recorded.column_at(name, places) == wanted]
        if not len(places):
            self._refuse_measured(site)
            raise SiteError(self.index.no_record_message(site, step, call, backward, phase))
        # Of several backwards the one that came last.
        steps, calls = (self.recorded.column_at(name, places) for name in ("step", "call"))
        newest = np.lexsort((places, calls, steps))[-1:]
        return next(self.recorded.at(places[newest]))

    def records(
        self,
        where: Where = None,
        *,
        steps: int | Iterable[int] | None = None,
        phase: str | None = FORWARD,
    ) -> Iterator[Record]:
        """See :meth:`Run.records <torchtap.runs.run.Run.records>`."""
        wanted = None if steps is None else {steps} if isinstance(steps, int) else set(steps)
        places: Places = np.arange(self.index.length)
        if where is not None:
            numbers = [self.recorded.number_of(site) for site in self.select(where)]
            chosen = np.zeros(len(self.recorded.sites), dtype=bool)
            chosen[[number for number in numbers if number is not None]] = True
            places = np.flatnonzero(chosen[self.index.column("site")])
        places = self.index.filter_places(places, phase, wanted)
        return self.recorded.at(self.index.in_call_order(places, self.sites))

    def cat(self, site: str | Site, *, steps: int | Iterable[int] | None = None) -> Tensor:
        """See :meth:`Run.cat <torchtap.runs.run.Run.cat>`."""
        import torch

        site = self.resolve(site)
        self._refuse_measured(site)
        wanted = [steps] if isinstance(steps, int) else steps
        rows = self.index.records_of(site, None if wanted is None else set(wanted))
        last = {(row.step, row.call): row for row in rows}
        if not last:
            missing = steps if isinstance(steps, int) else None
            own = sorted(self.index.by_step(site))
            if not own:
                raise SiteError(self.index.no_record_message(site, None, None, None, self.phase))
            raise SiteError(f"{site} has no record in steps {steps!r}. {steps_there(own, missing)}")
        values = [
            without_jags(row.value) for _, row in sorted(last.items(), key=lambda item: item[0])
        ]
        kinds = (torch.strided, torch.sparse_coo)  # Others are joined as sparse ones.
        values = [one if one.layout in kinds else one.to_sparse() for one in values]
        try:
            return torch.cat([value.reshape(1) if value.dim() == 0 else value for value in values])
        except RuntimeError as error:
            raise RunError(_why_not_joined(site, values)) from error

    def site_rows(self, site: str | Site) -> SiteRows:
        """The rows of a site, numbered as :meth:`cat` joins them; those of the last are kept."""
        site = self.resolve(site)
        if self._last_rows is None or self._last_rows[0] != site:
            self._last_rows = site, self._rows_of(site)
        return self._last_rows[1]

    def _rows_of(self, site: Site) -> SiteRows:
        self._refuse_measured(site)
        places = self.index.filter_places(self.index.places_of(site), self.phase)
        steps, calls = (self.recorded.column_at(name, places) for name in ("step", "call"))
        places = places[np.lexsort((places, calls, steps))]
        steps, calls = (self.recorded.column_at(name, places) for name in ("step", "call"))
        # Of several backwards through one call the last.
        is_last = np.ones(len(places), dtype=bool)
        is_last[:-1] = (np.diff(steps) != 0) | (np.diff(calls) != 0)
        return SiteRows(self.recorded, places[is_last], site)

    # ------------------------------------------------------------------ what is missing

    def _refuse_measured(self, site: Site) -> None:
        if not self.index.is_recorded(site) and site in self.series:
            raise RunError(
                f"{site} was measured and its values were not kept. Read run.stats({str(site)!r}), "
                f"or watch with to=[tt.Memory(), tt.Stats()]."
            )


def _why_not_joined(site: Site, values: Sequence[Tensor]) -> str:
    """Say why values cannot be joined along dim 0, and what can be done with them."""
    shapes = [tuple(value.shape) for value in values]
    said = ", ".join(sorted(map(str, set(shapes))))
    message = (
        f"The {len(values)} values of {site} cannot be joined along dim 0: their shapes are {said}."
    )
    one = f"Read them one by one, with run.records({str(site)!r}) or run.get({str(site)!r}, step=0)"
    varying = [n for n, sizes in enumerate(zip(*shapes, strict=False)) if n and len(set(sizes)) > 1]
    if len({len(shape) for shape in shapes}) > 1 or not varying:
        return f"{message} {one}."
    dim = varying[0]
    most = max(shape[dim] for shape in shapes)
    return f"{message} {one}, or pad dim {dim} of each to {most} and join them with torch.cat."
