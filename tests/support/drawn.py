"""Runs that are written out as numbers, and what is asked of any figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.text import Text

from torchtap.core.site import Site
from torchtap.runs.run import Meta, Run
from torchtap.stats import rows as places
from torchtap.stats.kept_steps import SavedSteps
from torchtap.stats.rows import blank_rows
from torchtap.stats.series import Series

_NUMEL = 8.0


def measured_run(stds: Any, sites: Sequence[Site], *, steps: Sequence[int] | None = None) -> Run:
    """A run of statistics alone.

    Args:
        stds: ``float[sites, steps]``, standard deviations of 8 elements around 0: half of them
            are the value and half its negative. NaN: one element is NaN. -1: not measured.
        sites: which.
        steps: their numbers; from 0 by default.
    """
    values = np.asarray(stds, dtype=float).T
    series, own = Series(), list(range(len(values)) if steps is None else steps)
    for site in sites:
        summary = series.measured[series.place_of(site)]
        summary.dtype, summary.shape, summary.itemsize = "float32", (8,), 4
    bad, there = np.isnan(values), values != -1
    sizes = np.where(bad, 1.0, values)
    rows = blank_rows(*values.shape)
    finite = np.where(bad, _NUMEL - 1, _NUMEL)
    columns = {
        "NUMEL": _NUMEL, "NUM_FINITE": finite, "M2": finite * sizes**2, "L1": finite * sizes,
        "SUM_SQUARES": finite * sizes**2, "MIN": -sizes, "MAX": sizes, "NAN": bad * 1.0,
        "ZEROS": np.where(sizes == 0, finite, 0.0), "NUM_TENSORS": 1.0,
    }  # fmt: skip
    for name, column in columns.items():
        rows[..., getattr(places, name)] = column
    rows[~there] = blank_rows()
    series.restore(own, rows, SavedSteps([], lambda _: {}, lambda *_: None))
    meta = Meta(modules={site.path: ("Linear",) for site in sites})
    return Run([], meta, series=series)


def words_of(figure: Any) -> str:
    """All that is written in a figure."""
    return "\n".join(one.get_text() for one in figure.findobj(Text) if one.get_visible())


def is_whole(figure: Any) -> bool:
    """Return whether nothing that is written reaches beyond the edge of the figure."""
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    not_drawn = {
        id(text)
        for axis in figure.findobj(Axis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for text in (tick.label1, tick.label2)
    }
    for one in figure.findobj(Text):
        if one.get_text().strip() and one.get_visible() and id(one) not in not_drawn:
            box = one.get_window_extent()
            if min(box.x0, box.y0) < -3 or box.x1 > width + 3 or box.y1 > height + 3:
                return False
    return True


def x_of(line: Any) -> Any:
    """Values of a line on the x axis."""
    return line.get_xdata()


def y_of(line: Any) -> Any:
    """Values of a line on the y axis."""
    return line.get_ydata()


def widths_of(axes: Any) -> list[float]:
    """Widths of the bars."""
    return [bar.get_width() for bar in axes.patches]
