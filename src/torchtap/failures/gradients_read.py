"""Gradients that are ``None``, in the expression that failed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame


class Read(NamedTuple):
    """A tensor whose ``.grad`` was read.

    Attributes:
        text: the expression in front of ``.grad``.
        tensor: its value; ``None`` where it is not known.
    """

    text: str
    tensor: Tensor | None


def gradients_read(failure: Failure) -> list[Read]:
    """Return the gradients in the expression that failed that are ``None``."""
    reads: list[Read] = []
    for frame in reversed(failure.frames):
        if frame.expression is not None:
            reads += _reads(frame, frame.expression)
        if reads or not frame.is_torch:
            break
    user = failure.user
    if not reads and user is not None and user is not failure.frames[-1]:
        reads += _reads(user, user.expression) if user.expression is not None else []
    # g = p.grad; g.norm(): the expression names the variable alone.
    if not reads and user is not None:
        reads += _of_variable(user)
    return reads


def _reads(frame: TracebackFrame, expression: ast.AST) -> Iterator[Read]:
    for node in ast.walk(expression):
        match node:
            case ast.Attribute(attr="grad"):
                owner = frame.value_of(node.value)
                if isinstance(owner, Tensor) and _has_none(owner):
                    yield Read(grouped(written(node.value, frame.file)), owner)
            case ast.ListComp(elt=ast.Attribute(attr="grad"), generators=[over, *_]):
                yield from _of_parameters(frame, over.iter)
            case ast.GeneratorExp(elt=ast.Attribute(attr="grad"), generators=[over, *_]):
                yield from _of_parameters(frame, over.iter)


def _has_none(tensor: Tensor) -> bool:
    """Return whether the gradient is ``None``. To read it of what is no leaf would warn."""
    return tensor.grad is None if tensor.is_leaf else not tensor.retains_grad


def _of_parameters(frame: TracebackFrame, over: ast.expr) -> Iterator[Read]:
    """Yield ``[p.grad for p in model.parameters()]``: the parameters without one."""
    call = over.func if isinstance(over, ast.Call) else None
    if isinstance(call, ast.Attribute) and call.attr in ("parameters", "named_parameters"):
        owner, text = frame.value_of(call.value), written(call.value)
        for name, one in owner.named_parameters() if isinstance(owner, nn.Module) else ():
            if one.grad is None:
                yield Read(f"{text}.{name}", one)


def _of_variable(frame: TracebackFrame) -> Iterator[Read]:
    """Yield a variable that is ``None`` and was assigned from a ``.grad``."""
    for node in ast.walk(frame.expression) if frame.expression is not None else ():
        if isinstance(node, ast.Name) and frame.names.get(node.id, MISSING) is None:
            for one in assignments_of(frame, node.id):
                if one.value is not None:
                    yield from _reads(frame, one.value)
