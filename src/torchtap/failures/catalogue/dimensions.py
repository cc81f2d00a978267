"""Dimensions that a tensor does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING

_OF_ONE_SHAPE = ("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce_")
"""Functions whose tensor, index and source have as many dimensions each."""


def _refused(failure: Failure, found: re.Match[str]) -> Operand:
    """Return the operand that lacks the dimension: the one with as many as the message says."""
    first, num = failure.argument(), int(found["high"]) + 1
    if not isinstance(first.value, Tensor) or first.value.dim() in (num, num - 1):
        return first  # unsqueeze() and stack() take one dimension more than there is.
    fitting = [one for one in failure.tensors if max(1, one.value.dim()) == num]
    unknown = [one for one in failure.candidates if one.value is MISSING]
    left = [*fitting, *unknown]
    return left[0] if len(left) == 1 else Operand("a tensor")


def _beside(failure: Failure, operand: Operand, num: int) -> str:
    """Return the way to give a source the dimensions of the index that it is written by."""
    called = getattr(getattr(_call(failure), "func", None), "attr", "")
    others = [one for one in failure.tensors if one is not operand]
    is_last = operand is not failure.argument() and len(others) == 2
    if called not in _OF_ONE_SHAPE or not is_last or num != 1:
        return ""
    index, name = others[-1].value, failure.name_of(operand)
    if {one.value.dim() for one in others} != {2}:
        return ""
    length = len(operand.value) if isinstance(operand.value, Tensor) else None
    fitting = [at for at in (0, 1) if index.shape[at] == 1 and index.shape[1 - at] == length]
    said = f"{called} takes as many dimensions of its source as of the index, 2"
    if len(fitting) == 1:
        return f"{said}: {grouped(name)}.unsqueeze({fitting[0]})."
    if index.shape[1] == length:
        other = failure.name_of(others[-1])
        return f"{said}; if {name} is to be repeated: {grouped(name)}.expand_as({other})."
    return f"{said}: give {name} the shape of {failure.name_of(others[-1])}, {list(index.shape)}."


def _dimension(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand = _refused(failure, found)
    value, dim = operand.value, int(found["dim"])
    wanted = dim + 1 if dim >= 0 else -dim
    num = value.dim() if isinstance(value, Tensor) else int(found["high"]) + 1
    name = failure.name_of(operand)
    called = getattr(getattr(_call(failure), "func", None), "attr", "")
    squeezed = kept_dimension(failure, operand, wanted)
    is_joined = called in ("cat", "concat", "concatenate") and num == 1
    beside = _beside(failure, operand, num)
    is_sample = num + 1 == max([wanted, *_asked(failure)]) and name != "a tensor"
    return {
        "name": name,
        "details": failure.details(operand) if value is not MISSING else (),
        "num": num,
        "count": "no dimensions" if not num else "1 dimension" if num == 1 else f"{num} dimensions",
        "beside": beside,
        "is_lost": not beside,
        "squeezed": squeezed,
        "is_joined": is_joined,
        "may_lack_batch": is_sample and not (is_joined or squeezed or beside),
    }


def _ordered(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The order that brings the last dimension to its place, where it was that which was named."""
    given, wanted = int(found["given"]), int(found["wanted"])
    frame, node = failure.user, None if failure.user is None else failure.user.expression
    args = node.args if isinstance(node, ast.Call) else []
    values = [frame.value_of(one) for one in args] if frame is not None else []
    values = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    is_named = sorted(one for one in values if type(one) is int) == list(range(wanted))
    moved = [*range(wanted - 1)]
    at = values.index(wanted - 1) if is_named else -1
    moved.insert(at, wanted - 1)
    order = list(range(given - 1))
    # Channels come first in a picture without a batch; in a batch they follow it.
    order.insert(0 if given == 3 else at if given < wanted else at + 1, given - 1)
    is_last = is_named and values == moved and at < wanted - 1 and 2 < given < 7
    value = failure.argument().value
    sizes = list(value.shape) if isinstance(value, Tensor) else [0]
    first = 0 if given == 3 else 1
    is_done = is_last and sizes[-1] > 4 >= sizes[first % len(sizes)]
    is_last = is_last and not is_done
    return {
        "is_done": is_done,
        "first": first,
        "is_less": given + 1 == wanted and given > 2,
        "is_plain": given + 1 == wanted == 3,
        "order": ", ".join(map(str, order)) if is_last and abs(given - wanted) == 1 else "",
    }


def _asked(failure: Failure) -> list[int]:
    """Return how many dimensions a call needs that names several, as ``(2, 3)`` of a mean."""
    node = _call(failure)
    found = []
    for part in ast.walk(node) if isinstance(node, ast.Call) else ():
        if isinstance(part, ast.Tuple | ast.List):
            found += [one.value for one in part.elts if isinstance(one, ast.Constant)]
    return [one + 1 for one in found if type(one) is int]


def _call(failure: Failure) -> ast.AST | None:
    """Return the expression of the operation, where the source tells."""
    if not failure.operands:
        return None
    return failure.frames[failure.operands[0].depth].expression


SITUATIONS: dict[str, Situation] = {
    "no such dimension": SituationRow(
        "Dimension {dim} was asked of {name}, which has {count}, counted from 0.",
        ("beside", "{beside}"),
        ("squeezed", "{squeezed}"),
        (
            "is_joined",
            "If the vectors are to stand side by side as columns: torch.stack([...], 1); if one "
            "behind the other: torch.cat([...], 0).",
        ),
        (
            "may_lack_batch",
            "If {name} is one sample without its batch, give it a batch of one: "
            "{name_it}.unsqueeze(0).",
        ),
        (
            "is_lost",
            "If it lost a dimension before, keep it there: keepdim=True of a reduction, x[:1] for "
            "x[0], no squeeze().",
        ),
        "If it has all its dimensions, give one that is there: {low} to {high}; -1 is the last.",
        facts=_dimension,
    ),
    "dimensions of a permutation": SituationRow(
        "{name} has {given} dimensions, and {wanted} were given an order.",
        (
            "order",
            "If its {given} dimensions are right, and the channels stand last, name those: "
            "{name_it}.permute({order}).",
        ),
        (
            "is_done",
            "Its shape is {looks}: if dimension {first} holds the channels already, leave the "
            "permutation out.",
        ),
        ("is_plain", "If it is a grey picture, give it its channel: {name_it}.unsqueeze(-1)."),
        ("is_less", "If it lacks one, as of a batch, give it before: {name_it}.unsqueeze(0)."),
        "Name every dimension of it once, {given} of them.",
        about="argument",
        facts=_ordered,
    ),
    "transpose of many": SituationRow(
        "t() turns matrices round, and {name} has {given} dimensions.",
        "Turn the last two dimensions round: {name_it}.mT; others by {name_it}.transpose(0, 1).",
        about="argument",
    ),
    "few dimensions of a matrix": SituationRow(
        "{op} takes matrices, and {name} is {looks}.",
        "Give it two dimensions at least: {name_it}.diag() for a diagonal matrix of a vector.",
        about="argument",
    ),
    "nothing to reduce": SituationRow(
        "{name} has no elements, and {op} of none is not defined.",
        "Leave out what is empty: if {name_it}.numel() > 0.",
        "Find why it is empty: a mask that is True nowhere, or a filter that leaves nothing.",
        about="argument",
    ),
}
