"""Tensors made of lists, arrays, numbers and nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.core.source_files import shown_file
from torchtap.failures.assignments import blocks_at
from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow

_MOST = 4096


def first_argument(failure: Failure, otherwise: str = "x") -> str:
    """The first argument of the program's call, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    is_there = isinstance(node, ast.Call) and node.args
    return written(node.args[0], frame.file) if frame is not None and is_there else otherwise  # type: ignore[union-attr]


def _given(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"name": first_argument(failure)}


def _nothing_to_join(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The line that appends to the list, and the loops and conditions that it stands in."""
    name, frame = first_argument(failure), failure.user
    words = {"name": name, "why": "", "around": ""}
    function = None if frame is None else frame.function
    lines = [] if function is None else _lines_that_append(function, name)
    if frame is None or function is None or not lines:
        return words
    words["why"] = f": {shown_file(frame.file)}:{lines[0]} never appended to it"
    if len(lines) == 1:
        blocks = reversed(blocks_at(function, lines[0]))
        words["around"] = ", ".join(filter(None, (_entered(*block) for block in blocks)))
    return words


def _lines_that_append(function: ast.AST, name: str) -> list[int]:
    """Return the lines that append to a list; none where it may have been emptied again."""
    lines, num_made = [], 0
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=id_), attr=attr)) if id_ == name:
                if attr != "append":
                    return []
                lines.append(node.lineno)
            case ast.Name(id=id_, ctx=ast.Store() | ast.Del()) if id_ == name:
                num_made += 1
            case ast.Delete():
                return []
    return lines if num_made == 1 else []


def _entered(owner: ast.AST, field: str) -> str:
    """Return the loop or condition that a block stands in; empty where it is always entered."""
    match owner:
        case ast.If(test=test):
            return f"under {'if' if field == 'body' else 'the else of'} {ast.unparse(test)}"
        case ast.For(iter=many) if field == "body":
            return f"in the loop over {ast.unparse(many)}"
        case ast.While(test=test) if field == "body":
            return f"under while {ast.unparse(test)}"
    return ""


def _scalar(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor without dimensions, as the program calls it."""
    operand, is_loop = next(iter(failure.tensors), None), failure.text.startswith("iteration")
    text = failure.name_of(operand) if operand is not None else _without_dimensions(failure)
    frame = failure.user
    # An argument may be a tensor or several, and the function iterates over each of them.
    is_given = frame is not None and text in frame.code.co_varnames[: frame.code.co_argcount]
    return {
        "name": text or "the tensor",
        "squeezed": _squeezed(failure) if is_loop else "",
        "is_known": bool(text) and not is_loop and not failure.text.startswith("len("),
        "is_counted": bool(text) and failure.text.startswith("len("),
        "is_loop": is_loop,
        "is_nested": is_loop and (is_given or not text),
        "is_single": is_loop and bool(text),
    }


def _without_dimensions(failure: Failure) -> str:
    """Return what a line goes through, indexes or counts, as it is written; empty if not known."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None:
        return ""
    match node:
        case ast.Subscript(value=base):
            return written(base, frame.file)
        case ast.Call(func=ast.Name("len" | "list" | "tuple"), args=[base]):
            return written(base, frame.file)
    loop = frame.loop
    over = loop.iter if isinstance(loop, ast.For) and loop.lineno == frame.line else node
    held = frame.value_of(over) if over is not None else None
    is_it = isinstance(held, Tensor) and not held.dim()
    return written(over, frame.file) if is_it and over is not None else ""


def _squeezed(failure: Failure) -> str:
    """Return the way to keep a dimension that squeeze() took of what is gone through."""
    frame, text = failure.user, _without_dimensions(failure)
    if frame is None or not text:
        return ""
    value = frame.own_names.get(text)
    return kept_dimension(failure, Operand(text, value, frame.depth), 1)


def _wrapped(failure: Failure) -> str:
    """Return what an array without dimensions is made of, as ``values`` of ``np.array(values)``."""
    frame = failure.user
    call = None if frame is None else frame.expression
    made = next(iter(call.args), None) if isinstance(call, ast.Call) else None
    if frame is None or not isinstance(made, ast.Call) or len(made.args) != 1:
        return ""
    is_array = written(made.func).rpartition(".")[2] in ("array", "asarray")
    of = made.args[0]
    is_view = isinstance(of, ast.Call) and written(of.func).endswith((".values", ".keys"))
    is_lazy = isinstance(of, ast.Call) and written(of.func) in ("map", "filter", "zip", "range")
    return written(of, frame.file) if is_array and (is_view or is_lazy) else ""


def _objects(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Tell numbers, lists and others apart in an array of objects, as far as its elements tell."""
    is_object, whole = "object" in found["kind"], _wrapped(failure)
    frame = failure.user
    node = None if frame is None else frame.expression
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    array: Any = frame.value_of(given) if frame is not None and given is not None else None
    flat = list(array.flat)[:_MOST] if type(array).__name__ == "ndarray" else []
    is_ragged = any(hasattr(type(one), "__len__") and not isinstance(one, str) for one in flat)
    is_mixed = not is_ragged and any(one is None or isinstance(one, str) for one in flat)
    return {
        "name": first_argument(failure),
        "dtype_word": found["kind"].removeprefix("numpy.").rstrip("_"),
        "is_object": is_object and not whole and not is_ragged and not is_mixed,
        "is_ragged": is_object and not whole and is_ragged,
        "is_mixed": is_object and not whole and is_mixed,
        "whole": whole,
        "is_text": not is_object,
    }


def _ragged(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name = first_argument(failure)
    return {"name": name, "it": grouped(name)}


def _device(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = found["device"] or ""
    known = ("float16", "float32", "float64", "bfloat16", "int64", "int32", "bool", "long", "float")
    is_no_cuda = not given
    what = f"There is no device {given!r}"
    if is_no_cuda:
        what = "This PyTorch was built without CUDA, and a GPU was asked for"
    elif given in known:
        what = f"{given!r} is a dtype, and a string names a device"
    return {
        "what": what,
        "given": given,
        "is_no_cuda": is_no_cuda,
        "is_dtype": given in known,
        "is_unknown": not is_no_cuda and given not in known,
    }


SITUATIONS: dict[str, Situation] = {
    "index of a scalar": SituationRow(
        "{name} is a single number, a tensor without dimensions, and has nothing to index, count "
        "or go through.",
        ("is_counted", "If it may hold one number, count its elements: {name_it}.numel()."),
        ("squeezed", "{squeezed}"),
        (
            "is_nested",
            "If a function goes through tuples and lists of tensors, as of states, let it end at a "
            "tensor: if isinstance(x, torch.Tensor), before it goes on.",
        ),
        ("is_single", "If it may hold one number: iterate over {name_it}.reshape(-1)."),
        (
            "is_loop",
            "If there are to be several numbers, find where the dimension was lost: x[:1] for "
            "x[0], no .squeeze() and no reduction before.",
        ),
        (
            "is_known",
            "Take the number itself: {name_it}.item(); or give it a dimension: "
            "{name_it}.unsqueeze(0).",
        ),
        about="tensors",
        facts=_scalar,
    ),
    "index that is no integer": SituationRow(
        "A tensor was indexed with {given}; an index is an integer, a slice, None, ... or a tensor "
        "of integers or booleans.",
        "Make an integer of it: int(...), or // in place of / where it is computed.",
        about="tensors",
    ),
    "nothing to join": SituationRow(
        "The list that was to be joined is empty{why}.",
        (
            "around",
            "If {name} is to hold something, see why that line was not reached. It stands "
            "{around}: files of a step before may be missing, or a path or threshold be wrong.",
        ),
        "If there may be nothing, leave it out then: if {name}: ....",
        "If there may be nothing, begin with a tensor without rows: torch.empty(0, features).",
        facts=_nothing_to_join,
    ),
    "lists of different lengths": SituationRow(
        "{name} has lists of different lengths ({wanted} and {given} in dimension {dim}), and a "
        "tensor has one size in each dimension.",
        "Pad them: torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in {it}], "
        "batch_first=True).",
        "Keep a list of tensors: [torch.tensor(one) for one in {it}].",
        facts=_ragged,
    ),
    "tensor of strings": SituationRow(
        "{name} holds strings, and tensors hold numbers alone.",
        "Give each string a number, such as the index of its class: "
        "[classes.index(one) for one in {name}].",
        facts=_given,
    ),
    "array of objects": SituationRow(
        "The array is of dtype {dtype_word}, and tensors hold numbers and booleans alone.",
        (
            "whole",
            "It holds one object, and not its elements: make a list of that first, "
            "numpy.array(list({whole})).",
        ),
        (
            "is_ragged",
            "It holds lists or arrays of different lengths: pad them, "
            "torch.nn.utils.rnn.pad_sequence([torch.as_tensor(one) for one in {name}], "
            "batch_first=True); or keep a list of tensors.",
        ),
        (
            "is_mixed",
            "Some of it are no numbers, such as strings or None: leave those out, or give each a "
            "number, before it is an array.",
        ),
        (
            "is_object",
            "If all of it are numbers or booleans, make an array of those: "
            "{name_it}.astype('float32').",
        ),
        ("is_text", "Give each string a number, such as the index of its class."),
        facts=_objects,
    ),
    "array turned around": SituationRow(
        "The array is a view that goes backwards through memory, as of a[::-1] or numpy.flip, and "
        "tensors cannot.",
        "Copy it first: {name_it}.copy().",
        facts=_given,
    ),
    "no array": SituationRow(
        "torch.from_numpy takes an array of numpy, and got {given}.",
        "Make a tensor of it: torch.tensor({name}).",
        facts=_given,
    ),
    "integer gradients": SituationRow(
        "A parameter that requires grad was given values of another kind than floats.",
        "Convert them: tensor.float().",
    ),
    "gradient of another size": SituationRow(
        "A gradient of size {given} was assigned to a tensor of size {wanted}.",
        "Give a gradient of the size of the tensor.",
        about="tensors",
    ),
    "negative size": SituationRow(
        "A size of a tensor is negative.",
        "Check how the size is computed: it has to be 0 or more.",
    ),
    "device without a build": SituationRow(
        "{what}.",
        (
            "is_no_cuda",
            "Run on what there is: device = 'cuda' if torch.cuda.is_available() else "
            "'cpu', and .to(device).",
        ),
        ("is_no_cuda", "If the machine has a GPU, install a PyTorch that was built for it."),
        ("is_dtype", "Give the dtype itself: torch.{given}."),
        ("is_unknown", "Give a device that there is: 'cpu', 'cuda', 'cuda:0', 'mps'."),
        facts=_device,
    ),
}
