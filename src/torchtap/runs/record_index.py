"""Finds the records of a site, a step or a phase: their places in the columns of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.runs.records import Fact, Places, Records, distinct

_SEARCHED = 8
"""Sites whose records are searched for one by one, before those of all are sorted."""


class RecordIndex:
    """The places of records by site, step and phase.

    Args:
        records: that may grow; those that are there now are looked up.
        phase: of the records that :meth:`by_step` finds.
    """

    def __init__(self, records: Records, phase: str) -> None:
        self.length = len(records)
        self._records = records
        self._phase = phase
        self._of_site: dict[Site, Places] = {}
        self._steps_of: dict[Site, Mapping[int, Places]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of all records, see :meth:`Records.column`."""
        return self._records.column(name)[: self.length]

    def is_recorded(self, site: Site) -> bool:
        """Return whether a site has a record, in any phase."""
        return self._records.number_of(site) is not None

    def places_of(self, site: Site) -> Places:
        """Places of the records of a site, in the order of their arrival."""
        number = self._records.number_of(site)
        if number is None:
            return np.zeros(0, dtype=np.intp)
        if site not in self._of_site:
            if len(self._of_site) < _SEARCHED:
                self._of_site[site] = np.flatnonzero(self.column("site") == number)
            else:
                self._of_site[site] = self._by_site[number]
        return self._of_site[site]

    @cached_property
    def _by_site(self) -> list[Places]:
        """The places of the records of every site, by its number."""
        numbers = self.column("site")
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._records.sites)))
        return np.split(order, ends[:-1])

    def filter_places(
        self, places: Places, phase: str | None, steps: Collection[int] | None = None
    ) -> Places:
        """Return the places that are of a phase and of some steps."""
        if phase is not None:
            places = places[self._records.in_phase(phase)[places]]
        if steps is not None:
            places = places[np.isin(self._records.column_at("step", places), list(steps))]
        return places

    def by_step(self, site: Site) -> Mapping[int, Places]:
        """Places of the records of a site in each step."""
        if site not in self._steps_of:
            places = self.filter_places(self.places_of(site), self._phase)
            steps = self._records.column_at("step", places)
            order = np.argsort(steps, kind="stable")
            known, starts = np.unique(steps[order], return_index=True)
            parts = np.split(places[order], starts[1:])
            self._steps_of[site] = dict(zip(known.tolist(), parts, strict=False))
        return self._steps_of[site]

    def in_call_order(self, places: Places, site_order: Sequence[Site]) -> Places:
        """Reorder the places so that the gradients of one call are in the order of its arguments.

        Each gradient takes the place of one of its own call, so that nothing else moves.

        Args:
            places: in the order of their arrival.
            site_order: all sites of the run; defines the order of gradients.
        """
        groups: dict[tuple[str, str], int] = {}
        group, order, sizes = {}, {}, Counter[int]()
        for position, site in enumerate(site_order):
            number = self._records.number_of(site)
            if number is not None and site.is_gradient:
                group[number] = groups.setdefault((site.path, site.port), len(groups))
                order[number] = position
                sizes[group[number]] += 1
        reordered = [number for number in group if sizes[group[number]] > 1]
        if not reordered:
            return places
        of_number = np.full((2, len(self._records.sites)), -1)
        of_number[:, reordered] = [[group[n] for n in reordered], [order[n] for n in reordered]]
        slots = np.flatnonzero(of_number[0][self._records.column_at("site", places)] >= 0)
        movable = places[slots]
        numbers = self._records.column_at("site", movable)
        column_at = self._records.column_at
        call = [column_at(name, movable) for name in ("backward", "phase", "call", "step")]
        call.append(of_number[0][numbers])
        moved = places.copy()
        moved[slots[np.lexsort((movable, *call))]] = movable[
            np.lexsort((movable, of_number[1][numbers], *call))
        ]
        return moved

    def phases_at(self, places: Places) -> list[str]:
        """The phases of the records at some places."""
        names = self._records.phase_table
        return [names[number] for number in self._records.column_at("phase", places).tolist()]

    def records_of(self, site: Site, steps: Collection[int] | None = None) -> list[Record]:
        """The records of one site, in the order of their arrival."""
        return list(self._records.at(self.places_at(site, steps)))

    def places_at(self, site: Site, steps: Collection[int] | None = None) -> Places:
        """Return the places of the records of one site in some steps, or in all."""
        return self.filter_places(self.places_of(site), self._phase, steps)

    def places_in_steps(self, steps: Sequence[int], site_order: Sequence[Site]) -> Places:
        """Places of the records of some steps that nothing has overwritten, in call order."""
        places: Places = np.arange(self.length)
        own = distinct(self.column("step"))
        if not np.isin(own, steps).all():
            places = self.filter_places(places, None, steps)
        lost = self._records.overwritten_places()
        if len(lost):
            places = places[~np.isin(places, lost)]
        return self.in_call_order(places, site_order)

    def facts(self, site_order: Sequence[Site]) -> Iterator[tuple[Site, int, str, Fact]]:
        """Site, step, phase, and dtype, shape and bytes of every record, in call order."""
        places = self.in_call_order(np.arange(self.length), site_order)
        column_at = self._records.column_at
        numbers, steps = (column_at(name, places).tolist() for name in ("site", "step"))
        phases = self.phases_at(places)
        for place, number, step, phase in zip(places.tolist(), numbers, steps, phases, strict=True):
            yield self._records.sites[number], step, phase, self._records.values.fact(place)

    def no_record_message(
        self, site: Site, step: int | None, call: int | None, backward: int | None, phase: str
    ) -> str:
        """Return the error message for a key without a record: what was asked for, what exists."""
        places = self.places_of(site)
        steps, calls = (self._records.column_at(name, places).tolist() for name in ("step", "call"))
        phases = self.phases_at(places)
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
