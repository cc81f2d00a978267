"""Holds histograms of one step, site by site, and their totals over all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtap.core.shared_state import new_lock
from torchtap.stats.histogram import Histogram, Histograms, blank_histograms, merged_together
from torchtap.stats.kernels import native

_TOGETHER = 64
"""Parts that are added to the totals at a time."""
_BLOCK = 256
"""Totals that are made at once."""


@dataclass(frozen=True, eq=False)
class StepHistograms:
    """Holds histograms, and the place of the site that each is of."""

    places: NDArray[np.int64]
    histograms: Histograms

    @classmethod
    def joined(cls, parts: list[StepHistograms]) -> StepHistograms:
        """Put these one after the other."""
        if len(parts) == 1:
            return parts[0]
        histograms = Histograms.joined([part.histograms for part in parts])
        return cls(np.concatenate([part.places for part in parts]), histograms)

    def of(self, place: int) -> Histogram | None:
        """Return the histogram of one site."""
        places, numbers = self._by_place
        first, last = places.searchsorted((place, place + 1)).tolist()
        return merged_if_any(map(self.histograms.of, numbers[first:last].tolist()))

    @cached_property
    def _by_place(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places, ascending, and which histogram each is of."""
        numbers = np.argsort(self.places, kind="stable")
        return self.places[numbers], numbers


class Totals:
    """Adds up the histograms of all steps.

    Many parts are added at a time: the first brings the totals near, and the others find them.
    """

    def __init__(self) -> None:
        # Memory that is not touched costs nothing, so a block may be large.
        self._blocks: list[NDArray[np.int64]] = []
        self._seen: set[int] = set()
        self._sampled: set[int] = set()
        self._known = b""
        self._addresses = np.zeros(0, dtype=np.int64)
        self._new: list[StepHistograms] = []
        self._read: dict[int, Histogram] = {}
        self._lock = new_lock()  # The collector may close a watch under it.

    def add(self, parts: list[StepHistograms]) -> None:
        """Count these too."""
        with self._lock:
            self._new += parts
            if len(self._new) >= _TOGETHER:
                self._add_new()

    def of(self, place: int) -> Histogram | None:
        """Return the histogram of one site; ``None`` if it counted nothing."""
        with self._lock:
            self._add_new()
            if place in self._seen and place not in self._read:
                is_sample = place in self._sampled
                self._read[place] = Histogram.of(self._full(place), is_sample=is_sample)
            return self._read.get(place)

    def remove(self, place: int, part: Histogram) -> None:
        """Take out what was added before."""
        with self._lock:
            self._add_new()
            self._read.pop(place, None)
            self._full(place)[part.bins] -= part.counts

    def _add_new(self) -> None:
        if self._new:
            self._read.clear()
        for part in self._new:
            if len(part.places):
                # One by one: joined, they would be memory that is new every time.
                own = part.histograms
                drained = own.bins, own.counts, own.ends
                addresses = self._know(part.places, own.is_sample)
                native.add_lists(drained, self._blocks, part.places, addresses)
        self._new.clear()

    def _know(self, places: NDArray[np.int64], is_sample: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Note the places that have a total, and return the addresses of these."""
        key = places.tobytes() + is_sample.tobytes()
        if key == self._known:  # Steps of a training are alike.
            return self._addresses
        self._known = key
        while places.max() >= len(self._blocks) * _BLOCK:
            self._blocks.append(blank_histograms(_BLOCK))
        self._seen.update(places.tolist())
        self._sampled.update(places[is_sample].tolist())
        self._addresses = native.addresses_in(self._blocks, places)
        return self._addresses

    def _full(self, place: int) -> NDArray[np.int64]:
        full: NDArray[np.int64] = self._blocks[place // _BLOCK][place % _BLOCK]
        return full


def merged_if_any(parts: Iterable[Histogram | None]) -> Histogram | None:
    """Merge the histograms that are there."""
    there = [part for part in parts if part is not None]
    return merged_together(there) if there else None
