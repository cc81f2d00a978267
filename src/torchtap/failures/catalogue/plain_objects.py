"""Objects of Python where a module, a tensor or a function is meant: None, texts, arrays, dicts."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from torchtap.failures.assignments import assignments_of, looped_over
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import end_of
from torchtap.failures.none_sources import NONE_ROWS, UNKNOWN, is_read_from_file, none_words
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.scopes import Expression, scope_of
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_OF_TORCH = (Tensor, nn.Module, Optimizer, LRScheduler, DataLoader, Dataset)
_KINDS = ("str", "int", "float", "bool", "list", "dict", "tuple", "module", "_IncompatibleKeys")
_OF_PYTHON = {name for kind in (str, list, dict, set, tuple) for name in dir(kind)}
_ALREADY = ("cpu", "detach", "numpy")
"""Methods that make an array of a tensor, step by step: an array needs none of them."""
_OF_NUMBERS = (*_ALREADY, "data", "item", "tolist")
"""Members that lead from a tensor to a number: a number needs none of them."""
_WITH_ARGUMENTS = frozenset(
    {
        *("view", "reshape", "permute", "transpose", "unsqueeze", "expand", "repeat", "to", "type"),
        *("gather", "split", "chunk", "masked_fill", "index_select", "pow", "mm", "bmm", "matmul"),
    }
)
"""Methods of tensors that cannot be called without an argument."""


def is_about_torch(failure: Failure) -> bool:
    """Return whether the function that failed computes with objects of PyTorch."""
    last = failure.frames[-1]
    if any(one.is_torch for one in failure.frames) or isinstance(last.owner, _OF_TORCH):
        return True
    return any(isinstance(one, _OF_TORCH) or one is torch for one in last.own_names.values())


def calls_no_function(failure: Failure) -> bool:
    """Return whether what is known to be no function was called, among objects of PyTorch."""
    last = failure.frames[-1]
    called = last.expression.func if isinstance(last.expression, ast.Call) else None
    if last.is_torch:
        return _member(last) is not None
    if "NoneType" not in failure.text and isinstance(called, ast.expr):
        if isinstance(last.value_of(called), _OF_TORCH):
            return last.is_user
        if failure.text.split("'")[1] not in _KINDS:
            return False
    is_plain = last.is_user and called is not None and not last.raises_itself
    return is_plain and is_about_torch(failure)


def reads_no_member(failure: Failure) -> bool:
    """Return whether a member of PyTorch's classes was read of an object of Python."""
    last = failure.frames[-1]
    kind, _, name = failure.text.partition(" object has no attribute ")
    name = name.strip("'")
    if not last.is_user or last.raises_itself or not isinstance(last.expression, ast.Attribute):
        return False
    if isinstance(last.expression.value, ast.Constant):
        return False
    if "ndarray" in kind:
        return hasattr(Tensor, name)
    held: Any = last.value_of(last.expression.value)
    is_key = type(held) is dict and name in held and _tensors(held)
    # A method of another class of Python, as add of a list, is a slip that has to do with none.
    is_member = name not in _OF_PYTHON and any(hasattr(one, name) for one in _OF_TORCH)
    is_picture = is_read_from_file(last, last.expression.value)
    return bool(is_key or is_member or is_picture) and is_about_torch(failure)


def _tensors(held: Any) -> list[tuple[Any, Tensor]]:
    pairs = held.items() if type(held) is dict else enumerate(held)
    return [(key, one) for key, one in pairs if isinstance(one, Tensor)]


def _member(frame: TracebackFrame) -> str | None:
    """The name of a member of a Sequential that is None and was called; ``None`` if it is not."""
    owner: Any = frame.owner
    if not isinstance(owner, nn.Sequential):
        return None
    return next((name for name, one in owner._modules.items() if one is None), None)


def _node(failure: Failure) -> tuple[TracebackFrame, ast.expr | None]:
    """The expression whose value is not as it is needed, and its frame."""
    frame = failure.frames[-1]
    match frame.expression:
        case ast.Call(func=node) | ast.Attribute(value=node):
            return frame, node
    return frame, None


