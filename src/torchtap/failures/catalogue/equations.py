"""Products of vectors, einsum, distances and systems of equations."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import (
    Operand,
    shape_text,
)
from torchtap.failures.parsed_source import written
from torchtap.failures.rearrangements import broadcasts
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING


def _letters(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    at = int(found["at"])
    tensors = failure.tensors
    operand = tensors[at] if at < len(tensors) else Operand(f"operand {at}")
    wanted = int(found["letters"])
    return {
        "name": failure.name_of(operand) if at < len(tensors) else operand.text,
        "squeezed": kept_dimension(failure, operand, wanted),
        "is_more": wanted > int(found["dims"]),
    }


def _pair(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.tensors[:2]]
    names += ["a", "b"][len(names) :]
    shapes = " and ".join(shape_text(one.value) for one in failure.tensors[:2])
    sizes = [list(one.value.shape) for one in failure.tensors[:2]]
    is_pair = len(sizes) == 2 and min(map(len, sizes)) > 1
    return {
        "a_name": names[0],
        "b_name": names[1],
        "shapes": shapes,
        "is_equal": len(sizes) == 2 and max(map(len, sizes)) > 1 and broadcasts(*sizes),
        "fits": not is_pair or sizes[0][-1] == sizes[1][-2],
        "fits_turned": is_pair and sizes[0][-1] == sizes[1][-1] != sizes[1][-2],
    }


def _bilinear(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say how the two inputs of a bilinear layer differ from what it takes."""
    one, other = (failure.operand(name) for name in ("input1", "input2"))
    sizes = [list(held.value.shape) for held in (one, other) if isinstance(held.value, Tensor)]
    wanted = [vars(failure.module or nn.Module()).get(f"in{at}_features", "?") for at in (1, 2)]
    words: dict[str, Any] = dict.fromkeys(("exchanged", "is_batch", "is_less", "is_width"), "")
    words |= {"first": wanted[0], "second": wanted[1], "shapes": "others", "made": ""}
    if len(sizes) != 2 or not all(sizes):
        return words
    a, b = failure.name_of(one), failure.name_of(other)
    lasts = [size[-1] for size in sizes]
    low, high = (a, b) if len(sizes[0]) < len(sizes[1]) else (b, a)
    return {
        **words,
        "shapes": f"{sizes[0]} and {sizes[1]}",
        "exchanged": f"({b}, {a})" if lasts == wanted[::-1] != wanted else "",
        "is_batch": lasts == wanted and len(sizes[0]) == len(sizes[1]),
        "is_less": len(sizes[0]) != len(sizes[1]),
        "less": low,
        "more": high,
        "is_width": lasts not in (wanted, wanted[::-1]),
        "made": f"nn.Bilinear({lasts[0]}, {lasts[1]}, ...)",
    }


def _product(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    if not isinstance(node, ast.BinOp):
        return {"way": "a * b"}
    return {"way": f"{written(node.left)} * {written(node.right)}"}


def _equation(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.tensors[:2]]
    return {"a_name": names[0] if names else "A", "b_name": names[1] if names[1:] else "B"}


def _einsum(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    equation: Any = MISSING
    if frame is not None and isinstance(node, ast.Call) and node.args:
        equation = frame.value_of(node.args[0])
    text = equation if isinstance(equation, str) else ""
    inputs = text.partition("->")[0].split(",") if text else []
    return {"equation": repr(text) if text else "The equation", "count": len(inputs) or "others"}


SITUATIONS: dict[str, Situation] = {
    "vectors alone": SituationRow(
        "torch.dot takes two vectors, and got tensors of {given} and {other} dimensions.",
        (
            "is_equal",
            "For one dot product for each row: ({a_name_it} * {b_name_it}).sum(-1).",
        ),
        ("fits", "For a product of matrices: {a_name_it} @ {b_name_it}."),
        (
            "fits_turned",
            "For the dot product of each row with every row: {a_name_it} @ {b_name_it}.mT.",
        ),
        about="tensors",
        facts=_pair,
    ),
    "inputs of a bilinear layer": SituationRow(
        "{module} takes {first} features of its first input and {second} of its second, in the "
        "last dimension, with equal dimensions before it, and got {shapes}.",
        ("exchanged", "If they were given in the other order: {exchanged}."),
        ("is_batch", "Give both the same batch: all dimensions but the last have to be equal."),
        ("is_less", "Give {less} the dimension that it lacks, repeated as in {more}."),
        ("is_width", "If these widths are right, make it take them: {variable} = {made}."),
        about="tensors",
        facts=_bilinear,
    ),
    "columns of distances": SituationRow(
        "torch.cdist measures between points of one number of coordinates, the last dimension, and "
        "got {a} and {b}.",
        "Give both the same coordinates: check which dimension of {a_name} and {b_name} they are, "
        "and bring it to the end with .mT.",
        about="tensors",
        facts=_pair,
    ),
    "rows of distances": SituationRow(
        "torch.cdist takes sets of points, [points, coordinates], and {which} has {given} "
        "dimension.",
        "If it is one point: {name_it}[None, :]. If it holds points of one coordinate: "
        "{name_it}[:, None].",
        about="tensors",
    ),
    "product of numbers": SituationRow(
        "@ is the product of matrices and vectors, and one side is a number.",
        "Multiply with *: {way}.",
        about="tensors",
        facts=_product,
    ),
    "sizes of an equation": SituationRow(
        "The right side has to have as many rows as the matrix, and they are {a} and {b}.",
        "Give a right side of that many rows: check whether {b_name} is to be turned round, "
        "{b_name_it}.mT.",
        about="tensors",
        facts=_equation,
    ),
    "dtypes of an equation": SituationRow(
        "Both sides have one dtype, and hold {a_dtype} and {b_dtype}.",
        "Convert the right side: {b_name_it}.to({a_name_it}.dtype).",
        about="tensors",
        facts=_equation,
    ),
    "letters of an einsum": SituationRow(
        "The equation has {letters} letters for {name}, which has {dims} dimensions.",
        ("squeezed", "{squeezed}"),
        "Write one letter for each dimension of it, or ... for those that only go along.",
        (
            "is_more",
            "If a dimension is missing, make it first: {name_it}.unsqueeze(0) for a batch of one, "
            "{name_it}.unflatten(-1, (heads, -1)) for heads.",
        ),
        about="tensors",
        facts=_letters,
    ),
    "operands of an einsum": SituationRow(
        "{equation} is for {count} operands, and {what} were given.",
        "Give one operand for each group of letters, with commas between them.",
        facts=_einsum,
        about="tensors",
    ),
    "output of an einsum": SituationRow(
        "The letter {letter!r} stands behind the arrow and in none of the operands.",
        "Use a letter of an operand, or leave it out; a dimension of one is made by unsqueeze.",
        about="tensors",
    ),
    "sign of an einsum": SituationRow(
        "{equation} has something else than a letter in place {at}.",
        "Write one letter for each dimension, a to z or A to Z, and ... for several.",
        facts=_einsum,
    ),
}
