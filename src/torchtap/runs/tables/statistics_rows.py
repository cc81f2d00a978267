"""The statistics of a run as rows, for files and for SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchtap.core.errors import MissingExtraError
from torchtap.core.site import Site
from torchtap.runs.select import Where
from torchtap.stats.statistics import NUMBERS

if TYPE_CHECKING:
    from torchtap.stats.statistics import Statistics


class Measured(Protocol):
    """What is asked of a run."""

    def select(self, where: Where) -> Sequence[Site]: ...

    def stats(self, site: str | Site, *, step: int) -> Statistics: ...

    def _steps_of(self, site: Site) -> list[int]: ...


def statistics_rows(run: Measured, where: Where = None) -> Iterator[dict[str, Any]]:
    """Site, step and numbers of every site and step."""
    for site in run.select(where):
        for step in run._steps_of(site):
            stats = run.stats(site, step=step)
            row: dict[str, Any] = {"site": str(site), "step": step, "dtype": stats.dtype}
            row |= {name: getattr(stats, name) for name in NUMBERS}
            yield row


def query_statistics(run: Measured, query: str) -> Any:
    """See :meth:`Run.sql <torchtap.runs.run.Run.sql>`."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "Asking in SQL needs duckdb. Install it: pip install 'torchtap[sql]'."
        ) from error
    asked = duckdb.connect()  # A database of its own, in memory, which the answer keeps alive.
    asked.register("statistics", arrow_table(run, None))
    return asked.sql(query)


def arrow_table(run: Measured, where: Where) -> Any:
    """The statistics as a table of Arrow."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtraError(
            "Tables of Arrow need pyarrow. Install it: pip install 'torchtap[store]'."
        ) from error
    rows = list(statistics_rows(run, where))
    names = ["site", "step", "dtype", *NUMBERS]
    return pa.table({name: [row[name] for row in rows] for name in names})
