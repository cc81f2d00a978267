"""Reads the pages of the docs: their code, their commands, their links. Runs their Python."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
    key=lambda page: str(page.relative_to(ROOT)),
)
PROMPT = "$ "
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(torchtap [^`]+)`")


class Block(NamedTuple):
    """One piece of code of a page; ``line`` is that of its first line."""

    language: str
    text: str
    line: int

    @property
    def printed(self) -> list[str]:
        """The output that the page claims of a Python block: the comments at its end."""
        lines = self.text.splitlines()
        first = len(lines)
        while first and lines[first - 1].startswith("#"):
            first -= 1
        return [line.removeprefix("#").removeprefix(" ") for line in lines[first:]]


class Command(NamedTuple):
    """A command of a page, and what the page says that it prints."""

    words: tuple[str, ...]
    printed: list[str]


def blocks(text: str, *languages: str) -> list[Block]:
    """The fenced blocks in these languages, in their order."""
    found = [
        Block(match[1], match[2], text[: match.start(2)].count("\n") + 1)
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def prose(text: str) -> str:
    """The text that is left without the blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of links and pictures that are not on the web."""
    found = _LINK.findall(prose(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The names under which headings, and places with a name of their own, can be linked to."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    own = set(re.findall(r'<a id="([^"]+)"></a>', text))
    return own | {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(text: str) -> list[Command]:
    """The ``torchtap`` commands in shell blocks, without the first word."""
    found: list[Command] = []
    for block in blocks(text, "sh"):
        for line in block.text.splitlines():
            if line.startswith("torchtap "):
                found.append(Command(tuple(shlex.split(line)[1:]), []))
    for block in blocks(text, "console"):
        printed: list[str] | None = None
        for line in block.text.splitlines():
            if line.startswith(PROMPT):
                printed = []
                words = shlex.split(line.removeprefix(PROMPT))
                if words[0] == "torchtap":
                    found.append(Command(tuple(words[1:]), printed))
            elif printed is not None:
                printed.append(line)
    return found


def inline_commands(text: str) -> list[tuple[str, ...]]:
    """``torchtap`` commands that stand in a sentence."""
    return [tuple(shlex.split(found)[1:]) for found in _INLINE.findall(prose(text))]


def run_python(page: Path) -> tuple[dict[str, Any], list[tuple[Block, list[str]]]]:
    """Run the Python of a page in the current folder: its names, and what each block printed."""
    names: dict[str, Any] = {"__name__": "page"}
    printed = [(block, _run(page, block, names)) for block in blocks(page.read_text(), "python")]
    return names, printed


def _run(page: Path, block: Block, names: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue().splitlines()


# ---------------------------------------------------------------------- shown against real


def differences(shown: list[str], real: list[str]) -> Iterator[str]:
    """Places in a page where the output is not what came out.

    Columns may be of another width. Numbers may be off by 0.2 %, or by what rounding leaves of
    zero, and a page may show fewer of their digits. The size of a picture or page depends on the
    libraries that compress it, and may be off by a quarter. A line ``...`` stands for any number of
    lines.
    """
    place = 0
    is_open = False
    for line in shown:
        if line.strip() == "...":
            is_open = True
            continue
        fits = [n for n in range(place, len(real)) if _same(line, real[n])]
        if not fits or (fits[0] != place and not is_open):
            found = real[place] if place < len(real) else "the end"
            yield f"the page shows {line!r}, printed was {found!r}"
            return
        place, is_open = fits[0] + 1, False
    if place < len(real) and not is_open:
        yield f"printed, and not in the page: {real[place]!r}"


def _same(shown: str, real: str) -> bool:
    left, right = shown.split(), real.split()
    share = 0.25 if left and left[0].endswith((".png", ".html")) else 2e-3
    return len(left) == len(right) and all(
        _same_word(*words, share) for words in zip(left, right, strict=True)
    )


def _same_word(left: str, right: str, share: float) -> bool:
    if left == right:
        return True
    number = re.compile(r"[^\d+-]*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\D*")
    numbers = number.fullmatch(left), number.fullmatch(right)
    if not all(numbers) or "." not in left + right:  # Whole numbers are counts, and exact.
        return False
    a, b = (match[1].replace(",", "") for match in numbers if match)
    off = max(share * max(abs(float(a)), abs(float(b))), 1e-6, *_left_out(a, b))
    return abs(float(a) - float(b)) <= off


def _left_out(shown: str, real: str) -> list[float]:
    """How far a number may be off that is shown with fewer digits than it was printed with."""
    if "e" in shown + real or len(shown) >= len(real):
        return []
    return [0.5 * 10.0 ** -len(shown.partition(".")[2])]
