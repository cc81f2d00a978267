"""The one hand that all figures are drawn in: colours, sizes of letters, headings, axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError
from torchtap.core.text import clean, number
from torchtap.plot.extras import figure_class

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BAD = (0.85, 0.0, 0.85, 1.0)
"""Magenta stands in neither colour map: it marks NaN and Inf."""
MAGNITUDE, SIGNED = "viridis", "RdBu_r"
INK, GREY, PAPER = "#1a1a1a", "#555555", "#f4f4f4"
BLUE, VERMILION, GREEN = "#0072b2", "#d55e00", "#009e73"
CATEGORIES = (BLUE, VERMILION, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito 2008, "Color Universal Design", without its yellow, which is faint on white."""
ZERO_COLOR = "#2b2b2b"
"""Colour of a value that a logarithmic scale has no place for."""

TITLE, TEXT, SMALL = 10.5, 8.0, 7.0
"""Points of letters: titles, what is said below them, and labels."""
DPI = 110
WIDTH = 8.4
"""Inches of a figure of its own."""
_POINTS = 72
_LINE = 1.28
"""Height of a line in letters."""


# ---------------------------------------------------------------------- text


def printable(text: str) -> str:
    """Escapes for what the fonts of the figure do not have, where they would draw an empty box."""
    known = _characters()
    escaped = (
        one if ord(one) in known else one.encode("ascii", "backslashreplace").decode()
        for one in clean(text)
    )
    return "".join(escaped)


@lru_cache(maxsize=1)
def _characters() -> frozenset[int]:
    """Return the characters that both kinds of font in figures have."""
    fonts = (_font(one) for one in ("sans-serif", "monospace"))
    first, second = (frozenset(font.get_charmap()) for font in fonts)
    return first & second


def _font(family: str) -> Any:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    return FT2Font(findfont(FontProperties(family=[family])))


@lru_cache(maxsize=4096)
def _advance(character: str) -> float:
    """Width of a character of one point, in points."""
    font = _font_of_letters()
    font.set_text(character)
    return float(font.get_width_height()[0]) / 64 / 100 if character != " " else 0.318


@lru_cache(maxsize=1)
def _font_of_letters() -> Any:
    font = _font("sans-serif")
    font.set_size(100, _POINTS)
    return font


def inches_of(text: str, points: float) -> float:
    """Width of a printable text in the figure's font."""
    return sum(map(_advance, text)) * 1.09 * points / _POINTS  # Space between the letters.


def fitted(text: str, inches: float, points: float = SMALL) -> str:
    """Return a printable text, shortened in the middle where it is wider than the inches."""
    text = printable(text[:400] + text[-400:] if len(text) > 800 else text)
    if inches_of(text, points) <= inches:
        return text
    low, high = 1, len(text)
    while low < high:  # The largest number of characters that fit.
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if inches_of(_shortened(text, middle), points) <= inches
            else (low, middle - 1)
        )
    return _shortened(text, low)


def on_two_lines(name: str, inches: float, points: float = SMALL) -> list[str]:
    """A name on one line or two, broken at a dot or colon; what is wider still is shortened."""
    text = printable(name)
    if inches_of(text, points) <= inches:
        return [text]
    breaks = [found.end() for found in re.finditer(r"(?<=.)[.:]", text)]
    first = max((at for at in breaks if inches_of(text[:at], points) <= inches), default=0)
    rest = fitted(text[first:], inches, points)
    return [text[:first], rest] if first else [rest]


