"""A drawing as SVG: one text, which loads nothing and runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape

from torchtap.core.text import clean
from torchtap.graphs.pictures.colors import FRAME, INK, LOOKS, PAGE, SOFT
from torchtap.graphs.pictures.drawing import (
    CHAR,
    LINE,
    Drawing,
    DrawnArrow,
    DrawnBox,
    DrawnFrame,
    DrawnText,
    Point,
)

_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
AUTO, LIGHT, DARK = "auto", "light", "dark"


def to_svg(drawing: Drawing, theme: str = AUTO) -> str:
    """Write a drawing as SVG.

    Args:
        drawing: what to draw.
        theme: ``light``, ``dark``, or ``auto`` for what the reader's system prefers.
    """
    width, height = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="torchtap-graph" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{_FONT}" font-size="10">',
        f"<title>{_safe(drawing.title)}</title>",
        f"<style>{_style(theme)}</style>",
        '<defs><marker id="torchtap-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>',
        f'<rect class="page" width="{width}" height="{height}"/>',
        *map(_frame, drawing.frames),
        *map(_arrow, drawing.arrows),
        *map(_box, drawing.boxes),
        *map(_text, drawing.texts),
        *(part for x, y, kind in drawing.legend for part in _entry(x, y, kind)),
        "</svg>",
    ]
    return "\n".join(parts)


def _style(theme: str) -> str:
    light, dark = ("".join(_rules(one)) for one in (LIGHT, DARK))
    if theme == AUTO:
        return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
    return dark if theme == DARK else light


def _rules(theme: str) -> Iterator[str]:
    here = ".torchtap-graph"
    yield f"{here} .page{{fill:{PAGE[theme]}}}"
    yield f"{here} text{{fill:{INK[theme]}}}{here} .soft{{fill:{SOFT[theme]}}}"
    halo = f"paint-order:stroke;stroke:{PAGE[theme]};stroke-width:3px"
    yield f"{here} .halo{{{halo}}}"
    yield f"{here} .arrow{{fill:none;stroke:{SOFT[theme]}}}{here} .tip{{fill:{SOFT[theme]}}}"
    yield f"{here} .frame{{fill:none;stroke:{FRAME}}}"
    for number, look in enumerate(LOOKS.values()):
        fill = look.light if theme == LIGHT else look.dark
        yield f"{here} .k{number}{{fill:{fill};stroke:{look.stroke}}}"


_NUMBERS = {kind: number for number, kind in enumerate(LOOKS)}


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    look = LOOKS[kind]
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return (
        f'<rect class="k{_NUMBERS[kind]}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{look.radius}"{dash}/>'
    )


def _box(box: DrawnBox) -> str:
    tooltip = "\n".join((box.box.title, *box.box.tooltip))
    rows = [
        _line(box.x + box.width / 2, box.y + LINE * (n + 1) - 1, text, "middle", n)
        for n, text in enumerate(box.lines)
    ]
    inside = _rect(box.x, box.y, box.width, box.height, box.box.kind) + "".join(rows)
    return f"<g><title>{_safe_lines(tooltip)}</title>{inside}</g>"


def _line(x: float, y: float, text: str, anchor: str, row: int, *, has_halo: bool = False) -> str:
    names = ["soft"] * (row > 0) + ["halo"] * has_halo
    style = ' font-weight="bold"' if row == 0 else ""
    style += f' class="{" ".join(names)}"' if names else ""
    # The width is given, so that the text fits its box in any font.
    length = f' textLength="{len(text) * CHAR:.0f}" lengthAdjust="spacingAndGlyphs"'
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {where}{style}{length}>{_safe(text)}</text>"


def _text(text: DrawnText) -> str:
    anchor = "middle" if text.is_centred else "start"
    return _line(text.x, text.y, text.text, anchor, 0 if text.is_strong else 1, has_halo=True)


def _frame(frame: DrawnFrame) -> str:
    return (
        f'<rect class="frame" x="{frame.x:.1f}" y="{frame.y:.1f}" width="{frame.width:.1f}" '
        f'height="{frame.height:.1f}" rx="6" stroke-dasharray="3 3"/>'
        + _line(frame.x + 6, frame.y + 11, frame.label, "start", 0)
    )


def _arrow(arrow: DrawnArrow) -> str:
    dash = ' stroke-dasharray="5 3"' if arrow.is_back else ""
    path = _path(arrow.points)
    return (
        f'<path class="arrow" d="{path}"{dash} marker-end="url(#torchtap-tip)">'
        f"<title>{_safe(arrow.tooltip)}</title></path>"
    )


def _path(points: Sequence[Point]) -> str:
    said = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (end_x, end_y) in itertools.pairwise(points):
        if abs(x - end_x) < 0.5:
            said.append(f"L{end_x:.1f} {end_y:.1f}")
        else:
            middle = (y + end_y) / 2
            said.append(f"C{x:.1f} {middle:.1f} {end_x:.1f} {middle:.1f} {end_x:.1f} {end_y:.1f}")
    return "".join(said)


def _entry(x: float, y: float, kind: str) -> list[str]:
    return [_rect(x, y, 16, 10, kind), _line(x + 21, y + 9, LOOKS[kind].meaning, "start", 1)]


def _safe(text: str) -> str:
    return escape(clean(text))


def _safe_lines(text: str) -> str:
    return "\n".join(_safe(line) for line in text.split("\n"))
