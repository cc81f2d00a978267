"""Keeps histograms and states of further statistics: of single steps, and of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

import numpy as np
from torch import Tensor

from torchtap.core.shared_state import new_lock
from torchtap.stats.algebra import States, merge_states
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.histogram import Histogram
from torchtap.stats.step_histograms import StepHistograms, Totals

ALL_STEPS = -1
"""Stands for the step of what is merged over all of them."""
SavedStates = Callable[[int, int], "States | None"]
"""``(step, place)``: states of the further statistics that stand in a file."""
SavedHistograms = Callable[[int], Mapping[int, Histogram]]
"""``(step)``: place -> its histogram, of those that stand in a file."""
_StatesBySite = dict[int, States]
_NO_SITE = -1
"""The place of a histogram that counts no longer."""


class SavedSteps:
    """Reads histograms and states that stand in a file, or are computed when they are asked for.

    Args:
        kept: the steps of which there are some.
        histograms: gives those of one step, or of :data:`ALL_STEPS`; it is asked once.
        states: gives the states of one step, or of all.
    """

    def __init__(
        self, kept: Iterable[int], histograms: SavedHistograms, states: SavedStates
    ) -> None:
        self._kept = frozenset(kept)
        self._histograms = cache(histograms)
        self.states = states

    def is_kept(self, step: int) -> bool:
        """Return whether there are histograms and states of a step."""
        return step in self._kept

    def histogram(self, step: int, place: int) -> Histogram | None:
        """Return the histogram of a site in a step, or in all; ``None`` if it counted nothing."""
        # Asked first, since the histograms of a step that is not kept would be read from a file in
        # vain.
        is_there = step == ALL_STEPS or step in self._kept
        return self._histograms(step).get(place) if is_there else None


class _Step:
    """Holds what is kept of one step: histograms, and states of further statistics by place."""

    __slots__ = ("_joined", "_lock", "_parts", "states")

    def __init__(self, parts: list[StepHistograms]) -> None:
        self.states: _StatesBySite = {}
        self._parts = parts
        self._joined: StepHistograms | None = None
        self._lock = new_lock()  # The collector may close a watch under it.

    def take(
        self, parts: list[StepHistograms], drop: Callable[[list[StepHistograms]], None]
    ) -> None:
        """Take further histograms, once ``drop`` has dropped some of those before."""
        with self._lock:
            drop(self._parts)
            self._parts = [*self._parts, *parts]
            self._joined = None

    def histogram(self, place: int) -> Histogram | None:
        """Return the histogram of a site; ``None`` if it counted nothing."""
        with self._lock:
            if not self._parts:
                return None
            # A part holds 256 sites: asked one by one, all sites would take the square of the time.
            if self._joined is None:
                self._joined = StepHistograms.joined(self._parts)
            return self._joined.of(place)


class RecentSteps:
    """Holds histograms and states of the last steps of a run that goes on, and merged over all.

    Args:
        keep: of how many steps they are kept.
        statistics: the further ones.
    """

    def __init__(self, keep: int, statistics: Sequence[Statistic]) -> None:
        self._keep = keep
        self._statistics = statistics
        self._steps: dict[int, _Step] = {}  # The oldest first.
        self._totals = Totals()
        self._states: _StatesBySite = {}
        self._running: dict[int, _StatesBySite] = {}
        self._read: tuple[int, dict[int, Histogram | None]] = ALL_STEPS, {}

    # ------------------------------------------------------------------ taken

    def add(self, step: int, parts: list[StepHistograms]) -> None:
        """Take the histograms of a new step, in place of all that is kept of the oldest."""
        self._steps[step] = _Step(parts)
        self._totals.add(parts)
        while len(self._steps) > self._keep:
            # The oldest: a dict keeps the order in which steps were added.
            del self._steps[next(iter(self._steps))]

    def merge(self, step: int, parts: list[StepHistograms], replaced: list[int]) -> None:
        """Take further histograms of a step; at some places they replace those before."""
        if step in self._steps:
            self._steps[step].take(parts, partial(self._drop, replaced))
        self._read = ALL_STEPS, {}
        self._totals.add(parts)

    def _drop(self, places: list[int], parts: list[StepHistograms]) -> None:
        """Forget what was counted at some places."""
        for number, part in enumerate(parts):
            dropped = np.isin(part.places, places)
            for old in np.flatnonzero(dropped).tolist():
                counted = part.histograms.of(old)
                if counted is not None:
                    self._totals.remove(int(part.places[old]), counted)
            if dropped.any():
                # The histograms of many sites are one array: it stays, and the place names no site
                # any more.
                others = np.where(dropped, _NO_SITE, part.places)
                parts[number] = StepHistograms(others, part.histograms)

    def update_states(
        self, step: int, place: int, values: Tensor, lost: Mapping[str, Missing], *, anew: bool
    ) -> None:
        """Update the states of a site in a step that goes on, or begin them anew.

        ``lost``: name of a statistic -> why it cannot be computed of these values.
        """
        by_place = self._running.setdefault(step, {})
        states = by_place.get(place)
        if states is None or anew:
            states = by_place[place] = [statistic.init() for statistic in self._statistics]
        for number, one in enumerate(self._statistics):
            if one.name in lost:
                states[number] = lost[one.name]
            elif not isinstance(states[number], Missing):
                states[number] = one.update(states[number], values)

    def merge_states(self, step: int, place: int, new: States, *, anew: bool) -> None:
        """Merge states into those of a site in a step that goes on, or begin with them anew."""
        by_place = self._running.setdefault(step, {})
        held = None if anew else by_place.get(place)
        by_place[place] = merge_states(self._statistics, (held, new)) or new

    def close_states(self, last: int) -> None:
        """Merge the states of running steps up to one into those of the step, and of all."""
        for step in [step for step in self._running if step <= last]:
            # The step itself may have been dropped meanwhile; the states of all steps get its part
            # anyway.
            into = [self._states, *([self._steps[step].states] if step in self._steps else [])]
            for place, new in self._running.pop(step).items():
                for held in into:
                    held[place] = list(
                        merge_states(self._statistics, (held.get(place), new)) or new
                    )

    # ------------------------------------------------------------------ read

    def is_kept(self, step: int) -> bool:
        """Return whether histograms and states of a step are still kept."""
        return step in self._steps

    def histogram(self, step: int, place: int) -> Histogram | None:
        """Return the histogram of a site in a step, or in all; ``None`` if it counted nothing."""
        if step == ALL_STEPS:
            return self._totals.of(place)
        kept = self._steps.get(step)
        return None if kept is None else self._histogram_of(kept, step, place)

    def _histogram_of(self, kept: _Step, step: int, place: int) -> Histogram | None:
        """Return a histogram, which stays until another step is read: tables read a step at once,
        and are often made again.
        """
        if self._read[0] != step:
            self._read = step, {}
        of, read = self._read
        if of != step:  # Another thread reads.
            return kept.histogram(place)
        if place not in read:
            read[place] = kept.histogram(place)
        return read[place]

    def states(self, step: int, place: int) -> States | None:
        """Return the states of a site in a step, or in all, with what is running of it."""
        if step == ALL_STEPS:
            held, running = self._states, list(self._running.values())
        else:
            kept = self._steps.get(step)
            if kept is None:
                return None
            held, running = kept.states, [self._running.get(step, {})]
        return merge_states(self._statistics, [own.get(place) for own in (held, *running)])
