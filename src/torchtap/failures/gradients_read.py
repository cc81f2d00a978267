"""Gradients that are ``None``, in the expression that failed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.frame import MISSING, Frame
from torchtap.failures.source import grouped, written


class Read(NamedTuple):
    """A tensor whose ``.grad`` was read.

    Attributes:
        text: the expression in front of ``.grad``.
        tensor: its value; ``None`` where it is not known.
    """

    text: str
    tensor: Tensor | None


def gradients_read(failure: Failure) -> list[Read]:
    """The gradients in the expression that failed that are ``None``."""
    found: list[Read] = []
    for frame in reversed(failure.frames):
        if frame.expression is not None:
            found += _reads(frame, frame.expression)
        if found or not frame.is_torch:
            break
    user = failure.user
    if not found and user is not None and user is not failure.frames[-1]:
        found += _reads(user, user.expression) if user.expression is not None else []
    if not found and user is not None:
        found += _of_variable(user)
    return found


def _reads(frame: Frame, expression: ast.AST) -> list[Read]:
    found = []
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            owner = frame.value_of(node.value)
            if (isinstance(owner, Tensor) and owner.is_leaf and owner.grad is None) or (
                isinstance(owner, Tensor) and not owner.is_leaf and not owner.retains_grad
            ):
                found.append(Read(grouped(written(node.value, frame.file)), owner))
        elif isinstance(node, ast.ListComp | ast.GeneratorExp) and _is_over_gradients(node):
            found += list(_of_parameters(frame, node))
    return found


def _is_over_gradients(node: ast.ListComp | ast.GeneratorExp) -> bool:
    return isinstance(node.elt, ast.Attribute) and node.elt.attr == "grad"


def _of_parameters(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Iterator[Read]:
    """``[p.grad for p in model.parameters()]``: the parameters without one."""
    over = node.generators[0].iter
    call = over.func if isinstance(over, ast.Call) else None
    if isinstance(call, ast.Attribute) and call.attr in ("parameters", "named_parameters"):
        owner = frame.value_of(call.value)
        if isinstance(owner, nn.Module):
            text = written(call.value)
            for name, one in owner.named_parameters():
                if one.grad is None:
                    yield Read(f"{text}.{name}", one)


def _of_variable(frame: Frame) -> Iterator[Read]:
    """A variable that is ``None`` and was assigned from a ``.grad``."""
    for node in ast.walk(frame.expression) if frame.expression is not None else ():
        if isinstance(node, ast.Name) and frame.names.get(node.id, MISSING) is None:
            for one in assignments_of(frame, node.id):
                if one.value is not None:
                    yield from _reads(frame, one.value)
