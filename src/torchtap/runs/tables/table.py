"""A run as rows: one per site, with statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.runs.tables.cells import Cells, show_cells, sorted_cells
from torchtap.runs.tables.columns import ROW_COLUMNS, TABLE_COLUMNS, Row as Row
from torchtap.runs.tables.data_frames import make_frame
from torchtap.runs.tables.table_text import MOST_ROWS, WAY_OUT, show_table
from torchtap.stats import read_series
from torchtap.stats.measure import measure_all
from torchtap.stats.named_numbers import NAMES, number_of
from torchtap.stats.readable import shape_of
from torchtap.stats.series import Series
from torchtap.stats.statistics import Statistics

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents
    from torchtap.runs.run_statistics import Step
    from torchtap.runs.select import Where


@dataclass(frozen=True, slots=True, repr=False)
class Table(Printed):
    """Rows of a run; iterate it, print it, or turn it into a data frame.

    Attributes:
        rows: one per site; of ``tt.audit`` one per module, whose columns are items and attributes.
        columns: what is shown of each.
        steps: the steps in which any of the sites has a value, of those that were asked for.
        is_merged: whether statistics are over these steps together, and not of the last one.
        notes: what else is to be known, such as ``3 of 10 steps``.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, to=tt.Stats()) as w:
        ...     _ = relu(torch.tensor([-1.0, 3.0]))
        >>> table = w.run.table(columns=["mean", "zeros"])
        >>> print(table)
        1 site...
    """

    rows: tuple[Any, ...]
    columns: tuple[str, ...] = TABLE_COLUMNS
    steps: tuple[int, ...] = ()
    is_merged: bool = False
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sorted(
        self, key: str | Callable[[Statistics], float], *, largest_first: bool = True
    ) -> Table:
        """Return the same rows in another order; NaN comes last.

        Args:
            key: a column, or a function of :class:`Statistics`. With ``-`` before it (``-l2``) a
                column is sorted the other way round.
            largest_first: of numbers; texts go from a to z.

        Raises:
            InputError: there is no such column, or it has no order.
        """
        if isinstance(key, str):
            if key.startswith("-"):
                key, largest_first = key[1:], not largest_first
            if self._is_of_cells:
                _refuse_unknown(self.columns, [key])
                cells = sorted_cells(self.rows, key, largest_first=largest_first)
                return replace(self, rows=cells)
            _refuse_unknown([*_known(self), "site"], [key])
            if key == "histogram":
                raise InputError(
                    "'histogram' is a picture and has no order. Sort by std, absmax or p99."
                )
            if key in _TEXTS:
                rows = sorted(self.rows, key=_TEXTS[key], reverse=not largest_first)
                return replace(self, rows=tuple(rows))
            of = _row_number(key)
        else:
            of = _function_of_stats(key)

        def rank(row: Row) -> tuple[bool, float]:
            value = of(row)
            return math.isnan(value), -value if largest_first else value

        return replace(self, rows=tuple(sorted(self.rows, key=rank)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain dictionaries of text and numbers, ready for JSON or a data frame.

        Besides the site and the columns of :data:`ROW_COLUMNS` that are no pictures they hold every
        number of docs/guides/statistics.md, under the names of ``run.over_steps``, and every
        further statistic whose result is one number.
        """
        if self._is_of_cells:
            return [dict(row.values) for row in self.rows]
        return [_flat(row) for row in self.rows]

    def to_frame(self, *, library: Literal["pandas", "polars"] | None = None) -> Any:
        """Return a data frame of pandas or polars.

        The columns are the keys of :meth:`as_dicts`.

        Args:
            library: which of the two; by default pandas, and polars where it alone is installed.

        Raises:
            InputError: there is no such library.
            MissingExtraError: it is not installed.
        """
        return make_frame(self.as_dicts(), library)

    def to_text(self, *, limit: int | None = 40, width: int | None = 100) -> str:
        """Return the table as text; ``print(table)`` shows it with the defaults.

        Args:
            limit: most rows; ``None`` for all. The rows that are left out are counted.
            width: columns of the terminal, to which names and shapes are shortened; ``None`` for
                whole ones.
        """
        return page_of_table(self, limit=limit).text(width=width)

    def _page(self) -> Page:
        return page_of_table(self)

    @property
    def _is_of_cells(self) -> bool:
        return any(isinstance(row, Cells) for row in self.rows)


def page_of_table(table: Table, *, limit: int | None = MOST_ROWS, way_out: str = WAY_OUT) -> Page:
    """Show a table.

    Args:
        table: which.
        limit: most rows; ``None`` for all.
        way_out: how to see the others.
    """
    if any(isinstance(row, Cells) for row in table.rows):
        return show_cells(table.rows, table.columns, table.notes, limit=limit)
    return show_table(
        table.rows,
        table.columns,
        table.steps,
        table.notes,
        is_merged=table.is_merged,
        limit=limit,
        way_out=way_out,
    )


