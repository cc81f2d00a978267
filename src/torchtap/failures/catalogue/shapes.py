"""Shapes that do not fit: broadcasting, concatenation, views, dimensions."""

from __future__ import annotations

import re

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import shape_of


def _broadcast(failure: Failure, found: re.Match[str]) -> Explanation:
    chosen = failure.pair
    names = [failure.name_of(one) for one in chosen]
    a, b = (names + ["the first", "the second"][len(names) :])[:2]
    shapes = " and ".join(filter(None, (shape_of(one.value) for one in chosen)))
    ways = [
        f"Make what produces {a} or {b} give both one size there, or size 1, which is repeated."
    ]
    if chosen and all(isinstance(one.value, Tensor) for one in chosen) and len(chosen) == 2:
        dims = chosen[0].value.dim(), chosen[1].value.dim()
        if dims[0] != dims[1]:
            low = a if dims[0] < dims[1] else b
            ways.insert(
                0, f"Say where the missing dimension is: {low}.unsqueeze(-1), or {low}[:, None]."
            )
        elif chosen[0].value.numel() == chosen[1].value.numel():
            ways.insert(0, f"Bring them into one order: {b}.mT, or {b}.reshape({a}.shape).")
    return Explanation(
        f"{a} and {b} have {found['a']} and {found['b']} elements in dimension {found['dim']} of "
        f"the result, and only a size of 1 is repeated{f' ({shapes})' if shapes else ''}.",
        tuple(ways),
        failure.details(),
    )


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
    name = "the other" if other is None else failure.name_of(other)
    way = "unsqueeze(-1)" if given < wanted else f"flatten({wanted - 1})"
    return Explanation(
        f"Tensors that are concatenated have one number of dimensions; these have {wanted} and "
        f"{given} ({name}).",
        (f"Give it as many: {name}.{way}.",),
        failure.details(),
    )


def _stack(failure: Failure, found: re.Match[str]) -> Explanation:
    if "collate" in failure.text or any("collate" in one.file for one in failure.frames):
        return Explanation(
            f"The samples of a batch have different shapes: {found['wanted']} at 0 and "
            f"{found['given']} at {found['at']}, and the DataLoader stacks them.",
            (
                "Give collate_fn to the DataLoader: one that pads, such as "
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
    name = "x" if operand is None else failure.name_of(operand)
    value = None if operand is None else operand.value
    given = shape_of(value)
    ways = ["Let one dimension be computed: -1 in its place, and check that the others divide."]
    sizes = [int(one) for one in re.findall(r"-?\d+", found["shape"])]
    if isinstance(value, Tensor) and value.dim() > 1 and -1 in sizes:
        ways = [
            f"Keep the batch and flatten the rest: {name}.flatten(1); then fit what follows to it."
        ]
    elif isinstance(value, Tensor) and value.dim() > 1:
        ways.insert(0, f"Keep the batch: {name}.flatten(1), or {name}.view({name}.size(0), -1).")
    return Explanation(
        f"{name} ({f'{given}, ' if given else ''}{found['numel']} elements) cannot take the shape "
        f"{found['shape']}.",
        tuple(ways),
        failure.details(operand),
    )


def _strides(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = "x" if operand is None else failure.name_of(operand)
    stride = ""
    if operand is not None and isinstance(operand.value, Tensor):
        stride = f" (stride {tuple(operand.value.stride())})"
    return Explanation(
        f"{name} does not lie in memory in the order of its dimensions{stride}, after a transpose, "
        f"permute or slice, so that no view of this shape exists.",
        (
            f"Copy if necessary: {name}.reshape(...) in place of view.",
            f"Copy first: {name}.contiguous().view(...).",
        ),
        failure.details(operand),
    )


def _expand(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = "x" if operand is None else failure.name_of(operand)
    return Explanation(
        f"{name} has {found['given']} in dimension {found['dim']}, which was to be "
        f"{found['wanted']}: expand repeats a size of 1 alone.",
        (
            f"Give a size that is there, or -1 to keep it: {name}.expand(-1, ...).",
            f"Copy it several times: {name}.repeat(...), or repeat_interleave.",
        ),
        failure.details(operand),
    )


def _dimension(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = "x" if operand is None else failure.name_of(operand)
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
