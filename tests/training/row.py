"""A row of the matrix: a training, and what each column is expected to be of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe import COLUMNS, EVERY_PORT, Probe

Train = Callable[[Probe], object]
"""Builds the model, the data and the optimizer, and trains a few steps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The expectation of a cell.

    Attributes:
        kind: ``works``; ``said``: what cannot be had is said, and the training is as without us;
            ``refused``: PyTorch itself raises.
        pattern: what the reason, or the error, must hold.
    """

    kind: str
    pattern: str = ""


WORKS = Outcome("works")


def said(pattern: str) -> Outcome:
    """These words say what cannot be had."""
    return Outcome("said", pattern)


def refused(pattern: str) -> Outcome:
    """PyTorch raises, with these words."""
    return Outcome("refused", pattern)


@dataclass(frozen=True, slots=True)
class Row:
    """One training.

    Attributes:
        name: unique.
        kind: of which training it is an example; the page has a line for each kind.
        train: builds the model, the data and the optimizer, and trains a few steps.
        cells: column -> what is expected of it; all others work.
        absent: patterns of reasons that may stand in ``w.absent`` of a cell that works.
        edited: path of the module that the column ``edit`` changes; without one it is left out.
        where: what the watches take.
        tolerance: of values, where the truth comes from a run that is not compiled.
        compiles: whether the training compiles; the truth is then of eager mode.
        is_reentrant: whether backwards run inside of its backward.
        warns: whether other warnings may come than without us, as where the compiler warns.
        without: columns that make no sense here.
    """

    name: str
    kind: str
    train: Train
    cells: Mapping[str, Outcome] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    edited: str = ""
    where: Any = EVERY_PORT
    tolerance: float = 0.0
    compiles: bool = False
    is_reentrant: bool = False
    warns: bool = False
    without: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns that it has a cell in."""
        return [
            column
            for column in COLUMNS
            if column not in self.without and (self.edited or column != "edit")
        ]

    def cell(self, column: str) -> Outcome:
        """The expectation of a column."""
        return self.cells.get(column, WORKS)


class Rows(list[Row]):
    """Collects rows: ``@rows("kind", ...)`` above a training."""

    def __call__(self, kind: str, **how: Any) -> Callable[[Train], Train]:
        """Add a training, named as its function."""

        def add(train: Train) -> Train:
            name = train.__name__.replace("_", " ").strip()
            self.append(Row(name, kind, train, **how))
            return train

        return add
