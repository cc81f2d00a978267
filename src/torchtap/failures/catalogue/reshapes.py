"""Views and reshapes: sizes of another product, and memory in another order."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.linear_inputs import other_pictures
from torchtap.failures.operands import Operand, shape_text
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
    is_first = getattr(failure.module, "batch_first", None)
    if is_first is None or query.dim() != 3 or query.shape[1] == key.shape[1]:
        return None
    if is_first:  # PyTorch's function has turned them: the batch stands in dimension 1 there.
        return _of_batches_first(failure, query, key)
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


def _of_batches_first(failure: Failure, query: Tensor, key: Tensor) -> Explanation:
    """The explanation, where query and key have other batches, which stand first in both."""
    batches, length = (query.shape[1], key.shape[1]), key.shape[0]
    turned = "If key and value stand as [time, batch, features], turn them: key.transpose(0, 1)."
    return Explanation(
        f"{failure.module_text} takes [batch, time, features], and the batch is {batches[0]} in "
        f"the query and {batches[1]} in the key.",
        (
            *((turned,) if length == batches[0] else ()),
            "Give query, key and value of one batch, in the order of its samples.",
        ),
        failure.details(),
    )


def _reshape(failure: Failure, found: re.Match[str]) -> Explanation:
    attention = _of_attention(failure)
    if attention is not None:
        return attention
    operand = failure.argument()
    name, given = failure.name_of(operand), shape_text(operand.value)
    sizes = [int(one) for one in re.findall(r"-?\d+", found["shape"])]
    ways = [*_chosen_elements(failure, operand)]
    ways += _ways_to_reshape(name, operand.value, sizes, int(found["numel"]))
    return Explanation(
        f"{name} ({f'{given}, ' if given else ''}{found['numel']} elements) cannot take the shape "
        f"{found['shape']}.",
        tuple(ways),
        failure.details(operand),
    )


def _chosen_elements(failure: Failure, operand: Operand) -> Iterator[str]:
    """Yield the way out where a mask chose the elements, of each row another number."""
    frame = failure.user
    try:
        parts = list(ast.walk(ast.parse(failure.name_of(operand), mode="eval")))
    except (SyntaxError, ValueError):
        return
    for part in parts if frame is not None else ():
        mask = frame.value_of(part.slice) if isinstance(part, ast.Subscript) and frame else None
        if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.dim() > 1:
            counts = sorted({int(one) for one in mask.flatten(1).sum(1)}) if mask.numel() else []
            if len(counts) > 1 and isinstance(part, ast.Subscript):
                whole, chosen = ast.unparse(part.value), ast.unparse(part.slice)
                yield (
                    f"The rows of {chosen} choose from {counts[0]} to {counts[-1]} elements: if "
                    f"the shape is to stay, fill the others, {grouped(whole)}.masked_fill("
                    f"~{grouped(chosen)}, ...); if rows are compared, take them one by one."
                )
            return


def _ways_to_reshape(name: str, value: object, sizes: list[int], numel: int) -> Iterator[str]:
    """Yield the ways out of a shape with another number of elements."""
    it = grouped(name)
    shape = list(value.shape) if isinstance(value, Tensor) else []
    known = math.prod(one for one in sizes if one != -1)
    ones = len(sizes) - len(shape)
    if len(shape) > 1 and len(sizes) == 2 and sizes[0] in (-1, shape[0]):
        flat = math.prod(shape[1:])
        yield (
            f"If each of the {shape[0]} in dimension 0 is to give one row, flatten it: "
            f"{it}.flatten(1); its rows have {flat} elements, which the layer behind it is to take "
            f"in place of {sizes[1]}."
        )
        yield from other_pictures(shape, sizes[1])
    for at, size in _one_other_size(shape, sizes, numel):
        new = ", ".join("-1" if n == at else str(one) for n, one in enumerate(sizes))
        last = (
            ""
            if at
            else (" A last batch may be smaller: drop_last=True of the DataLoader leaves it out.")
        )
        yield (
            f"If the other sizes are right, dimension {at} is {size} here and not {sizes[at]}: "
            f"take it from the input, or let it be computed, {it}.view({new}).{last}"
        )
    yield from _parts_that_are_known(it, shape, sizes)
    if shape and ones > 0 and sizes[:ones] == [1] * ones and -1 not in sizes:
        added = ", ".join(["None"] * ones)
        yield f"If dimensions of one are to be put in front, keep its own sizes: {it}[{added}]."
    same = _same_in_front(shape, sizes)
    if -1 in sizes:
        yield (
            f"Give sizes that {numel} can be divided by: -1 stands for what is left, and {numel} "
            f"is no multiple of {known}."
        )
    elif 0 < same < len(shape):
        rest, wanted = math.prod(shape[same:]), math.prod(sizes[same:])
        yield (
            f"Give sizes whose product is {numel}: behind the first {same} there are {rest}, and "
            f"the sizes there make {wanted}."
        )
    else:
        yield f"Give sizes whose product is {numel}; it is {known}."


def _parts_that_are_known(it: str, shape: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    """Yield the ways out by what the dimensions of a shape often are: groups, places, heads."""
    if len(sizes) == len(shape) + 1 > 2 and sizes[0] == -1 and list(sizes[2:]) == list(shape[1:]):
        yield (
            f"If {sizes[1]} of dimension 0 belong together, {shape[0]} is no multiple of that: "
            "fill up the samples that have fewer, or leave out a last batch that is not whole, "
            "drop_last=True of the DataLoader."
        )
    places = math.prod(sizes[1:-1]) if len(sizes) == 4 else 0
    if len(shape) == 3 and places and shape[-1] == sizes[-1]:
        yield from _places_of_a_map(it, shape[1], sizes[1:3], str(list(sizes))[1:-1])
    same = _same_in_front(shape, sizes)
    rest, behind = shape[same:], sizes[same:]
    if len(rest) == len(behind) == 2 and -1 not in sizes and len(shape) > 3:
        yield (
            f"If the last two are the sides of pictures, take them from the input, {it}.shape[-2:],"
            f" which are {rest[0]} and {rest[1]}; or resize the pictures to those that give "
            f"{behind[0]} and {behind[1]}."
        )
    elif len(rest) == 1 and len(behind) == 2 and -1 not in behind and same:
        whole = rest[0]
        fitting = [one for one in behind if whole % one == 0]
        yield (
            f"If dimension {same}, of {whole}, is shared out among heads or groups, "
            + (
                f"{fitting[0]} of them have {whole // fitting[0]} each."
                if fitting
                else f"choose a number of them that divides {whole}."
            )
        )


def _same_in_front(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many sizes in front are the same in both."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _places_of_a_map(it: str, length: int, sides: Sequence[int], sizes: str) -> Iterator[str]:
    """Yield the ways out where a row of places is to become a map of two sides."""
    places, side = math.prod(sides), math.isqrt(length)
    if length - 1 == places:
        yield (
            "If the first place is a token of its own, as of the class, leave it out: "
            f"{it}[:, 1:].reshape({sizes})."
        )
    elif side * side == length:
        yield (
            f"If the {length} places are those of a square map, its sides are {side}, and not "
            f"{sides[0]} and {sides[1]}: take them from what made the places."
        )


def _one_other_size(
    shape: Sequence[int], sizes: Sequence[int], numel: int
) -> list[tuple[int, int]]:
    """Return the sizes that alone could be others, and what they are: dimension and size.

    Left out is what would join a part of one dimension to a part of another: -1 in its place would
    run, and mix them.
    """
    if -1 in sizes:
        return []
    fitting = []
    for at in range(len(sizes)):
        others = math.prod(sizes[:at]) * math.prod(sizes[at + 1 :])
        if others and numel % others == 0:
            new = [*sizes[:at], numel // others, *sizes[at + 1 :]]
            is_there = at == 0 or not shape or new[at] in shape
            if is_there and not (shape and _mixes(shape, new)):
                fitting.append((at, numel // others))
    return fitting[:2]


def _mixes(shape: Sequence[int], new: Sequence[int]) -> bool:
    """Return whether a reshape both splits and joins dimensions in one place."""
    ends = [set(itertools.accumulate(one, lambda a, b: a * b)) for one in (shape, new)]
    both = sorted(ends[0] & ends[1])
    for low, high in itertools.pairwise([1, *both]):
        if all(any(low < end < high for end in one) for one in ends):
            return True
    return False


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
