"""Indices out of range, and masks that do not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand, bounds_of
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow


def _span(operand: Operand) -> str:
    """``from 1 to 9``, of indices that can be read."""
    bounds = bounds_of(operand.value)
    return "" if bounds is None else f"from {int(bounds[0])} to {int(bounds[1])}"


def _embedding(failure: Failure, found: re.Match[str]) -> Explanation:
    if not any(one.code.co_name.startswith("embedding") for one in failure.frames):
        return _selected(failure)
    operand, weight = failure.operand("input"), failure.operand("weight")
    name = failure.name_of(operand)
    module = failure.module
    rows = module.num_embeddings if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    if rows is None and isinstance(weight.value, Tensor):
        rows = len(weight.value)
    span = _span(operand)
    short = failure.names.variable(failure.module)
    high = int(span.rpartition(" ")[2]) + 1 if span else None
    table = failure.module_text if isinstance(module, nn.Embedding) else "The table"
    has = f"has {rows} rows, for indices from 0 to {rows - 1}" if rows else "was indexed"
    ways = []
    if span.startswith("from -"):
        ways.append(
            f"Replace the negative ones, if they stand for padding: {grouped(name)}.clamp(min=0)."
        )
    if high is None or rows is None or high > rows:
        made = f": {short} = nn.Embedding({high or 'N'}, ...), with the trained rows copied"
        is_module = isinstance(module, nn.Embedding)
        owner = _of_vocabulary(failure, rows, name)
        if owner:
            ways.append(
                "If the tokenizer was given more tokens, give them rows, which keeps those that "
                f"are there: {owner}.resize_token_embeddings({high or 'len(tokenizer)'})."
            )
        else:
            ways.append(f"Give it a row for each{made if is_module else ''}.")
    if rows is not None and "pos" in name:
        ways.append(f"Give shorter sequences: {rows} positions at most (truncation=True).")
    else:
        ways.append("Check the vocabulary of the tokenizer against that of the model.")
    return Explanation(
        f"{table} {has}, and {name} holds indices {span or 'beyond them'}.",
        tuple(ways),
        failure.details(operand),
    )


def _of_vocabulary(failure: Failure, rows: int | None, name: str) -> str:
    """The outermost running model that resizes its tables of tokens, if this may be one."""
    if rows is None or "pos" in name or "pos" in failure.module_text:
        return ""
    for frame in failure.frames:
        model = frame.module
        config = getattr(vars(model).get("config"), "__dict__", {}) if model is not None else {}
        if hasattr(type(model), "resize_token_embeddings") and config.get("vocab_size") == rows:
            return failure.names.variable(model)
    return ""


def _selected(failure: Failure) -> Explanation:
    """Explain ``index_select`` and its like, whose message says neither dimension nor index."""
    name = failure.name_of(failure.operands[0]) if failure.operands else "the tensor"
    whole = (one for one in failure.tensors[1:] if not one.value.is_floating_point())
    index = next(whole, None)
    given = "An index was given" if index is None else f"{failure.name_of(index)} holds an index"
    span = "" if index is None else _span(index)
    return Explanation(
        f"{given} that {name} does not have{f': it goes {span}' if span else ''}.",
        ("Give indices from 0 to the size of that dimension - 1; check where they come from.",),
        failure.details(),
    )


def _index(failure: Failure, found: re.Match[str]) -> Explanation:
    if isinstance(failure.module, nn.LSTM) and failure.frames[-1].file.endswith("rnn.py"):
        return Explanation(
            f"{failure.module_text} has two states, (h, c), and was given one tensor.",
            ("Give both: (h, c), such as (h, torch.zeros_like(h)); or none, if they are zeros.",),
            failure.details(),
        )
    size, value = int(found["size"]), int(found["value"])
    tensors = failure.operands
    name = failure.name_of(tensors[0]) if tensors else "the tensor"
    dim = _dimension(failure, int(found["dim"]), size)
    where = "a dimension" if dim is None else f"dimension {dim}"
    # Of an index in brackets negative ones count from the end; gather and its like take none.
    low = -size if isinstance(failure.frames[-1].expression, ast.Subscript) else 0
    ways = [f"Give indices from {low} to {size - 1}; check where they come from."]
    if dim is not None:
        ways.append(f"Check that dimension {dim} is the one that is meant.")
    if not size:
        ways = ["Check why it is empty, or leave the index out where it is."]
    return Explanation(
        f"Index {value} was asked of {where} of {name}, which has "
        + (f"{size} elements there, from 0 to {size - 1}." if size else "no elements there."),
        tuple(ways),
        failure.details(),
    )


def _dimension(failure: Failure, said: int, size: int) -> int | None:
    """The dimension of the tensor: of several indices, PyTorch counts the indexed ones alone."""
    node = failure.frames[-1].expression
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return said
    value = failure.operands[0].value if failure.operands else None
    shape = value.shape if isinstance(value, Tensor) else ()
    fitting = [at for at, one in enumerate(shape) if one == size]
    return fitting[0] if len(fitting) == 1 else None


def _mask(failure: Failure, found: re.Match[str]) -> Explanation:
    tensors = failure.operands
    name = failure.name_of(tensors[-1]) if tensors else "mask"
    whole = grouped(failure.name_of(tensors[0])) if len(tensors) == 2 else "x"
    mask, shape = (re.findall(r"\d+", found[one]) for one in ("given", "wanted"))
    fitting = [at for at in range(1, len(shape)) if shape[at : at + len(mask)] == mask]
    at = int(found["at"]) - int(found["of"])
    met = shape[at : at + len(mask)]
    where = f"dimensions of its own size, and meets {' x '.join(met)} there"
    where = where if at else "the first dimensions"
    ways = [f"Make it from the tensor itself, so that they have one shape: {whole} > 0."]
    if at and len(met) == len(mask):
        ways = [f"Make {name} of their size, {' x '.join(met)}, where it is made or resized."]
    if fitting:
        there = f"{whole}[{':, ' * fitting[0]}{name}]"
        ways.insert(0, f"Put it at the dimension that it belongs to: {there}.")
    return Explanation(
        f"A mask {found['given']} was used on a tensor {found['wanted']}: a mask stands for "
        f"{where}.",
        tuple(ways),
        failure.details(),
    )


def _picked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which index was given, and whether it picks one element of each row of a matrix."""
    words: dict[str, Any] = {"is_flat": False, "index": "the index", "dim": ""}
    held, *rest = failure.operands or [Operand("")]
    index = next((one for one in rest if isinstance(one.value, Tensor)), None)
    dims = [one.value for one in rest if type(one.value) is int]
    if index is None or len(dims) != 1:
        return words
    # A tensor that the program computes in the same expression is not known, its dim is.
    is_matrix = not isinstance(held.value, Tensor) or held.value.dim() == 2
    is_flat = index.value.dim() == 1 and is_matrix and dims[0] in (1, -1)
    return {"is_flat": is_flat, "index": failure.name_of(index), "dim": dims[0]}


