"""The table of a sweep: one line per site and edit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace as replaced
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Grid, Line, Page
from torchtap.core.site import Site
from torchtap.core.text import number

_MOST_ROWS = 100

Values = dict[str, float]
"""Name of a metric -> its value."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The effect of one edit at one site.

    Attributes:
        site: where.
        edit: what it is called.
        values: metric name -> value with the edit on.
        change: metric name -> difference to the unedited model.
    """

    site: Site
    edit: str
    values: Values
    change: Values


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Printed):
    """The result of ``tt.sweep``: iterate it, print it, or turn it into a data frame.

    Attributes:
        rows: one per site and edit, in the order of modules.
        baseline: the metrics of the unedited model.
        batched: how many sites ran in one forward.
        note: why fewer than was asked for, if so, or that the model itself is not steady.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
        >>> tt.sweep(model, torch.ones(1, 1), "0", tt.edits.scale(3.0), lambda out: out.sum())
        site        edit               metric  change
        (unedited)                          1
        0:output    scale(factor=3.0)       3      +2
    """

    rows: tuple[SweepRow, ...]
    baseline: Values
    batched: int = 1
    note: str = ""

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sorted(self, metric: str | None = None) -> Sweep:
        """Return the rows by the change of a metric (the first one), largest first; NaN last."""
        name = next(iter(self.baseline)) if metric is None else metric
        if name not in self.baseline:
            raise InputError(f"There is no metric {name!r}; there are {', '.join(self.baseline)}.")

        def rank(row: SweepRow) -> tuple[bool, float]:
            change = row.change[name]
            return math.isnan(change), -abs(change)

        return replaced(self, rows=tuple(sorted(self.rows, key=rank)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain dictionaries of text and numbers, ready for JSON or a data frame."""
        return [
            {
                "site": str(row.site),
                "edit": row.edit,
                **row.values,
                **{f"{name}_change": change for name, change in row.change.items()},
            }
            for row in self.rows
        ]

    def to_frame(self) -> Any:
        """Return a pandas data frame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "A data frame needs pandas: pip install 'torchtap[frame]'."
            ) from error
        return pandas.DataFrame(self.as_dicts())

    def _page(self) -> Page:
        return show_sweep(self)


def show_sweep(sweep: Sweep) -> Page:
    """Return one line per site and edit, and above them the unedited model."""
    names = list(sweep.baseline)
    head = ["site", "edit", *(cell for name in names for cell in (name, "change"))]
    base = [
        "(unedited)",
        "",
        *(cell for name in names for cell in (number(sweep.baseline[name]), "")),
    ]
    rows = [
        [
            str(row.site),
            row.edit,
            *(
                cell
                for name in names
                for cell in (number(row.values[name]), f"{row.change[name]:+.4g}")
            ),
        ]
        for row in sweep.rows
    ]
    grid = Grid(
        [base, *rows],
        head,
        "ll" + "r" * (len(head) - 2),
        elastic={0: 20, 1: 12},
        limit=1 + _MOST_ROWS,
    )
    return Page(grid, *([Line(f"Note: {sweep.note}.")] if sweep.note else []))
