"""The worth of the notes of ``tt.explain_errors``, on programs as people posted them.

    python benchmarks/errors_outside.py [--markdown FILE]

Each program stands in ``tests/support/posted_programs`` with the page it was posted on, patterns of
the cause and of the first way out, and code that fails unless the repaired program does what it is
for. The verdicts are made by ``posted_programs.verdict``, and nobody's opinion.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from posted_programs import POSTED, Verdict, verdict

HEAD = """# The worth of the notes of tt.explain_errors

`python benchmarks/errors_outside.py`: torch {torch}, Python {python}.

Programs from forum pages and issue threads, made small. `helpful`: the note says the cause, and its
first way out was applied, after which the program does what it is for: gradients equal to those by
hand, a picture that is denormalised, a generator that learns. `right`: it says the cause and offers
nothing. `silent`: it says where, and no more. `wrong`: everything else, also a first way out that
was not tried. The catalogue was written with these programs at hand.

| verdict | programs | share |
|---|---|---|
{shares}

| program | posted at | message | verdict |
|---|---|---|---|
{rows}
"""


def verdicts() -> list[Verdict]:
    """The verdict on each program."""
    found = []
    for posted in POSTED:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            found.append(verdict(posted, Path(folder)))
    return found


def page(found: list[Verdict]) -> str:
    """The table, as Markdown."""
    count = Counter(one.word for one in found)
    shares = "\n".join(
        f"| {word} | {count[word]} | {count[word] / len(found):.1%} |"
        for word in ("helpful", "right", "silent", "wrong")
    )
    rows = "\n".join(
        f"| {one.posted.name} | [{'/'.join(one.posted.url.split('/')[3:])[:50]}]({one.posted.url}) "
        f"| {one.message} | {one.word} |"
        for one in found
    )
    return HEAD.format(
        torch=torch.__version__, python=platform.python_version(), shares=shares, rows=rows
    )


def main() -> None:
    """Print the table, or write it."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    options.add_argument("--markdown", type=Path)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    text = page(verdicts())
    if given.markdown is None:
        sys.stdout.write(text)
    else:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
