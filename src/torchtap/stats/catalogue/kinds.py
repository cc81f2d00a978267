"""Classes that a file names: a name is looked up here, and the class is made again of its parts.

Statistics of ``tt.stats`` and the classes that their states and results are made of register
themselves where they are defined, so nothing that writes or reads a file lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_STATISTICS: dict[str, type[Any]] = {}
_VALUES: dict[str, type[Any]] = {}

T = TypeVar("T", bound=type[Any])


def named_statistic(kind: T) -> T:
    """Register a dataclass as a statistic whose states are written, under the name of the class.

    Any window of steps can be merged from a file then. The fields are its arguments.
    """
    return _added(_STATISTICS, kind)


def named_value(kind: T) -> T:
    """Register a dataclass or a named tuple that states and results are made of."""
    return _added(_VALUES, kind)


def _added(known: dict[str, type[Any]], kind: T) -> T:
    if known.setdefault(kind.__name__, kind) is not kind:
        raise ValueError(f"Two classes are registered as {kind.__name__!r}.")
    return kind


def is_named_statistic(statistic: object) -> bool:
    """Return whether a file can name the class of a statistic."""
    return _STATISTICS.get(type(statistic).__name__) is type(statistic)


def is_named_value(value: object) -> bool:
    """Return whether a file can name the class of a value."""
    return _VALUES.get(type(value).__name__) is type(value)


def statistic_class(name: str) -> type[Any] | None:
    """Return the class of a statistic by its name; ``None`` where there is none."""
    return _STATISTICS.get(name)


def make_value(name: str, parts: Sequence[Any]) -> Any:
    """Make a value of a registered class again.

    Raises:
        LookupError: no class has this name.
    """
    return _VALUES[name](*parts)


def parts_of(value: Any) -> list[Any]:
    """Return the parts of a registered value or statistic, in the order in which it takes them."""
    if not is_dataclass(value):
        return list(value)
    return [getattr(value, field.name) for field in fields(value) if not field.name.startswith("_")]
