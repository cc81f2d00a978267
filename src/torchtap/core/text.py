"""Format single values: numbers, sizes, shapes and paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

WIDTH = 100
NONE = "-"
"""Placeholder where there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a tone, which is a colour on a terminal and nothing elsewhere.

    Args:
        text: what is shown.
        tone: ``""``, ``head``, ``dim``, ``bad`` or ``good``.
    """

    text: str
    tone: str = ""


# ---------------------------------------------------------------------- numbers


def count(value: int) -> str:
    """Return a whole number with thousands separators.

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
    """Return a large count in three digits and a letter: ``407.2 M``.

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
    """Return a part of a whole in percent; never ``0`` or ``100`` where it is not exactly that.

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


def percent(part: float) -> str:
    """Return a number as percent, of two digits and never in powers of ten.

    Example:
        >>> percent(0.0123), percent(1.4), percent(23.0), percent(1e9)
        ('1.2%', '140%', '2,300%', 'over 10,000%')
    """
    if part > 100:
        return "over 10,000%"
    return f"{100 * part:,.0f}%" if part >= 0.1 else f"{100 * part:.2g}%"


def nonfinite(nan: int, posinf: int, neginf: int) -> Cell:
    """Counts of what is not finite, with a word: ``3 NaN 1 Inf``."""
    said = [f"{count(nan)} NaN"] if nan else []
    if posinf:
        said.append(f"{count(posinf)} Inf")
    if neginf:
        said.append(f"{count(neginf)} -Inf")
    return Cell(" ".join(said), "bad") if said else Cell("0")


def shape(dims: Sequence[int | None] | None) -> str:
    """Return a shape in a table; ``?`` for a dimension that differs between values.

    Example:
        >>> shape((1, 32, 112, 112)), shape(()), shape((None, 16))
        ('1x32x112x112', 'scalar', '?x16')
    """
    if dims is None:
        return "varies"
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"


def typed(dtype: str, dims: Sequence[int | None]) -> str:
    """Return a tensor in a sentence: ``float32[3, 16]``."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def plural(number: int, word: str) -> str:
    """Return ``1 site``, ``2,000 sites``, ``2 classes``."""
    if number != 1:
        word = word + ("es" if word.endswith("s") else "s")
    return f"{count(number)} {word}"


def with_article(name: str) -> str:
    """Return ``an Adam``, ``a Linear``."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def class_of(value: object) -> str:
    """Return a value's class as it stands in a sentence: ``a Linear``."""
    return with_article(type(value).__name__)


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
    from rich.cells import cell_len

    return cell_len(text)


def _head(text: str, room: int) -> str:
    head = text[:room]
    while breadth(head) > room:
        head = head[:-1]
    return head


def _tail(text: str, room: int) -> str:
    tail = text[len(text) - room :]
    while breadth(tail) > room:
        tail = tail[1:]
    return tail


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
    return _head(text, room - 1 - tail) + "…" + _tail(text, tail)


def elide_apart(texts: Sequence[str], room: int) -> list[str]:
    """Shorten each so that different ones stay different, as far as there is room.

    Texts that :func:`elide` makes alike lose what they have in common on the left.

    Example:
        >>> elide_apart([f"encoder.layer.{n}.attention.output" for n in (0, 1)], 20)
        ['…0.attention.output', '…1.attention.output']
    """
    alike: dict[str, dict[str, None]] = {}
    for text in texts:
        alike.setdefault(elide(text, room), {})[text] = None
    return [_apart(text, list(alike[elide(text, room)]), room) for text in texts]


def _apart(text: str, others: Sequence[str], room: int) -> str:
    if len(others) < 2 or room < 3:
        return elide(text, room)
    first, last = min(others), max(others)  # They have in common what all have.
    same = next(n for n, (one, two) in enumerate(zip_longest(first, last)) if one != two)
    start = text.rfind(".", 0, same) + 1
    return "…" + elide(text[start:], room - 1) if start else elide(text, room)


def elide_end(text: str, room: int) -> str:
    """Shorten at the end.

    Example:
        >>> elide_end("Conv2dStaticSamePadding", 12)
        'Conv2dStati…'
    """
    return text if breadth(text) <= room else _head(text, room - 1) + "…"


def wrap(text: str, room: int = WIDTH, *, first: str = "", rest: str = "") -> list[str]:
    """Break a text between words; a word wider than a line is broken where it must.

    Args:
        text: one paragraph.
        room: columns of a line.
        first: what stands before the first line.
        rest: what stands before each further line.
    """
    lines, line = [], first
    for word in map(clean, text.split()):
        blank = "" if line in (first, rest) and not line.strip() else " "
        if breadth(line) + len(blank) + breadth(word) > room and line.strip():
            lines.append(line)
            line, blank = rest, ""
        while breadth(line) + len(blank) + breadth(word) > room:
            part = _head(word, room - breadth(line))
            lines.append(line + part)
            line, word = rest, word[len(part) :]
        line += blank + word
    return [*lines, line]
