"""Losses that got the wrong kind of target."""

from __future__ import annotations

import re

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand, bounds_of, dtype_word, shape_of
from torchtap.failures.source import grouped


def _pair(failure: Failure) -> tuple[Operand | None, Operand | None, str, str]:
    """Input and target of the loss, and what the program calls them."""
    given, target = failure.operand("input"), failure.operand("target")
    names = [
        word if one is None else failure.name_of(one)
        for one, word in ((given, "the input"), (target, "the target"))
    ]
    return given, target, names[0], names[1]


def _details(failure: Failure, *chosen: Operand | None) -> tuple[tuple[str, str], ...]:
    return failure.details(*[one for one in chosen if one is not None and one.value is not None])


def _classes(given: Operand | None) -> int | None:
    if given is None or not isinstance(given.value, Tensor) or not given.value.dim():
        return None
    return int(given.value.shape[1 if given.value.dim() > 1 else 0])


def _dtype(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, _, name = _pair(failure)
    kind = dtype_word(found["given"] or found["other"])
    return Explanation(
        f"The loss takes class numbers (int64) as its target, and {name} holds {kind}.",
        (
            f"Convert it, if it holds class numbers: {grouped(name)}.long().",
            "For class probabilities, give a target of the shape of the input to "
            "F.cross_entropy; for a regression, use F.mse_loss.",
        ),
        _details(failure, target, given),
    )


def _column(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, _, name = _pair(failure)
    value = None if target is None else target.value
    is_column = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1
    way = (
        f"Take the column out: {grouped(name)}.squeeze(1)."
        if is_column
        else f"{grouped(name)}.argmax(1)."
    )
    ways = [way] if is_column else [f"Take class numbers of a one-hot target: {way}"]
    if not is_column:
        ways.append(
            "For probabilities of each class, give floats of the shape of the input: "
            f"{grouped(name)}.float()."
        )
    return Explanation(
        f"The loss takes one class number per row, int64[batch], and {name} is {shape_of(value)}.",
        tuple(ways),
        _details(failure, target, given),
    )


def _range(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    num = _classes(given)
    value = int(found["value"])
    known = "" if num is None else f" from 0 to {num - 1}"
    span = None if target is None else bounds_of(target.value)
    high = value if span is None else max(value, int(span[1]))
    ways = [f"Make the last layer give {high + 1} classes or more, if {value} is a class."]
    if num is not None and value == num and span is not None and span[0] >= 1:
        ways.insert(0, f"Count the classes from 0: {grouped(name)} - 1.")
    if value < 0:
        ways = []
    ways.append(f"Leave such rows out: ignore_index={value}, if it stands for no class.")
    return Explanation(
        f"{name} has the class {value}, and {source} has {num} classes{known}.",
        tuple(ways),
        _details(failure, target, given),
    )


def _batch(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    ways = ["Give input and target of one batch: the same rows, in the same order."]
    value = None if given is None else given.value
    if isinstance(value, Tensor) and value.dim() == 3:
        flat = f"{grouped(source)}.flatten(0, 1) against {grouped(name)}.flatten()"
        ways.insert(0, f"Flatten both over time: {flat}.")
    if int(found["wanted"]) and int(found["given"]) % int(found["wanted"]) == 0:
        ways.append(f"Keep the batch where {source} was reshaped: flatten(1), and not view(-1, n).")
    return Explanation(
        f"{source} has {found['given']} rows and {name} has {found['wanted']}.",
        tuple(ways),
        _details(failure, given, target),
    )


def _one_hot(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, _, name = _pair(failure)
    return Explanation(
        f"{name} has the shape of the input, so the loss reads it as class probabilities, which "
        f"are floats; it holds {dtype_word(found['given'])}.",
        (
            f"Give class numbers: {grouped(name)}.argmax(1).",
            f"Give floats: {grouped(name)}.float().",
        ),
        _details(failure, target, given),
    )


def _size(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    return Explanation(
        f"The loss takes the classes of {source} in dimension 1, so a target of "
        f"{found['wanted']}, and {name} is {found['given']}.",
        (
            f"Move the classes behind the batch: {grouped(source)}.movedim(-1, 1).",
            f"Flatten both: {grouped(source)}.flatten(0, -2) against {grouped(name)}.flatten().",
        ),
        _details(failure, given, target),
    )


def _binary_dtype(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, _, name = _pair(failure)
    return Explanation(
        f"The loss takes a target of {dtype_word(found['wanted'])}, and {name} holds "
        f"{dtype_word(found['given'])}.",
        (f"Convert it: {grouped(name)}.to(torch.float32), or to the dtype of the input.",),
        _details(failure, target, given),
    )


def _binary_size(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    a, b = given and given.value, target and target.value
    ways = ["Give a target of the shape of the input: one number for each output."]
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.numel() == b.numel():
        ways = [f"Bring them to one shape: {grouped(name)}.view_as({source})."]
        if a.dim() == 2 and a.shape[1] == 1 and b.dim() == 1:
            ways.append(f"Take the column out: {grouped(source)}.squeeze(1).")
    return Explanation(
        f"The loss takes one target per element, and {name} is {found['target']} for {source} of "
        f"{found['input']}.",
        tuple(ways),
        _details(failure, given, target),
    )


def _probabilities(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    wrong, which = (target, name) if found["which"] == "target" else (given, source)
    value = None if wrong is None else wrong.value
    span = bounds_of(value)
    bounds = "" if span is None else f", from {span[0]:.4g} to {span[1]:.4g}"
    ways = (
        "Give logits to F.binary_cross_entropy_with_logits, or nn.BCEWithLogitsLoss, with "
        f"{which} as it is.",
        f"Make probabilities of them: {grouped(which)}.sigmoid().",
    )
    if found["which"] == "target":
        it = grouped(which)
        ways = (f"Give 0 and 1, or shares between: {it}.clamp(0, 1), {it} / 255.", ways[1])
    return Explanation(
        f"The loss takes probabilities, and {which} has values outside of 0 to 1{bounds}.",
        ways,
        _details(failure, wrong),
    )


SITUATIONS = {
    "class dtype": _dtype,
    "class column": _column,
    "class range": _range,
    "batch of a loss": _batch,
    "one-hot of integers": _one_hot,
    "target of another size": _size,
    "binary dtype": _binary_dtype,
    "binary size": _binary_size,
    "probabilities": _probabilities,
}