def _called(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _node(failure)
    member = _member(frame) if frame.is_torch else None
    text = "the value" if node is None else written(node, frame.file)
    value: Any = MISSING if node is None else frame.value_of(node)
    kind = found["kind"]
    last = value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else ""
    made = assignments_of(frame, text) if isinstance(node, ast.Name) else []
    is_seen = value is not MISSING and kind in ("str", "int", "float", "bool")
    words = none_words(failure, frame, node) if kind == "NoneType" and member is None else {}
    return {
        "member": member or "",
        "holder": failure.names.module(frame.owner) if member is not None else "",
        "text": text,
        "is_none": kind == "NoneType",
        "is_keys": kind == "_IncompatibleKeys",
        "shown": f" {value!r:.60}" if is_seen and not last else "",
        "inside": f"{text}.{last}" if last and callable(getattr(value, last, None)) else "",
        "whole": f"from {value.__name__} import {last}" if last else "",
        "kind": kind,
        "line": f", which line {made[-1].line} assigned," if made else "",
        "is_loader": isinstance(value, DataLoader),
        "is_torch": isinstance(value, _OF_TORCH) and not isinstance(value, DataLoader),
        "is_text": kind == "str",
        "is_items": kind in ("list", "dict", "tuple"),
        "was_function": bool(made) and kind in ("int", "float", "bool", "dict", "list", "tuple"),
        **words,
    }


def _are_modules(held: list[Any]) -> bool:
    return any(isinstance(one, nn.Module) for one in held)


def _read(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _node(failure)
    kind, asked = found["kind"], found["name"]
    text = "it" if node is None else written(node, frame.file)
    value: Any = MISSING if node is None else frame.value_of(node)
    held = value if type(value) in (dict, list, tuple) else {}
    parts = [f"{grouped(text)}[{key!r}]" for key, _ in _tensors(held)]
    layers = text if type(held) is list and _are_modules(held) else ""
    losses = [one for one in parts if "loss" in one] if asked == "backward" else []
    loss = losses[0] if losses else ""
    over = looped_over(frame, node.id) if isinstance(node, ast.Name) else None
    whole = frame.value_of(over) if over is not None else None
    is_key = kind == "str" and type(whole) is dict
    words = none_words(failure, frame, node) if kind == "NoneType" else {}
    module = _module_of(failure, frame, node)
    is_recurrent = isinstance(module, nn.RNNBase | nn.MultiheadAttention)
    assigned = _assigned_method(failure, frame, node)
    return {
        "text": text,
        "asked": asked,
        "maker": "" if module is None else f", which {failure.names.module(module)} returned",
        "first": f"{grouped(text)}[0]" if held == {} and kind in ("tuple", "list") else "",
        "pair": f"{text}, state = ..." if is_recurrent and isinstance(node, ast.Name) else "",
        "kind": kind,
        "is_none": kind == "NoneType",
        "is_array": "ndarray" in kind,
        "is_already": asked in _ALREADY,
        "is_not_yet": asked not in _ALREADY,
        "is_keys": kind == "_IncompatibleKeys",
        "arguments": "..." if text.rpartition(".")[2] in _WITH_ARGUMENTS else "",
        "assigned": assigned,
        "is_name": not assigned and isinstance(node, ast.Name),
        "is_here": not assigned and not isinstance(node, ast.Name),
        "is_registry": kind in ("list", "dict") and not layers and hasattr(nn.Module, asked),
        "is_function": kind in ("method", "function", "builtin_function_or_method"),
        "key": f"{grouped(text)}[{asked!r}]" if type(held) is dict and asked in held else "",
        "part": "" if loss else " or ".join(parts[:3]),
        "one": loss,
        "value_of_key": f"{written(over)}[{text}]" if is_key and over is not None else "",
        "is_text": kind == "str" and not is_key,
        "is_number": kind in ("int", "float", "bool"),
        "is_plain_number": asked in _OF_NUMBERS,
        "is_no_plain_number": asked not in _OF_NUMBERS,
        "is_several": bool(held) and kind in ("list", "tuple") and not parts and not layers,
        "layers": layers,
        "numbered": numbered_batch(frame, node),
        **words,
    }


def _assigned_method(failure: Failure, frame: TracebackFrame, node: ast.expr | None) -> str:
    """Return the way to call a method where a name was given it: ``keys = x.view``; else empty."""
    scope = scope_of(frame, failure.frames)
    end = end_of(Expression(node, scope, (), frame.line)) if isinstance(node, ast.Name) else None
    if end is None or not isinstance(end.node, ast.Attribute):
        return ""
    return f"Call it in line {end.line}, where it is given: {end.text}(...)."


def _module_of(failure: Failure, frame: TracebackFrame, node: ast.expr | None) -> nn.Module | None:
    """The module whose call gave a value; ``None`` if that is not known."""
    made = assignments_of(frame, node.id) if isinstance(node, ast.Name) else []
    call = made[0].value if len(made) == 1 else node
    value = frame.value_of(call.func) if isinstance(call, ast.Call) else None
    return value if isinstance(value, nn.Module) else None


def numbered_batch(frame: TracebackFrame, node: ast.expr | None) -> str:
    """The head of a loop by enumerate over a loader whose batch has one name; empty of others."""
    name = node.id if isinstance(node, ast.Name) else ""
    loop = frame.loop
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[first, ast.Name(id=second)]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[over, *_]),
        ) if second == name:
            return f"for i, ({written(first)}, {second}) in enumerate({written(over)})"
    return ""


