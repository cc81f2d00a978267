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

from torchtap.failures.assignments import assignments_of, names_in
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.none_sources import explained_none
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
    # A name that is assigned once, and of no call of itself, never held a function.
    is_changed = len(made) > 1 or any(
        one.value is not None and text in names_in(one.value) for one in made
    )
    last = is_changed or not made
    return {**words, "text": text, "line": line, "before": last, "is_first": not last}


def uncalled_method(failure: Failure) -> ast.expr | None:
    """Return the method that was indexed or gone over without being called."""
    match failure.frames[-1].expression:
        case ast.Subscript(value=node):
            return node
        case ast.For(iter=node) | ast.comprehension(iter=node):
            return node
        case ast.ListComp(generators=[one, *_]) | ast.GeneratorExp(generators=[one, *_]):
            return one.iter
        case ast.Call(func=ast.Name(), args=[node, *_]):
            return node
    return None


def _uncalled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    method = uncalled_method(failure)
    if method is None:
        return {"text": "the method", "way": "x.size(0)", "what": "indexed"}
    text = written(method, frame.file)
    if isinstance(node, ast.Subscript):
        return {
            "text": text,
            "way": f"{text}({written(node.slice, frame.file)})",
            "what": "indexed",
        }
    return {"text": text, "way": f"{text}()", "what": "gone over"}


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
    # A variable of that name is what the argument is meant to get.
    held = frame.frame.f_locals
    values = [f"{one}={one if one in held else '...'}" for one in names]
    call = f"{text}({', '.join([*given, *values])})"
    is_own = isinstance(called, type) and not called.__module__.startswith("torch.")
    owner = node.func.value if isinstance(getattr(node, "func", None), ast.Attribute) else None  # type: ignore[union-attr]
    is_class = names == ["self"] and owner is not None and isinstance(frame.value_of(owner), type)
    return {
        "whole": written(owner, frame.file) if is_class and owner is not None else "",
        "is_given": not is_class,
        "text": text,
        "lacking": " and ".join(names),
        "takes": takes,
        "way": call,
        "own": f"{called.__name__}.__init__" if is_own else "",
    }


def typo_of_init(kind: Any) -> str:
    """The method of a class whose name is nearly ``__init__``; empty if it has none."""
    own = [name for name in vars(kind) if "i" in name] if isinstance(kind, type) else []
    close = difflib.get_close_matches("__init__", own, n=1, cutoff=0.75)
    return close[0] if close and close[0] != "__init__" else ""


