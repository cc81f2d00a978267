"""Keeps measurements by step: numbers of every step, larger things of the last ones.

The sink fills a series; :mod:`~torchtap.stats.read_series` makes statistics of it, and
:mod:`~torchtap.runs.single_file.packed_series` writes it into a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from torchtap.core.shared_state import new_lock
from torchtap.core.site import Site
from torchtap.stats.algebra import HISTOGRAMS, Rows, States, merge_states
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.histogram import Histogram
from torchtap.stats.kept_steps import ALL_STEPS, RecentSteps, SavedSteps
from torchtap.stats.rows_by_step import RowsByStep
from torchtap.stats.site_summary import SiteSummaries, SiteSummary
from torchtap.stats.step_histograms import StepHistograms

_EMPTY = Histogram.sparse([], [])


class Series:
    """Holds the statistics of every site and step.

    Args:
        keep: of how many steps histograms and further statistics are kept; the 16 numbers are
            kept of all, and everything is also merged over all steps.
        statistics: the further ones.

    Attributes:
        measured: what is known of each site, by place.
        rows: the 16 numbers of every step, by place.
        recent: takes histograms and states while something is measured.
        has_histograms: whether they are counted.
        revision: another number whenever something was added.
        evaluation: the same of evaluation forwards between training forwards, if there were any.
        lock: held by the thread that fills it, and by what reads several parts that belong
            together.
    """

    def __init__(self, keep: int = 64, statistics: Sequence[Statistic] = ()) -> None:
        self.keep = keep
        self.statistics = tuple(statistics)
        self.has_histograms = True
        self.revision = 0
        self.evaluation: Series | None = None
        self.lock = new_lock()
        self.measured = SiteSummaries()
        self._places: dict[Site, int] = {}
        self.rows = RowsByStep(self.measured, self.lock)
        self.recent = RecentSteps(keep, self.statistics)
        self._kept: RecentSteps | SavedSteps = self.recent

    @property
    def kept_until_the_end(self) -> list[str]:
        """Return the names of what is kept until the end: all besides the numbers of each step."""
        histograms = ["histograms"] if self.has_histograms else []
        return [*histograms, *(repr(statistic.name) for statistic in self.statistics)]

    # ------------------------------------------------------------------ filled

    def place_of(self, site: Site) -> int:
        """Return the place of a site, which is new or not."""
        sites = self.measured.sites
        place = self._known_places().setdefault(site, len(sites))
        if place == len(sites):
            sites.append(site)
        return place

    def add_sites(self, sites: Sequence[Site]) -> None:
        """Add sites that differ, before any other."""
        self.measured.sites += sites

    def _known_places(self) -> dict[Site, int]:
        """Return site -> place of all sites: of those that were added together only now."""
        places, sites = self._places, self.measured.sites
        for place in range(len(places), len(sites)):
            places[sites[place]] = place
        return places

    def add_step(self, step: int, rows: Rows, parts: list[StepHistograms]) -> None:
        """Add the rows of a step that has ended, one per site; merge later parts of it."""
        self.revision += 1
        # A gradient may arrive after its step was closed, and parts of it were read already.
        if step in self.rows:
            self.recent.merge(step, parts, self.rows.merge(step, rows))
        else:
            self.recent.add(step, parts)
            self.rows.add(step, rows)

    def restore(self, steps: list[int], rows: Rows, kept: SavedSteps) -> None:
        """Take back the rows of all steps, and what is kept of them; nothing is added later."""
        self.rows.restore(steps, rows)
        self._kept = kept

    # ------------------------------------------------------------------ read by site

    @property
    def sites(self) -> list[Site]:
        """Return the sites that were measured at least once."""
        return [measured.site for measured in self.measured if measured.is_seen]

    def __contains__(self, site: object) -> bool:
        place = self._known_places().get(site) if isinstance(site, Site) else None
        return place is not None and self.measured[place].is_seen

    def known_place(self, site: Site) -> int:
        """Return the place of a site that is there."""
        return self._known_places()[site]

    def of(self, site: Site) -> SiteSummary:
        """Return the summary of a site over all steps."""
        return self.measured[self.known_place(site)]

    @property
    def steps(self) -> list[int]:
        """Return the steps in which anything was measured."""
        return self.rows.steps

    def steps_of(self, site: Site) -> list[int]:
        """Return steps in which a site was measured."""
        return self.rows.steps_of(self.known_place(site))

    # ------------------------------------------------------------------ read by step and place

    def is_kept(self, step: int) -> bool:
        """Return whether histograms and further statistics of a step are still kept."""
        return self._kept.is_kept(step)

    def histogram(self, step: int, place: int) -> Histogram | None:
        """Return the histogram of a site in one step; ``None`` if it is kept no longer."""
        kept = self._kept.histogram(step, place)
        if kept is not None or not self.has_histograms:
            return kept
        # What counted nothing, because nothing was finite, still has a histogram.
        return _EMPTY if step == ALL_STEPS or self.is_kept(step) else None

    def total(self, place: int, steps: Collection[int] | None = None) -> Histogram | None:
        """Merge the histograms of all steps, or some; ``None`` where that is not known."""
        if steps is not None:
            return self._total_of(place, steps)
        return self.histogram(ALL_STEPS, place) if self.measured[place].has_total else None

    def _total_of(self, place: int, steps: Collection[int]) -> Histogram | None:
        """Merge the histograms of some steps, or take those of the others out of that of all."""
        own = self.rows.steps_of(place)
        chosen = [step for step in own if step in steps]
        if all(map(self.is_kept, chosen)):
            parts = (self.histogram(step, place) for step in chosen)
            return HISTOGRAMS.merge([_EMPTY, *(part for part in parts if part is not None)])
        # Counts can be taken out again: a window that begins before what is kept is all of it
        # without the other steps.
        others = [step for step in own if step not in steps]
        whole = self.total(place)
        if whole is None or not all(map(self.is_kept, others)):
            return None
        for step in others:
            # Exact, since counts are integers; numbers as a mean cannot be taken out again without
            # rounding.
            whole = whole.without(self.histogram(step, place) or _EMPTY)
        return whole

    def states_at(self, step: int, place: int) -> States | None:
        """Return the states of a site in one step, or in all; ``None`` if kept no longer."""
        return self._kept.states(step, place)

    def states_of(self, place: int, steps: Iterable[int]) -> States | None:
        """Merge the states of some steps of a site; ``None`` where they are not kept of all."""
        parts = [self.states_at(step, place) for step in steps]
        return None if None in parts else merge_states(self.statistics, parts)