def measure_table(
    held: Contents,
    where: Where,
    steps: Step,
    *,
    together: bool,
    histogram: bool,
    columns: Sequence[str] | None,
    sort: str | None,
) -> Table:
    """Build the table of a run.

    Statistics that were measured while it ran are taken as they are, and count before values that
    were kept, which are measured now, reading every value of the last step of each site once (of
    all steps for a merged table).
    """
    names = _chosen(held.series, columns, sort)
    histogram = histogram or any(_needs_histogram(name) for name in names)
    is_merged = isinstance(steps, str) or (together and steps is not None)
    wanted = _wanted(steps)
    rows, seen = [], set[int]()
    for site in held.select(where):
        own = [step for step in held.statistics.steps_of(site) if wanted is None or step in wanted]
        if not own:
            continue
        seen |= set(own)
        if site in held.series:
            rows.append(_measured_row(held, site, own, wanted, is_merged=is_merged))
        else:
            group = held.index.records_of(site, wanted)
            rows.append(_row(held, site, group, histogram=histogram, is_merged=is_merged))
    table = Table(tuple(rows), names, tuple(sorted(seen)), is_merged, _notes(seen, wanted))
    return table if sort is None else table.sorted(sort)


# ---------------------------------------------------------------------- which columns


def _chosen(series: Series, columns: Sequence[str] | None, sort: str | None) -> tuple[str, ...]:
    if isinstance(columns, str):
        columns = [columns]
    names = list(TABLE_COLUMNS if columns is None else columns)
    key = None if sort is None else sort.removeprefix("-")
    if key is not None and key not in (*names, "site"):
        names.insert(0, key)
    _refuse_unknown(
        [*NAMES, *ROW_COLUMNS, *(statistic.name for statistic in series.statistics)], names
    )
    return tuple(names)


def _refuse_unknown(known: Sequence[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in known and name.rpartition(".")[0] not in known:
            near = did_you_mean(name, known)
            raise InputError(
                f"There is no column {name!r}{near} `torchtap stats RUN --columns '?'` lists all."
            )


def _known(table: Table) -> list[str]:
    further = [name for row in table for name in row.stats.extra]
    return [*NAMES, *ROW_COLUMNS, *dict.fromkeys(further)]


def _needs_histogram(name: str) -> bool:
    return name == "histogram" or (name in NAMES and NAMES[name].needs_histogram)


_TEXTS: Mapping[str, Callable[[Row], Any]] = {
    "site": lambda row: str(row.site),
    "type": lambda row: row.type,
    "dtype": lambda row: row.dtype,
    "shape": lambda row: (row.shape is None, row.shape),
}


def _row_number(key: str) -> Callable[[Row], float]:
    if key == "NaN/Inf":
        key = "nonfinite"
    if key in ("calls", "steps", "step"):
        return lambda row: math.nan if getattr(row, key) is None else getattr(row, key)
    return lambda row: number_of(row.stats, key)


def _function_of_stats(key: Callable[[Statistics], float]) -> Callable[[Row], float]:
    return lambda row: key(row.stats)


# ---------------------------------------------------------------------- which steps


def _wanted(steps: Step) -> set[int] | None:
    if steps is None or isinstance(steps, str):
        return None
    return {steps} if isinstance(steps, int) else set(steps)


def _notes(seen: Collection[int], wanted: Collection[int] | None) -> tuple[str, ...]:
    return () if wanted is None else read_series.part_of(seen, wanted)


# ---------------------------------------------------------------------- rows


def _measured_row(
    held: Contents, site: Site, steps: list[int], wanted: Collection[int] | None, *, is_merged: bool
) -> Row:
    kept = set(held.statistics.unmeasured_steps(site)) & set(steps)
    columns = held.columns
    is_own = np.isin(columns.steps[columns.is_there(site)], steps)
    others = held.index.records_of(site, kept) if kept else []
    calls = Counter(record.step for record in others)
    if not is_merged:
        stats = held.statistics.stats(site, step=steps[-1])
    else:
        stats = held.statistics.stats(site, step="all" if wanted is None else sorted(wanted))
    return Row(
        site=site,
        type=held.meta.type_name(site.path),
        calls=max([*columns.of(site, "num_tensors")[is_own].tolist(), *calls.values()]),
        steps=len(steps),
        shape=stats.shape,
        dtype=stats.dtype,
        nbytes=int(columns.of(site, "nbytes")[is_own].sum())
        + sum(other.nbytes for other in others),
        stats=stats,
        step=None if is_merged else steps[-1],
    )


def _row(
    held: Contents, site: Site, records: list[Record], *, histogram: bool, is_merged: bool
) -> Row:
    last_step = max(record.step for record in records)
    chosen = [record for record in records if is_merged or record.step == last_step]
    per_step = {record.step: 0 for record in records}
    for record in records:
        per_step[record.step] += 1
    shown = chosen[-1].kept
    if site.compared_with:  # With the norm of its parameter, or why there is none.
        stats = held.statistics.stats(site, step=sorted(per_step) if is_merged else last_step)
    else:
        values = (record.value for record in chosen if not record.overwritten)
        stats = measure_all(values, histogram=histogram)
    return Row(
        site=site,
        type=held.meta.type_name(site.path),
        calls=max(per_step.values()),
        steps=len(per_step),
        shape=shape_of(shown),
        dtype=str(shown.dtype).removeprefix("torch."),
        nbytes=sum(record.nbytes for record in records),
        stats=stats,
        step=None if is_merged else last_step,
    )


def _flat(row: Row) -> dict[str, Any]:
    further = {
        name: value for name, value in row.stats.extra.items() if isinstance(value, int | float)
    }
    return {
        "site": str(row.site),
        "path": row.site.path,
        "port": row.site.port,
        "leaf": row.site.leaf,
        "type": row.type,
        "calls": row.calls,
        "steps": row.steps,
        "step": row.step,
        "shape": None if row.shape is None else list(row.shape),
        "dtype": row.dtype,
        **{name: number.of(row.stats) for name, number in NAMES.items()},
        "total_nbytes": row.nbytes,
        **further,
    }