def _made(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether a module was made with the tensors that it is to be called with."""
    frame, node = _expression(failure)
    values = [frame.value_of(one) for one in getattr(node, "args", [])]
    text = written(node.func, frame.file) if isinstance(node, ast.Call) else found["kind"]
    given = ", ".join(written(one, frame.file) for one in getattr(node, "args", []))
    is_call = any(isinstance(one, Tensor) for one in values)
    own = int(found["wanted"]) - 1
    is_super = text.startswith("super(")
    kind = frame.value_of(node.func) if isinstance(node, ast.Call) else None
    is_container = kind in (nn.ModuleList, nn.ModuleDict, nn.ParameterList)
    is_unknown = any(one is MISSING for one in values) and not is_call and not is_super
    is_unknown = is_unknown and not is_container
    return {
        "is_call": is_call or is_unknown,
        "is_super": is_super and not own,
        "is_container": is_container,
        "is_other": not is_call and not (is_super and not own) and not is_container,
        "typo": typo_of_init(frame.value_of(node.func)) if isinstance(node, ast.Call) else "",
        "if_inputs": "If these are its inputs, make" if is_unknown else "Make",
        "text": text,
        "given_text": given,
        "own": own,
        "count": int(found["given"]) - 1,
    }


def unpacked(failure: Failure) -> tuple[str, Any]:
    """Return what was to be unpacked, and its value; empty if it is nothing of PyTorch.

    ``loader``, ``numbered`` (a loader by enumerate), ``tensor``, ``shape``, ``call`` (of a module),
    or ``sample``: an expression in the code of a data set, whose value is not known.
    """
    frame, node = _expression(failure)
    if not frame.is_user or frame is not failure.frames[-1] or frame.function is None:
        return "", None
    for one in ast.walk(frame.function):
        if isinstance(one, ast.For | ast.comprehension) and any(
            part is node for part in ast.walk(one.target)
        ):
            values = [frame.value_of(part) for part in ast.walk(one.iter) if _is_named(part)]
            held = next((value for value in values if isinstance(value, DataLoader)), None)
            is_numbered = one.target is node and isinstance(one.iter, ast.Call)
            kind = "numbered" if is_numbered else "loader"
            return (kind, held) if held is not None else ("", None)
        if isinstance(one, ast.Assign) and any(target is node for target in one.targets):
            return _assigned(failure, frame, one.value)
    return "", None


def _assigned(failure: Failure, frame: TracebackFrame, source: ast.expr) -> tuple[str, Any]:
    value = frame.value_of(source)
    if isinstance(value, Tensor):
        return "tensor", value
    if type(value) in (list, tuple) and value and all(isinstance(one, Tensor) for one in value):
        return "parts", value
    base = _base_of_shape(source)
    owner = None if base is None else frame.value_of(base)
    if base is not None and isinstance(getattr(owner, "shape", None), tuple):
        return "shape", owner
    module = frame.value_of(source.func) if isinstance(source, ast.Call) else None
    if isinstance(module, nn.Module):
        return "call", module
    if isinstance(source, ast.Call) and _is_cut(frame, source):
        return "cut", source
    is_asked = any(one.is_torch and one.file.endswith("fetch.py") for one in failure.frames)
    return ("sample", source) if is_asked else ("", None)


_CUTS = ("split", "chunk", "unbind", "tensor_split")
"""Methods and functions that take a tensor apart."""


def _is_cut(frame: TracebackFrame, call: ast.Call) -> bool:
    """Return whether a call takes a tensor apart."""
    func = call.func
    base = func.value if isinstance(func, ast.Attribute) and func.attr in _CUTS else None
    is_function = isinstance(base, ast.Name) and base.id == "torch"
    return is_function or (base is not None and isinstance(frame.value_of(base), Tensor))


def _cut(frame: TracebackFrame, call: ast.Call, wanted: int) -> dict[str, Any]:
    """Say how a call takes a tensor apart, and in which dimension it gives as many parts."""
    func = call.func
    assert isinstance(func, ast.Attribute)
    is_function = isinstance(func.value, ast.Name) and func.value.id == "torch"
    base, args = (call.args[0], call.args[1:]) if is_function else (func.value, call.args)
    named = {one.arg: one.value for one in call.keywords}
    at = 0 if func.attr == "unbind" else 1
    given = named.get("dim") or (args[at] if len(args) > at else None)
    dim = 0 if given is None else frame.value_of(given)
    value = frame.value_of(base)
    shape = list(value.shape) if isinstance(value, Tensor) else []
    own = dim % len(shape) if shape and type(dim) is int else 0
    size = shape[own] if shape else 0
    text = grouped(written(base, frame.file))
    is_even = func.attr in ("split", "chunk") and size > 0 and size % wanted == 0
    others = [n for n in range(1, len(shape)) if n != own and shape[n] % wanted == 0]
    last = others[-1] if func.attr != "unbind" and others else None
    return {
        "text": written(call, frame.file),
        "looks": shape_text(value) if shape else "a tensor",
        "own": own,
        "even": f"{text}.split({size // wanted}, dim={own})" if is_even else "",
        "turned": ""
        if last is None or given is not None
        else f"{text}.chunk({wanted}, dim={last})",
        "unbound": func.attr == "unbind",
    }


def _base_of_shape(source: ast.expr) -> ast.expr | None:
    """The ``x`` of ``x.shape``, ``x.size()`` and ``x.shape[:3]``."""
    match source:
        case ast.Attribute(value=base, attr="shape"):
            return base
        case ast.Call(func=ast.Attribute(value=base, attr="size"), args=[]):
            return base
        case ast.Subscript(value=inner):
            return _base_of_shape(inner)
    return None


def _is_named(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _unpacked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind, value = unpacked(failure)
    data: Any = value.dataset if kind in ("loader", "numbered") else None
    sample: Any = data[0] if isinstance(data, list | tuple) and data else None
    if isinstance(data, TensorDataset):
        sample = data.tensors
    is_known = isinstance(sample, list | tuple | dict)
    many = len(sample) if is_known else found["given"] or "more"
    keys = list(sample) if isinstance(sample, dict) else []
    known = {f"is_{one}": kind == one for one in ("loader", "numbered", "tensor", "shape")}
    return {
        **known,
        "is_sample": kind == "sample",
        "is_parts_known": kind == "parts",
        "is_call": kind == "call",
        "is_cut": kind == "cut",
        "count": len(value) if kind == "parts" else many,
        "shape": shape_text(value) if kind == "tensor" else "",
        "is_one": found["given"] == "1",
        "is_alone": kind == "loader" and isinstance(sample or data, Tensor),
        "keys": ", ".join(f"batch[{one!r}]" for one in keys[: int(found["wanted"])]),
        "is_parts": not keys and not isinstance(sample or data, Tensor),
        **_targets(failure, kind, value, int(found["wanted"])),
    }


_WORDS = ("grey", "head", "base", "first", "last", "split", "single", "pair", "maker", "is_own")


def _targets(failure: Failure, kind: str, value: Any, wanted: int) -> dict[str, Any]:
    """Words of the names that were given, and of what the statement unpacks."""
    frame, node = _expression(failure)
    names = [written(one, frame.file) for one in getattr(node, "elts", [])]
    source = _source_of(frame, node)
    words: dict[str, Any] = dict.fromkeys(_WORDS, "")
    words["source"] = "it" if source is None else written(source, frame.file)
    if kind == "numbered":
        words["head"] = f"{names[0]}, ({', '.join(names[1:])})"
        return words
    if kind == "shape" and source is not None:
        base, size = _base_of_shape(source), tuple(value.shape)
        words["base"] = written(base, frame.file) if base is not None else "x"
        words["looks"] = f"{len(size)} dimensions ({', '.join(map(str, size))})"
        tail = names[-2:] if len(size) > 1 else names[-1:]
        words["grey"] = not isinstance(value, Tensor) and (len(size), wanted) == (2, 3)
        words["last"] = "" if words["grey"] else f"*_, {', '.join(tail)} = {words['source']}"
        words["first"] = isinstance(value, Tensor) and wanted == len(size) + 1
    if kind == "cut":
        words |= _cut(frame, value, wanted)
    if kind == "call":
        words |= {"maker": failure.names.module(value), **_returned(value, names)}
    match source:
        case ast.Call(func=ast.Attribute(value=base, attr="split"), args=args) if kind == "sample":
            sign = f"{written(args[0], frame.file)}, " if args else ""
            most = f"{sign}{wanted - 1}" if args else f"maxsplit={wanted - 1}"
            words["split"] = f"{written(base, frame.file)}.rsplit({most})"
    return words


def _returned(module: nn.Module, names: list[str]) -> dict[str, Any]:
    """How the result of a layer of PyTorch is taken; for another module, what it may return."""
    if isinstance(module, nn.LSTM):
        return {"pair": f"{names[0]}, ({', '.join([*names[1:], 'c'][:2])}) = ..."}
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return {"pair": f"{', '.join(names[:2])} = ..."}
    is_of_torch = type(module).__module__.startswith("torch.nn.modules.")
    return {"single": names[0] if is_of_torch else "", "is_own": not is_of_torch}


def _source_of(frame: TracebackFrame, node: ast.AST | None) -> ast.expr | None:
    """The value of the assignment that has a node as its target."""
    tree = frame.function
    every = ast.walk(tree) if tree is not None else ()
    made = [one for one in every if isinstance(one, ast.Assign)]
    return next((one.value for one in made if any(part is node for part in one.targets)), None)


def none_handed_over(failure: Failure) -> str:
    """The name in PyTorch's code of an argument of the program that is None; empty if none is."""
    last = failure.frames[-1]
    node = last.expression
    base = node.value if isinstance(node, ast.Attribute) else None
    is_none = isinstance(base, ast.Name) and last.frame.f_locals.get(base.id, 0) is None
    named = base.id if isinstance(base, ast.Name) else ""
    is_argument = named in last.code.co_varnames[: last.code.co_argcount]
    return named if last.is_torch and is_none and is_argument else ""


def _name_of_none(failure: Failure) -> tuple[str, bool]:
    """The program's value that is None, as it is written, and whether it was to be initialised."""
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
    is_init = failure.frames[-1].file.endswith("init.py")
    return text or _given_as(failure, none_handed_over(failure)), is_init


def _given_as(failure: Failure, name: str) -> str:
    """The program's expression for an argument of the function of PyTorch that it called."""
    inner, frame = failure.frames[-1], failure.user
    node = None if frame is None else frame.expression
    names = inner.code.co_varnames[: inner.code.co_argcount]
    is_direct = frame is not None and frame.depth == inner.depth - 1
    if not is_direct or not isinstance(node, ast.Call) or name not in names or frame is None:
        return name
    at = names.index(name)
    return written(node.args[at], frame.file) if at < len(node.args) else name


def _none(failure: Failure, found: re.Match[str]) -> Explanation:
    """Say what the None is that a function of PyTorch was given."""
    text, is_init = _name_of_none(failure)
    if not is_init:
        return explained_none(failure, found, text, "a tensor is needed")
    return Explanation(
        f"{text} is None, and a tensor is needed.",
        (
            f"Leave out what is None, as the bias of a layer with bias=False: if {text} is not "
            "None.",
        ),
    )


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
            (
                "before",
                "If {text} was a function before, call the result by another name: a name holds "
                "the last of what it was given.",
            ),
            "If an element is meant: {text}[...].",
            ("is_first", "If a product is meant: write the operator, {text} * (...)."),
        ),
        facts=_called,
    ),
    "method without a call": SituationRow(
        "{text} is a method, and was {what} without being called.",
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
        ("whole", "{whole} is a class: make one of it where it is given, {whole} = ...(...)."),
        ("is_given", "Give it: {way}."),
        ("own", "If it may be left out: give {lacking} a default in {own}."),
        facts=_missing,
    ),
    "made with inputs": SituationRow(
        "{text} takes {own} arguments where it is made, and was given {count}.",
        ("typo", "Call it __init__, with two underscores on each side: the class defines {typo}."),
        ("is_call", "{if_inputs} the module first, then call it: {text}()({given_text})."),
        ("is_container", "Put them into a list: {text}([{given_text}])."),
        ("is_super", "Leave the arguments out: super().__init__()."),
        ("is_other", "If __init__ is to take them: add them to its parameters."),
        ("is_other", "If not: leave them out of the call."),
        facts=_made,
    ),
    "more names than values": first_of(
        SituationRow(
            "enumerate gives a number and a batch, and {wanted} names were given for these two.",
            "Give the parts of the batch names of their own: {head}.",
            when="is_numbered",
        ),
        SituationRow(
            "A batch of the loader is one tensor, as each sample of the data set, and {wanted} "
            "names were given for it.",
            "Give it one name: for x in loader.",
            "If samples are to have {wanted} parts, such as a target: return them from the data "
            "set, TensorDataset(x, y).",
            when="is_alone",
        ),
        SituationRow(
            "A batch of the loader has {count} parts, as each sample of the data set, and {wanted} "
            "names were given for it.",
            ("is_one", "If samples have one part: for (x,) in loader."),
            ("keys", "It is a dict, and gives its keys: for batch in loader, then {keys}."),
            (
                "is_parts",
                "Give a name for each part, or return {wanted} from the data set's __getitem__.",
            ),
            when="is_loader",
        ),
        SituationRow(
            "{base} has {looks}, and {wanted} names were given for its shape.",
            (
                "first",
                "If it lacks the dimension of the batch: {base}.unsqueeze(0); if that of the "
                "channels, as a grey picture does: {base}.unsqueeze(1).",
            ),
            (
                "grey",
                "If it is a grey picture, which has no channels: give it one, {base}[..., None]; "
                "or read all with three colours, Image.open(path).convert('RGB').",
            ),
            ("last", "If the last ones alone are meant: {last}."),
            "Give a name for each of its dimensions.",
            when="is_shape",
        ),
        SituationRow(
            "The call of {maker} gave another number of values than the {wanted} names.",
            ("pair", "It returns the output, and a state: {pair}"),
            (
                "single",
                "It returns one tensor, which is unpacked along its first dimension: {single} = "
                "{source}.",
            ),
            (
                "is_own",
                "If its forward returns one tensor, it is unpacked along its first dimension: give "
                "it one name.",
            ),
            ("is_own", "If it returns several: give a name for each of them."),
            when="is_call",
        ),
        SituationRow(
            "{text} takes {looks} apart in dimension {own}, into other than {wanted} parts.",
            ("turned", "If the parts stand in another dimension, say which: {turned}."),
            ("even", "If they are {wanted} equal parts: {even}."),
            ("unbound", "Give a name for each element of dimension {own}."),
            "Give the sizes of the parts, whose sum is that of the dimension, or as many names as "
            "there are parts.",
            when="is_cut",
        ),
        SituationRow(
            "{source} holds {count} tensors, and {wanted} names were given.",
            "Give a name for each of them.",
            when="is_parts_known",
        ),
        SituationRow(
            "The data set unpacks {source}, which gave another number of values than the {wanted} "
            "names.",
            ("split", "If a part may hold the sign itself, such as a space: {split}."),
            "Check it for that sample: a line or an entry of it has more or fewer parts.",
            when="is_sample",
        ),
        SituationRow(
            "A tensor ({shape}) is unpacked along its first dimension, and {wanted} names were "
            "given.",
            "Unpack another dimension: .unbind(dim), or .split(size, dim).",
            "Give a name for each element of the first dimension.",
        ),
        facts=_unpacked,
    ),
    "None in a function": _none,
}
