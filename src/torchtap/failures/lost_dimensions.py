"""A dimension of one that ``squeeze()`` took out, and that an operation then misses."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch import Tensor

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.traceback_frame import TracebackFrame


def kept_dimension(failure: Failure, operand: Operand, dims: int = 2) -> str:
    """Return the way to keep what ``squeeze()`` took out of an operand; empty where none did.

    Args:
        failure: the exception.
        operand: whose value lacks a dimension.
        dims: how many dimensions are needed.
    """
    squeezed = _squeezed(failure, operand)
    if squeezed is None:
        return ""
    frame, base = squeezed
    text = written(base, frame.file)
    sizes = _sizes_before(frame, base, operand)
    ones = [at for at, size in enumerate(sizes) if size == 1]
    others = [at for at in ones if at]
    why = "squeeze() takes out every dimension of one, that of a batch of one as well"
    if ones and len(sizes) - len(ones) < dims:
        if len(sizes) - 1 >= dims and len(others) == 1:
            return f"{why}: say which, {grouped(text)}.squeeze({others[0]})."
        if len(sizes) >= dims:
            return f"{why}: leave it out, {text}."
    return f"{why}: say which dimension it is to take out of {text}."


def _squeezed(failure: Failure, operand: Operand) -> tuple[TracebackFrame, ast.expr] | None:
    """Return the expression that was squeezed, and the frame in which it stands."""
    name = failure.name_of(operand)
    for frame in reversed(failure.frames):
        if not frame.is_user or frame.own_names.get(name) is not operand.value:
            continue
        for one in assignments_of(frame, name):
            match one.value:
                case ast.Call(func=ast.Attribute(value=base, attr="squeeze"), args=[], keywords=[]):
                    return frame, base
                case ast.Call(func=ast.Attribute(attr="squeeze"), args=[base], keywords=[]):
                    return (frame, base) if not isinstance(base, ast.Constant) else None
    return None


def _sizes_before(frame: TracebackFrame, base: ast.expr, operand: Operand) -> Sequence[int]:
    """Return the sizes before squeeze(); none where neither the graph nor a variable tells."""
    node = operand.value.grad_fn if isinstance(operand.value, Tensor) else None
    if type(node).__name__ == "SqueezeBackward0":
        return [int(size) for size in node._saved_self_sym_sizes]  # type: ignore[union-attr]
    held = frame.value_of(base)
    is_other = isinstance(held, Tensor) and held is not operand.value
    return list(held.shape) if is_other else []
