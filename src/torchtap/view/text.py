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
    short_count,
    size,
    wrap,
)

if TYPE_CHECKING:
    from torchtap.demo import Guess
    from torchtap.stats.statistics import Statistics
    from torchtap.store.listing import Listing, SiteEntry
    from torchtap.store.modules import ModuleRow
    from torchtap.store.run import Run
    from torchtap.summarizing import Row as SummaryRow, Summary

__all__ = [
    "columns",
    "show_guesses",
    "show_listing",
    "show_module_rows",
    "show_modules",
    "show_run",
    "show_summary",
]


# ---------------------------------------------------------------------- a run


def show_run(run: Run, *, limit: int | None = _MOST_ROWS, color: bool = False) -> str:
    """What a run holds: one line per site, totals, and what is absent.

    Args:
        run: any run.
        limit: most lines of the table; ``None`` for all.
        color: paint it.
    """
    from torchtap.store.listing import list_run

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
    from torchtap.store.modules import module_rows

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


def show_guesses(model: str, guesses: Sequence[Guess], *, color: bool = False) -> str:
    """The likeliest classes with their probabilities."""
    head = paint(f"{clean(model)} sees", "head", color=color)
    lines = [
        f"  {guess.probability:6.1%}  {guess.index:>4} {clean(guess.name)}" for guess in guesses
    ]
    first, *others = lines
    return "\n".join([head, paint(first, "good", color=color), *others])


# ---------------------------------------------------------------------- a summary


def show_summary(summary: Summary, *, color: bool = False) -> str:
    """Modules with shapes, parameters, mult-adds and activation bytes; totals below."""
    rows = summary.rows
    dtypes = list(dict.fromkeys(row.dtype for row in rows if row.dtype))
    headers = [
        "module",
        "type",
        "calls",
        "input",
        "output",
        "dtype",
        "params",
        "mult-adds",
        "bytes",
    ]
    cells = [_summary_cells(row, label) for row, label in zip(rows, _labels(rows), strict=True)]
    align, elastic = "lerlllrrr", {0: 16, 1: 9, 5: 7}
    if len(dtypes) < 2:  # One dtype is said once, above.
        cells = [[*line[:5], *line[6:]] for line in cells]
        del headers[5], elastic[5]
        align = "lerllrrr"
    title = f"Summary of {clean(summary.model)}" + (
        f", all {dtypes[0]}" if len(dtypes) == 1 else ""
    )
    table = columns(cells, headers, align, elastic=elastic, color=color)
    head = paint(title, "head", color=color)
    return "\n".join([head, "", table, "", *_summary_footer(summary)])


def _labels(rows: Sequence[SummaryRow]) -> list[str]:
    return tree([row.path for row in rows])


def _summary_cells(row: SummaryRow, label: str) -> Sequence[str | Cell]:
    return (
        label,
        row.type,
        count(row.calls) if row.calls else Cell(NONE, "dim"),
        _tensors(row.inputs),
        _tensors(row.outputs),
        row.dtype or NONE,
        (count(row.num_params) if row.num_params else NONE) + ("*" if row.num_shared else ""),
        short_count(row.mult_adds) if row.mult_adds else NONE,
        size(row.activation_bytes) if row.activation_bytes else NONE,
    )


def _tensors(tensors: Sequence[tuple[int, ...]]) -> str:
    if not tensors:
        return NONE
    return shape(tensors[0]) + (f" +{len(tensors) - 1}" if len(tensors) > 1 else "")


def _summary_footer(summary: Summary) -> list[str]:
    frozen = summary.num_params - summary.num_trainable
    lines = [
        f"Parameters   {count(summary.num_params)} ({size(summary.param_bytes)}), "
        f"{count(summary.num_trainable)} trainable, {count(frozen)} frozen",
        f"Buffers      {count(summary.num_buffers)} ({size(summary.buffer_bytes)})",
        f"Mult-adds    {count(summary.mult_adds)} ({short_count(summary.mult_adds)})",
        f"Activations  {size(summary.activation_bytes)}: what modules return, each memory once",
    ]
    lines.append("Each line counts what is below it too. bytes: of activations.")
    if any(row.num_shared for row in summary.rows):
        lines.append("* holds parameters that stand further up too; the total counts them once.")
    if summary.uncounted:
        ops = ", ".join(f"{name} ({count(n)})" for name, n in list(summary.uncounted.items())[:6])
        more = f" and {len(summary.uncounted) - 6} more" if len(summary.uncounted) > 6 else ""
        said = (
            f"Mult-adds are those of matrix products, convolutions and attention. "
            f"{plural(len(summary.uncounted), 'kind')} of operation ran without a formula: "
            f"{ops}{more}."
        )
        lines.extend(wrap(said))
    if summary.depth is not None:
        lines.append(f"Shown to depth {summary.depth}; totals are of the whole model.")
    return lines


# ---------------------------------------------------------------------- shared