def _shortened(text: str, num: int) -> str:
    tail = -(-(num - 1) * 3 // 5)
    return text[: max(num - 1 - tail, 0)] + "…" + (text[-tail:] if tail else "")


def wrapped(text: str, inches: float, points: float = TEXT) -> list[str]:
    """Lines of a printable text, broken between words, and in words that are wider than a line."""
    lines, line = list[str](), ""
    for word in printable(text).split(" "):
        joined = f"{line} {word}" if line else word
        if inches_of(joined, points) <= inches:
            line = joined
            continue
        lines += [line] if line else []
        while inches_of(word, points) > inches and len(word) > 1:
            room = max(
                next(
                    n
                    for n in range(len(word), 0, -1)
                    if n == 1 or inches_of(word[:n], points) <= inches
                ),
                1,
            )
            lines.append(word[:room])
            word = word[room:]
        line = word
    return [*lines, line]


def plain(texts: Sequence[Text]) -> None:
    """Draw texts as they are: ``$`` opens no formula."""
    for text in texts:
        text.set_parse_math(False)


# ---------------------------------------------------------------------- axes


def canvas(ax: Axes | None, height: float, *, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Axes to draw in, and their figure: those that are given, or ones of their own.

    Args:
        ax: of the user's.
        height: of a figure of its own, in inches.
        width: likewise.

    Raises:
        InputError: ``ax`` is something else.
        MissingExtraError: matplotlib is not installed.
    """
    figure_of = figure_class()
    if ax is None:
        figure = figure_of(figsize=(width, height), dpi=DPI, layout="constrained")
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.08, h_pad=0.08)
        return figure, figure.add_subplot()
    from matplotlib.axes import Axes as AxesClass

    if not isinstance(ax, AxesClass):
        raise InputError(
            f"ax is a {type(ax).__name__}; expected matplotlib axes, as of figure.add_subplot()."
        )
    figure = ax.figure.figure
    return figure, ax


def inches_across(ax: Axes) -> float:
    """Width of axes, as far as it is known before the figure is laid out."""
    return float(ax.get_position().width * ax.figure.figure.get_figwidth())


def tidy(ax: Axes, *, grid: str = "y") -> None:
    """Small grey labels, no frame but the axes, and a faint grid.

    Args:
        ax: the axes.
        grid: ``x``, ``y``, ``both`` or none.
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#999999")
    ax.tick_params(labelsize=SMALL, colors=GREY, length=2.5)
    if grid:
        ax.grid(axis=grid, color="#e6e6e6", linewidth=0.6)  # type: ignore[arg-type]
    ax.set_axisbelow(True)


def label(ax: Axes, x: str = "", y: str = "") -> None:
    """Name the axes."""
    if x:
        ax.set_xlabel(printable(x), fontsize=TEXT, color=GREY, parse_math=False)
    if y:
        ax.set_ylabel(printable(y), fontsize=TEXT, color=GREY, parse_math=False)


def write_head(
    ax: Axes,
    title: str | list[str],
    lines: Sequence[str] = (),
    *,
    room: float | None = None,
    points: float = TITLE,
    above: float = 0,
) -> None:
    """Write a title, and what is to be said in grey below it, both above the axes.

    Args:
        ax: the axes.
        title: broken where it is wider than the room; or the lines of it.
        lines: sentences, each on lines of its own.
        room: inches that a line has; by default all that there is, to the right edge of a figure of
            ours, else the width of the axes.
        points: of the title's letters.
        above: points that are left free above the axes.
    """
    room = _room_above(ax) if room is None else room
    said = [part for line in lines if line for part in wrapped(line, room)]
    titles = wrapped(title, room, points) if isinstance(title, str) else title
    pad = 6.0 + above
    if said:
        ax.annotate(
            "\n".join(said), (0, 1), xytext=(0, pad), xycoords="axes fraction",
            textcoords="offset points", ha="left", va="bottom", fontsize=TEXT, color=GREY,
            linespacing=_LINE, parse_math=False, annotation_clip=False,
        ).set_in_layout(False)  # fmt: skip
        pad += len(said) * TEXT * _LINE * 1.17 + 2
    ax.set_title(
        "\n".join(titles), loc="left", fontsize=points, color=INK, pad=pad, parse_math=False
    ).set_in_layout(False)
    _keep_free(ax, pad + len(titles) * points * _LINE)


def _keep_free(ax: Axes, height: float) -> None:
    """Keep so many points above the axes free: what is written may be wider than the axes, and the
    layout would make them narrower.
    """
    from matplotlib.offsetbox import AnnotationBbox, DrawingArea

    box = AnnotationBbox(
        DrawingArea(1, height), (0, 1), xybox=(0, 0), xycoords="axes fraction",
        boxcoords="offset points", box_alignment=(0, 0), frameon=False, pad=0,
        annotation_clip=False,
    )  # fmt: skip
    ax.add_artist(box)


def color_bar(axes: Axes, colors: Any, *, name: str = "", **where: Any) -> Colorbar:
    """Draw a bar of colours beside axes, with ticks as in tables.

    Args:
        axes: beside which it stands, unless ``where`` says others.
        colors: matplotlib's ``ScalarMappable``.
        name: of what the colours are.
        **where: as of ``figure.colorbar``.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    side = {"ax": axes, "pad": 0.015, "aspect": 34, "ticks": MaxNLocator(6)}
    bar: Any = axes.figure.colorbar(colors, **{**side, **where})
    axis = bar.ax.xaxis if bar.orientation == "horizontal" else bar.ax.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.3g}"))))
    bar.ax.tick_params(labelsize=SMALL, colors=GREY, length=2)
    bar.outline.set_visible(False)
    if name:
        bar.set_label(printable(name), fontsize=TEXT, color=GREY, parse_math=False)
    return bar  # type: ignore[no-any-return]


def _room_above(ax: Axes) -> float:
    figure: Any = ax.figure.figure
    if figure.get_layout_engine() is None or figure.get_dpi() != DPI:
        return inches_across(ax)
    figure.draw_without_rendering()  # So that it is known where the axes begin.
    return float((0.98 - ax.get_position().x0) * figure.get_figwidth())


def say(ax: Axes, words: str) -> None:
    """Write a sentence in the middle of axes in which nothing is drawn."""
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_edgecolor("#bbbbbb")
    ax.text(
        0.5, 0.5, "\n".join(wrapped(words, 0.85 * inches_across(ax))), transform=ax.transAxes,
        ha="center", va="center", fontsize=TEXT, color=GREY, parse_math=False,
    )  # fmt: skip
