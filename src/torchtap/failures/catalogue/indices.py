"""Indices out of range, and masks that do not fit."""

from __future__ import annotations

import re

from torch import Tensor, nn

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand, bounds_of


def _span(operand: Operand | None) -> str:
    """``from 1 to 9``, of indices that can be read."""
    bounds = None if operand is None else bounds_of(operand.value)
    return "" if bounds is None else f"from {int(bounds[0])} to {int(bounds[1])}"


def _embedding(failure: Failure, found: re.Match[str]) -> Explanation:
    operand, weight = failure.operand("input"), failure.operand("weight")
    name = "x" if operand is None else failure.name_of(operand)
    module = failure.module
    rows = module.num_embeddings if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    if rows is None and weight is not None and isinstance(weight.value, Tensor):
        rows = len(weight.value)
    span = _span(operand)
    short = failure.variable
    high = int(span.rpartition(" ")[2]) + 1 if span else "N"
    table = failure.module_text if isinstance(module, nn.Embedding) else "The table"
    has = f"has {rows} rows, for indices from 0 to {rows - 1}" if rows else "was indexed"
    ways = [f"Give it a row for each: {short} = nn.Embedding({high}, ...)."]
    if span.startswith("from -"):
        ways.insert(0, f"Replace the negative ones, which stand for padding: {name}.clamp(min=0).")
    ways.append("Check the vocabulary of the tokenizer against that of the model.")
    return Explanation(
        f"{table} {has}, and {name} holds indices {span or 'beyond them'}.",
        tuple(ways),
        failure.details(operand),
    )


def _index(failure: Failure, found: re.Match[str]) -> Explanation:
    size, dim, value = int(found["size"]), found["dim"], found["value"]
    tensors = failure.operands
    name = failure.name_of(tensors[0]) if tensors else "the tensor"
    return Explanation(
        f"Index {value} was asked of dimension {dim} of {name}, which has {size} elements there, "
        f"from 0 to {size - 1}.",
        (
            f"Give indices below {size}: .clamp(max={size - 1}), or check where they come from.",
            f"Check that dimension {dim} is the one that is meant.",
        ),
        failure.details(),
    )


def _mask(failure: Failure, found: re.Match[str]) -> Explanation:
    tensors = failure.operands
    name = failure.name_of(tensors[-1]) if tensors else "mask"
    return Explanation(
        f"A mask {found['given']} was used on a tensor {found['wanted']}: a mask stands for the "
        "first dimensions.",
        (
            f"Put it at the dimension that it belongs to: x[:, {name}].",
            f"Make it from the tensor itself: {name} = x > 0.",
        ),
        failure.details(),
    )


def _one_hot(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = "x" if operand is None else failure.name_of(operand)
    span = _span(operand)
    high = int(span.rpartition(" ")[2]) + 1 if span else "N"
    way = f"Give num_classes={high} or more."
    if "negative" in found["what"]:
        way = f"Replace the negative ones first: {name}.clamp(min=0)."
    return Explanation(
        f"one_hot was given class numbers {span} in {name}, and fewer classes.".replace("  ", " "),
        (way, "Count the classes from 0."),
        failure.details(operand),
    )


SITUATIONS = {
    "index of an embedding": _embedding,
    "index": _index,
    "mask": _mask,
    "one-hot range": _one_hot,
}
