"""Check the requests to ``tt.edit``, and refuse sites that cannot be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from torchtap.core.errors import EditError, InputError
from torchtap.core.module_paths import Where, several
from torchtap.core.plan import Plan
from torchtap.core.ports import BY_NAME, EDITABLE_PORTS
from torchtap.core.site import Pattern, Site
from torchtap.core.user_functions import Function
from torchtap.edits import as_edit

Chosen = int | Iterable[int] | Callable[[int], bool] | None
Functions = Function | Sequence[Function]
Missing = Literal["error", "ignore"]


def check_missing(missing: str) -> None:
    """Refuse what ``missing`` cannot be."""
    if missing not in ("error", "ignore"):
        raise InputError(f"missing is {missing!r}; expected 'error' or 'ignore'.")


def pairs_of(where: Any, fn: Any) -> list[tuple[Where, Function]]:
    """Return each function, and where it is to work."""
    if isinstance(where, Mapping):
        if fn is not None:
            raise InputError("tt.edit got a mapping of patterns to functions, and fn beside it.")
        if not where:
            raise InputError("tt.edit got an empty mapping; expected pattern -> function.")
        items = list(where.items())
    else:
        items = [(where, fn)]
    return [(one, as_edit(each)) for one, functions in items for each in _several(functions)]


def _several(functions: Any) -> Sequence[Any]:
    if isinstance(functions, list | tuple):
        if not functions:
            raise InputError("tt.edit got an empty list of functions.")
        return functions
    return [functions]


def chooser(chosen: Chosen, name: str) -> Callable[[int], bool]:
    """Return a function that says whether a number was chosen."""
    if chosen is None:
        return lambda number: True
    if callable(chosen):
        return lambda number: bool(chosen(number))
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        return lambda number: number == chosen
    if isinstance(chosen, range):
        return chosen.__contains__
    try:
        numbers = frozenset(chosen)  # type: ignore[arg-type]
    except TypeError:
        numbers = frozenset({None})  # type: ignore[arg-type]
    if not all(isinstance(number, int) for number in numbers):
        raise InputError(
            f"{name} is {chosen!r}; expected a whole number, several, or a function of the number."
        )
    return numbers.__contains__


def refuse_asked(where: Where, editable: Sequence[str] = EDITABLE_PORTS) -> None:
    """Raises:
    EditError: a pattern names a port that cannot be edited, whether or not something is there.
    """
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and not pattern.negate:
            for port in pattern.effective_ports:
                _refuse_port(str(pattern), pattern.path, port, editable)


def refuse_ports(plan: Plan, editable: Sequence[str] = EDITABLE_PORTS) -> None:
    """Raises:
    EditError: the plan holds a port that cannot be edited.
    """
    for planned in plan.taps:
        for port in planned.ports:
            _refuse_port(str(Site(planned.path, port)), planned.path or ".", port, editable)


def _refuse_port(where: str, path: str, port: str, editable: Sequence[str]) -> None:
    if port in editable:
        return
    instead = BY_NAME[port].instead.format(path=path)
    if port in EDITABLE_PORTS:  # By tt.edit, but not by who asks.
        instead = "Gradients are edited by tt.edit, around a forward and a backward of your own."
    here = "" if editable is EDITABLE_PORTS else " here"
    raise EditError(
        f"{where} cannot be edited{here}; ports that can are {', '.join(editable)}. {instead}"
    )
