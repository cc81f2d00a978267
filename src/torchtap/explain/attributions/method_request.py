"""Read a request to ``tt.attribute``: a method with its settings, and what the model is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchtap.core.errors import InputError
from torchtap.explain.attributions.attribution_result import AttributionResult
from torchtap.explain.attributions.many_runs import Batching
from torchtap.explain.attributions.method_table import METHODS, NOISY
from torchtap.explain.attributions.variable import Variable
from torchtap.explain.unknown_names import refuse_method, refuse_unknown

Function = Callable[..., AttributionResult]
_BATCHING = "batching"
_ALIASES = {"internal_batch_size": "batch_size"}
_OWN = ("batch_size", "perturbations_per_eval", "max_evals", "progress")


@dataclass(frozen=True, slots=True)
class MethodRequest:
    """A method of attribution with its settings, and the arguments that are left for the model.

    Attributes:
        method: its name.
        make: the method with its settings.
        integers: whether it can explain what carries no gradient.
        values: how the values of its maps come about, see :class:`Method`.
        call: which call of the site's module, if any was chosen.
        kwargs: what is left, for the model.
    """

    method: str
    make: Callable[[Variable], AttributionResult]
    integers: bool
    values: str
    call: int | None
    kwargs: Mapping[str, Any]


def request_of(model: nn.Module, method: str, kwargs: Mapping[str, Any]) -> MethodRequest:
    """Part the keywords of ``tt.attribute``.

    Raises:
        InputError: there is no such method, or a keyword is a setting of another method.
    """
    left = dict(kwargs)
    call = left.pop("call", None)
    if call is not None and (isinstance(call, bool) or not isinstance(call, int) or call < 0):
        raise InputError(f"call is {call!r}; expected a whole number from 0.")
    if method not in METHODS and method not in NOISY:
        raise refuse_method(method, "tt.attribute")
    if method in METHODS:
        of, make = method, _prepared(METHODS[method].function, left)
    else:
        of = _of(left)
        # The samples are what is counted and shown, and not the steps of each.
        inner = {name: left[name] for name in left if name not in ("max_evals", "progress")}
        one = _prepared(METHODS[of].function, {**inner, "progress": False})
        for name in _settings_of(METHODS[of].function):
            left.pop(name, None)
        make = _prepared(NOISY[method].function, left, one, of)
    _refuse_others(model, method, of, left)
    own = [setting for setting in _own_settings(method, of) if setting != _BATCHING]
    if left:
        refuse_unknown(model, left, f"setting of {method!r}", own)
    values = (METHODS.get(method) or NOISY[method]).values
    return MethodRequest(method, make, not METHODS[of].needs_gradient, values, call, left)


def _of(left: dict[str, Any]) -> str:
    of = left.pop("of", "gradient")
    fitting = [name for name in METHODS if name != "feature_permutation"]  # That mixes rows.
    if of not in fitting:
        raise InputError(f"of is {of!r}; expected one of {', '.join(fitting)}.")
    return str(of)


def _prepared(
    function: Function, left: dict[str, Any], *more: Any
) -> Callable[[Variable], AttributionResult]:
    """Return the function with its settings, which are taken out of what is left."""
    names = _settings_of(function)
    settings = {name: left.pop(name) for name in names if name in left}
    if _BATCHING in names:
        for alias, name in _ALIASES.items():
            if alias in left:
                left[name] = left.pop(alias)
        settings[_BATCHING] = Batching(**{name: left.pop(name) for name in _OWN if name in left})
    return lambda variable: function(variable, *more, **settings)


def _settings_of(function: Function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _refuse_others(model: nn.Module, method: str, of: str, left: Mapping[str, Any]) -> None:
    """Settings of other methods, unless the model takes arguments of these names."""
    rows = (*METHODS.values(), *NOISY.values())
    every = {name for row in rows for name in _settings_of(row.function)}
    every |= {*_OWN, *_ALIASES, "of"}
    every.discard(_BATCHING)
    taken = _arguments_of(model)
    for name in left:
        if name in every and name not in taken:
            own = [setting for setting in _own_settings(method, of) if setting != _BATCHING]
            raise InputError(
                f"{name} is no setting of {method!r}, and no argument of {type(model).__name__}; "
                f"the method has {', '.join(own) or 'none'}."
            )


def _own_settings(method: str, of: str) -> list[str]:
    names = _settings_of(METHODS[of].function)
    if method in NOISY:
        names = ["of", *_settings_of(NOISY[method].function), *names]
    return [*dict.fromkeys(names), *(_OWN if _BATCHING in names else ())]


def _arguments_of(model: nn.Module) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # Compiled code has none.
        return frozenset()
