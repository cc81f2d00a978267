"""Tensors that are expanded and repeated to sizes that they do not take."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.derived_shapes import shaped_operands
from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import statement_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import aligned, samples_of_one_batch
from torchtap.failures.reductions import with_its_dimension
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING


def _expanded(failure: Failure) -> Operand:
    """Return what is expanded: what the method was called on, also where its value is not known."""
    first = next(iter(failure.operands), None)
    node = None if first is None else failure.frames[first.depth].expression
    match node:
        case ast.Call(func=ast.Attribute(attr="expand" | "expand_as")) if first is not None:
            return first
    _, given = _sizes_of(failure)
    shaped = [one for one in shaped_operands(failure) if isinstance(one.value, Tensor)]
    fitting = [one for one in shaped if list(one.value.shape) == given]
    if fitting or not given:
        return fitting[0] if len(fitting) == 1 else failure.argument()
    unknown = [one for one in failure.candidates if one.value is MISSING]
    return unknown[0] if len(unknown) == 1 else Operand("a tensor")


def _expand(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether what is expanded is a part of a buffer or parameter, such as of positions."""
    operand = _expanded(failure)
    value = operand.value
    if value is MISSING and failure.operands:  # A slice has no value of its own to be read.
        frame = failure.frames[operand.depth]
        node = frame.expression
        whole = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else None
        )
        value = frame.value_of(whole.value) if isinstance(whole, ast.Subscript) else MISSING
    state = failure.names.state(value)
    given, dim = int(found["given"]), int(found["dim"])
    is_all = isinstance(value, Tensor) and state is not None and given in state.tensor.shape
    is_table = is_all and 1 < given < int(found["wanted"]) and dim > 0
    name = state.name if state is not None and is_table else ""
    part = _written_part(failure)
    sentence = (
        f"{part['part']} has the shape {part['there']}, and is given a value of "
        f"{part['given_sizes']}."
        if part["part"]
        else _too_short(failure, failure.name_of(operand), found)
    )
    target, sizes = _sizes_of(failure)
    return {
        "name": failure.name_of(operand),
        "details": failure.details(operand) if operand.value is not MISSING else failure.details(),
        "reduced": "" if part["part"] else with_its_dimension(failure, operand, target, sizes),
        "table": name,
        "is_free": not name and not part["part"],
        "is_other": not name and not part["part"] and dim > 0 and given > 1,
        "is_copied": not name and not part["part"] and given > 0 == int(found["wanted"]) % given,
        "is_batch": not name and not part["part"] and dim == 0 and given > 1,
        "batch": samples_of_one_batch((given, int(found["wanted"]))),
        "places": next(_places(failure, operand), ""),
        "sentence": sentence,
        **part,
    }


def _too_short(failure: Failure, name: str, found: re.Match[str]) -> str:
    """Return the sentence that says which size of a tensor is expanded to which, and where."""
    target, given = _sizes_of(failure)
    at = int(found["dim"]) - len(target) + len(given)
    if len(target) == len(given):
        return (
            f"{name} has {found['given']} in dimension {at}, which was to be {found['wanted']}: "
            "expand repeats a size of 1 alone."
        )
    return (
        f"{name} is {given} and was to be {target}: shapes are aligned from the last dimension on, "
        f"so that its dimension {at}, of {found['given']}, stands for {found['wanted']}, and "
        "expand repeats a size of 1 alone."
    )


def _places(failure: Failure, operand: Operand) -> Iterator[str]:
    """Yield where the dimensions of what is expanded may stand among those that are asked for."""
    target, given = _sizes_of(failure)
    if 0 < len(given) < len(target):
        yield from aligned(failure.name_of(operand), given, "the result", target)


def _sizes_of(failure: Failure) -> tuple[list[int], list[int]]:
    """Return the sizes that were asked for, and those that are there, as the message says them."""
    sizes = [
        [int(one) for one in re.findall(r"-?\d+", part)]
        for part in re.findall(r"(?:Target|Tensor) sizes: \[(.*?)\]", failure.text)
    ]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else ([], [])


def _written_part(failure: Failure) -> Mapping[str, Any]:
    """The part of a tensor that a statement writes into, and its shape and that of the value."""
    statement = None if failure.user is None else statement_of(failure.user)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    there, given = _sizes_of(failure)
    words = {"part": "", "there": [], "given_sizes": [], "cut": "", "fewer": ""}
    if not isinstance(target, ast.Subscript) or not there:
        return words
    value = grouped(written(statement.value))  # type: ignore[union-attr]
    is_longer = len(there) == len(given) and all(a >= b for a, b in zip(given, there, strict=True))
    index = ", ".join(f":{b}" if a > b else ":" for a, b in zip(given, there, strict=False))
    return {
        "part": written(target),
        "there": there,
        "given_sizes": given,
        "cut": f"{value}[{index}]" if is_longer else "",
        "fewer": f"{grouped(written(target))}[:{given[0]}]" if _is_fewer(there, given) else "",
    }


