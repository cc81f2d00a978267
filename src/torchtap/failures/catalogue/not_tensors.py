"""A number or a tuple that stands where a tensor is needed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.assignments import assignments_of
from torchtap.failures.catalogue.plain_objects import numbered_batch
from torchtap.failures.container_parts import listed, parts_of
from torchtap.failures.failure import UNNAMED, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import statement_at
from torchtap.failures.parsed_source import function_tree, grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import TracebackFrame

_TO_NUMBER = ("item", "tolist")


def _number(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The number that backward was called on, and the line that made a number of a tensor."""
    frame = failure.user
    node = None if frame is None else frame.expression
    words = dict.fromkeys(("zero", "taken", "beside", "summed"), "")
    if frame is None or not isinstance(node, ast.Attribute):
        return {**words, "name": "the loss", "where_made": ""}
    name = written(node.value, frame.file)
    made = assignments_of(frame, name) if name.isidentifier() else []
    one = made[0] if len(made) == 1 else None
    place = f", assigned in line {one.line}," if one else ""
    words |= {"name": name, "where_made": place}
    words["summed"] = _summed(frame, name)
    if words["summed"]:
        return words
    if frame.value_of(node.value) == 0 and found["kind"] == "int":
        is_loop = frame.loop is not None
        return {**words, "zero": name, "is_batch": is_loop}
    if one is not None and one.value is not None:
        words["taken"] = _taken(one.value, frame.file) or _returned(
            frame, name, one.line, one.value
        )
        words["beside"] = _beside(frame, name, one.line)
    return words


def _summed(frame: TracebackFrame, name: str) -> str:
    """The tensor whose numbers a name adds up, as ``loss`` of ``total += loss.item()``."""
    for node in ast.walk(frame.function) if frame.function is not None else ():
        match node:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if (
                target == name
            ):
                for part in ast.walk(value):
                    match part:
                        case ast.Call(func=ast.Attribute(value=ast.Name(id=one), attr="item")):
                            is_tensor = isinstance(frame.names.get(one), Tensor)
                            return one if is_tensor else ""
    return ""


def _taken(value: ast.AST, file: str) -> str:
    """The call that makes a number of a tensor, and how it reads without."""
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr=name)) if name in _TO_NUMBER:
                return f"Take the .{name}() away: {written(base, file)}.{_sum_of(value)}"
            case ast.Call(func=ast.Name(id="float"), args=[base]):
                return f"Take the float() away: {written(base, file)}.{_sum_of(value)}"
    return ""


def _sum_of(value: ast.AST) -> str:
    called = getattr(value, "func", None)
    is_numpy = isinstance(called, ast.Attribute) and written(called.value) in ("np", "numpy")
    return f" Add with sum(...) in place of {written(called)}." if is_numpy and called else ""


def _returned(frame: TracebackFrame, name: str, line: int, value: ast.AST) -> str:
    """The call in a function of the program that returned the number."""
    called = frame.value_of(value.func) if isinstance(value, ast.Call) else None
    code = getattr(called, "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    at = _position(frame, name, line)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Return) and node.value is not None and code is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            part = parts[at] if at is not None and at < len(parts) else node.value
            text = _taken(part, code.co_filename)
            if text:
                return f"{text.rstrip('.')}, in line {node.lineno}, in {code.co_name}."
    return ""


def _position(frame: TracebackFrame, name: str, line: int) -> int | None:
    """The number of the value that a name is given, among several of one statement."""
    names = _targets(frame, line)
    return names.index(name) if name in names else None


def _targets(frame: TracebackFrame, line: int) -> list[str]:
    match statement_at(frame.file, line):
        case ast.Assign(targets=[ast.Tuple(elts=parts)]):
            return [ast.unparse(one) for one in parts]
    return []


def _beside(frame: TracebackFrame, name: str, line: int) -> str:
    """The tensor with a graph among the values that one statement assigned; empty if not one."""
    held = {one: frame.names.get(one) for one in _targets(frame, line) if one != name}
    fitting = [key for key, one in held.items() if isinstance(one, Tensor) and one.requires_grad]
    return fitting[0] if len(fitting) == 1 else ""


def _are_numbers(value: object) -> bool:
    is_list = type(value) in (list, tuple) and bool(value)
    return is_list and all(type(one) in (int, float, list, tuple) for one in value)  # type: ignore[attr-defined]


def _tuple(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The value that is no tensor, and which of its parts is one."""
    frame = failure.frames[-1]
    node = frame.expression
    operand = Operand(UNNAMED)
    if isinstance(node, ast.Attribute):
        operand = Operand(written(node.value, frame.file), frame.value_of(node.value), frame.depth)
    value, target = operand.value, failure.operand("target").value
    name = grouped(failure.name_of(operand))
    shape = target.shape if isinstance(target, Tensor) else None
    parts = parts_of(name, value)
    parts = [one for one in parts if one.value.shape == shape] or parts
    maker = failure.origin(operand).module
    numbered = numbered_batch(frame, node.value) if isinstance(node, ast.Attribute) else ""
    return {
        "name": name,
        "numbered": numbered,
        "part": parts[0].text if len(parts) == 1 and not numbered else "",
        "meant": listed(parts) if len(parts) > 1 and not numbered else "",
        "is_numbers": _are_numbers(value),
        "maker": "" if maker is None else f", which {failure.names.module(maker)} returned",
    }


SITUATIONS: dict[str, Situation] = {
    "number without backward": first_of(
        SituationRow(
            "{zero} is the number 0{where_made} and no tensor: nothing was added to it.",
            (
                "is_batch",
                "If such a batch may come: leave it out, if isinstance({zero}, torch.Tensor): "
                "{zero}.backward().",
            ),
            "If something was to be added: check the loop or condition that adds to it, such as a "
            "list that is empty.",
            when="zero",
        ),
        SituationRow(
            "{name} is a number ({kind}) and no tensor: it adds up numbers, {summed}.item(), which "
            "have no graph.",
            "If {summed} is the loss: {summed}.backward(); {name} is for the log alone.",
            "If the sum of several losses is to be trained: add up the tensors, {name} = {name} + "
            "{summed}.",
            when="summed",
        ),
        SituationRow(
            "{name}{where_made} is a number ({kind}) and no tensor: what made it took a number out "
            "of a tensor, and numbers have no graph.",
            "{taken}",
            when="taken",
        ),
        SituationRow(
            "{name}{where_made} is a number ({kind}) and no tensor; {beside}, assigned beside it, "
            "is a tensor with a graph.",
            "Check the order of the values, and call {beside}.backward() if that is the loss.",
            when="beside",
        ),
        SituationRow(
            "{name}{where_made} is a number ({kind}) and no tensor: numbers have no graph.",
            "Keep the loss a tensor where it is made: without .item(), float() and numpy.",
        ),
        facts=_number,
    ),
    "tuple among tensors": SituationRow(
        "{name} is a {kind}{maker}, and a tensor is needed.",
        ("numbered", "It is the batch, and enumerate counts: name its parts, {numbered}."),
        ("part", "Take the tensor out of it: {part}."),
        ("meant", "Take the part out of it that is meant: {meant}."),
        ("is_numbers", "Make a tensor of it: torch.tensor({name})."),
        facts=_tuple,
    ),
}
