"""Figures of maps that explain an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtap.core.text import elide
from torchtap.plot.extras import figure_class
from torchtap.plot.heat import Limits, blended, color_name, colored, fault_of, limits_of, range_of
from torchtap.plot.style import (
    DPI,
    GREY,
    INK,
    TEXT,
    color_bar,
    printable,
    say,
    tidy,
    wrapped,
    write_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[Any]

ALPHA = 0.5
"""Share of a map's colours over a picture."""
_INCHES = 2.9
_TITLE, _HEAD = 12, 8.5
"""Points of the title, and of what stands above a panel."""
_MOST_BARS = 64


@dataclass(frozen=True, slots=True)
class Pane:
    """One map to draw.

    Attributes:
        values: 1-d, 2-d or 3-d, at native resolution.
        heading: what stands above it.
        laid: ``[H, W]``, resized to the picture that it is laid over, where there is one.
        picture: ``uint8[H, W, 3]``.
        labels: of the places of a 1-d map.
    """

    values: Array
    heading: tuple[str, ...]
    laid: Array | None = None
    picture: Array | None = None
    labels: tuple[str, ...] = ()


def explained_figure(
    rows: Sequence[Sequence[Pane]],
    *,
    title: str,
    limits: Limits,
    notes: Sequence[str] = (),
    is_clipped: bool = False,
) -> Figure:
    """Maps as a grid of panels, each with its range, and one scale of colours.

    Args:
        rows: of the grid.
        title: stands above all.
        limits: of the first and the last colour, in all panels.
        notes: stand below.
        is_clipped: whether values lie beyond the last colour.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels = [_panels(row) for row in rows]
    cols = max(map(len, panels))
    width = max(cols * _INCHES + 0.3, 5.4)
    inches = _INCHES * max(map(_ratio, (one.values for row in rows for one in row)))
    said = [part for note in notes for part in wrapped(note, 0.97 * width)]
    figure = figure_class()(
        figsize=(width, len(rows) * (inches + 0.5) + 0.95 + 0.16 * len(said)),
        dpi=DPI,
        layout="constrained",
    )
    grid = figure.subplots(len(rows), cols, squeeze=False)
    for axes_row, row in zip(grid, panels, strict=True):
        for place, axes in enumerate(axes_row):
            if place < len(row):
                row[place].draw(axes, limits, width / cols)
            else:
                axes.set_axis_off()
    _bar(figure, [axes for row in grid for axes in row], limits, is_clipped=is_clipped)
    write_title(figure, title, width)
    if said:
        figure.supxlabel(
            "\n".join(said), fontsize=TEXT, x=0.012, ha="left", color=GREY, parse_math=False
        )
    return figure


@dataclass(frozen=True, slots=True)
class _Panel:
    """The content of one place of the grid: ``picture``, ``map`` or ``overlay`` of a pane."""

    pane: Pane
    what: str

    def draw(self, axes: Axes, limits: Limits, width: float) -> None:
        pane = self.pane
        if self.what == "picture":
            assert pane.picture is not None
            axes.imshow(pane.picture, interpolation="auto")
            axes.set_axis_off()
            _head(axes, ("input", _shape(pane.picture)), width)
        elif self.what == "overlay" and pane.laid is not None:
            _overlay(axes, pane, limits, width)
        else:
            draw_map(axes, pane, limits, width)


def draw_map(axes: Axes, pane: Pane, limits: Limits, width: float) -> None:
    """A map at native resolution, or why it is not drawn.

    Args:
        axes: where.
        pane: the map.
        limits: of the first and the last colour.
        width: of the panel in inches.
    """
    _head(axes, pane.heading, width)
    fault = fault_of(pane.values)
    if fault:
        axes.set_aspect("equal")
        say(axes, f"not drawn: {fault}")
    elif pane.values.ndim == 1:
        _draw_line(axes, pane, limits)
    else:
        axes.imshow(colored(plane_of(pane.values)[0], limits), interpolation="nearest")
        axes.set_axis_off()


def draw_overlay(axes: Axes, pane: Pane, width: float, *, clip: float = 0.0) -> None:
    """A map over its picture in colours of its own, or why it is not drawn.

    Args:
        axes: where.
        pane: with a picture.
        width: of the panel in inches.
        clip: share of the largest magnitudes that get the last colour.
    """
    limits = limits_of([pane.values], clip)
    if pane.laid is None:
        draw_map(axes, pane, limits, width)
    else:
        _overlay(axes, pane, limits, width)


def _overlay(axes: Axes, pane: Pane, limits: Limits, width: float) -> None:
    assert pane.picture is not None
    assert pane.laid is not None
    _head(axes, pane.heading, width)
    axes.imshow(blended(pane.picture, pane.laid, limits, ALPHA), interpolation="auto")
    axes.set_axis_off()


def write_title(figure: Figure, title: str, width: float) -> None:
    """Write the title above a figure of so many inches."""
    text = "\n".join(wrapped(title, 0.96 * width, _TITLE))
    figure.suptitle(text, fontsize=_TITLE, x=0.012, ha="left", color=INK, parse_math=False)


def plane_of(values: Array) -> tuple[Array, str]:
    """A 2-d map as it is, and of a 3-d map the plane with its largest magnitude; which one."""
    import numpy

    if values.ndim == 2 or not values.size:
        return values, ""
    most = numpy.where(numpy.isfinite(values), abs(values), -1).max((1, 2))
    place = int(most.argmax())
    return values[place], f"plane {place} of {len(values)}, with the largest magnitude"


def heading_of(what: str, values: Array) -> tuple[str, ...]:
    """Return the heading of a panel: what it shows, its shape, and the range of its values."""
    plane = plane_of(values)[1] if values.ndim == 3 else ""
    return tuple(filter(None, (what, plane, f"{_shape(values)}, {range_of(values)}")))


def _panels(row: Sequence[Pane]) -> list[_Panel]:
    """Return the picture, and each map; of one map alone both as it is and over the picture."""
    if row[0].picture is None:
        return [_Panel(pane, "map") for pane in row]
    maps = [_Panel(row[0], "map")] if len(row) == 1 else []
    return [_Panel(row[0], "picture"), *maps, *(_Panel(pane, "overlay") for pane in row)]


def _shape(values: Any) -> str:
    return "x".join(map(str, values.shape[: 2 if values.dtype == "uint8" else None]))


def _ratio(values: Array) -> float:
    """Height of a panel, in widths."""
    if values.ndim < 2 or not values.size:
        return 0.6
    return float(min(max(values.shape[-2] / values.shape[-1], 0.25), 2.0))


def _head(axes: Axes, lines: Sequence[str], width: float) -> None:
    room = 0.94 * width
    first, *others = [elide(line, 200) for line in lines]
    axes.set_anchor("N")
    write_head(axes, first, others, room=room, points=_HEAD)


def _draw_line(axes: Axes, pane: Pane, limits: Limits) -> None:
    import numpy

    values = pane.values
    places = numpy.arange(len(values))
    axes.axhline(0, color=GREY, linewidth=0.6)
    if len(values) <= _MOST_BARS:
        heights = numpy.where(numpy.isfinite(values), values, 0)
        axes.bar(places, heights, color=colored(values, limits) / 255)
    else:
        axes.plot(places, values, linewidth=0.8, color=GREY)
    for place in places[~numpy.isfinite(values)]:
        axes.axvline(place, color=colored(values, limits)[place] / 255)
    if pane.labels and len(values) <= _MOST_BARS:
        names = [elide(printable(label), 12) for label in pane.labels]
        axes.set_xticks(places, names, rotation=90, parse_math=False)
    tidy(axes, grid="")


def _bar(figure: Figure, axes: Sequence[Axes], limits: Limits, *, is_clipped: bool) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    colors = ScalarMappable(Normalize(*limits), color_name(limits))
    beyond: Any = ("both" if limits[0] < 0 else "max") if is_clipped else "neither"
    color_bar(
        axes[0],
        colors,
        ax=list(axes),
        location="bottom",
        shrink=0.5,
        aspect=40,
        pad=0.02,
        extend=beyond,
        ticks=MaxNLocator(4),  # More labels of many digits overlap below one map.
    )