_KEYS = (
    "load_state_dict changes the module in place and returns the names of keys that did not fit: "
    "call it on a line of its own, and keep the module."
)
_SAID = ("is_items", "is_text", "was_function", "is_loader", "is_torch")


SITUATIONS: dict[str, Situation] = {
    "None that is called": first_of(
        SituationRow(
            "Member {member!r} of {holder} is None, and a Sequential calls each of its members.",
            "If nothing is to be done there: leave it out, or give nn.Identity() in its place.",
            "If a layer is meant: give it where the Sequential is made; a function without return "
            "gives None.",
            when="member",
        ),
        *NONE_ROWS,
        SituationRow("{text} is None, and was called.", *UNKNOWN, when="is_none"),
        SituationRow(
            "{text} is no module, but what load_state_dict returned.", _KEYS, when="is_keys"
        ),
        SituationRow(
            "{text} is a module of Python, a file, and was called.",
            ("inside", "Name the function or class in it: {inside}, or {whole}."),
            "If a function of it is meant: {text_it}.name(...).",
            when="whole",
        ),
        SituationRow(
            "{text} is of type {kind}{shown}{line} and no function, and was called.",
            ("is_loader", "Go through it: for batch in {text}; one batch: next(iter({text}))."),
            ("is_torch", "Call a method of it, such as step of an optimizer, or read an element."),
            ("is_items", "If an element is meant: {text_it}[...]."),
            (
                "is_text",
                "If the text names a function or class: give that itself, as by "
                "getattr(module, {text}) or a dict of names.",
            ),
            (
                "was_function",
                "If {text} was a function before: give the result another name.",
            ),
            (
                "is_plain",
                "If {text} is to be a module or function: check what it was given.",
            ),
        ),
        facts=lambda failure, found: {
            **(words := _called(failure, found)),
            "is_plain": not any(words[one] for one in _SAID),
        },
    ),
    "member of an object": first_of(
        *NONE_ROWS,
        SituationRow("{text} is None, which has no {asked}.", *UNKNOWN, when="is_none"),
        SituationRow(
            "{text} is an array of NumPy, and {asked} is of tensors.",
            ("is_already", "It is on the CPU and has no graph: leave .{asked}() out."),
            ("is_not_yet", "Make a tensor of it first: torch.from_numpy({text})."),
            when="is_array",
        ),
        SituationRow(
            "{text} is no module, but what load_state_dict returned.", _KEYS, when="is_keys"
        ),
        SituationRow(
            "{text} is a {kind}, and was not called.",
            ("assigned", "{assigned}"),
            ("is_name", "Call it where {text} is given it, and not the method itself."),
            ("is_here", "Call it: {text_it}({arguments}).{asked}."),
            when="is_function",
        ),
        SituationRow(
            "{text} is a dict, whose values are read by their keys, and not as attributes.",
            "Read it by its key: {key}.",
            when="key",
        ),
        SituationRow(
            "{text} is a number ({kind}) and no tensor, and {asked} is of tensors.",
            ("is_plain_number", "It is a number already: leave .{asked} out."),
            ("is_plain_number", "If a tensor is needed there: torch.tensor({text})."),
            (
                "is_no_plain_number",
                "If {text} is to be a tensor of this number, make one: torch.tensor({text}); if "
                "another value is meant, give that in its place.",
            ),
            when="is_number",
        ),
        SituationRow(
            "{text} is a {kind}{maker}, and has no {asked}, which objects of PyTorch have.",
            (
                "layers",
                "Make a module of the list, which registers its layers: nn.ModuleList({layers}), "
                "or nn.Sequential(*{layers}) to call them in a row.",
            ),
            (
                "is_registry",
                "If it is to hold modules, make one that registers them: nn.ModuleList() for a "
                "list, nn.ModuleDict() for a dict.",
            ),
            ("numbered", "If a batch has two parts, give each a name: {numbered}."),
            ("pair", "It returns a pair, the output and a state: {pair}"),
            ("first", "If its first part is meant: {first}."),
            ("one", "Call it of the loss: {one}.backward()."),
            ("part", "Take the tensor that is meant out of it: {part}."),
            ("value_of_key", "It is a key of the dict: take its value, {value_of_key_it}.{asked}."),
            (
                "is_text",
                "If texts stand among tensors, leave them as they are: {text_it}.{asked}(...) if "
                "isinstance({text}, torch.Tensor) else {text}.",
            ),
            (
                "is_several",
                "If it holds no tensors, as names of files, leave it as it is; of numbers, make a "
                "tensor: torch.tensor({text}).",
            ),
        ),
        facts=_read,
    ),
}
