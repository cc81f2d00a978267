"""A run as rows: one per site, with statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchtap.errors import MissingExtraError
from torchtap.record import Record
from torchtap.site import Site
from torchtap.stats.measure import measure_all, shape_of
from torchtap.stats.statistics import Statistics

if TYPE_CHECKING:
    from torchtap.store.run import Run, Step, Where


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one site.

    Attributes:
        site: where.
        type: class name of the module, ``""`` for a mark.
        calls: most calls in one step (for gradients: most values).
        steps: number of steps with a record.
        shape: shape of the last value; of what was measured, ``None`` if it varies.
        dtype: of the last value, without ``torch.``.
        nbytes: bytes of all values together.
        stats: over all values of the last step; in a merged table, of all steps.
    """

    site: Site
    type: str
    calls: int
    steps: int
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int
    stats: Statistics


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a run; iterate it, print it, or turn it into a data frame.

    Attributes:
        rows: one per site.
        is_merged: whether statistics are over all steps together, and not of the last one.
    """

    rows: tuple[Row, ...]
    is_merged: bool = False

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sorted(self, key: Callable[[Statistics], float], *, largest_first: bool = True) -> Table:
        """The same rows by a statistic; NaN comes last."""

        def rank(row: Row) -> tuple[bool, float]:
            value = key(row.stats)
            return math.isnan(value), -value if largest_first else value

        return replace(self, rows=tuple(sorted(self.rows, key=rank)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain dictionaries of text and numbers, ready for JSON or a data frame."""
        return [_flat(row) for row in self.rows]

    def to_frame(self) -> Any:
        """A pandas data frame, or a polars one where only polars is installed.

        Raises:
            MissingExtraError: neither is installed.
        """
        try:
            import pandas
        except ImportError:
            return self._to_polars()
        return pandas.DataFrame(self.as_dicts())

    def _to_polars(self) -> Any:
        try:
            import polars
        except ImportError as error:
            raise MissingExtraError(
                "A data frame needs pandas or polars. Install one: pip install 'torchtap[frame]'."
            ) from error
        return polars.DataFrame(self.as_dicts())

    def __repr__(self) -> str:
        from torchtap.view.text import show_table

        return show_table(self)


def measure_table(run: Run, where: Where, steps: Step, *, histogram: bool) -> Table:
    """Build the table of a run.

    What was kept is measured now, reading every value of the last step of each site once (of all
    steps for a merged table); what was measured while it ran is taken as it is.
    """
    is_merged = isinstance(steps, str)
    wanted = {steps} if isinstance(steps, int) else None
    if steps is not None and not isinstance(steps, str | int):
        wanted = set(steps)
    groups: dict[Site, list[Record]] = {site: [] for site in run.select(where)}
    for record in run.records(steps=wanted):
        if record.site in groups:
            groups[record.site].append(record)
    rows = []
    for site, group in groups.items():
        if group:
            rows.append(_row(run, site, group, histogram=histogram, is_merged=is_merged))
        elif site in run.series:
            rows += _measured_row(run, site, wanted, is_merged=is_merged)
    return Table(tuple(rows), is_merged)


def _measured_row(
    run: Run, site: Site, wanted: Collection[int] | None, *, is_merged: bool
) -> list[Row]:
    steps = [s for s in run.series.steps_of(site) if wanted is None or s in wanted]
    if not steps:
        return []
    per_step = [run.series.at(site, step) for step in steps]
    stats = run.series.whole(site) if is_merged else per_step[-1]
    return [
        Row(
            site=site,
            type=run.meta.type_name(site.path),
            calls=max(stats.num_tensors for stats in per_step),
            steps=len(steps),
            shape=stats.shape,
            dtype=stats.dtype,
            nbytes=sum(stats.nbytes for stats in per_step),
            stats=stats,
        )
    ]


def _row(run: Run, site: Site, records: list[Record], *, histogram: bool, is_merged: bool) -> Row:
    last_step = max(record.step for record in records)
    chosen = [record for record in records if is_merged or record.step == last_step]
    per_step = {record.step: 0 for record in records}
    for record in records:
        per_step[record.step] += 1
    shown = chosen[-1].kept
    if site.port == "update":
        stats = run.stats(site, step=chosen[-1].step)  # With the norm of its parameter.
    else:
        values = (record.value for record in chosen if not record.overwritten)
        stats = measure_all(values, histogram=histogram)
    return Row(
        site=site,
        type=run.meta.type_name(site.path),
        calls=max(per_step.values()),
        steps=len(per_step),
        shape=shape_of(shown),
        dtype=str(shown.dtype).removeprefix("torch."),
        nbytes=sum(record.nbytes for record in records),
        stats=stats,
    )


def _flat(row: Row) -> dict[str, Any]:
    return {
        "site": str(row.site),
        "path": row.site.path,
        "port": row.site.port,
        "leaf": row.site.leaf,
        "type": row.type,
        "calls": row.calls,
        "steps": row.steps,
        "shape": None if row.shape is None else list(row.shape),
        "dtype": row.dtype,
        "nbytes": row.nbytes,
        **row.stats.numbers(),
    }
