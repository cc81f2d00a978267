"""Rows as a data frame of pandas or polars, with equal contents."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError

_LIBRARIES = ("pandas", "polars")


def make_frame(rows: Sequence[dict[str, Any]], library: str | None = None) -> Any:
    """Return rows as a data frame.

    Args:
        rows: a value for each column; one that a row lacks is missing there.
        library: ``pandas`` or ``polars``; by default the first that is installed.

    Raises:
        InputError: there is no such library.
        MissingExtraError: it is not installed.
    """
    if library not in (None, *_LIBRARIES):
        raise InputError(f"library is {library!r}; expected 'pandas' or 'polars'.")
    module = _imported(_LIBRARIES if library is None else (library,))
    plain = [{name: _in_unicode(value) for name, value in row.items()} for row in rows]
    if module.__name__ == "pandas":
        return module.DataFrame(plain)
    # Types as of all rows, and columns too: by default it looks at 100 of them.
    return module.DataFrame(plain, infer_schema_length=None)


def _in_unicode(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _imported(names: Sequence[str]) -> ModuleType:
    failure: ImportError | None = None
    for name in names:
        try:
            return import_module(name)
        except ImportError as error:
            failure = error
    wanted = " or ".join(names)
    how = "'torchtap[frame]'" if "pandas" in names else wanted
    raise MissingExtraError(
        f"A data frame needs {wanted}. Install it: pip install {how}."
    ) from failure
