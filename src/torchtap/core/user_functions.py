"""Functions of the user's: their names, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor

from torchtap.core.record import BACKWARD, Record

Function = Callable[..., Tensor | None]
"""``f(tensor, record)`` or ``f(tensor)``."""


def place(record: Record) -> str:
    """Return the site, step and call of a record, for messages."""
    inside = " inside a backward" if record.phase == BACKWARD else ""
    return f"{record.site} (step {record.step}, call {record.call}{inside})"


def name_of(function: Any) -> str:
    """Return the name of a function."""
    return str(getattr(function, "__name__", None) or repr(function))


def code_of(function: Any) -> CodeType | None:
    """Return the byte code of a Python function or method; of anything else ``None``.

    ``__code__`` may be something else: of the class of functions it is a descriptor, and a proxy
    or a mock makes one up.
    """
    if type(function) is MethodType:
        function = function.__func__
    return function.__code__ if type(function) is FunctionType else None


def takes_record(function: Function) -> bool:
    """Return whether a function wants the record beside the tensor.

    One of torchtap may say it itself, since looking at a signature takes a tenth of a millisecond.
    """
    said = getattr(function, "takes_record", None)
    if said is True:
        return True
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Of compiled code.
        return False
    positional = [
        one for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return (
        any(one.kind is one.VAR_POSITIONAL for one in given)
        or sum(one.default is one.empty for one in positional) > 1
        or (len(positional) > 1 and positional[1].name == "record")
    )
