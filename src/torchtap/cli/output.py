"""Print to stdout what was asked for, and to stderr what else is to be known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtap.core.absence import by_reason
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Line, Page, page_of, wants_color
from torchtap.core.text import WIDTH, plural, size

if TYPE_CHECKING:
    from torchtap.cli.demo import Guess
    from torchtap.cli.model import Unwrapped
    from torchtap.runs.run import Run

_MOST_KEYS = 6


def print_page(shown: Page | Printed, *, width: int | None = WIDTH) -> None:
    page = shown if isinstance(shown, Page) else page_of(shown)
    click.echo(page.text(color=wants_color(), width=width))


def print_json(value: Any) -> None:
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor Inf: both become null, and their counts stand beside them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def print_written(files: Sequence[str]) -> None:
    click.echo("\n" + "\n".join(f"wrote {file}" for file in files))


def print_written_into(folder: Path, files: Mapping[str, str]) -> None:
    """Say of files in a folder how large they are and what they show: nothing large is unsaid.

    The folder stands in a line of its own, so that a long one neither widens the table nor is cut.

    Args:
        folder: where they are.
        files: name -> what it shows.
    """
    sizes = {name: (folder / name).stat().st_size for name in files}
    widths = max(map(len, files)), max(len(size(one)) for one in sizes.values())
    click.echo(f"\nwrote into {folder}")
    for name, what in files.items():
        click.echo(f"  {name:{widths[0]}}  {size(sizes[name]):>{widths[1]}}  {what}")
    click.echo(f"{size(sum(sizes.values()))} in all; delete them when you have looked.")


def complain_of_absent(path: str, run: Run) -> None:
    """Say on stderr that a table lacks something, which `torchtap ls` lists."""
    reasons = by_reason(run.absent)
    if not reasons:
        return
    num_sites = len({site for sites in reasons.values() for site in sites})
    more = f" (and {plural(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
    complain(f"{plural(num_sites, 'site')} absent: {next(iter(reasons))}{more}: torchtap ls {path}")


def complain(text: str) -> None:
    click.echo(f"torchtap: {text}", err=True)


def say_unwrapped(file: str, found: Unwrapped) -> str:
    """Say what a weight file had around its tensors, and what of it was not read."""
    said = []
    if found.key:
        beside = ", ".join(map(repr, found.beside[:_MOST_KEYS]))
        more = " and more" if len(found.beside) > _MOST_KEYS else ""
        left = f" and not what stands beside it ({beside}{more})" if beside else ""
        said.append(f"read {found.key!r}{left}")
    if found.prefixes:
        said.append(f"took {''.join(found.prefixes)!r} off every name")
    return f"{file}: {', '.join(said)}"


def show_guesses(model: str, guesses: Sequence[Guess]) -> Page:
    """Return the likeliest classes with their probabilities."""
    lines = [f"  {guess.probability:6.1%}  {guess.index:>4} {guess.name}" for guess in guesses]
    first, *others = lines
    return Page(
        Line(f"{model} sees", "head"),
        Line(first, "good"),
        *(Line(other) for other in others),
        BLANK,
    )
