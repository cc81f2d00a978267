"""How the values of a site spread over its last steps: histograms with bins in common."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from torchtap.plot.ridges import shared_out
from torchtap.plot.thinning import spread
from torchtap.show.page.buckets import rounded
from torchtap.show.page.measured_run import MeasuredRun

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
    chosen = [kept[at] for at in spread(len(kept), _MOST_STEPS)]
    histograms = [(step, series.histogram(step, place)) for step in chosen]
    counted = [(step, one) for step, one in histograms if one is not None and one.num_counted]
    if not counted:
        return None
    low = min(one.quantile(_OUTER) for _, one in counted)
    high = max(one.quantile(1 - _OUTER) for _, one in counted)
    if not low < high:
        return None
    edges = np.linspace(low, high, _BINS + 1)
    counts = np.stack([_levels(one, edges) for _, one in counted])
    packed = base64.b64encode(counts.tobytes()).decode()
    ends = rounded([low, high])
    return {"steps": [step for step, _ in counted], "low": ends[0], "high": ends[1],
            "bins": _BINS, "counts": packed}  # fmt: skip


def _levels(histogram: Any, edges: Any) -> Any:
    """Count a histogram in other bins, as levels of 8 bits of the logarithm."""
    low, high = histogram.edges
    counts = np.log1p(np.maximum(shared_out(edges, low, high, histogram.counts), 0))
    return np.rint(255 * counts / max(counts.max(), 1e-300)).astype(np.uint8)
