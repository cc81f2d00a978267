"""A dimension of one that ``squeeze()`` took out, and that an operation then misses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from torch import Tensor

from torchtap.core.source_files import shown_file
from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import steps_of
from torchtap.failures.operands import Operand, parts_of_expression
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.scopes import Expression, scope_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_MOST_FRAMES = 4


def kept_dimension(failure: Failure, operand: Operand, dims: int = 2) -> str:
    """Return the way to keep what ``squeeze()`` took out of an operand; empty where none did.

    Args:
        failure: the exception.
        operand: whose value lacks a dimension.
        dims: how many dimensions are needed.
    """
    squeezed = _squeezed(failure, operand)
    if squeezed is None:
        return _kept_further_out(failure, dims)
    frame, base = squeezed
    text = written(base, frame.file)
    return _way(text, _sizes_before(frame, base, operand), dims, "squeeze()")


def _way(text: str, sizes: Sequence[int], dims: int, call: str) -> str:
    """Return the way to take another dimension out of a tensor than all of one.

    Args:
        text: the tensor.
        sizes: of it; none where they are not known.
        dims: how many dimensions are needed.
        call: what took them out, in words.
    """
    ones = [at for at, size in enumerate(sizes) if size == 1]
    others = [at for at in ones if at]
    why = f"{call} takes out every dimension of one, that of a batch of one as well"
    if sizes and sizes[0] == 1 and others == list(range(2, len(sizes))) and dims == 2:
        return f"{why}: keep the batch, {grouped(text)}.flatten(1)."
    if ones and len(sizes) - len(ones) < dims:
        if len(sizes) - 1 >= dims and len(others) == 1:
            return f"{why}: say which, {grouped(text)}.squeeze({others[0]})."
        if len(sizes) >= dims:
            return f"{why}: leave it out, {text}."
    if dims == 2 and not sizes:
        return (
            f"{why}: say which dimension it is to take out of {text}, or flatten all behind the "
            f"batch, {grouped(text)}.flatten(1)."
        )
    return f"{why}: say which dimension it is to take out of {text}."


def _kept_further_out(failure: Failure, dims: int) -> str:
    """Return the way, where ``squeeze()`` made what the line of the program was given."""
    frame = failure.user
    scope = None if frame is None else scope_of(frame, failure.frames)
    for node in parts_of_expression(frame.expression) if frame is not None else ():
        value = frame.value_of(node) if frame is not None else MISSING
        if scope is None or not isinstance(value, Tensor) or value.dim() >= dims:
            continue
        for step in steps_of(Expression(node, scope)):
            base = _base_of(step.node)
            if base is None or step.path:
                continue
            sizes = _saved(value)
            if sizes and sizes[0] != 1:
                return ""
            text = written(base, step.scope.file)
            place = f"{shown_file(step.scope.file)}:{step.line}"
            return _way(text, sizes, dims, f"squeeze() at {place}")
    return ""


def _base_of(node: ast.expr | None) -> ast.expr | None:
    """Return what ``squeeze()`` without a dimension was called on; ``None`` of another call."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr="squeeze"), args=[base]):
            return base if not node.keywords else None
        case ast.Call(func=ast.Attribute(value=base, attr="squeeze"), args=[], keywords=[]):
            return base
    return None


def _saved(value: Tensor) -> list[int]:
    """Return the sizes before ``squeeze()``, where that was the last that made a tensor."""
    node = value.grad_fn
    is_squeeze = type(node).__name__ == "SqueezeBackward0"
    return [int(size) for size in node._saved_self_sym_sizes] if is_squeeze else []  # type: ignore[union-attr]


def batch_taken_out(failure: Failure) -> str:
    """Return the way to keep a batch of one that a call on the way removed; empty where none did.

    The call stands in the expression that failed, in what its names were assigned, or in the calls
    further out, so that the caller has to know that a batch is missing.
    """
    for frame, node in computed_from(failure):
        base = _base_of(node) if isinstance(node, ast.expr) else None
        base = base or (_base_of_first(node) if isinstance(node, ast.expr) else None)
        held = MISSING if base is None else frame.value_of(base)
        is_other = isinstance(held, Tensor) and held.shape[:1] != (1,)
        if base is None or is_other:
            continue
        text, line = written(node, frame.file), getattr(node, "lineno", frame.line)
        return (
            f"If the batch of one was lost at {shown_file(frame.file)}:{line}, keep it there: "
            f"{text} takes it out; leave that out, or say another dimension."
        )
    return ""


def computed_from(failure: Failure) -> Iterator[tuple[TracebackFrame, ast.AST]]:
    """Yield the parts of what an operation is computed from, with the function they stand in."""
    for frame in [one for one in reversed(failure.frames) if one.is_user][:_MOST_FRAMES]:
        waiting, seen = [frame.expression], {""}
        for node in waiting:  # Grows as it goes.
            for part in ast.walk(node) if node is not None else ():
                yield frame, part
                if isinstance(part, ast.Name) and part.id not in seen:
                    seen.add(part.id)
                    waiting += [one.value for one in assignments_of(frame, part.id)]


def _base_of_first(node: ast.expr) -> ast.expr | None:
    """Return the tensor of ``squeeze(0)``; ``None`` of another call."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name("torch"), attr="squeeze"),
            args=[base, ast.Constant(value=0)],
        ):
            return base
        case ast.Call(func=ast.Attribute(value=base, attr="squeeze"), args=[ast.Constant(value=0)]):
            return base
    return None


def _squeezed(failure: Failure, operand: Operand) -> tuple[TracebackFrame, ast.expr] | None:
    """Return the expression that was squeezed, and the frame in which it stands."""
    name = failure.name_of(operand)
    own = failure.user if failure.frames[operand.depth].is_torch else failure.frames[operand.depth]
    for node in parts_of_expression(own.expression) if own is not None else ():
        base = _base_of(node)
        if base is not None and own is not None and written(node, own.file) == name:
            return own, base
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
    saved = _saved(operand.value) if isinstance(operand.value, Tensor) else []
    if saved:
        return saved
    held = frame.value_of(base)
    is_other = isinstance(held, Tensor) and held is not operand.value
    return list(held.shape) if is_other else []
