"""Dimensions that a tensor does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.situation_row import Situation, SituationRow


def _dimension(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand, value = failure.argument(), failure.argument().value
    dim = int(found["dim"])
    wanted = dim + 1 if dim >= 0 else -dim
    num = value.dim() if isinstance(value, Tensor) else int(found["high"]) + 1
    called = getattr(getattr(_call(failure), "func", None), "attr", "")
    squeezed = kept_dimension(failure, operand, wanted)
    is_joined = called in ("cat", "concat", "concatenate") and num == 1
    return {
        "num": num,
        "squeezed": squeezed,
        "is_joined": is_joined,
        "may_lack_batch": num + 1 == wanted and not is_joined and not squeezed,
    }


def _call(failure: Failure) -> ast.AST | None:
    """Return the expression of the operation, where the source tells."""
    if not failure.operands:
        return None
    return failure.frames[failure.operands[0].depth].expression


SITUATIONS: dict[str, Situation] = {
    "no such dimension": SituationRow(
        "Dimension {dim} was asked of {name}, which has {num} dimensions, counted from 0.",
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
        "If it lost a dimension before, keep it there: keepdim=True of a reduction, x[:1] for "
        "x[0], no squeeze().",
        "If it has all its dimensions, give one that is there: {low} to {high}; -1 is the last.",
        about="argument",
        facts=_dimension,
    ),
    "dimensions of a permutation": SituationRow(
        "{name} has {given} dimensions, and {wanted} were given an order.",
        ("is_less", "Give {name} the dimension that it lacks before: {name_it}.unsqueeze(-1)."),
        "Name every dimension of it once, {given} of them.",
        about="argument",
        facts=lambda failure, found: {"is_less": int(found["given"]) + 1 == int(found["wanted"])},
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