def _is_fewer(there: list[int], given: list[int]) -> bool:
    """Return whether a value has fewer rows than the part that it is written into."""
    return len(there) == len(given) > 0 and given[0] < there[0] and given[1:] == there[1:]


def _repeat(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    counts = [one.value for one in failure.operands if type(one.value) is int]
    if not isinstance(value, Tensor) or not counts:
        return {"dims": "more", "is_known": False}
    whole = [1] * (value.dim() - len(counts)) + counts
    return {"dims": value.dim(), "is_known": True, "whole": ", ".join(map(str, whole))}


def _sizes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    statement = None if failure.user is None else statement_of(failure.user)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Subscript):
        return _written_with_more(failure, target, statement.value)  # type: ignore[union-attr]
    return {"part": "", "is_called": True, **_kept_sizes(failure, found)}


def _written_with_more(failure: Failure, target: ast.expr, value: ast.expr) -> Mapping[str, Any]:
    """Say which value has dimensions that the part that it is written into does not have."""
    given, there = (
        [int(one) for one in re.findall(r"\d+", part)]
        for part in [*re.findall(r"\[(.*?)\]", failure.text), "", ""][:2]
    )
    ones = [at for at, size in enumerate(given) if size == 1]
    fitting = [at for at in ones if [*given[:at], *given[at + 1 :]] == there]
    text, is_whole = grouped(written(value)), math.prod(given) == math.prod(there)
    return {
        "part": written(target),
        "written": text,
        "given_sizes": given,
        "there": there,
        "squeezed": f"{text}.squeeze({fitting[0]})" if fitting else "",
        "flat": f"{text}.reshape({there})" if not fitting and is_whole else "",
        "is_called": False,
    }


def _kept_sizes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    lacking = int(found["wanted"]) - int(found["given"])
    kept = ", ".join(["-1"] * lacking) if isinstance(value, Tensor) else "-1"
    return {"kept": kept}


SITUATIONS: dict[str, Situation] = {
    "expand": SituationRow(
        "{sentence}",
        (
            "fewer",
            "If fewer come, as in a last batch, write into as many: {fewer} = ....",
        ),
        ("cut", "If the first of them are meant, cut the rest off: {part} = {cut}."),
        ("part", "Give {part} a value of {there}, or of sizes of 1 that are repeated."),
        (
            "table",
            "Give an input of at most {given} there, cut before: {given} are all that {table} has.",
        ),
        ("table", "Make {table} as long as the longest input."),
        ("reduced", "{reduced}"),
        ("places", "{places}"),
        ("is_batch", "{batch}"),
        (
            "is_other",
            "If it is to have one for each of {wanted} there, as of classes or channels, make it "
            "of that size, where it is made.",
        ),
        ("is_free", "If its size is right there, keep it: -1 in that place of expand."),
        (
            "is_copied",
            "If it is to stand several times, copy it: {name_it}.repeat(...), or "
            "repeat_interleave.",
        ),
        facts=_expand,
    ),
    "fewer sizes than dimensions": first_of(
        SituationRow(
            "{part} has the shape {there}, and is given a value of {given_sizes}, which has more "
            "dimensions.",
            ("squeezed", "Take the dimension of one out of the value: {squeezed}."),
            ("flat", "If its elements are those, in this order: {flat}."),
            "If the rest of the value is to be kept, make a place for it where the tensor is made.",
            when="part",
        ),
        SituationRow(
            "{name} has {wanted} dimensions, and expand was given {given}.",
            "Give a size for each, -1 for those that stay: the others behind, {kept}, if the first "
            "are expanded.",
            about="argument",
        ),
        facts=_sizes,
    ),
    "dimensions of a repeat": SituationRow(
        "{name} has {dims} dimensions, and repeat was given fewer numbers: it takes one for each.",
        ("is_known", "Give 1 for those that stay: {name_it}.repeat({whole})."),
        about="argument",
        facts=_repeat,
    ),
    "repeats of a dimension": SituationRow(
        "There are {given} numbers of repeats, and {wanted} elements in dimension {dim}.",
        "Give one number for each of the {wanted}, or one for all.",
        "Say the dimension that is meant: dim=...",
        about="tensors",
    ),
}
