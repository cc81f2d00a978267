"""A gradient that is ``None`` and was read as if it were a tensor."""

from __future__ import annotations

import ast
import re

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.gradients_read import Read, gradients_read
from torchtap.failures.source import written
from torchtap.hooks.no_grad import why_no_grad


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
    again = _made_of_own_gradient(failure, read)
    if tensor is not None and not tensor.is_leaf and again:
        return Explanation(
            f"{what}{again} made another tensor of that name, to which no backward gave one.",
            (
                f"Write into the one that has the gradient: with torch.no_grad(): {read.text} -= "
                f"step * {read.text}.grad.",
                f"Make it a leaf each time: {read.text} = (...).detach().requires_grad_(), which "
                "has no gradient to set to zero.",
            ),
            (),
            module,
        )
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


def _made_of_own_gradient(failure: Failure, read: Read) -> str:
    """The line that gave a name a new tensor made of the old one's gradient; empty if none did."""
    frame = failure.user
    for one in [] if frame is None else assignments_of(frame, read.text):
        for node in [] if one.value is None else ast.walk(one.value):
            if isinstance(node, ast.Attribute) and written(node) == f"{read.text}.grad":
                return f"line {one.line}, {one.text},"
    return ""


SITUATIONS = {
    "attribute of None": _none,
    "item of None": _none,
    "operator on None": _none,
    "None among tensors": _none,
}
