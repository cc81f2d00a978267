"""The figure of what autograd saves for backward, by module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.text import plural, share, size
from torchtap.plot.style import (
    BLUE,
    GREY,
    SMALL,
    canvas,
    fitted,
    inches_across,
    label,
    tidy,
    write_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.185
_LEAST = 2.4
_MOST_ROWS = 36
_NAMES = 2.9
_REST = "#9a9a9a"


class Saved(Protocol):
    """The parts of the result of ``tt.saved_report`` that a figure reads."""

    @property
    def model(self) -> str:
        """Class of the model."""

    @property
    def rows(self) -> Sequence[Any]:
        """Return a row for each module, with its ``path``, ``type`` and ``nbytes``."""

    @property
    def nbytes(self) -> int:
        """Bytes in all."""

    @property
    def param_nbytes(self) -> int:
        """Bytes of parameters among what is saved."""

    @property
    def input_nbytes(self) -> int:
        """Bytes of what the model was called with."""


def saved(report: Saved, *, ax: Axes | None = None) -> Figure:
    """Draw the bytes that autograd saves for backward, a bar for each module.

    The bars are in the order of the report: of the modules, or by size after ``report.sorted()``.
    Of more than 36 modules the largest 36 are drawn, and the others together in grey.

    Args:
        report: of ``tt.saved_report``.
        ax: as in :func:`series`.

    Raises:
        InputError: it is no such report.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> figure = tt.plot.saved(tt.saved_report(model, torch.ones(3, 4)))
        >>> [float(bar.get_width()) for bar in figure.axes[0].patches]
        [48.0, 96.0]
    """
    if not hasattr(report, "rows") or not hasattr(report, "param_nbytes"):
        raise InputError(
            f"tt.plot.saved draws a report, not a {type(report).__name__}: give "
            f"tt.saved_report(model, *inputs)."
        )
    rows = [row for row in report.rows if row.nbytes]
    kept, rest = _largest(rows)
    height = max(_ROW * (len(kept) + bool(rest)) + 1.35, _LEAST)
    figure, axes = canvas(ax, height)
    tidy(axes, grid="x")
    names = [f"{row.path or '.'} {row.type}" for row in kept]
    widths = [float(row.nbytes) for row in kept]
    if rest:
        names.append(f"{plural(len(rest), 'other module')}")
        widths.append(float(sum(row.nbytes for row in rest)))
    _bars(axes, names, widths, report.nbytes, num_kept=len(kept), is_own=ax is None)
    by = plural(len(rows), "module")
    whole = f"{size(report.nbytes)} are held at the end of the forward by {by}."
    others = []
    if report.input_nbytes:
        others.append(f"{size(report.input_nbytes)} of it are the model's inputs.")
    if report.param_nbytes:
        others.append(
            f"Parameters ({size(report.param_nbytes)}) are saved too and cost nothing more."
        )
    write_head(axes, f"Saved for backward by {report.model}", [whole, " ".join(others)])
    return figure


def _largest(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the largest rows in their order, and the others."""
    if len(rows) <= _MOST_ROWS:
        return list(rows), []
    by_size = sorted(range(len(rows)), key=lambda place: -rows[place].nbytes)
    kept = set(by_size[:_MOST_ROWS])
    return (
        [row for place, row in enumerate(rows) if place in kept],
        [row for place, row in enumerate(rows) if place not in kept],
    )


def _bars(
    axes: Axes,
    names: Sequence[str],
    widths: Sequence[float],
    total: int,
    *,
    num_kept: int,
    is_own: bool,
) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    rows = list(range(len(names)))
    colors = [BLUE if place < num_kept else _REST for place in range(len(names))]
    axes.barh(rows, widths, height=0.72, color=colors, linewidth=0)
    room = _NAMES if is_own else 0.4 * inches_across(axes)
    axes.set_yticks(rows, [fitted(name, room) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    top = max(widths, default=1.0)
    axes.set_xlim(0, 1.2 * top)
    axes.xaxis.set_major_locator(MultipleLocator(_step(top)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: size(int(value)) if value else "0")
    )
    for row, width in zip(rows, widths, strict=True):
        said = f" {size(int(width))}  {share(int(width), total)}"
        axes.text(width, row, said, va="center", fontsize=SMALL - 0.5, color=GREY, parse_math=False)
    label(axes, "bytes that are held only because they are saved")


def _step(top: float) -> float:
    """Return a round number of bytes in binary units, of which four or five fill the axis."""
    unit = 1024.0 ** max(int(np.log2(max(top, 1)) // 10), 0)
    wanted = top / 4 / unit
    nice = [m * p for p in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0) for m in (1, 2, 2.5, 5)]
    return unit * min((one for one in nice if one >= wanted), default=wanted)
