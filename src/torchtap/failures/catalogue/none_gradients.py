"""A gradient that is ``None`` and was read as if it were a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.frame import MISSING, Frame, written
from torchtap.hooks.no_grad import why_no_grad


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
                found.append(Read(written(node.value, frame.file), owner))
        elif isinstance(node, ast.ListComp | ast.GeneratorExp) and _is_over_gradients(node):
            found += list(_of_parameters(frame, node))
    return found


def _is_over_gradients(node: ast.ListComp | ast.GeneratorExp) -> bool:
    return isinstance(node.elt, ast.Attribute) and node.elt.attr == "grad"


def _of_parameters(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Iterator[Read]:
    """``[p.grad for p in model.parameters()]``: the parameters without one."""
    from torch import nn

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
    from torchtap.failures.assignments import assignments_of

    for node in ast.walk(frame.expression) if frame.expression is not None else ():
        if isinstance(node, ast.Name) and frame.names.get(node.id, MISSING) is None:
            for one in assignments_of(frame, node.id):
                if one.value is not None:
                    yield from _reads(frame, one.value)


def _none(failure: Failure, found: re.Match[str]) -> Explanation:
    reads = gradients_read(failure)
    read = reads[0]
    tensor = read.tensor
    state = None if tensor is None else failure.names.tensor(tensor)
    holder = None if tensor is None else failure.names.holder(tensor)
    name = state or read.text
    module = "" if holder is None else failure.names.module(holder)
    others = f" (and of {len(reads) - 1} more)" if len(reads) > 1 else ""
    what = f"The gradient of {name}{others} is None and was used as a tensor: "
    guard = f"Leave out what has none: if {read.text}.grad is not None."
    if tensor is not None and not tensor.is_leaf:
        return Explanation(
            f"{what}it was computed, and keeps no gradient unless it is asked to.",
            (
                f"Call {read.text}.retain_grad() before the backward.",
                f"Take it from torch.autograd.grad(loss, {read.text}).",
            ),
            (),
            module,
        )
    if tensor is not None and not tensor.requires_grad:
        why = why_no_grad(tensor) if tensor.is_inference() else "it does not require grad"
        return Explanation(
            f"{what}{why}.",
            (guard, f"Set {read.text}.requires_grad_() before the forward, if it is to have one."),
            (),
            module,
        )
    return Explanation(
        f"{what}no backward has reached it since it was made or zero_grad() was called.",
        (
            guard,
            "Call backward() before its gradient is read, and zero_grad() after.",
            f"Use {name} in the forward on the way to the loss, if it is to be trained.",
        ),
        (),
        module,
    )


SITUATIONS = {
    "attribute of None": _none,
    "item of None": _none,
    "operator on None": _none,
    "None among tensors": _none,
}
