"""A gradient that is ``None`` and was read as if it were a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.core.no_grad import why_no_grad
from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.gradients_read import Read, gradients_read
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import line_of


def _read(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The first gradient that was read and is ``None``."""
    reads = gradients_read(failure)
    read, tensor = reads[0], reads[0].tensor
    state = failure.names.state(tensor)
    name = read.text if state is None else state.name
    others = f" (and of {len(reads) - 1} more)" if len(reads) > 1 else ""
    is_computed = tensor is not None and not tensor.is_leaf
    why = ""
    if tensor is not None and not tensor.requires_grad:
        why = why_no_grad(tensor) if tensor.is_inference() else "it does not require grad"
    return {
        "name": name,
        "text": read.text,
        "none": f"The gradient of {name}{others} is None and was used as a tensor",
        "where": failure.names.holder(tensor),
        "maker": _made_of_own_gradient(failure, read) if is_computed else "",
        "is_computed": is_computed,
        "zeroed": "" if tensor is None else _zeroed(failure),
        "is_alone": tensor is not None and not _others_have(failure, tensor),
        "is_asked": read.is_asked,
        "why": why,
        "is_state": state is not None,
        "is_input": state is None,
    }


def _zeroed(failure: Failure) -> str:
    """The line that set gradients to None behind the last backward; empty if none is seen."""
    frame = failure.user
    calls = [] if frame is None else [*frame.calls_of("backward", "zero_grad")]
    before = sorted((one.lineno, one.col_offset, one) for one in calls if one.lineno < frame.line)  # type: ignore[union-attr]
    last = before[-1][2] if before else None
    is_zero = last is not None and getattr(last.func, "attr", "") == "zero_grad"
    return line_of(last, frame.file) if is_zero and len(before) > 1 else ""  # type: ignore[arg-type,union-attr]


def _others_have(failure: Failure, tensor: Tensor) -> bool:
    """Return whether another parameter of the same model has a gradient."""
    for _, model in failure.names.models:
        parameters = list(model.parameters())
        if any(one is tensor for one in parameters):
            return any(one.grad is not None for one in parameters)
    return False


def _made_of_own_gradient(failure: Failure, read: Read) -> str:
    """The line that gave a name a new tensor made of the old one's gradient; empty if none did."""
    frame = failure.user
    for one in [] if frame is None else assignments_of(frame, read.text):
        for node in [] if one.value is None else ast.walk(one.value):
            if isinstance(node, ast.Attribute) and written(node) == f"{read.text}.grad":
                return f"line {one.line}, {one.text},"
    return ""


_GUARD = "Leave out what has none: if {text}.grad is not None."
_none = first_of(
    SituationRow(
        "{none}: {maker} made another tensor of that name, to which no backward gave one.",
        "Write into the one that has the gradient: with torch.no_grad(): {text} -= step * "
        "{text}.grad.",
        "Make it a leaf each time: {text} = (...).detach().requires_grad_(), which has no gradient "
        "to set to zero.",
        when="maker",
    ),
    SituationRow(
        "{none}: no path leads to it from the outputs of torch.autograd.grad, which was told "
        "allow_unused=True.",
        "Use {name} in what the outputs are computed from, if it is to have a gradient.",
        "Leave out gradients that are None where they are used.",
        "Give materialize_grads=True to torch.autograd.grad: such a gradient is then zeros.",
        when="is_asked",
    ),
    SituationRow(
        "{none}: it was computed, and keeps no gradient unless it is asked to.",
        "Call {text}.retain_grad() before the backward.",
        "Take it from torch.autograd.grad(loss, {text}).",
        when="is_computed",
    ),
    SituationRow(
        "{none}: {why}.",
        ("is_input", "Set {text}.requires_grad_() before the forward."),
        ("is_state", _GUARD),
        ("is_state", "Set {text}.requires_grad_() before the forward, if it is to have one."),
        when="why",
    ),
    SituationRow(
        "{none}: {zeroed} set the gradients to None after the backward.",
        "Read them between the backward and zero_grad().",
        "If zeros are wanted in place of None: zero_grad(set_to_none=False).",
        when="zeroed",
    ),
    SituationRow(
        "{none}: no backward has reached it since it was made or zero_grad() was called.",
        "Call backward() before its gradient is read, and zero_grad() after.",
        "If a backward ran: use {name} in the forward on the way to its loss.",
        "If it may have none here: read it only if {text}.grad is not None.",
        when="is_alone",
    ),
    SituationRow(
        "{none}: no backward has reached it since it was made or zero_grad() was called.",
        "If the loss need not depend on it: leave out what has none, if {text}.grad is not None.",
        "If it is to be trained: use {name} in the forward on the way to the loss.",
        "Call backward() before its gradient is read, and zero_grad() after.",
    ),
    facts=_read,
)

SITUATIONS: dict[str, Situation] = {
    "attribute of None": _none,
    "item of None": _none,
    "operator on None": _none,
    "None among tensors": _none,
}
