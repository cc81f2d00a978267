"""The figure of one number of many sites over the steps, as colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.text import count, number
from torchtap.plot.extras import color_map
from torchtap.plot.readings import Readings, need_run, read
from torchtap.plot.scales import Scale, scale_of
from torchtap.plot.style import (
    BAD,
    MAGNITUDE,
    SIGNED,
    ZERO_COLOR,
    canvas,
    color_bar,
    fitted,
    inches_across,
    label,
    tidy,
    write_head,
)
from torchtap.plot.thinning import spread
from torchtap.plot.zero_gradients import zero_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

    Array = Any

_ROW = 0.165
_LEAST, _MOST = 2.6, 10.5
"""Inches of the figure."""
_NAMES = 2.6
_MOST_NAMED = 56
_MOST_COLUMNS = 600
_ABSENT = "#ffffff"
"""Colour of a site in a step in which it was not measured."""


def heatmap(run: Run, where: Where, name: str = "std", *, ax: Axes | None = None) -> Figure:
    """Draw one number of many sites over the steps as colours: a row for each site.

    Magnitudes are drawn in viridis, numbers of both signs in red and blue with white at zero. The
    colours are logarithmic where the values span more than two powers of ten; a zero is then dark
    grey. NaN and Inf in the site's tensors are magenta, steps in which it was not measured white.
    Of more than 600 steps several share a column, which has the colour of the value that is
    furthest from zero; of many sites every n-th is named.

    Args:
        run: any run.
        where: patterns as everywhere, sites, or a function of a site.
        name: of the number, as in :func:`series`.
        ax: as in :func:`series`.

    Raises:
        SiteError: nothing was recorded or measured there, or there is no such number.
        InputError: it is no number, or ``ax`` is no axes.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with tt.watch(net, "*", to=tt.Stats()) as w:
        ...     for step in range(4):
        ...         _ = net(torch.full((1, 2), float(step)))
        ...         w.step()
        >>> tt.plot.heatmap(w.run, "*", "absmax").axes[0].images[0].get_array().shape
        (3, 4, 4)
    """
    need_run(run, "heatmap")
    numbers = read(run, where, name)
    rows = len(numbers.sites)
    height = min(max(_ROW * rows + 1.45, _LEAST), _MOST)
    figure, axes = canvas(ax, height)
    scale = scale_of(numbers.values)
    columns = columns_of(len(numbers.steps))
    axes.imshow(_colored(numbers, scale, columns), aspect="auto", interpolation="nearest")
    tidy(axes, grid="")
    axes.spines[["left", "bottom"]].set_visible(False)
    _name_rows(axes, numbers, is_own=ax is None)
    _name_columns(axes, numbers, columns)
    _point_at_bad(axes, numbers, columns)
    _bar(axes, scale, name)
    label(axes, "step")
    last = int(numbers.steps[-1]) if len(numbers.steps) else None
    lines = [
        *numbers.words(),
        *_said(numbers, scale, columns),
        *zero_words(run, numbers.sites, last),
    ]
    write_head(
        axes, f"{name} of {numbers.what} over {count(len(numbers.steps))} steps", lines, above=3
    )
    return figure


def columns_of(steps: int, most: int = _MOST_COLUMNS) -> Array:
    """The first step of each column, and the end of the last, by place: ``int64[columns + 1]``.

    Example:
        >>> columns_of(3).tolist(), columns_of(10, 4).tolist()
        ([0, 1, 2, 3], [0, 3, 6, 9, 10])
    """
    width = max(1, -(-steps // most))
    return np.append(np.arange(0, steps, width), steps)


def furthest(values: Array, columns: Array) -> Array:
    """Return the finite value furthest from zero in each row and column, ``float64[N, C]``.

    Args:
        values: ``float64[N, S]``.
        columns: as of :func:`columns_of`.
    """
    starts = columns[:-1]
    finite = np.isfinite(values)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts, axis=1)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts, axis=1)
    farther = np.where(np.abs(low) > np.abs(high), low, high)
    return np.where(np.isfinite(farther), farther, np.nan)


def _colored(found: Readings, scale: Scale, columns: Array) -> Array:
    """Return ``uint8[N, C, 4]``."""
    shown = furthest(found.values, columns)
    starts = columns[:-1]
    bad = (found.nonfinite > 0) | np.isinf(found.values)
    is_bad = np.logical_or.reduceat(bad, starts, axis=1)
    cmap = color_map(SIGNED if scale.low < 0 else MAGNITUDE)
    with np.errstate(invalid="ignore"):
        unit = np.ma.filled(scale.norm()(np.ma.masked_invalid(shown)), 0.0)
    colors = cmap(np.clip(unit, 0, 1), bytes=True)
    if scale.kind == "log and zero":
        colors[shown == 0] = _bytes(ZERO_COLOR)
    colors[np.isnan(shown)] = _bytes(_ABSENT)
    colors[is_bad] = [round(255 * part) for part in BAD]
    return colors


def _point_at_bad(axes: Axes, found: Readings, columns: Array) -> None:
    """Point at rows and columns with NaN or Inf from outside: one cell of many is easily missed."""
    bad = (found.nonfinite > 0) | np.isinf(found.values)
    rows = np.flatnonzero(bad.any(1))
    cells = np.unique(np.searchsorted(columns, np.flatnonzero(bad.any(0)), side="right") - 1)
    if not len(rows):
        return
    style: dict[str, Any] = {"color": BAD, "markersize": 4, "clip_on": False, "linestyle": "none"}
    axes.plot(np.full(len(rows), 1.006), rows, "<", transform=axes.get_yaxis_transform(), **style)
    axes.plot(cells, np.full(len(cells), 1.004), "v", transform=axes.get_xaxis_transform(), **style)


def _bytes(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)] + [255]


def _name_rows(axes: Axes, found: Readings, *, is_own: bool) -> None:
    num = len(found.sites)
    ticks = spread(num, num if num <= _MOST_NAMED else 40)
    room = _NAMES if is_own else 0.35 * inches_across(axes)
    names = [fitted(str(found.sites[tick]), room) for tick in ticks]
    axes.set_yticks(ticks, names, parse_math=False)
    if len(ticks) < num:
        label(axes, y=f"{count(len(ticks))} of {count(num)} sites named")


def _name_columns(axes: Axes, found: Readings, columns: Array) -> None:
    from matplotlib.ticker import MaxNLocator

    steps = found.steps
    if not len(steps):
        axes.set_xticks([])
        return
    wanted = MaxNLocator(7, integer=True).tick_values(float(steps[0]), float(steps[-1]))
    places = {int(np.searchsorted(steps, one)) for one in wanted if steps[0] <= one <= steps[-1]}
    ticks = sorted(places) or [0]
    cells = np.searchsorted(columns, ticks, side="right") - 1
    axes.set_xticks(cells, [count(int(steps[tick])) for tick in ticks])


def _said(found: Readings, scale: Scale, columns: Array) -> list[str]:
    """Return sentences on the colours, where these do not say it themselves."""
    said = []
    if scale.kind == "log and zero":
        said.append("Logarithmic colours; zeros are dark grey.")
    elif scale.kind == "log":
        said.append("Logarithmic colours.")
    elif scale.kind == "signed log":
        said.append(
            f"Colours are linear between ±{number(scale.linear_below)}, logarithmic beyond."
        )
    if len(columns) - 1 < len(found.steps):
        said.append(
            f"{count(len(found.steps))} steps in {count(len(columns) - 1)} columns: of each the "
            f"value furthest from zero, magenta if any is not finite."
        )
    if not found.is_there.all():
        said.append("White: not measured.")
    return [" ".join(said)]


def _bar(axes: Axes, scale: Scale, name: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import FixedLocator

    norm = scale.norm()
    low, high = norm.vmin or 0.0, norm.vmax or 1.0
    within = (
        [tick for tick in scale.ticks() if low <= tick <= high] if scale.kind != "linear" else []
    )
    ticks = {"ticks": FixedLocator(within)} if within else {}
    colors = ScalarMappable(norm, SIGNED if scale.low < 0 else MAGNITUDE)
    color_bar(axes, colors, name=name, **ticks)
