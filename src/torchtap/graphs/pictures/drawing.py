"""Boxes, arrows and texts of a picture in pixels, from which SVG and figures are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtap.core.text import clean, elide, shape, wrap
from torchtap.graphs.box_layout import Layout, lay_out
from torchtap.graphs.boxes_and_arrows import Arrow, Box, Picture
from torchtap.graphs.pictures.colors import LOOKS

CHAR, LINE = 6.1, 14.0
"""Width of a character of the font, and height of a line, in pixels."""
_WIDEST = 27
"""Most characters in a line of a box."""
_PAD, _MARGIN, _RANK_GAP = 8.0, 20.0, 34.0
_LEGEND = 18.0
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box, by its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    box: Box


@dataclass(frozen=True, slots=True)
class DrawnArrow:
    """An arrow through points, from the start to the tip; ``is_back`` of a loop."""

    points: tuple[Point, ...]
    is_back: bool
    tooltip: str


@dataclass(frozen=True, slots=True)
class DrawnText:
    """A text by the middle of its line (or its start, where it is not centred)."""

    x: float
    y: float
    text: str
    is_centred: bool = True
    is_strong: bool = False


@dataclass(frozen=True, slots=True)
class DrawnFrame:
    """A frame around boxes, with a text at its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """All that is to be drawn.

    Attributes:
        legend: x, y and kind of each entry.
        title: of the picture, for programs that read it aloud.
    """

    width: float
    height: float
    boxes: tuple[DrawnBox, ...]
    arrows: tuple[DrawnArrow, ...]
    texts: tuple[DrawnText, ...]
    frames: tuple[DrawnFrame, ...]
    legend: tuple[tuple[float, float, str], ...]
    title: str


def draw(picture: Picture) -> Drawing:
    """Place all that a picture shows."""
    lines = [_lines(box) for box in picture.boxes]
    widths = [_width(line) for line in lines]
    forward = [
        (min(arrow.start, arrow.end), max(arrow.start, arrow.end)) for arrow in picture.arrows
    ]
    layout = lay_out(len(picture.boxes), forward, widths, _around_frames(picture, forward))
    heads = _heading(picture, max(layout.width, 460.0))
    top = _MARGIN + LINE * (len(heads) + 0.6)
    tall = [0.0] * layout.num_ranks
    for box, (_, rank) in zip(lines, layout.places, strict=True):
        tall[rank] = max(tall[rank], len(box) * LINE + _PAD)
    rows = [top]
    for height in tall:
        rows.append(rows[-1] + height + _RANK_GAP)
    boxes = [
        DrawnBox(_MARGIN + x - wide / 2, rows[rank], wide, len(text) * LINE + _PAD, text, box)
        for (x, rank), wide, text, box in zip(
            layout.places, widths, lines, picture.boxes, strict=True
        )
    ]
    arrows = [_arrow(arrow, boxes, layout, rows, tall) for arrow in picture.arrows]
    frames = tuple(_frames(picture, boxes))
    texts = (*heads, *_types(picture, boxes))
    reached = (frame.x + frame.width - _MARGIN for frame in frames)
    width = max([layout.width, *(_reach(one) for one in texts), *reached]) + 2 * _MARGIN
    legend = tuple(_legend(picture, rows[-1], width))
    bottom = max((y for _, y, _ in legend), default=rows[-1]) + _LEGEND
    return Drawing(
        width=width,
        height=bottom + 6,
        boxes=tuple(boxes),
        arrows=tuple(arrows),
        texts=texts,
        frames=frames,
        legend=legend,
        title=picture.title,
    )


def _lines(box: Box) -> tuple[str, ...]:
    said = [box.title, box.detail, " · ".join(box.badges)]
    return tuple(elide(clean(one), _WIDEST) for one in said if one)


def _width(lines: Sequence[str]) -> float:
    return max(64.0, max(map(len, lines)) * CHAR + 2 * _PAD)


def _reach(text: DrawnText) -> float:
    half = len(text.text) * CHAR
    return text.x + (half / 2 if text.is_centred else half) - _MARGIN


def _heading(picture: Picture, width: float) -> list[DrawnText]:
    said = [(line, True) for line in wrap(clean(picture.title), int(width / CHAR))]
    for note in picture.notes:
        said += [(line, False) for line in wrap(note, int(width / CHAR))]
    return [
        DrawnText(_MARGIN, _MARGIN + LINE * n, text, is_centred=False, is_strong=is_strong)
        for n, (text, is_strong) in enumerate(said)
    ]


