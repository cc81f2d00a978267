"""The statistics of a run as rows, for files and for SQL."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.runs.tables.statistics_columns import (
    NAMES,
    StatisticsColumns,
    StatisticsIndex,
    columns_of,
)
from torchtap.stats.statistics import NUMBERS

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents
    from torchtap.runs.select import Where

_CHUNK = 8192
"""Rows that are turned into Python's numbers at a time."""
_QUESTIONS = ("select", "from", "describe", "summarize")


def statistics_rows(held: Contents, where: Where = None) -> Iterator[dict[str, Any]]:
    """Yield site, step and numbers of every site and step."""
    columns = _columns(held, where)
    texts = columns.texts()
    for start in range(0, len(columns), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(columns)))
        parts = {name: part[start : start + _CHUNK] for name, part in texts.items()}
        parts |= {name: columns.column(name, rows).tolist() for name in ("step", *NUMBERS)}
        for row in zip(*(parts[name] for name in NAMES), strict=True):
            yield dict(zip(NAMES, row, strict=True))


def query_statistics(held: Contents, query: str) -> Any:
    """See :meth:`Run.sql <torchtap.runs.run.Run.sql>`."""
    if find_spec("duckdb") is None:
        raise MissingExtraError(
            "Asking in SQL needs duckdb. Install it: pip install 'torchtap[sql]'."
        )
    _arrow()
    if not isinstance(query, str) or not query.strip("; \n\t"):
        raise InputError(
            f"run.sql got {query!r}; expected a query, such as 'select site, mean from statistics'."
        )
    from torchtap.runs.tables.lazy_table import LazyTable

    # A database that takes longer to make than most queries; one of its own for all else than
    # questions, such as making a table. The answer keeps it alive.
    asked = _database(os.getpid()).cursor() if _is_question(query) else _connected()
    asked.register("statistics", LazyTable(_columns(held, None)))
    return asked.sql(query)


def arrow_table(held: Contents, where: Where) -> Any:
    """Return the statistics as a table of Arrow."""
    pa = _arrow()
    columns = _columns(held, where)
    texts = columns.texts()
    from torchtap.runs.store.journal import texts_of
    from torchtap.runs.tables.lazy_table import plain

    return pa.table(
        {
            name: texts_of(texts[name], pa.string())
            if name in texts
            else plain(columns.column(name))
            for name in NAMES
        }
    )


def _columns(held: Contents, where: Where) -> StatisticsColumns:
    index = held.statistics_index if where is None else StatisticsIndex(held, held.select(where))
    return columns_of(held, index)


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(
            "Tables of Arrow need pyarrow. Install it: pip install 'torchtap[store]'."
        ) from error
    return pyarrow


def _is_question(query: str) -> bool:
    """Return whether a text is one query that changes nothing."""
    first = query.split(maxsplit=1)[:1]
    return bool(first) and first[0].lower() in _QUESTIONS and ";" not in query.rstrip("; \n")


def _connected() -> Any:
    """Make a database in memory that takes no name for a variable of Python, such as one here."""
    import duckdb

    return duckdb.connect(config={"python_enable_replacements": False})


@cache
def _database(process: int) -> Any:
    """Return a database in memory, of this process."""
    database = _connected()
    atexit.register(_database.cache_clear)
    return database
