"""Inference tensors in training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import Tensor

from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.source import grouped, replaced, written


def _inference(failure: Failure) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The inference tensors of the operation: a name, and their descriptions."""
    found = [one for one in (*failure.tensors, *_inside(failure)) if one.value.is_inference()]
    if not found:
        return UNNAMED, ()
    return failure.name_of(found[0]), tuple(
        ("operand", failure.described(one)) for one in found[:3]
    )


def _inside(failure: Failure) -> Iterator[Operand]:
    """The tensors that the operands of the operation were computed from: ``a`` of ``a.t()``."""
    for operand in failure.operands:
        frame = failure.frames[operand.depth]
        for node in ast.walk(frame.expression) if frame.expression is not None else ():
            value = frame.value_of(node) if isinstance(node, ast.Name | ast.Attribute) else None
            if isinstance(value, Tensor):
                yield Operand(written(node, frame.file), value, operand.depth)
        return


_KEEP = (
    "Make it outside of torch.inference_mode(), or under torch.no_grad(), whose tensors can be "
    "used."
)


def _saved(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _inference(failure)
    return Explanation(
        f"{name} was made in inference mode, and {failure.module_text} would have to save it for "
        f"backward.",
        (_KEEP, f"Use a clone, made outside of inference mode: {grouped(name)}.clone()."),
        details,
    )


def _written(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _inference(failure)
    return Explanation(
        f"{name} was made in inference mode, and is written into in place outside of it.",
        (f"Write into a clone: {replaced(name, 'clone()')}.", _KEEP),
        details,
    )


def _asked(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _inference(failure)
    if not details and failure.user is not None and failure.user_depth is not None:
        name = failure.user.text.partition(".requires_grad")[0].rpartition("= ")[2] or name
        value = failure.user.names.get(name)
        if isinstance(value, Tensor):
            details = failure.details(Operand(name, value, failure.user_depth))
    return Explanation(
        f"{name} was made in inference mode, and can never require grad.",
        (f"Clone it outside of inference mode: {grouped(name)}.clone().requires_grad_().", _KEEP),
        details,
    )


SITUATIONS = {
    "inference saved": _saved,
    "inference in place": _written,
    "inference with grad": _asked,
}
