"""What the benchmarks have in common: their options, and the page with their table."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import NamedTuple

import torch

import torchtap as tt


class Result(NamedTuple):
    """One row: what was measured, what came out, what was wanted, and where it comes from."""

    what: str
    measured: str
    wanted: str
    detail: str


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
