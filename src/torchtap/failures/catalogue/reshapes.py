"""Views and reshapes: sizes of another product, and memory in another order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import (
    shape_text,
)
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow


def _of_attention(failure: Failure) -> Explanation | None:
    """The explanation, where query and key of an attention have their batches elsewhere."""
    names = [one.code.co_name for one in failure.frames]
    if "multi_head_attention_forward" not in names or not failure.module_text:
        return None
    held = failure.frames[names.index("multi_head_attention_forward")].frame.f_locals
    query, key = held.get("query"), held.get("key")
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.dim() != key.dim():
        return None
    is_first = getattr(failure.module, "batch_first", True)
    if is_first or query.dim() != 3 or query.shape[1] == key.shape[1]:
        return None
    given = f"{query.shape[1]} in the query, {list(query.shape)}, and {key.shape[1]} in the key"
    return Explanation(
        f"{failure.module_text} takes [time, batch, features], and dimension 1, the batch, has "
        f"{given}, {list(key.shape)}.",
        (
            "If the batch stands first, say so where it is made: "
            f"{failure.names.variable(failure.module)} = nn.MultiheadAttention(..., "
            "batch_first=True).",
            "Or turn query, key and value, x.transpose(0, 1), and the output back.",
        ),
        failure.details(),
    )


def _reshape(failure: Failure, found: re.Match[str]) -> Explanation:
    attention = _of_attention(failure)
    if attention is not None:
        return attention
    operand = failure.argument()
    name, value = failure.name_of(operand), operand.value
    given, it = shape_text(value), grouped(name)
    ways = ["Let one dimension be computed: -1 in its place, and check that the others divide."]
    sizes = [int(one) for one in re.findall(r"-?\d+", found["shape"])]
    ones = len(sizes) - value.dim() if isinstance(value, Tensor) else 0
    if isinstance(value, Tensor) and ones > 0 and sizes[:ones] == [1] * ones and -1 not in sizes:
        added = ", ".join(["None"] * ones)
        ways = [
            f"If dimensions of one are to be put in front, keep its own sizes: {it}[{added}].",
            f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}.",
        ]
    elif -1 in sizes and not (isinstance(value, Tensor) and value.dim() > 1 and sizes[0] == -1):
        known = math.prod(one for one in sizes if one != -1)
        ways = [
            f"Give sizes that {found['numel']} can be divided by: -1 stands for what is left, and "
            f"{found['numel']} is no multiple of {known}."
        ]
    elif isinstance(value, Tensor) and value.dim() > 1 and -1 in sizes:
        ways = [
            f"Keep the batch and flatten the rest: {it}.flatten(1); then fit what follows to it."
        ]
    elif not _can_be_computed(sizes, int(found["numel"])):
        ways = [f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}."]
    elif isinstance(value, Tensor) and sizes[:1] == list(value.shape[:1]):
        ways.insert(0, f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}.")
    elif isinstance(value, Tensor) and value.dim() > 1:
        ways.insert(0, f"Keep the batch: {it}.flatten(1), or {it}.view({it}.size(0), -1).")
    return Explanation(
        f"{name} ({f'{given}, ' if given else ''}{found['numel']} elements) cannot take the shape "
        f"{found['shape']}.",
        tuple(ways),
        failure.details(operand),
    )


def _can_be_computed(sizes: Sequence[int], numel: int) -> bool:
    """Return whether -1 in the place of one of the sizes would give a shape that fits."""
    others = [math.prod(sizes[:at]) * math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    return any(one and numel % one == 0 for one in others)


def _strides(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    return {"stride": f" (stride {tuple(value.stride())})" if isinstance(value, Tensor) else ""}


SITUATIONS: dict[str, Situation] = {
    "reshape": _reshape,
    "view of strides": SituationRow(
        "{name} does not lie in memory in the order of its dimensions{stride}, after a transpose, "
        "permute or slice, so that no view of this shape exists.",
        "Copy if necessary: {name_it}.reshape(...) in place of view.",
        "Copy first: {name_it}.contiguous().view(...).",
        about="argument",
        facts=_strides,
    ),
    "several unknown sizes": SituationRow(
        "-1 stands for the one size that is computed from the others, and stands twice in the "
        "shape.",
        "Say all sizes but one: {name_it}.size(0) for the batch.",
        about="argument",
    ),
    "parts of a dimension": SituationRow(
        "Dimension {dim} has {given} elements, and the sizes {sizes} have another product.",
        "Give sizes whose product is {given}, or -1 for one of them, if the others divide it.",
        about="argument",
    ),
    "size of a kept tensor": SituationRow(
        "{name} requires grad, and cannot be given another size in place.",
        "Make a new tensor: {name_it}.reshape(...) of as many elements, or a slice of it.",
        about="argument",
    ),
}
