"""Draw maps with matplotlib: headings, mosaics and lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from torchtap.plot.prepare import Maps, bad_words, constant_of
from torchtap.plot.style import (
    BAD,
    GREY,
    MAGNITUDE,
    SIGNED,
    SMALL,
    TEXT,
    TITLE,
    canvas,
    color_bar,
    label,
    write_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[Any]

Scale = Literal["shared", "each"]

_TILE = 48
"""Fewest pixels of a tile's side; small maps are repeated up to it."""


def draw_mosaic(axes: Axes, maps: Maps, cols: int, scale: Scale) -> None:
    import numpy

    tiles = _colored(maps, scale)
    height, width = tiles.shape[1:3]
    gap = max(2, round(0.05 * width))
    rows = -(-len(tiles) // cols)
    shape = (rows * (height + gap) - gap, cols * (width + gap) - gap, 4)
    canvas = numpy.zeros(shape, dtype="uint8")
    for place, tile in enumerate(tiles):
        top, left = (place // cols) * (height + gap), (place % cols) * (width + gap)
        canvas[top : top + height, left : left + width] = tile
        _label(axes, maps, place, left, top, (height, width))
    axes.imshow(canvas, interpolation="auto", aspect="equal")
    axes.set_axis_off()
    _colorbar(axes, maps, scale)


def _label(axes: Axes, maps: Maps, place: int, left: int, top: int, size: tuple[int, int]) -> None:
    """The channel's number in the corner; a frame or a word where the map needs one."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    height, width = size
    halo = [withStroke(linewidth=1.5, foreground="white")]
    axes.text(
        left + 0.03 * width,
        top + 0.03 * height,
        str(maps.channels[place]),
        fontsize=5,
        va="top",
        color="black",
        path_effects=halo,
    )
    one = maps.values[place]
    bad = bad_words(one)
    word = bad or (f"all {constant_of(one)}" if constant_of(one) else "")
    if bad:
        frame = Rectangle(
            (left, top), width, height, fill=False, edgecolor=BAD, linewidth=1.2, clip_on=False
        )
        axes.add_patch(frame)
    middle = (left + width / 2, top + (0.97 if bad else 0.5) * height)
    side = "bottom" if bad else "center"
    axes.text(*middle, word, fontsize=5.5, ha="center", va=side, path_effects=halo, color="black")


def _colored(maps: Maps, scale: Scale) -> Array:
    """RGBA tiles, small ones enlarged by repeating pixels."""
    import numpy
    from matplotlib import colormaps

    values = maps.values
    if scale == "each":
        low = numpy.where(numpy.isfinite(values), values, numpy.inf).min((1, 2), keepdims=True)
        high = numpy.where(numpy.isfinite(values), values, -numpy.inf).max((1, 2), keepdims=True)
        span = numpy.where(high > low, high - low, 1.0)
        cmap, unit = colormaps[MAGNITUDE], (values - numpy.where(high >= low, low, 0)) / span
    else:
        bottom, top = maps.limits
        cmap = colormaps[SIGNED if maps.signed else MAGNITUDE]
        unit = (values - bottom) / (top - bottom)
    finite = numpy.isfinite(unit)
    tiles = cmap(numpy.where(finite, unit, 0.5), bytes=True)
    tiles[~numpy.isfinite(values)] = [round(255 * part) for part in BAD]
    factor = max(1, -(-_TILE // max(values.shape[1:])))
    return tiles.repeat(factor, axis=1).repeat(factor, axis=2)


def _colorbar(axes: Axes, maps: Maps, scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    signed = maps.signed and scale == "shared"
    limits = maps.limits if scale == "shared" else (0.0, 1.0)
    colors = ScalarMappable(Normalize(*limits), SIGNED if signed else MAGNITUDE)
    bar = color_bar(
        axes,
        colors,
        location="bottom",
        shrink=0.6,
        aspect=40,
        pad=0.02,
        extend=_extend(maps, limits) if scale == "shared" else "neither",
    )
    if scale == "each":
        bar.set_ticks([0, 1], labels=["its least", "its largest"])


def _extend(maps: Maps, limits: tuple[float, float]) -> Literal["neither", "both", "min", "max"]:
    below, above = maps.low < limits[0], maps.high > limits[1]
    if below and above:
        return "both"
    return "min" if below else "max" if above else "neither"


def draw_lines(ax: Axes | None, maps: Maps, scale: Scale) -> Figure:
    """Channels of a 1d convolution: one line of pixels each."""
    flat = replace(maps, values=maps.values.reshape(len(maps.values), 1, -1))
    tiles = _colored(flat, scale)
    figure, axes = canvas(ax, min(2.2 + 0.09 * len(tiles), 9))
    axes.imshow(tiles[:, 0], interpolation="nearest", aspect="auto", extent=_extent(flat))
    label(axes, "position", "channel")
    axes.tick_params(labelsize=SMALL, colors=GREY)
    ticks = range(0, len(flat.channels), max(1, len(flat.channels) // 16))
    axes.set_yticks(ticks, [str(flat.channels[tick]) for tick in ticks])
    _colorbar(axes, flat, scale)
    write_head(axes, maps.title, [maps.remark])
    return figure


def _extent(maps: Maps) -> tuple[float, float, float, float]:
    return -0.5, maps.values.shape[-1] - 0.5, len(maps.channels) - 0.5, -0.5


def draw_picture(axes: Axes, picture: Any, caption: str = "", *, points: float = TITLE) -> None:
    """Draw the picture that went in, with a caption below it.

    Args:
        axes: where.
        picture: ``uint8[H, W, 3]``.
        caption: of several lines.
        points: of the heading's letters.
    """
    axes.imshow(picture, interpolation="auto")
    axes.set_axis_off()
    axes.set_anchor("N")
    write_head(axes, "Input", [f"{picture.shape[0]}x{picture.shape[1]}"], room=9, points=points)
    axes.text(
        0, -0.04, caption, transform=axes.transAxes, va="top", fontsize=TEXT + 1, color=GREY,
        family="monospace", parse_math=False,
    )  # fmt: skip