def _written(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The statement that writes, if it is a plain assignment at an index."""
    text = "" if failure.user is None else failure.user.text.partition("#")[0]
    target, _, value = text.partition(" = ")
    name = target.strip().partition("[")[0]
    is_name = all(one.isidentifier() for one in name.split("."))
    is_plain = bool(value) and target.strip().endswith("]") and is_name
    way = f"{target.strip()} = {grouped(value.strip())}.to({name}.dtype)" if is_plain else ""
    return {"is_plain": is_plain, "is_other": not is_plain, "statement": way}


def _one_hot(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name, span = failure.name_of(operand), _span(operand)
    it, high = grouped(name), int(span.rpartition(" ")[2]) if span else None
    what = f"one_hot was given class numbers {span} in {name}".replace("  ", " ")
    said, ways = f"{what}, and fewer classes.", ["Count the classes from 0."]
    ways.insert(0, f"Give num_classes={'N' if high is None else high + 1} or more.")
    if "negative" in found["what"]:
        said = f"{what}, and takes such from 0 on: a negative one stands for no class."
        ways[0] = f"Leave out those that stand for no class: {it}[{it} >= 0], or give them one."
    elif high == 255 and _is_flag(operand.value, high):
        ways.insert(0, f"If {high} is class 1, give its number: one_hot(({it} == {high}).long()).")
    return Explanation(said, tuple(ways), failure.details(operand))


def _is_flag(value: Any, high: int) -> bool:
    """Return whether a tensor of numbers holds 0 and a larger one alone, as a picture of 255."""
    return bool(((value == 0) | (value == high)).all())


SITUATIONS: dict[str, Situation] = {
    "index of an embedding": _embedding,
    "index": _index,
    "mask": _mask,
    "one-hot range": _one_hot,
    "dimensions of an index": SituationRow(
        "gather and scatter take an index with as many dimensions as the tensor, and {index} has "
        "fewer or more.",
        (
            "is_flat",
            "To pick one element of each row, give the index that dimension and take it away "
            "again: gather({dim}, {index_it}.unsqueeze({dim})).squeeze({dim}).",
        ),
        "Give the index every dimension of the tensor; along the gathered one it may be of any "
        "size.",
        about="tensors",
        facts=_picked,
    ),
    "dtypes of a written index": SituationRow(
        "Values of {given_dtype} are written at an index into a tensor of {wanted_dtype}: writing "
        "at an index converts none. Under autocast, products come out in the smaller dtype.",
        ("is_plain", "Convert what is written: {statement}."),
        ("is_other", "Convert what is written to the dtype of the tensor: value.to(tensor.dtype)."),
        facts=_written,
    ),
}
