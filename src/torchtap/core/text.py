"""How single things are written: numbers, sizes, shapes, paths, and the table they stand in."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 100
NONE = "-"
"""What stands where there is nothing to show."""

_TONES = {"head": "1", "dim": "2", "bad": "1;31", "good": "32"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a tone, which is a colour on a terminal and nothing elsewhere.

    Args:
        text: what is shown.
        tone: ``""``, ``head``, ``dim``, ``bad`` or ``good``.
    """

    text: str
    tone: str = ""


def paint(text: str, tone: str, *, color: bool) -> str:
    """``text`` in the colour of ``tone`` where colour is wanted."""
    code = _TONES.get(tone)
    return f"\x1b[{code}m{text}\x1b[0m" if color and code and text else text


# ---------------------------------------------------------------------- numbers


def count(value: int) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(4652008)
        '4,652,008'
    """
    return f"{value:,}"


def number(value: float) -> str:
    """Four significant digits; scientific outside 1e-3..1e4; ``0`` only for exact zero.

    Example:
        >>> number(0.385401), number(1234.56), number(-0.000012), number(0.0), number(float("nan"))
        ('0.3854', '1,235', '-1.2e-5', '0', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    rounded = float(f"{value:.4g}")
    if 1e-3 <= abs(rounded) < 1e4:
        return f"{rounded:,.0f}" if abs(rounded) >= 1e3 else f"{rounded:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def size(nbytes: int) -> str:
    """Bytes in binary units.

    Example:
        >>> size(512), size(1605632), size(3 << 30)
        ('512 B', '1.531 MiB', '3 GiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{count(int(value)) if unit == 'B' else f'{value:.4g}'} {unit}"
        value /= 1024
    raise AssertionError


def short_count(value: int) -> str:
    """A large count in three digits and a letter: ``407.2 M``.

    Example:
        >>> short_count(999), short_count(4652008)
        ('999', '4.652 M')
    """
    scaled = float(value)
    for letter in ("", "k", "M", "G", "T", "P"):
        if abs(scaled) < 1000 or letter == "P":
            return f"{scaled:.4g} {letter}".rstrip() if letter else count(value)
        scaled /= 1000
    raise AssertionError


def share(part: int, whole: int) -> str:
    """A part of a whole in percent; never ``0`` or ``100`` where it is not exactly that.

    Example:
        >>> share(0, 9), share(1, 3), share(1, 100000), share(99999, 100000), share(2, 2)
        ('0', '33.3%', '<0.1%', '>99.9%', '100%')
    """
    if not part or not whole:
        return "0"
    if part == whole:
        return "100%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    return ">99.9%" if percent > 99.9 else f"{percent:.1f}%"


def nonfinite(nan: int, posinf: int, neginf: int) -> Cell:
    """Counts of what is not finite, with a word: ``3 NaN 1 Inf``."""
    said = [f"{count(nan)} NaN"] if nan else []
    if posinf:
        said.append(f"{count(posinf)} Inf")
    if neginf:
        said.append(f"{count(neginf)} -Inf")
    return Cell(" ".join(said), "bad") if said else Cell("0")


def shape(dims: Sequence[int | None] | None) -> str:
    """A shape in a table; ``?`` for a dimension that differs between values.

    Example:
        >>> shape((1, 32, 112, 112)), shape(()), shape((None, 16))
        ('1x32x112x112', 'scalar', '?x16')
    """
    if dims is None:
        return "varies"
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"


def typed(dtype: str, dims: Sequence[int | None]) -> str:
    """A tensor in a sentence: ``float32[3, 16]``."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def plural(number: int, word: str) -> str:
    """``1 site``, ``2,000 sites``, ``2 classes``."""
    if number != 1:
        word = word + ("es" if word.endswith("s") else "s")
    return f"{count(number)} {word}"


# ---------------------------------------------------------------------- text


def clean(text: str) -> str:
    r"""Text that is safe on a terminal: what does not print is shown as its escape.

    Example:
        >>> clean("a\x1b[31mb\n")
        'a\\x1b[31mb\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def breadth(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_width_of(character) for character in text)


def elide(text: str, room: int) -> str:
    """Shorten in the middle, the end keeping the larger part.

    Example:
        >>> elide("encoder.blocks.3.attention.output", 20)
        'encoder…ntion.output'
    """
    if breadth(text) <= room:
        return text
    if room <= 1:
        return "…"[:room]
    tail = -(-(room - 1) * 3 // 5)
    return _take(text, room - 1 - tail) + "…" + _take(text[::-1], tail)[::-1]


def elide_end(text: str, room: int) -> str:
    """Shorten at the end.

    Example:
        >>> elide_end("Conv2dStaticSamePadding", 12)
        'Conv2dStati…'
    """
    return text if breadth(text) <= room else _take(text, room - 1) + "…"


def _take(text: str, room: int) -> str:
    used, taken = 0, []
    for character in text:
        used += _width_of(character)
        if used > room:
            break
        taken.append(character)
    return "".join(taken)


def _width_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap(text: str, room: int = WIDTH, *, first: str = "", rest: str = "") -> list[str]:
    """Break a text between words; a word wider than a line is broken where it must.

    Args:
        text: one paragraph.
        room: columns of a line.
        first: what stands before the first line.
        rest: what stands before each further line.
    """
    lines, line = [], first
    for word in text.split():
        blank = "" if line in (first, rest) and not line.strip() else " "
        if breadth(line) + len(blank) + breadth(word) > room and line.strip():
            lines.append(line)
            line, blank = rest, ""
        while breadth(line) + len(blank) + breadth(word) > room:
            part = _take(word, room - breadth(line))
            lines.append(line + part)
            line, word = rest, word[len(part) :]
        line += blank + word
    return [*lines, line]


# ---------------------------------------------------------------------- tables


def columns(
    rows: Iterable[Sequence[str | Cell]],
    headers: Sequence[str],
    align: str,
    width: int = WIDTH,
    *,
    elastic: Mapping[int, int] | None = None,
    color: bool = False,
) -> str:
    """Lay rows out in columns.

    Where the table would be wider than ``width``, first the gaps become single blanks, then the
    elastic columns are elided in the middle.

    Args:
        rows: texts or cells, one per column.
        headers: one per column.
        align: one letter per column: ``l``, ``r``, or ``e`` (left, elided at its end).
        width: columns of the terminal.
        elastic: column -> the fewest characters it may shrink to; the first column by default.
        color: paint headers and toned cells.

    Example:
        >>> print(columns([("conv", "1,024"), ("fc", "12")], ("path", "bytes"), "lr"))
        path  bytes
        conv  1,024
        fc       12
    """
    table = [[_as_cell(cell) for cell in row] for row in rows]
    head = [Cell(text, "head") for text in headers]
    wide = [
        max(breadth(line[place].text) for line in (head, *table)) for place in range(len(headers))
    ]
    gap = 2 if sum(wide) + 2 * (len(wide) - 1) <= width else 1
    room = width - gap * (len(wide) - 1)
    wide = _shrink(wide, room, {0: 12} if elastic is None else elastic)
    lines = [_line(line, wide, align, " " * gap, color=color) for line in (head, *table)]
    return "\n".join(lines)


def middle(items: Sequence[str], limit: int | None) -> tuple[Sequence[str], int, Sequence[str]]:
    """The beginning, how many are left out, and the end."""
    if limit is None or len(items) <= limit:
        return items, 0, ()
    front = -(-limit // 2)
    back = limit - front
    return items[:front], len(items) - limit, items[len(items) - back :]


def _as_cell(cell: str | Cell) -> Cell:
    return Cell(clean(cell)) if isinstance(cell, str) else Cell(clean(cell.text), cell.tone)


def _shrink(wide: list[int], room: int, elastic: Mapping[int, int]) -> list[int]:
    """Take the excess from the widest elastic column, one character at a time."""
    wide = list(wide)
    while sum(wide) > room:
        able = [place for place, least in elastic.items() if wide[place] > least]
        if not able:
            break
        wide[max(able, key=lambda place: wide[place] / elastic[place])] -= 1
    return wide


def _line(cells: Sequence[Cell], wide: Sequence[int], align: str, gap: str, *, color: bool) -> str:
    parts = []
    for cell, room, side in zip(cells, wide, align, strict=True):
        text = elide_end(cell.text, room) if side == "e" else elide(cell.text, room)
        blank = " " * (room - breadth(text))
        painted = paint(text, cell.tone, color=color)
        parts.append(blank + painted if side == "r" else painted + blank)
    return gap.join(parts).rstrip()
