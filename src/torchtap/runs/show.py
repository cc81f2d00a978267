"""Runs, tables, modules and summaries as text that reads well in 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.core.absence import _MOST_ROWS, _cut, show_absent
from torchtap.core.outline import tree
from torchtap.core.text import (
    NONE,
    Cell,
    clean,
    columns,
    count,
    nonfinite,
    number,
    paint,
    plural,
    shape,
    share,
    size,
)

if TYPE_CHECKING:
    from torchtap.runs.listing import Listing, SiteEntry
    from torchtap.runs.modules import ModuleRow
    from torchtap.runs.run import Run
    from torchtap.stats.statistics import Statistics

__all__ = [
    "columns",
    "show_listing",
    "show_module_rows",
    "show_modules",
    "show_run",
]


# ---------------------------------------------------------------------- a run


def show_run(run: Run, *, limit: int | None = _MOST_ROWS, color: bool = False) -> str:
    """What a run holds: one line per site, totals, and what is absent.

    Args:
        run: any run.
        limit: most lines of the table; ``None`` for all.
        color: paint it.
    """
    from torchtap.runs.listing import list_run

    return show_listing(list_run(run), limit=limit, color=color)


def show_listing(listing: Listing, *, limit: int | None = _MOST_ROWS, color: bool = False) -> str:
    """The same from a listing, which needs no values."""
    name = f"Run of {clean(listing.model)}" if listing.model else "Run"
    if not listing.sites and not listing.measured:
        said = f"{name}: empty, nothing was recorded{_hidden(listing)}."
        return "\n".join([said, *show_absent(listing.absent, color=color)])
    parts = [_kept(name, listing, limit, color=color)] if listing.sites else []
    if listing.measured:
        start = "Also " if parts else f"{name}: "
        parts.append(_measured(start, listing, limit, color=color))
    return "\n".join(["\n\n".join(parts), *show_absent(listing.absent, color=color)])


def _kept(name: str, listing: Listing, limit: int | None, *, color: bool) -> str:
    total = (
        f"{name}: {plural(len(listing.sites), 'site')}, "
        f"{plural(listing.num_records, 'record')}, {_steps(listing.steps)}, {size(listing.nbytes)}"
    )
    total += _hidden(listing)
    table = columns(
        [_site_cells(entry) for entry in listing.sites],
        ("site", "shape", "dtype", "calls", "steps", "bytes"),
        "lllrrr",
        elastic={0: 24, 2: 10},
        color=color,
    )
    return "\n".join([paint(total, "head", color=color), "", *_cut(table, limit, "site")])


def _hidden(listing: Listing) -> str:
    """How many records there are in other phases."""
    others = []
    if listing.num_recomputed:
        others.append(f"{plural(listing.num_recomputed, 'record')} of recomputation")
    if listing.num_in_backward:
        said = plural(listing.num_in_backward, "record")
        others.append(f"{said} inside a backward, in phase='backward'")
    if listing.num_evaluated:
        said = plural(listing.num_evaluated, "record")
        others.append(f"{said} of evaluation, in phase='eval'")
    return f" (and {', '.join(others)})" if others else ""


def _measured(start: str, listing: Listing, limit: int | None, *, color: bool) -> str:
    """What was measured; sites that stand in the table of what was kept are not named again."""
    sites, steps = len(listing.measured), listing.num_measured_steps
    kept = {entry.site for entry in listing.sites}
    others = [entry for entry in listing.measured if entry.site not in kept]
    above = f", {count(sites - len(others))} of them above" if 0 < len(others) < sites else ""
    total = (
        f"{start}{plural(sites, 'site')} measured in {plural(steps, 'step')}{above}; run.table() "
        f"and `torchtap stats` show them."
    )
    if not others:
        return total
    table = columns(
        [(str(entry.site), shape(entry.shape), entry.dtype) for entry in others],
        ("site", "shape", "dtype"),
        "lll",
        elastic={0: 24, 2: 10},
        color=color,
    )
    return "\n".join([paint(total, "head", color=color), "", *_cut(table, limit, "site")])


def _site_cells(entry: SiteEntry) -> Sequence[str | Cell]:
    return (
        str(entry.site),
        "varies" if entry.shape is None else shape(entry.shape),
        entry.dtype,
        count(entry.calls),
        count(entry.steps),
        size(entry.nbytes),
    )


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {count(steps[0])}"
    return f"{count(len(steps))} steps ({count(steps[0])} to {count(steps[-1])})"


# ---------------------------------------------------------------------- statistics


_STATS = ("mean", "std", "min", "max", "zeros", "NaN/Inf")


def _stat_cells(stats: Statistics) -> tuple[str | Cell, ...]:
    bad = nonfinite(stats.nan, stats.posinf, stats.neginf)
    if not stats.num_finite:
        return (NONE, NONE, NONE, NONE, NONE if not stats.numel else "0", bad)
    return (
        number(stats.mean),
        number(stats.std),
        number(stats.min),
        number(stats.max),
        share(stats.zeros, stats.numel),
        bad,
    )


# ---------------------------------------------------------------------- modules


def show_modules(run: Run, *, limit: int | None = None, color: bool = False) -> str:
    """One line per module: what it returned and the gradient that came back."""
    from torchtap.runs.modules import module_rows

    return show_module_rows(module_rows(run), limit=limit, color=color)


def show_module_rows(
    rows: Sequence[ModuleRow], *, limit: int | None = None, color: bool = False
) -> str:
    """The same from rows, which can also be made by hand."""
    if not rows:
        return "No module has an output in this run."
    labels = tree([row.path for row in rows])
    cells = [
        (label, row.type, count(row.calls), _output(row), *_stat_cells(row.stats), _gradient(row))
        for label, row in zip(labels, rows, strict=True)
    ]
    text = columns(
        cells,
        ("module", "type", "calls", "output", *_STATS, "|grad|"),
        "lerl" + "r" * (len(_STATS) + 1),
        elastic={0: 19, 1: 8},
        color=color,
    )
    return "\n".join(_cut(text, limit, "module"))


def _output(row: ModuleRow) -> str:
    more = f" +{row.num_tensors - 1}" if row.num_tensors > 1 else ""
    return shape(row.shape) + more


def _gradient(row: ModuleRow) -> Cell:
    if row.gradient is None:
        return Cell(NONE, "dim")
    stats = row.gradient
    if stats.nonfinite:
        return nonfinite(stats.nan, stats.posinf, stats.neginf)
    return Cell(number(stats.l2))


# ---------------------------------------------------------------------- a summary


# ---------------------------------------------------------------------- shared
