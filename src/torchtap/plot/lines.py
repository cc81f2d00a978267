"""Lines of several sites in one picture: their points, colours and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.plot.extras import color_map
from torchtap.plot.readings import Readings
from torchtap.plot.scales import Scale
from torchtap.plot.style import (
    BAD,
    CATEGORIES,
    GREY,
    MAGNITUDE,
    SMALL,
    WIDTH,
    fitted,
    inches_across,
    plain,
    tidy,
)
from torchtap.plot.thinning import spread, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEGEND = 2.1
"""Inches of the names beside the axes."""
_FEW_POINTS = 40
"""Up to here each point has a dot."""
_LIGHTEST = 0.88
"""Share of viridis that is used: the rest is too light for a line on white."""
_ALL_NAMED, _SOME_NAMED = 16, 10
"""Up to so many sites each has its name beside the bar of depth; of more, so many have."""


def draw_series(axes: Axes, found: Readings, scale: Scale, *, is_own: bool) -> None:
    """Draw a line for each site, with a name or a colour of its depth.

    Args:
        axes: where.
        found: the numbers.
        scale: of the y axis.
        is_own: whether the figure is ours, and has room beside the axes.
    """
    tidy(axes)
    scale.apply_y(axes)
    if len(found.steps):
        first, last = float(found.steps[0]), float(found.steps[-1])
        gap = 0.02 * (last - first) or 0.5
        axes.set_xlim(first - gap, last + gap)
    is_named = len(found.sites) <= len(CATEGORIES)
    colors = CATEGORIES if is_named else depth_colors(len(found.sites))
    for place in range(len(found.sites)):
        _draw_line(axes, *found.line(place), color=colors[place], is_thin=not is_named)
    _mark_bad(axes, found)
    _whole_steps(axes)
    if is_named and len(found.sites) > 1:
        name_lines(axes, [str(site) for site in found.sites], is_own=is_own)
    elif not is_named:
        depth_bar(axes, [str(site) for site in found.sites])


def _draw_line(axes: Axes, steps: Any, values: Any, *, color: Any, is_thin: bool) -> None:
    x, y = thinned(steps, values)
    style: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.75} if is_thin else {"linewidth": 1.4}
    finite = np.isfinite(y)
    alone = finite & ~np.roll(np.append(finite, False), 1)[: len(y)] & ~np.append(finite[1:], False)
    axes.plot(x, np.where(finite, y, np.nan), color=color, **style)
    dots = finite if len(x) <= _FEW_POINTS and not is_thin else alone
    if dots.any():
        axes.plot(x[dots], y[dots], ".", color=color, markersize=4)


def depth_colors(num: int) -> Any:
    """Colours of so many lines by their depth, the first dark, ``float64[num, 4]``."""
    return color_map(MAGNITUDE)(np.linspace(0, _LIGHTEST, num))


def _mark_bad(axes: Axes, found: Readings) -> None:
    bad = ((found.nonfinite > 0) | np.isinf(found.values)).any(0)
    if bad.any():
        axes.plot(
            found.steps[bad], np.zeros(int(bad.sum())), "|", color=BAD, markersize=9,
            markeredgewidth=1.2, transform=axes.get_xaxis_transform(), clip_on=False, zorder=5,
        )  # fmt: skip


def _whole_steps(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def name_lines(axes: Axes, names: Sequence[str], *, is_own: bool) -> None:
    """Write the names of up to seven lines, which have the colours of categories in their order.

    Args:
        axes: where.
        names: of the lines.
        is_own: whether there is room beside the axes.
    """
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, linewidth=2) for color in CATEGORIES[: len(names)]]
    place: dict[str, Any] = (
        {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0}
        if is_own
        else {"loc": "best"}
    )
    room = _LEGEND if is_own else 0.4 * inches_across(axes)
    legend = axes.legend(
        handles, ["-"] * len(handles), fontsize=SMALL, frameon=not is_own, handlelength=1.2,
        labelcolor=GREY, **place,
    )  # fmt: skip
    legend.get_frame().set_linewidth(0)
    plain(legend.get_texts())
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(fitted(name, room))


def depth_bar(axes: Axes, names: Sequence[str]) -> None:
    """Name lines beside a bar of the colours of their depth; every n-th of many.

    Args:
        axes: where.
        names: of the lines, the first at the top.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    num = len(names)
    colors = ListedColormap(depth_colors(num))
    bar = axes.figure.colorbar(
        ScalarMappable(Normalize(-0.5, num - 0.5), colors), ax=axes, pad=0.015, aspect=34
    )
    ticks = spread(num, num if num <= _ALL_NAMED else _SOME_NAMED)
    room = min(_LEGEND, max(0.25 * inches_across(axes), 0.25 * WIDTH))
    bar.set_ticks(ticks, labels=[fitted(names[tick], room) for tick in ticks], parse_math=False)
    bar.ax.invert_yaxis()
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=GREY, length=2)
    bar.outline.set_visible(False)
