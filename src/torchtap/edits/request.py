"""Check the requests to ``tt.edit``, and refuse sites that cannot be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from torchtap.core.errors import EditError, InputError
from torchtap.core.modules import Where, several
from torchtap.core.plan import Plan
from torchtap.core.site import Pattern, Site
from torchtap.core.user_functions import Function
from torchtap.edits import as_edit
from torchtap.edits.editor import EDITABLE

Chosen = int | Iterable[int] | Callable[[int], bool] | None
Functions = Function | Sequence[Function]
Missing = Literal["error", "ignore"]

_INSTEAD = {
    "param": "A parameter is changed by writing into it under torch.no_grad(), and held still by "
    "tt.freeze; its gradient is edited at '{path}:param_grad'.",
    "buffer": "A buffer is changed by writing into it under torch.no_grad(), and held still by "
    "tt.freeze.",
    "step_grad": "The optimizer's step uses what backwards accumulated, which is edited at "
    "'{path}:param_grad'.",
    "update": "The optimizer makes its update of the gradient, which is edited at "
    "'{path}:param_grad'; tt.freeze holds a parameter still.",
    "saved": "Autograd keeps what flows, which is edited at '{path}:input' or '{path}:output'.",
}


def check_missing(missing: str) -> None:
    """Refuse what ``missing`` cannot be."""
    if missing not in ("error", "ignore"):
        raise InputError(f"missing is {missing!r}; expected 'error' or 'ignore'.")


def pairs_of(where: Any, fn: Any) -> list[tuple[Where, Function]]:
    """Each function, and where it is to work."""
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
    """A function that says whether a number was chosen."""
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


def refuse_asked(where: Where, editable: Sequence[str] = EDITABLE) -> None:
    """Raises:
    EditError: a pattern names a port that cannot be edited, whether or not something is there.
    """
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and not pattern.negate:
            for port in pattern.effective_ports:
                _refuse_port(str(pattern), pattern.path, port, editable)


def refuse_ports(plan: Plan, editable: Sequence[str] = EDITABLE) -> None:
    """Raises:
    EditError: the plan holds a port that cannot be edited.
    """
    for planned in plan.taps:
        for port in planned.ports:
            _refuse_port(str(Site(planned.path, port)), planned.path or ".", port, editable)


def _refuse_port(where: str, path: str, port: str, editable: Sequence[str]) -> None:
    if port in editable:
        return
    instead = _INSTEAD.get(port, "").format(path=path)
    if port in EDITABLE:  # By tt.edit, but not by who asks.
        instead = "Gradients are edited by tt.edit, around a forward and a backward of your own."
    raise EditError(
        f"{where} cannot be edited{'' if editable is EDITABLE else ' here'}; ports that can are "
        f"{', '.join(editable)}. {instead}"
    )
