"""Objects of PyTorch that are called, indexed, named or made as they cannot be."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.operands import shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame


def _expression(failure: Failure) -> tuple[TracebackFrame, ast.AST | None]:
    frame = failure.user or failure.frames[-1]
    return frame, frame.expression


def _called(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor that was called: an attribute, or a variable that held a function before."""
    frame, node = _expression(failure)
    called = node.func if isinstance(node, ast.Call) else None
    words = {"is_attribute": False, "line": "", "text": "The value", "is_inside": False}
    if not frame.is_user or called is None or not failure.frames[-1].is_user:
        return {**words, "is_inside": True}
    text = written(called, frame.file)
    if isinstance(called, ast.Attribute):
        return {**words, "text": text, "is_attribute": True}
    made = assignments_of(frame, text) if isinstance(called, ast.Name) else []
    line = f", which line {made[-1].line} assigned" if made else ""
    return {**words, "text": text, "line": line}


def _uncalled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    if not isinstance(node, ast.Subscript):
        return {"text": "the method", "way": "x.size(0)"}
    text = written(node.value, frame.file)
    return {"text": text, "way": f"{text}({written(node.slice, frame.file)})"}


def _items(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    held: Any = frame.value_of(node.value) if isinstance(node, ast.Subscript) else None
    name = written(node.value, frame.file) if isinstance(node, ast.Subscript) else "it"
    is_loader = isinstance(held, DataLoader) or found["kind"] == "DataLoader"
    children = [key for key, _ in held.named_children()] if isinstance(held, nn.Module) else []
    return {
        "name": name,
        "is_loader": is_loader,
        "children": ", ".join(f"{grouped(name)}.{one}" for one in children[:6]),
        "is_other": not is_loader and not children,
    }


def _iterated(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    args = node.args if isinstance(node, ast.Call) else []
    return {"name": written(args[0], frame.file) if args else "loader"}


def _state(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether a dict is a state that was loaded, or a batch whose tensors are meant."""
    frame, node = _expression(failure)
    base = node.value if isinstance(node, ast.Attribute) else getattr(node, "func", None)
    if isinstance(base, ast.Attribute) and found["name"] == base.attr:
        base = base.value
    name = written(base, frame.file) if isinstance(base, ast.expr) else "state"
    held: Any = frame.value_of(base) if base is not None else None
    nested = [
        key
        for key, one in (held.items() if isinstance(held, dict) else ())
        if isinstance(one, dict) and any(isinstance(part, Tensor) for part in one.values())
    ]
    is_moved = found["name"] in ("to", "cuda", "half", "float") and found["kind"] == "dict"
    state = f"{grouped(name)}[{nested[0]!r}]" if nested else name
    model = "net" if name == "model" else "model"
    return {
        "model": model,
        "name": name,
        "is_batch": is_moved,
        "state": state,
        "asked": found["name"] or "a call",
    }


def _names_of(home: str, name: str) -> tuple[list[str], str]:
    """The names of a module of torch that are like one, and where else it is defined."""
    module = sys.modules.get(home)
    own = [one for one in dir(module) if one[:1] != "_"]
    folded = [one for one in own if one.lower() == name.lower()]
    close = folded or difflib.get_close_matches(name, own, n=2, cutoff=0.7)
    others = ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.utils.data")
    elsewhere = [one for one in others if one != home and name in dir(sys.modules.get(one))]
    return close, f"{elsewhere[0]}.{name}" if elsewhere else ""


def _name(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    home, name = found["home"] or found["place"], found["name"] or found["other"]
    close, elsewhere = _names_of(home, name)
    return {
        "home_of": home,
        "asked": name,
        "close": " or ".join(f"{home}.{one}" for one in close),
        "elsewhere": elsewhere,
        "is_unknown": not close and not elsewhere,
    }


def _class(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    called = node.func if isinstance(node, ast.Call) else None
    base = called.value if isinstance(called, ast.Attribute) else None
    text = written(base, frame.file) if base is not None else found["kind"]
    return {"text": text}


def _missing(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    called: Any = frame.value_of(node.func) if isinstance(node, ast.Call) else None
    text = written(node.func, frame.file) if isinstance(node, ast.Call) else found["call"]
    given = [written(one, frame.file) for one in getattr(node, "args", [])]
    names = re.findall(r"\w+", found["names"].replace(" and ", " "))
    try:
        takes = f" It takes {inspect.signature(called)}." if callable(called) else ""
    except (TypeError, ValueError):
        takes = ""
    call = f"{text}({', '.join([*given, *(f'{one}=...' for one in names)])})"
    return {"text": text, "lacking": " and ".join(names), "takes": takes, "way": call}


def _made(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether a module was made with the tensors that it is to be called with."""
    frame, node = _expression(failure)
    values = [frame.value_of(one) for one in getattr(node, "args", [])]
    text = written(node.func, frame.file) if isinstance(node, ast.Call) else found["kind"]
    given = ", ".join(written(one, frame.file) for one in getattr(node, "args", []))
    is_call = any(isinstance(one, Tensor) for one in values)
    is_super = text.startswith("super(")
    is_unknown = any(one is MISSING for one in values) and not is_call and not is_super
    return {
        "is_call": is_call or is_unknown,
        "is_super": is_super,
        "is_other": not is_call and not is_super,
        "if_inputs": "If these are its inputs, make" if is_unknown else "Make",
        "text": text,
        "given_text": given,
        "own": int(found["wanted"]) - 1,
        "count": int(found["given"]) - 1,
    }


def unpacked(failure: Failure) -> tuple[str, Any]:
    """Return what was to be unpacked: ``loader`` or ``tensor``, and the value; empty if neither."""
    frame, node = _expression(failure)
    if not frame.is_user or frame is not failure.frames[-1] or frame.function is None:
        return "", None
    for one in ast.walk(frame.function):
        if isinstance(one, ast.For | ast.comprehension) and any(
            part is node for part in ast.walk(one.target)
        ):
            values = [frame.value_of(part) for part in ast.walk(one.iter) if _is_named(part)]
            held = next((value for value in values if isinstance(value, DataLoader)), None)
            return ("loader", held) if held is not None else ("", None)
        if isinstance(one, ast.Assign) and any(target is node for target in one.targets):
            value = frame.value_of(one.value)
            return ("tensor", value) if isinstance(value, Tensor) else ("", None)
    return "", None


def _is_named(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _unpacked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind, value = unpacked(failure)
    data: Any = value.dataset if kind == "loader" else None
    sample: Any = data[0] if isinstance(data, list | tuple) and data else None
    if isinstance(data, TensorDataset):
        sample = data.tensors
    many = len(sample) if isinstance(sample, list | tuple) else found["given"] or "more"
    shape = shape_text(value) if kind == "tensor" else ""
    return {
        "is_loader": kind == "loader",
        "is_tensor": kind == "tensor",
        "count": many,
        "shape": shape,
        "is_one": found["given"] == "1",
        "is_many": found["given"] != "1",
    }


def none_handed_over(failure: Failure) -> str:
    """The name in PyTorch's code of an argument of the program that is None; empty if none is."""
    last = failure.frames[-1]
    node = last.expression
    base = node.value if isinstance(node, ast.Attribute) else None
    is_none = isinstance(base, ast.Name) and last.frame.f_locals.get(base.id, 0) is None
    named = base.id if isinstance(base, ast.Name) else ""
    is_argument = named in last.code.co_varnames[: last.code.co_argcount]
    return named if last.is_torch and is_none and is_argument else ""


def _none(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which of the program's values is None, and the module that returned it."""
    frame, node = _expression(failure)
    given = [one for one in getattr(node, "args", []) if frame.value_of(one) is None]
    text = written(given[0], frame.file) if len(given) == 1 else ""
    called = given[0] if given and isinstance(given[0], ast.Name) else None
    made = assignments_of(frame, called.id) if called is not None else []
    source = made[-1].value if len(made) == 1 else None
    module = frame.value_of(source.func) if isinstance(source, ast.Call) else None
    if not text and isinstance(node, ast.Call) and node.args:
        source = node.args[0]
        module = frame.value_of(source.func) if isinstance(source, ast.Call) else None
        text = written(source, frame.file) if isinstance(module, nn.Module) else ""
    if not text and isinstance(node, ast.Call) and len(node.args) == 1:
        text = written(node.args[0], frame.file)
    is_module = isinstance(module, nn.Module)
    is_init = failure.frames[-1].file.endswith("init.py")
    return {
        "text": text or none_handed_over(failure),
        "maker": failure.names.module(module) if is_module else "",
        "is_init": is_init,
        "is_other": not is_init,
    }


_STATE = "{name} is a dict of tensors and no model: a state that was saved, without its class."
SITUATIONS: dict[str, Situation] = {
    "tensor that is called": first_of(
        SituationRow(
            "{text} is a tensor, and was called.",
            "Leave the parentheses out: {text}.",
            when="is_attribute",
        ),
        SituationRow(
            "PyTorch called what it was given, which is a tensor and no function.",
            "Give a function that computes it: lambda: ..., without calling it.",
            when="is_inside",
        ),
        SituationRow(
            "{text} is a tensor{line}, and was called.",
            "If {text} was a function before, call the result by another name: a name holds the "
            "last of what it was given.",
            "If an element is meant: {text}[...].",
        ),
        facts=_called,
    ),
    "method without a call": SituationRow(
        "{text} is a method, and was indexed without being called.",
        "Call it: {way}.",
        facts=_uncalled,
    ),
    "no items": SituationRow(
        "{name} is a {kind}, which has no items.",
        ("is_loader", "Take a batch of it: next(iter({name})); a sample: {name_it}.dataset[0]."),
        ("children", "Its modules are attributes: {children}."),
        ("is_other", "Call it: {name_it}(...)."),
        facts=_items,
    ),
    "no iterator": SituationRow(
        "{name} can be iterated, and is no iterator: next needs one.",
        "Make it first: next(iter({name})).",
        facts=_iterated,
    ),
    "state that is no model": first_of(
        SituationRow(
            "{name} is a dict, and has no {asked}: its tensors have.",
            "Go through it: {{key: one.{asked}(...) for key, one in {name_it}.items()}}.",
            when="is_batch",
        ),
        SituationRow(
            _STATE,
            "Make the model and load the state into it: {model} = Net(...), "
            "{model}.load_state_dict({state}).",
        ),
        facts=_state,
    ),
    "name of torch": SituationRow(
        "{home_of} has no {asked!r}.",
        ("close", "Did you mean {close}?"),
        ("elsewhere", "Take it where it is: {elsewhere}."),
        (
            "is_unknown",
            "Check the name in the documentation of this release; a file of your own named "
            "torch.py "
            "or after a part of it would hide it.",
        ),
        facts=_name,
    ),
    "method of a class": SituationRow(
        "{name} was called on the class {text}, and not on a module: no object was made of it.",
        "Make the module first: model = {text}(...), then model.{name}().",
        facts=_class,
    ),
    "arguments that are missing": SituationRow(
        "{text} was called without {lacking}.{takes}",
        "Give it: {way}.",
        facts=_missing,
    ),
    "made with inputs": SituationRow(
        "{text} takes {own} arguments where it is made, and was given {count}.",
        ("is_call", "{if_inputs} the module first, then call it: {text}()({given_text})."),
        ("is_super", "Leave the arguments out: super().__init__()."),
        ("is_other", "Give __init__ the parameters: def __init__(self, ...)."),
        facts=_made,
    ),
    "more names than values": first_of(
        SituationRow(
            "A batch of the loader has {count} parts, as each sample of the data set, and {wanted} "
            "names were given for it.",
            ("is_one", "If samples have one part: for (x,) in loader."),
            "Give a name for each part, or return {wanted} from the data set's __getitem__.",
            when="is_loader",
        ),
        SituationRow(
            "A tensor ({shape}) is unpacked along its first dimension, and {wanted} names were "
            "given.",
            "Unpack another dimension: .unbind(dim), or .split(size, dim).",
            "Give a name for each element of the first dimension.",
        ),
        facts=_unpacked,
    ),
    "None in a function": SituationRow(
        "{text} is None, and a tensor is needed.",
        (
            "maker",
            "Return a value from the forward of {maker}: a function without return gives None.",
        ),
        (
            "is_init",
            "Leave out what is None, as the bias of a layer with bias=False: if {text} is "
            "not None.",
        ),
        ("is_other", "Check what gave None: a function without return, or an option that is off."),
        facts=_none,
    ),
}
