"""Elements that are chosen and written: indices, masks, slices, gather and scatter."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import (
    Operand,
    shape_text,
)
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _indexed(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what is indexed, and what made it lose its dimensions."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Subscript):
        words: dict[str, Any] = dict.fromkeys(("shape", "squeezed", "single"), "")
        return words | {"name": "the tensor", "count": "more"}
    value = frame.value_of(node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    key = frame.value_of(node.slice)
    count = len([one for one in parts if not _is_new(one)])
    shape = f", {shape_text(value)}" if isinstance(value, Tensor) else ""
    name = written(node.value, frame.file)
    squeezed = kept_dimension(failure, Operand(name, value, frame.depth), count)
    words = {"name": name, "shape": shape, "count": count, "squeezed": squeezed, "single": ""}
    words |= _of_one_index(written(node.slice, frame.file), key, name)
    is_one_less = isinstance(value, Tensor) and value.dim() + 1 == count and not squeezed
    first = parts[0]
    is_whole = isinstance(first, ast.Slice) and first.lower is first.upper is first.step is None
    if is_one_less and is_whole and isinstance(node.slice, ast.Tuple):
        rest = ", ".join(written(one, frame.file) for one in parts[1:])
        words["single"] = f"{name}[{rest}]"
    return words


def _of_one_index(text: str, index: Any, name: str) -> Mapping[str, Any]:
    """Say what one index stands for that is more than a number: a key, or a mask."""
    if isinstance(index, str):
        return {"key": text}
    is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
    if not is_mask or index.dim() < 2:
        return {}
    any_of = f"{name}[{grouped(text)}.any(-1)]" if index.dim() == 2 else ""
    return {"mask": text, "mask_dims": index.dim(), "any_of": any_of}


def _is_new(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, Ellipsis)


def _grid(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The indices of one place each, and how all their combinations are written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    parts = node.slice.elts if _is_tuple(node) else []  # type: ignore[union-attr]
    if len(parts) != 2 or frame is None:
        return {"grid": "x[rows[:, None], columns]"}
    base = written(node.value, frame.file)  # type: ignore[union-attr]
    first, other = (written(one, frame.file) for one in parts)
    held = frame.value_of(parts[0])
    if not isinstance(held, Tensor) and not first.startswith("torch."):
        first = f"torch.as_tensor({first})"
    return {"grid": f"{base}[{grouped(first)}[:, None], {other}]"}


def _is_tuple(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)


def _assigned(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    text = "" if frame is None else frame.text.partition("#")[0].strip()
    target, _, value = text.partition(" = ")
    whole = target.partition("[")[0]
    given = found["given"].rpartition(".")[2]
    is_plain = ";" not in text
    node = None if frame is None else frame.expression
    base = node.value if isinstance(node, ast.Subscript) else None
    held = frame.value_of(base) if frame is not None and base is not None else None
    is_element = (
        isinstance(held, Tensor)
        and held.dim() == 1
        and isinstance(getattr(node, "slice", None), ast.Constant)
    )
    target, value = (target, value) if is_plain else ("x[...]", "values")
    return {
        "is_element": is_element,
        "is_part": given in ("list", "tuple", "ndarray") and not is_element,
        "target": target or "x[...]",
        "value": value or "values",
        "whole": whole or "x",
        "is_other": given not in ("list", "tuple", "ndarray"),
    }


def _gathered(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    along = int(found["along"])
    index, whole = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("index", "whole")
    )
    large = [at for at, (a, b) in enumerate(zip(index, whole, strict=False)) if a > b]
    others = [at for at in large if at != along]
    dim = others[0] if others else None
    return {
        "along": along,
        "dim": "another" if dim is None else dim,
        "whole_size": "" if dim is None else str(whole[dim]),
    }


SITUATIONS: dict[str, Situation] = {
    "part past the end": SituationRow(
        "A part from {start} of length {length} ends behind the {size} elements.",
        "Take what there is: a slice, x[{start}:{start} + {length}], ends where the tensor ends.",
        "Give a length of at most {size} - {start}.",
        about="argument",
    ),
    "choice out of range": SituationRow(
        "Element {value} was taken of dimension {dim} of {name}, whose shape is {looks}.",
        "Give a number below the size of that dimension; -1 is the last.",
        "Say the dimension that is meant.",
        about="argument",
    ),
    "too many indices": first_of(
        SituationRow(
            "{name}{shape} is a tensor, and {key} is a key: a tensor has no items with names.",
            "If a dict was meant, find where {name} was given its tensor alone, and take what it "
            "was taken of.",
            "If an element is meant, give its number.",
            when="key",
        ),
        SituationRow(
            "{name}{shape} has {dims} dimensions, and the mask {mask} has {mask_dims}: it stands "
            "for as many dimensions of {name}.",
            ("any_of", "To choose a row where any element of its mask is True: {any_of}."),
            "If {name} and the mask belong together, make the mask of as many dimensions.",
            when="mask",
        ),
        SituationRow(
            "{name}{shape} has {dims} dimensions, and was given {count} indices.",
            ("squeezed", "{squeezed}"),
            (
                "single",
                "If {name} is one sample without its batch, give it a batch of one, {name_it}."
                "unsqueeze(0), or leave its index out: {single}.",
            ),
            "If it lost a dimension before, keep it there: keepdim=True of a reduction, x[:1] for "
            "x[0].",
            "If it has all its dimensions, give at most {dims} indices, one for each.",
        ),
        facts=_indexed,
    ),
    "indices that differ": SituationRow(
        "Indices are taken together, one place for each pair of numbers, and have the shapes "
        "{shapes}.",
        "For every combination of them, make a column of the first: {grid}.",
        "For one place each, give as many of the one as of the other.",
        facts=_grid,
        about="tensors",
    ),
    "step backwards": SituationRow(
        "A slice of a tensor goes forwards: its step is at least 1.",
        "Turn the dimension round: {name_it}.flip(0), with the number of the dimension.",
        about="argument",
    ),
    "value that is no tensor": SituationRow(
        "{value} is a {given}, and elements of a tensor are given numbers and tensors.",
        ("is_part", "Make a tensor of it: {target} = torch.as_tensor({value})."),
        (
            "is_element",
            "{target} is one element, which takes one number: give {whole} a dimension for the "
            "others, such as torch.zeros(n, m).",
        ),
        ("is_other", "Give a number or a tensor; keep others in a list."),
        facts=_assigned,
    ),
    "size of an index": SituationRow(
        "gather takes one element for each of the index, whose shape {index} is larger than "
        "{whole} in dimension {dim}: only dimension {along} may be.",
        (
            "whole_size",
            "If it takes something of each, give it the size of what it takes from: {whole_size} "
            "in dimension {dim}, where the index is made or expanded.",
        ),
        "If the index goes along another dimension, say it: dim={dim}.",
        "If whole rows are meant, by number: x[index], or torch.index_select.",
        about="tensors",
        facts=_gathered,
    ),
    "size of a scatter": SituationRow(
        "scatter puts one element for each of the index, {index}: it is no larger than what is "
        "written into, {whole}, apart from dimension {along}, and no larger than src.",
        "Give an index and a src of one shape, with the sizes of {whole} but in dimension {along}.",
        about="tensors",
        facts=_gathered,
    ),
    "rows of an index": SituationRow(
        "{op} takes one row for each number of the index: {given} numbers, and {wanted} rows.",
        "Give as many numbers as rows.",
        "Say the dimension in which the rows stand: dim=...",
        about="tensors",
    ),
    "rows that are added": SituationRow(
        "The rows that are added have the shape {given}, and go into {whole}: they differ beside "
        "the dimension of the index.",
        "Give rows as long as those of {whole}.",
        about="tensors",
    ),
    "vector of indices": SituationRow(
        "index_select takes a vector of numbers, and its index has more dimensions.",
        "Index with it, which keeps its shape: x[index].",
        "Or make a vector of it: index.flatten().",
        about="tensors",
    ),
    "filled with many": SituationRow(
        "masked_fill puts one number everywhere, and got a tensor with {dims} dimensions.",
        "Choose element by element: torch.where(mask, values, x).",
        "To put values one after the other where the mask is True: x.masked_scatter(mask, values).",
        about="tensors",
    ),
    "too few for a mask": SituationRow(
        "masked_scatter takes one value for each True of the mask, and source has fewer.",
        "Give a source with at least mask.sum() elements.",
        "If values stand at their places already: torch.where(mask, values, x).",
        about="tensors",
    ),
    "place out of range": SituationRow(
        "Element {value} was taken of {size} elements, counted over all dimensions from 0.",
        "Give numbers below {size}.",
        "If it is a number in one dimension: torch.gather, or x[index].",
        about="tensors",
    ),
    "counts of numbers": SituationRow(
        "torch.bincount counts integers from 0 in one dimension, and {name} is {looks}, or holds "
        "negative ones.",
        "Give it such: {name_it}.flatten().long(), without values below 0.",
        about="argument",
    ),
}
