"""Inference tensors in training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import UNNAMED, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow

_KEEP = (
    "Make it outside of torch.inference_mode(), or under torch.no_grad(), whose tensors can be "
    "used."
)


def _inference(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The inference tensors of the operation: the name of the first, and descriptions."""
    made = [one for one in (*failure.tensors, *_inside(failure)) if one.value.is_inference()]
    if not made:
        return {"name": UNNAMED}
    return {"name": failure.name_of(made[0]), "details": failure.details(*made[:3])}


def _inside(failure: Failure) -> Iterator[Operand]:
    """The tensors that the operands of the operation were computed from: ``a`` of ``a.t()``."""
    for operand in failure.operands[:1]:
        frame = failure.frames[operand.depth]
        for node in ast.walk(frame.expression) if frame.expression is not None else ():
            value = frame.value_of(node) if isinstance(node, ast.Name | ast.Attribute) else None
            if isinstance(value, Tensor):
                yield Operand(written(node, frame.file), value, operand.depth)


def _asked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor whose flag was set, which the source of the line names."""
    facts, user = _inference(failure, found), failure.user
    if "details" in facts or user is None:
        return facts
    name = user.text.partition(".requires_grad")[0].rpartition("= ")[2] or UNNAMED
    value = user.names.get(name)
    if not isinstance(value, Tensor):
        return {"name": name}
    return {"name": name, "details": failure.details(Operand(name, value, user.depth))}


SITUATIONS: dict[str, Situation] = {
    "inference saved": SituationRow(
        "{name} was made in inference mode, and {module} would have to save it for backward.",
        _KEEP,
        "Use a clone, made outside of inference mode: {name_it}.clone().",
        facts=_inference,
    ),
    "inference in place": SituationRow(
        "{name} was made in inference mode, and is written into in place outside of it.",
        "Write into a clone: {name_cloned}.",
        _KEEP,
        facts=_inference,
    ),
    "inference with grad": SituationRow(
        "{name} was made in inference mode, and can never require grad.",
        "Clone it outside of inference mode: {name_it}.clone().requires_grad_().",
        _KEEP,
        facts=_asked,
    ),
}
