"""How the values of a site spread over its last steps: histograms with bins in common."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtap.show.page.buckets import rounded
from torchtap.show.page.measured_run import MeasuredRun
from torchtap.stats.histogram import Histogram

_MOST_STEPS = 24
_BINS = 40
_OUTER = 0.002
"""Share of the elements on each side that lies beyond the first and the last bin."""


def spread_over_steps(measured: MeasuredRun, name: str) -> dict[str, Any] | None:
    """Return histograms of a site over the last steps of which they were kept.

    Returns:
        ``steps``, the range ``low`` to ``high``, and ``counts``: base64 of ``uint8[steps, bins]``,
        the logarithm of 1 + count, where 255 is the fullest bin of the step; ``None`` where no
        histogram was kept.
    """
    series = measured.run.series
    site = measured.sites[name].site
    if site not in series or not series.has_histograms:
        return None
    place = series.known_place(site)
    kept = [step for step in series.steps_of(site) if series.is_kept(step)]
    chosen = [kept[at] for at in _spaced(len(kept), _MOST_STEPS)]
    found = [(step, series.histogram(step, place)) for step in chosen]
    counted = [(step, one) for step, one in found if one is not None and one.num_counted]
    if not counted:
        return None
    low = min(one.quantile(_OUTER) for _, one in counted)
    high = max(one.quantile(1 - _OUTER) for _, one in counted)
    if not low < high:
        return None
    edges = np.linspace(low, high, _BINS + 1)
    counts = np.stack([_binned(one, edges) for _, one in counted])
    packed = base64.b64encode(counts.tobytes()).decode()
    ends = rounded([low, high])
    return {"steps": [step for step, _ in counted], "low": ends[0], "high": ends[1],
            "bins": _BINS, "counts": packed}  # fmt: skip


def _spaced(number: int, most: int) -> Sequence[int]:
    """Return at most so many places, evenly spaced, the last one among them."""
    if number <= most:
        return range(number)
    places: list[int] = np.linspace(0, number - 1, most).round().astype(int).tolist()
    return places


def _binned(one: Histogram, edges: Any) -> Any:
    """Count a histogram in other bins; what lies beyond them is counted in the outermost.

    Its own bins are at most 3 % of a value wide. Each is shared out over the bins that it covers.
    """
    low, high = one.edges
    ends = np.concatenate([[0], np.cumsum(one.counts)]).astype(np.float64)
    points = np.concatenate([low[:1], high])
    with np.errstate(invalid="ignore"):
        points = np.maximum.accumulate(np.nan_to_num(points))
    below = np.interp(edges[1:-1], points, ends, left=0.0, right=ends[-1])
    counts = np.diff(np.concatenate([[0.0], below, [ends[-1]]]))
    levels = np.log1p(counts)
    return np.rint(255 * levels / max(levels.max(), 1e-300)).astype(np.uint8)
