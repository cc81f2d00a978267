"""A run and its modules as pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.core.absence import MOST_ROWS, show_absent
from torchtap.core.outline import tree
from torchtap.core.printed_page import BLANK, Grid, Line, Page, Part
from torchtap.core.text import (
    NONE,
    Cell,
    count,
    nonfinite,
    number,
    plural,
    shape,
    share,
    size,
)

if TYPE_CHECKING:
    from torchtap.runs.inventory import Inventory, SiteEntry
    from torchtap.runs.tables.module_table import ModuleRow
    from torchtap.stats.statistics import Statistics


# ---------------------------------------------------------------------- a run


def show_inventory(inventory: Inventory, *, limit: int | None = MOST_ROWS) -> Page:
    """Show the contents of a run: one line per site, totals, and what is absent.

    Args:
        inventory: of a run or of a file.
        limit: most lines of each table; ``None`` for all.
    """
    name = (f"Run of {inventory.model}" if inventory.model else "Run") + _rank(inventory)
    absent = show_absent(inventory.absent)
    if not inventory.sites and not inventory.measured:
        return Page(Line(f"{name}: empty, nothing was recorded{_hidden(inventory)}."), *absent)
    parts: list[Part] = [_kept(name, inventory, limit)] if inventory.sites else []
    if inventory.measured:
        start = "Also " if parts else f"{name}: "
        parts += [*([BLANK] if parts else []), _measured(start, inventory, limit)]
    return Page(*parts, *absent)


def _kept(name: str, inventory: Inventory, limit: int | None) -> Grid:
    total = (
        f"{name}: {plural(len(inventory.sites), 'site')}, "
        f"{plural(inventory.num_records, 'record')}, {_steps(inventory.steps)}, "
        f"{size(inventory.nbytes)}"
    )
    return Grid(
        [_site_cells(entry) for entry in inventory.sites],
        ("site", "shape", "dtype", "calls", "steps", "bytes"),
        "lllrrr",
        title=total + _hidden(inventory),
        elastic={0: 24, 2: 10},
        limit=limit,
        noun="site",
    )


def _rank(inventory: Inventory) -> str:
    """Name the rank that recorded a run; the text is empty where there is one process only."""
    if inventory.world_size == 1:
        return ""
    if inventory.rank is None:
        return f", {inventory.world_size} ranks merged"
    return f", rank {inventory.rank} of {inventory.world_size}"


def _hidden(inventory: Inventory) -> str:
    """Count the records in other phases."""
    others = []
    if inventory.num_recomputed:
        others.append(f"{plural(inventory.num_recomputed, 'record')} of recomputation")
    if inventory.num_in_backward:
        said = plural(inventory.num_in_backward, "record")
        others.append(f"{said} inside a backward, in phase='backward'")
    if inventory.num_evaluated:
        said = plural(inventory.num_evaluated, "record")
        others.append(f"{said} of evaluation, in phase='eval'")
    return f" (and {', '.join(others)})" if others else ""


def _measured(start: str, inventory: Inventory, limit: int | None) -> Part:
    """Show the measured sites; those in the table of kept values are not named again."""
    sites, steps = len(inventory.measured), inventory.num_measured_steps
    kept = {entry.site for entry in inventory.sites}
    others = [entry for entry in inventory.measured if entry.site not in kept]
    above = f", {count(sites - len(others))} of them above" if 0 < len(others) < sites else ""
    total = (
        f"{start}{plural(sites, 'site')} measured in {plural(steps, 'step')}{above}; run.table() "
        f"and `torchtap stats` show them."
    )
    if not others:
        return Line(total)
    return Grid(
        [(str(entry.site), shape(entry.shape), entry.dtype) for entry in others],
        ("site", "shape", "dtype"),
        "lll",
        title=total,
        elastic={0: 24, 2: 10},
        limit=limit,
        noun="site",
    )


def _site_cells(entry: SiteEntry) -> Sequence[str]:
    numbers = (count(entry.calls), count(entry.steps), size(entry.nbytes))
    return (str(entry.site), shape(entry.shape), entry.dtype, *numbers)


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {count(steps[0])}"
    return f"{count(len(steps))} steps ({count(steps[0])} to {count(steps[-1])})"


# ---------------------------------------------------------------------- modules

_STATS = ("mean", "std", "min", "max", "zeros", "NaN/Inf")


def show_module_rows(rows: Sequence[ModuleRow], *, limit: int | None = None) -> Page:
    """Return one line per module: what it returned and the gradient that came back."""
    if not rows:
        return Page(Line("No module has an output in this run."))
    labels = tree([row.path for row in rows])
    cells = [
        (label, row.type, count(row.calls), _output(row), *_stat_cells(row.stats), _gradient(row))
        for label, row in zip(labels, rows, strict=True)
    ]
    grid = Grid(
        cells,
        ("module", "type", "calls", "output", *_STATS, "|grad|"),
        "lerl" + "r" * (len(_STATS) + 1),
        elastic={0: 19, 1: 8},
        limit=limit,
        noun="module",
    )
    return Page(grid)


def _stat_cells(stats: Statistics) -> tuple[str | Cell, ...]:
    bad = nonfinite(stats.nan, stats.posinf, stats.neginf)
    if not stats.num_finite:
        return (NONE, NONE, NONE, NONE, NONE if not stats.numel else "0", bad)
    numbers = map(number, (stats.mean, stats.std, stats.min, stats.max))
    return (*numbers, share(stats.zeros, stats.numel), bad)


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
