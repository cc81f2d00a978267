"""Keeps the rows of statistics that an attempt has written so far, as a series that grows.

What is read again costs what is new, however much is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchtap.core.record import EVAL, FORWARD
from torchtap.runs.store.measured_rows import Span, span_of, together
from torchtap.runs.store.rows_stream import NewRows, RowsStream
from torchtap.runs.store.site_text import site_of, site_text
from torchtap.stats.algebra import Rows
from torchtap.stats.rows import NUM_TENSORS, blank_rows
from torchtap.stats.series import Series
from torchtap.stats.site_summary import SiteSummary

NOT_CLOSED = (
    "an attempt was not closed: of its numbers all steps are there; histograms, sums over samples "
    "and further statistics are not"
)
_UNDESCRIBED: Sequence[Any] = ("unknown", None, 0, ("its description is damaged",))
"""Stands for dtype, shape, bytes per element and notes of a site."""


class RowsReader:
    """Reader of the rows that an attempt has written so far.

    Args:
        folder: of the attempt.

    Attributes:
        series: the rows as they were read last; it grows.
        span: the steps that it has, if any.
    """

    def __init__(self, folder: Path) -> None:
        self.series = _empty_series()
        self.span: Span | None = None
        self._stream = RowsStream(folder)

    @property
    def lost(self) -> list[str]:
        """Sentences on what cannot be read."""
        return self._stream.lost

    def look(self) -> None:
        """See how far the file goes now: see :meth:`RowsStream.look`."""
        self._stream.look()

    def refresh(self) -> bool:
        """Read what was written up to the last look; whether there was anything new."""
        is_news = False
        for new in self._stream.read():
            self._take(new)
            is_news = True
        return is_news

    def rows(self, phase: str) -> dict[str, tuple[Sequence[Any], dict[int, Rows]]]:
        """Site -> what is known of it, and its row in each step."""
        series = self.series if phase == FORWARD else self.series.evaluation
        if series is None:
            return {}
        by_site = {}
        steps, rows = series.rows.as_array()
        for place, site in enumerate(series.measured):
            there = np.flatnonzero(rows[:, place, NUM_TENSORS]).tolist()
            own = {steps[at]: rows[at, place] for at in there}
            by_site[site_text(site.site)] = described(site), own
        return by_site

    def _take(self, new: NewRows) -> None:
        series = self._of_phase(new.phase)
        places = _places_of(new.sites, new.described, series)
        _add(series, new.steps, places[new.codes], new.rows)
        self.series.revision += 1
        self.span = together(self.span, span_of(new.steps.tolist()))

    def _of_phase(self, phase: str) -> Series:
        if phase != EVAL:
            return self.series
        if self.series.evaluation is None:
            self.series.evaluation = _empty_series()
        return self.series.evaluation


def described(site: SiteSummary) -> Sequence[Any]:
    """Dtype, shape, bytes per element and notes of a site, as they stand in the stream."""
    shape = None if site.shape is None else list(site.shape)
    return [site.dtype, shape, site.itemsize, list(site.notes)]


def _empty_series() -> Series:
    series = Series(1)
    series.has_histograms = False
    return series


def _places_of(
    texts: Sequence[str], known: Mapping[str, Sequence[Any]], series: Series
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the place of each site in a series, and take what is said of it."""
    places = []
    for text in texts:
        place = series.place_of(site_of(text))
        site = series.measured[place]
        said = known.get(text)
        if said is None and not site.is_seen:
            said = _UNDESCRIBED
        if said is not None:
            dtype, shape, site.itemsize, notes = said
            site.dtype, site.shape = dtype, None if shape is None else tuple(shape)
            site.notes, site.why_no_mean = tuple(notes), NOT_CLOSED
        places.append(place)
    return np.array(places, dtype=np.intp)


def _add(series: Series, steps: Any, places: Any, rows: Rows) -> None:
    """Add rows to those of their steps; of a step and site the last one counts."""
    bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for start, end in pairwise(bounds):
        if start == end:
            continue
        step, own = int(steps[start]), blank_rows(len(series.measured))
        before = series.rows.of(step)
        if before is not None:
            # Sites may have come since: the rows of before are fewer.
            own[: len(before)] = before
        own[places[start:end]] = rows[start:end]
        series.rows.add(step, own)
