"""Shapes that do not fit: broadcasting, concatenation, views, dimensions."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Sequence

from torch import Tensor

from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.operands import Operand, shape_of
from torchtap.failures.source import grouped


def _broadcast(failure: Failure, found: re.Match[str]) -> Explanation:
    chosen = _disagreeing(failure, found)
    sizes = (
        f"{found['a']} and {found['b']} elements in dimension {found['dim']} of the result, and "
        f"only a size of 1 is repeated"
    )
    if not chosen:
        return Explanation(
            f"Two of the operands have {sizes}.",
            ("Give all operands one size there, or size 1, which is repeated.",),
            failure.details(),
        )
    a, b = (failure.name_of(one) for one in chosen)
    shapes = " and ".join(filter(None, (shape_of(one.value) for one in chosen)))
    ways = [
        f"Make what produces {a} or {b} give both one size there, or size 1, which is repeated."
    ]
    if all(isinstance(one.value, Tensor) for one in chosen):
        ways = [*_fitting(a, b, chosen[0].value, chosen[1].value), *ways]
    return Explanation(
        f"{a} and {b} have {sizes}{f' ({shapes})' if shapes else ''}.",
        tuple(ways),
        failure.details(),
    )


def _disagreeing(failure: Failure, found: re.Match[str]) -> list[Operand]:
    """The two operands of the two sizes, in the order of the message; none if that is not sure."""
    sizes, dim = (int(found["a"]), int(found["b"])), int(found["dim"])
    num = max((one.value.dim() for one in failure.tensors), default=0)

    def size(one: Operand) -> int | None:
        at = dim - (num - one.value.dim())
        return one.value.shape[at] if 0 <= at < one.value.dim() else None

    pairs = itertools.permutations(failure.tensors, 2)
    fitting = [list(pair) for pair in pairs if tuple(map(size, pair)) == sizes]
    if len(fitting) == 1:
        return fitting[0]
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    is_pair = isinstance(node, ast.BinOp | ast.AugAssign) and len(failure.operands) == 2
    is_known = len(failure.tensors) == 2 and not fitting
    return list(failure.operands) if is_pair and not is_known else []


def _fitting(a: str, b: str, one: Tensor, other: Tensor) -> Iterator[str]:
    """Yield the ways to make two tensors fit each other."""
    if one.dim() != other.dim():
        low, name = (one, a) if one.dim() < other.dim() else (other, b)
        high = other if low is one else one
        if _broadcasts((*low.shape, 1), high.shape):
            it = grouped(name)
            yield f"Say where the missing dimension is: {it}.unsqueeze(-1), or {it}[..., None]."
    elif one.dim() > 1 and one.shape == other.mT.shape:
        yield f"Bring them into one order: {grouped(b)}.mT."
    elif one.numel() == other.numel():
        reshaped = f"{grouped(b)}.reshape({grouped(a)}.shape)"
        yield f"Bring them to one shape, if the order is the same: {reshaped}."


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    ends = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in ends)


def _concatenation(failure: Failure, found: re.Match[str]) -> Explanation:
    tensors = failure.operands
    at = int(found["at"])
    first = failure.name_of(tensors[0]) if tensors else "the first"
    other = failure.name_of(tensors[at]) if at < len(tensors) else f"tensor {at}"
    return Explanation(
        f"{other} has {found['given']} where {first} has {found['wanted']}, in a dimension other "
        f"than {found['dim']}, along which they are concatenated.",
        (
            f"Make what produces {other} give {found['wanted']} there (padding, stride, "
            "interpolate), or cut it.",
            "Concatenate along the dimension in which they differ: dim=...",
        ),
        failure.details(),
    )


def _concatenation_dims(failure: Failure, found: re.Match[str]) -> Explanation:
    wanted, given = int(found["wanted"]), int(found["given"])
    other = next((one for one in failure.tensors if one.value.dim() == given), None)
    name = "" if other is None else failure.name_of(other)
    return Explanation(
        f"Tensors that are concatenated have one number of dimensions; these have {wanted} and "
        f"{given}{f' ({name})' if name else ''}.",
        (_dims_given(failure, wanted, given) or "Give all of them one number of dimensions.",),
        failure.details(),
    )


def _dims_given(failure: Failure, *dims: int) -> str:
    """Return how the tensor with fewer dimensions can stand beside the other; empty if unknown."""
    low = next((one for one in failure.tensors if one.value.dim() == min(dims)), None)
    high = next((one for one in failure.tensors if one.value.dim() == max(dims)), None)
    along = _dim_given(failure)
    if low is None or high is None or along is None or max(dims) - min(dims) != 1:
        return ""
    name, here, there = failure.name_of(low), list(low.value.shape), list(high.value.shape)
    along %= len(there)
    for is_repeated in (False, True):
        for at in range(len(there)):
            new = [*here[:at], 1, *here[at:]]
            differs = [one for one in range(len(new)) if one != along and new[one] != there[one]]
            if not differs and not is_repeated:
                return f"Give {name} the dimension that it lacks: {grouped(name)}.unsqueeze({at})."
            if differs == [at] and is_repeated:
                sizes = ", ".join(str(there[one]) if one == at else "-1" for one in range(len(new)))
                text = f"{grouped(name)}.unsqueeze({at}).expand({sizes})"
                return f"Repeat {name} along the dimension that it lacks: {text}."
    return ""


def _dim_given(failure: Failure) -> int | None:
    """The dimension along which tensors are concatenated, where the call tells."""
    if not failure.operands:
        return None
    frame = failure.frames[failure.operands[0].depth]
    node = frame.expression
    if not isinstance(node, ast.Call):
        return None
    given = [one.value for one in node.keywords if one.arg in ("dim", "axis")]
    value = frame.value_of(given[0] if given else node.args[1]) if given or node.args[1:] else 0
    return value if type(value) is int else None


def _stack(failure: Failure, found: re.Match[str]) -> Explanation:
    if "collate" in failure.text or any("collat" in one.file for one in failure.frames):
        return Explanation(
            f"The samples of a batch have different shapes: {found['wanted']} at 0 and "
            f"{found['given']} at {found['at']}, and the DataLoader stacks them.",
            (
                "Give collate_fn to the DataLoader (data_collator to a Trainer) that pads: "
                "torch.nn.utils.rnn.pad_sequence(samples, batch_first=True).",
                "Bring all samples to one shape in the data set: crop, resize or pad.",
            ),
        )
    return Explanation(
        f"torch.stack takes tensors of one shape, and got {found['wanted']} at 0 and "
        f"{found['given']} at {found['at']}.",
        (
            "Concatenate them along an existing dimension: torch.cat.",
            "Pad them first: torch.nn.utils.rnn.pad_sequence.",
        ),
        failure.details(),
    )


def _reshape(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    value = None if operand is None else operand.value
    given, it = shape_of(value), grouped(name)
    ways = ["Let one dimension be computed: -1 in its place, and check that the others divide."]
    sizes = [int(one) for one in re.findall(r"-?\d+", found["shape"])]
    if -1 in sizes and not (isinstance(value, Tensor) and value.dim() > 1 and sizes[0] == -1):
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


def _strides(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    stride = ""
    if operand is not None and isinstance(operand.value, Tensor):
        stride = f" (stride {tuple(operand.value.stride())})"
    return Explanation(
        f"{name} does not lie in memory in the order of its dimensions{stride}, after a transpose, "
        f"permute or slice, so that no view of this shape exists.",
        (
            f"Copy if necessary: {grouped(name)}.reshape(...) in place of view.",
            f"Copy first: {grouped(name)}.contiguous().view(...).",
        ),
        failure.details(operand),
    )


def _expand(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    return Explanation(
        f"{name} has {found['given']} in dimension {found['dim']}, which was to be "
        f"{found['wanted']}: expand repeats a size of 1 alone.",
        (
            f"Give a size that is there, or -1 to keep it: {grouped(name)}.expand(-1, ...).",
            f"Copy it several times: {grouped(name)}.repeat(...), or repeat_interleave.",
        ),
        failure.details(operand),
    )


def _dimension(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    value = None if operand is None else operand.value
    num = value.dim() if isinstance(value, Tensor) else int(found["high"]) + 1
    return Explanation(
        f"Dimension {found['dim']} was asked of {name}, which has {num} dimensions, counted from "
        f"0.",
        (
            f"Give a dimension from {found['low']} to {found['high']}; -1 is the last.",
            "Keep the dimension where it was lost: keepdim=True of a reduction, x[:1] for x[0].",
        ),
        failure.details(operand),
    )


SITUATIONS = {
    "broadcast": _broadcast,
    "concatenation": _concatenation,
    "concatenation of dimensions": _concatenation_dims,
    "stack": _stack,
    "reshape": _reshape,
    "view of strides": _strides,
    "expand": _expand,
    "no such dimension": _dimension,
}
