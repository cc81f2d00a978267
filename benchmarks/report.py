"""The parts that all benchmarks share: comparing two sides, their options, and the page."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

import torchtap as tt

Step = Callable[[], object]

HOW = (
    "Three sides take turns in blocks: plain, plain again, and the other. Given is the median of "
    "the ratios to the plain block of the same round, in time that the thread spent computing; "
    "the control is plain again to plain, and says how far to trust the row."
)
"""The result of :func:`compare`."""


class Result(NamedTuple):
    """One row: what was measured, what came out, what was wanted, and where it comes from."""

    what: str
    measured: str
    wanted: str
    detail: str


class Compared(NamedTuple):
    """Two sides, measured in turns.

    Attributes:
        before: seconds per plain step, the median of the blocks.
        after: seconds per step of the other side.
        ratio: of the other to plain, the median over the rounds.
        control: of plain again to plain.
        more: seconds that the other takes more, the median over the rounds.
        wall: of the other to plain by the time of day, in which other programs take part.
    """

    before: float
    after: float
    ratio: float
    control: float
    more: float
    wall: float

    def result(self, what: str, wanted: str, more: str = "") -> Result:
        """The row of a table. ``more``: the end of its detail."""
        times = f"{self.before * 1e3:.2f} ms -> {self.after * 1e3:.2f} ms"
        detail = f"{times}, control {self.control:.3f}x{more}"
        return Result(what, f"{self.ratio:.3f}x", wanted, detail)


def publish(page: Callable[[], str], doc: str | None) -> None:
    """Run a script without a clock: print its page, and write it where ``--markdown`` says.

    Args:
        page: makes it.
        doc: docstring of the script.
    """
    asked = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    asked.add_argument("--markdown", type=Path)
    given = asked.parse_args()
    text = page()
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


def compare(
    plain: Step,
    other: Step,
    *,
    rounds: int,
    repeats: int,
    clock: Callable[[], float] | None = None,
    inside: Callable[[], AbstractContextManager[object]] | None = None,
) -> Compared:
    """Measure two sides in turns, and plain once more for control.

    Args:
        plain: one side.
        other: the other.
        rounds: how often each has its turn.
        repeats: steps in each turn.
        clock: seconds; by default those that this thread computed, which other programs on the
            machine disturb least. With several threads, or waits that count, the time of day.
        inside: makes what the other side runs inside of. The two sides may then be one step, with
            one memory. A step that is not timed begins each turn then, of the other side two.
    """
    if clock is None:
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    sides = (plain, plain, other)
    blocks: list[list[float]] = [[], [], []]
    walls: list[list[float]] = [[], [], []]
    for number in range(rounds):
        for turn in range(len(sides)):
            side = (number + turn) % len(sides)  # Whoever comes first finds colder caches.
            with inside() if inside and side == 2 else nullcontext():
                for _ in range((2 if side == 2 else 1) if inside else 0):
                    sides[side]()
                start, began = clock(), time.perf_counter()
                for _ in range(repeats):
                    sides[side]()
                blocks[side].append((clock() - start) / repeats)
                walls[side].append(time.perf_counter() - began)
    pairs = list(zip(*blocks, strict=True))
    return Compared(
        before=median(blocks[0]),
        after=median(blocks[2]),
        ratio=median(after / before for before, _, after in pairs),
        control=median(again / before for before, again, _ in pairs),
        more=median(after - before for before, _, after in pairs),
        wall=median(after / before for before, _, after in zip(*walls, strict=True)),
    )


def parser(doc: str) -> argparse.ArgumentParser:
    """The options of every benchmark. ``doc``: of the file."""
    found = argparse.ArgumentParser(description=doc.splitlines()[0])
    found.add_argument("--threads", type=int, default=1)
    found.add_argument("--rounds", type=int, default=25)
    found.add_argument("--markdown", type=Path, help="write the table there too")
    return found


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the options and set what every measurement assumes."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


def table(rows: list[Result]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | measured | at most | detail |", "|---|---|---|---|"]
    lines += [f"| {r.what} | {r.measured} | {r.wanted} | {r.detail} |" for r in rows]
    return "\n".join(lines)


def show(rows: list[Result], options: argparse.Namespace, title: str, file: str, how: str) -> None:
    """Print the table, and write its page if that was asked for.

    Args:
        title: the page's.
        file: of the benchmark.
        how: what the numbers are.
    """
    text = table(rows)
    print(text)
    if options.markdown:
        options.markdown.write_text(
            f"# {title}\n\n"
            f"`python benchmarks/{Path(file).name} --rounds {options.rounds}`: torch "
            f"{torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
            f"{options.threads} thread(s), torchtap {tt.__version__}.\n\n"
            f"{how}\n\n{text}\n"
        )