def _around_frames(
    picture: Picture, arrows: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield (above, below) pairs: what leads into a frame stands above it, what it leads to below.

    Below too stands what nothing leads to and what comes after the frame, such as the parameters
    of the next module: beside the last boxes it would break the frame.
    """
    entered, left = {end for _, end in arrows}, {start for start, _ in arrows}
    for frame in picture.frames:
        inside = set(frame.boxes)
        first = [box for box in frame.boxes if box not in entered]
        last = [box for box in frame.boxes if box not in left]
        for start, end in arrows:
            if end in inside and start not in inside:
                yield from ((start, box) for box in first if start < box)
            if start in inside and end not in inside:
                yield from ((box, end) for box in last if box < end)
        onward = {start for start, end in arrows if start in inside and end in inside}
        ends = [box for box in frame.boxes if box not in onward]
        for box in range(max(inside) + 1, len(picture.boxes)):
            if box not in entered:
                yield from ((end, box) for end in ends)


def _arrow(
    arrow: Arrow, boxes: Sequence[DrawnBox], found: Layout, rows: Sequence[float], tall: list[float]
) -> DrawnArrow:
    is_back = arrow.end < arrow.start
    first, last = (arrow.end, arrow.start) if is_back else (arrow.start, arrow.end)
    upper, lower = boxes[first], boxes[last]
    points = [(upper.x + upper.width / 2, upper.y + upper.height)]
    for x, rank in found.routes[first, last]:
        points += [(_MARGIN + x, rows[rank]), (_MARGIN + x, rows[rank] + tall[rank])]
    points.append((lower.x + lower.width / 2, lower.y))
    if is_back:
        points.reverse()
    kinds = "; ".join(map(str, arrow.types))
    ends = f"{boxes[arrow.start].box.title} to {boxes[arrow.end].box.title}"
    return DrawnArrow(tuple(points), is_back, f"{ends}: {kinds}" if kinds else ends)


def _types(picture: Picture, boxes: Sequence[DrawnBox]) -> Iterator[DrawnText]:
    """Yield the type of what goes out of a box, below it, where the box does not say it."""
    going: dict[int, dict[str, None]] = {}
    for arrow in picture.arrows:
        kinds = going.setdefault(arrow.start, {})
        kinds.update((f"{shape(one.shape)}{_dtype(one.dtype)}", None) for one in arrow.types)
    for number, kinds in going.items():
        box = boxes[number]
        said = next(iter(kinds), "")
        if len(kinds) > 1:
            said += f" +{len(kinds) - 1}"
        if said and not any(next(iter(kinds)) in line for line in box.lines):
            yield DrawnText(box.x + box.width / 2 + 4, box.y + box.height + LINE - 3, said, False)


def _dtype(dtype: str) -> str:
    return "" if dtype == "float32" else f" {dtype}"


def _frames(picture: Picture, boxes: Sequence[DrawnBox]) -> Iterator[DrawnFrame]:
    for frame in picture.frames:
        inside = [boxes[number] for number in frame.boxes]
        hull = _frame_around(inside, clean(frame.label))
        others = (box for number, box in enumerate(boxes) if number not in frame.boxes)
        if not any(_overlap(hull, box) for box in others):
            yield hull
            continue
        # Boxes that do not repeat stand among them: each that does has a frame of its own.
        for box in inside:
            yield _frame_around([box], hull.label.partition("  ")[0])


def _frame_around(inside: Sequence[DrawnBox], label: str) -> DrawnFrame:
    left = min(one.x for one in inside) - 9
    top = min(one.y for one in inside) - 19
    right = max(max(one.x + one.width for one in inside) + 9, left + len(label) * CHAR + 12)
    bottom = max(one.y + one.height for one in inside) + 9
    return DrawnFrame(left, top, right - left, bottom - top, label)


def _overlap(frame: DrawnFrame, box: DrawnBox) -> bool:
    is_beside = box.x >= frame.x + frame.width or box.x + box.width <= frame.x
    return not (is_beside or box.y >= frame.y + frame.height or box.y + box.height <= frame.y)


def _legend(picture: Picture, top: float, width: float) -> Iterator[tuple[float, float, str]]:
    present = {box.kind for box in picture.boxes}
    x, y = _MARGIN, top
    for kind, look in LOOKS.items():
        if kind not in present:
            continue
        room = len(look.meaning) * CHAR + 34
        if x + room > width and x > _MARGIN:
            x, y = _MARGIN, y + _LEGEND
        yield x, y, kind
        x += room
