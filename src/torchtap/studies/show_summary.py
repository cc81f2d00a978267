"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.core.outline import tree
from torchtap.core.text import (
    NONE,
    Cell,
    clean,
    columns,
    count,
    paint,
    plural,
    shape,
    short_count,
    size,
    wrap,
)

if TYPE_CHECKING:
    from torchtap.summarizing import Row as Row, Summary


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


def _labels(rows: Sequence[Row]) -> list[str]:
    return tree([row.path for row in rows])


def _summary_cells(row: Row, label: str) -> Sequence[str | Cell]:
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
