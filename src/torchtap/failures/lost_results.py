"""Results that a line drops: ``x.float()`` alone leaves ``x`` as it is."""

from __future__ import annotations

import ast

from torch import Tensor

from torchtap.core.source_files import shown_file
from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import CONVERSIONS
from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import TracebackFrame

_SHAPING = frozenset(
    {
        *("squeeze", "unsqueeze", "view", "reshape", "flatten", "transpose", "permute", "t"),
        *("expand", "repeat", "movedim", "swapaxes", "sum", "mean", "clamp", "masked_fill"),
    }
)
_CHANGING = CONVERSIONS | _SHAPING


def dropped_result(failure: Failure) -> str:
    """Return the way out where a line computed an operand anew and dropped it; else empty."""
    for frame in [one for one in reversed(failure.frames) if one.is_user][:4]:
        for statement, base in _dropped_in(frame):
            value = frame.value_of(base)
            if isinstance(value, Tensor) and any(one.value is value for one in failure.tensors):
                text, call = ast.unparse(base), written(statement.value, frame.file)
                return (
                    f"{shown_file(frame.file)}:{statement.lineno} computes {call} and drops it, "
                    f"{text} stays as it was: {text} = {call}."
                )
    return ""


def _dropped_in(frame: TracebackFrame) -> list[tuple[ast.Expr, ast.expr]]:
    """Return the lines of a function that call a method of a variable and drop what it returns."""
    found: list[tuple[ast.Expr, ast.expr]] = []
    for node in ast.walk(frame.function) if frame.function is not None else ():
        match node:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name() as base, attr=attr))
            ) if attr in _CHANGING and node.lineno < frame.line:
                made = assignments_of(frame, base.id)
                if all(one.line <= node.lineno for one in made):
                    found.append((node, base))
    return found
