"""Loops over the tensors of a state, of which each may have another dtype."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from torchtap.failures.assignments import assignments_of, names_in
from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import expression_of
from torchtap.failures.traceback_frame import TracebackFrame

_STATES = frozenset({"state_dict", "buffers", "named_buffers"})
"""Methods whose tensors are of several dtypes where a module has a batch norm."""


def is_one_of_several_dtypes(failure: Failure, operand: Operand) -> bool:
    """Return whether an operand is an item of a loop over tensors of several dtypes.

    A way out that is right for such an item, such as a cast to whole numbers, is run for the others
    of the loop, too.
    """
    frame = failure.frames[operand.depth]
    loop = frame.loop
    if not isinstance(loop, ast.For | ast.AsyncFor) or not _has_several_dtypes(frame, loop):
        return False
    return _is_item(frame, expression_of(operand.text), names_in(loop.target))


def _has_several_dtypes(frame: TracebackFrame, loop: ast.For | ast.AsyncFor) -> bool:
    """Return whether what a loop goes over holds floats and others, or is the state of a module."""
    for node in _sources(frame, loop.iter):
        if isinstance(node, ast.Attribute) and node.attr in _STATES:
            return True
        held: Any = frame.value_of(node)
        items = list(held.values()) if isinstance(held, dict) else held
        if isinstance(items, list | tuple):
            kinds = {one.is_floating_point() for one in items if isinstance(one, Tensor)}
            if len(kinds) > 1:
                return True
    return False


def _sources(frame: TracebackFrame, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression, and of what gave its names their values."""
    for part in ast.walk(node):
        yield part
        if isinstance(part, ast.Name):
            for made in assignments_of(frame, part.id):
                yield from ast.walk(made.value) if made.value is not None else ()


def _is_item(frame: TracebackFrame, node: ast.AST | None, targets: set[str]) -> bool:
    """Return whether an expression is an item that a loop gives, by itself or by its key."""
    match node:
        case ast.Name(id=name) if name in targets:
            return True
        case ast.Name(id=name):
            made = assignments_of(frame, name)
            is_new = len(made) == 1 and isinstance(made[0].value, ast.Subscript | ast.Attribute)
            return is_new and _is_item(frame, made[0].value, targets)
        case ast.Subscript(value=held, slice=key):
            is_part = isinstance(frame.value_of(held), Tensor)  # It has the dtype of the whole.
            return _is_item(frame, held, targets) or (not is_part and bool(names_in(key) & targets))
        case ast.Attribute(value=inner, attr="data"):
            return _is_item(frame, inner, targets)
    return False
