"""Modules: attributes, parameters, state dicts."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.catalogue.objects import typo_of_init
from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.graph_reading import leaves_of
from torchtap.failures.none_sources import may_be_none
from torchtap.failures.operands import Operand, shape_text
from torchtap.failures.out_of_place import statement_of
from torchtap.failures.parsed_source import function_tree, grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame
from torchtap.failures.uncalled_modules import made_with_inputs, way_to_call
from torchtap.failures.unread_members import unread_layers

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def _no_forward(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    module = failure.module
    own = [name for name in vars(type(module)) if not name.startswith("_")]
    close = difflib.get_close_matches("forward", own, n=1, cutoff=0.75)
    inside = "" if close or module is None else _method_with_forward(type(module))
    kind = found["kind"]
    name = failure.names.variable(module) if module is not None else "layers"
    return {
        "is_list": kind == "ModuleList",
        "is_dict": kind == "ModuleDict",
        "close": next(iter(close), ""),
        "inside": inside,
        "is_absent": not close and not inside,
        **members(module, name),
    }


def members(module: nn.Module | None, name: str) -> dict[str, Any]:
    """Return words of how the modules of a list can be called: in a row, or each with one input."""
    layers = list(module.children()) if module is not None else []
    pairs = itertools.pairwise(layers)
    is_row = all(_follows(one, other) for one, other in pairs)
    return {"name": name, "row": is_row, "heads": len(layers) > 1}


def _follows(one: nn.Module, other: nn.Module) -> bool:
    """Return whether a layer may take what another one gives, by their features or channels."""
    given = getattr(one, "out_features", getattr(one, "out_channels", None))
    taken = getattr(other, "in_features", getattr(other, "in_channels", None))
    return type(given) is not int or type(taken) is not int or given == taken


def _method_with_forward(kind: type) -> str:
    """The method of a class inside of which a function forward stands; empty if none has one."""
    for name, method in vars(kind).items():
        code = getattr(method, "__code__", None)
        tree = None if code is None else function_tree(code, code.co_firstlineno)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.FunctionDef) and node.name == "forward" and node is not tree:
                return name
    return ""


def _attribute(failure: Failure, found: re.Match[str]) -> Explanation:
    name = found["name"]
    unmade = _before_init(failure)
    if unmade is not None:
        return unmade
    owner = failure.frames[-1].owner if failure.frames[-1].is_torch else None
    where, ways = "", []
    if isinstance(owner, nn.Module):
        where = failure.names.module(owner)
        ways = _ways_of_attribute(failure, owner, name)
        fault = _property(owner, name)
        if fault:
            return Explanation(fault, _WAYS_OF_PROPERTY, (), where)
    made = _made_in_place_of_called(failure, owner, name)
    if made:
        return made
    if isinstance(owner, nn.Module) and hasattr(Tensor, name) and not _is_read_of_self(failure):
        return _of_tensors(failure, owner, name, where)
    arrays = getattr(sys.modules.get("numpy"), "ndarray", None)
    if found["kind"] == "Tensor" and hasattr(arrays, name):
        return _of_arrays(failure, name)
    close = _close_names(owner, name)
    is_known = bool(ways) and ways[0].startswith(("If the model was saved whole", "__init__ "))
    if close and name != "module" and not is_known:
        ways.insert(0, f"Did you mean {' or '.join(map(repr, close))}?")
    return Explanation(
        f"{where or 'A ' + found['kind']} has no attribute {name!r}.",
        tuple(ways) or ("Check the name in PyTorch's documentation.",),
        (),
        where,
    )


def _of_arrays(failure: Failure, name: str) -> Explanation:
    """The explanation of a method of numpy's arrays that was read of a tensor."""
    own = {"astype": "x.to(dtype)", "copy": "x.clone()", "ptp": "x.max() - x.min()"}.get(name)
    return Explanation(
        f"A Tensor has no attribute {name!r}, which is one of numpy's arrays.",
        (
            *((f"For a tensor, {own} does the same.",) if own else ()),
            f"If an array is meant, make one first: x.numpy().{name}, with .detach() before it of "
            "what has a graph; also where another operand is an array.",
        ),
    )


def _is_read_of_self(failure: Failure) -> bool:
    """Return whether a method of a module reads its own attribute: no slip for a tensor."""
    frame = failure.user
    node = None if frame is None else frame.expression
    base = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(base, ast.Name) and base.id == "self"


def _of_tensors(failure: Failure, owner: nn.Module, name: str, where: str) -> Explanation:
    """The explanation of a member of tensors that was read of a module."""
    kind = type(owner).__name__
    frame = failure.user
    node = None if frame is None else frame.expression
    is_own = type(owner).__module__.startswith("torch.nn.modules.")
    text = (
        written(node.value) if isinstance(node, ast.Attribute) else failure.called(owner, "module")
    )
    ways = _ways_of_new_module(frame, node, name) if is_own else []
    ways = ways or [
        *(
            ["backward is of a loss: loss.backward(), a tensor computed from the output."]
            if name == "backward"
            else [way_to_call(failure, owner, text)]
        ),
        *(() if is_own else [f"If {name} is meant as an attribute: assign it in __init__."]),
    ]
    return Explanation(
        f"{where or kind} is a module and no tensor, and {name!r} is of tensors.",
        tuple(ways),
        (),
        where,
    )


def _ways_of_new_module(frame: TracebackFrame | None, node: ast.AST | None, name: str) -> list[str]:
    """Return the ways out where a module is asked at the place where it is made, without inputs."""
    base = node.value if isinstance(node, ast.Attribute) else None
    if frame is None or not isinstance(base, ast.Call) or base.args or name == "backward":
        return []
    if not isinstance(frame.value_of(base.func), type):
        return []
    text = written(base, frame.file)
    return [
        f"If the module itself is meant, leave .{name} out: {text}.",
        f"If a value of its output is meant, call it on its inputs first: {text}(...).{name}.",
    ]


_WAYS_OF_PROPERTY = (
    "Look for the attribute that the property reads: a name that is not there is what failed. To "
    "see it, call the getter itself: type(module).name.fget(module).",
)


def _property(owner: nn.Module, name: str) -> str:
    """Say so where a property of the class itself raised an AttributeError, which hides it."""
    if not isinstance(inspect.getattr_static(type(owner), name, None), property):
        return ""
    kind = type(owner).__name__
    return (
        f"{kind} has the property {name!r}, and an attribute that it reads is missing: nn.Module "
        "then names the property in its place."
    )


def _close_names(owner: Any, name: str) -> list[str]:
    """Names that an attribute may be a slip of: those of the module's own, or nearly the same.

    Names that differ by their numbers alone, as fc1 and fc2, are of two things.
    """
    if not isinstance(owner, nn.Module):
        return _closest(name, [one for one in dir(Tensor) if one[:1] != "_"], cutoff=0.6)
    tables = (owner._modules, owner._parameters, owner._buffers)
    own = {*vars(owner), *dir(type(owner)), *itertools.chain(*tables)}
    own -= set(dir(nn.Module)) | set(vars(nn.Module()))
    plain = re.sub(r"\d", "", name)
    fitting = [
        one
        for one in own
        if one.startswith("_") is name.startswith("_")
        if re.sub(r"\d", "", one) != plain or sorted(one) == sorted(name)
    ]
    general = [one for one in dir(nn.Module) if one[:1] != "_"]
    return _closest(name, sorted(fitting), cutoff=0.75) or _closest(name, general, cutoff=0.85)


def _closest(name: str, known: list[str], *, cutoff: float) -> list[str]:
    """Return the names closest to one: those of the same letters alone, if there are any."""
    close = difflib.get_close_matches(name, known, n=9, cutoff=cutoff)
    return [one for one in close if sorted(one) == sorted(name)] or close[:2]


def _lost_in_init(owner: nn.Module, name: str) -> str:
    """The way out where ``__init__`` has a name as an argument or a variable, and not of self."""
    init = vars(type(owner)).get("__init__")
    code = getattr(init, "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    if code is None or not isinstance(tree, ast.FunctionDef) or name not in code.co_varnames:
        return ""
    if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return f"__init__ takes {name} and does not keep it: assign it there, self.{name} = {name}."
    lines = [
        one.lineno
        for one in ast.walk(tree)
        if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
    ]
    return (
        f"__init__ gives the value to the local variable {name}, in line {lines[0]}: write "
        f"self.{name} there."
        if lines
        else ""
    )


def _ways_of_attribute(failure: Failure, owner: nn.Module, name: str) -> list[str]:
    """How an attribute comes to a module: another method assigns it, or ``__init__`` has a typo."""
    wrapped = owner._modules.get("module") if type(owner).__name__ in _WRAPPERS else None
    if wrapped is not None:
        text = failure.called(owner, "model")
        is_there = hasattr(type(wrapped), name) or name in {**vars(wrapped), **wrapped._modules}
        rest = (
            [] if is_there else [f"Assign self.{name} in __init__ of that model, if it lacks it."]
        )
        return [f"Read it of the model that is wrapped: {text}.module.{name}.", *rest]
    if type(owner).__module__.startswith("torch.nn.modules.") and _assigned_in(owner, name):
        kind = type(owner).__name__
        return [
            "If the model was saved whole by another release of PyTorch: load its state into a "
            f"model that is made here, whose {kind} has it: model.load_state_dict(old.state_dict())"
            ".",
            f"If the model cannot be made anew: set it to the default of {kind} in each, {name}"
            f"={_default(owner, name)}, before it is called.",
            "Or load it with the release of PyTorch that saved it.",
        ]
    typo = typo_of_init(type(owner))
    if typo:
        return [f"Call it __init__, with two underscores on each side: the class defines {typo}."]
    if name == "module" and type(owner).__name__ not in _WRAPPERS:
        return [
            "If it is not wrapped by DataParallel or DistributedDataParallel here: leave .module "
            "out."
        ]
    setter = _assigned_in(owner, name)
    if setter and setter != "__init__":
        return [
            f"{setter} assigns self.{name}, and has not done so: call it before, or assign "
            f"self.{name} in __init__."
        ]
    if setter:
        return [
            f"__init__ assigns self.{name} under a condition that does not hold, or below the line "
            "that needs it: assign it on every path."
        ]
    lost = _lost_in_init(owner, name)
    unread = [f"self.{key} ({type(one).__name__})" for key, one in unread_layers(owner)]
    meant = [f"If {unread[0]}, which no method reads, is meant: read that."] if unread else []
    meant = [] if lost or len(unread) > 1 else meant
    return [*meant, lost or f"Assign self.{name} in __init__, before it is read."]


def _default(owner: nn.Module, name: str) -> str:
    parameters = inspect.signature(type(owner).__init__).parameters
    known = parameters.get(name)
    return "..." if known is None or known.default is known.empty else repr(known.default)


def _assigned_in(owner: nn.Module, name: str) -> str:
    """The method of the class that assigns an attribute; empty if none does."""
    for kind in type(owner).__mro__:
        if kind is nn.Module:
            break
        for method, value in vars(kind).items():
            code = getattr(value, "__code__", None)
            tree = None if code is None else function_tree(code, code.co_firstlineno)
            for node in ast.walk(tree) if tree is not None else ():
                is_it = isinstance(node, ast.Attribute) and node.attr == name
                if is_it and isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
                    return method
    return ""


def _before_init(failure: Failure) -> Explanation | None:
    """The explanation, where a module lacks all that nn.Module.__init__ makes."""
    owner = failure.frames[-1].owner if failure.frames[-1].is_torch else None
    if not isinstance(owner, nn.Module) or "_modules" in vars(owner):
        return None
    return Explanation(
        f"{type(owner).__name__}.__init__ did not call that of nn.Module, which makes the module's "
        "lists of parameters, modules and hooks.",
        ("Call super().__init__() on the first line of __init__.",),
    )


def _made_in_place_of_called(failure: Failure, owner: Any, name: str) -> Explanation | None:
    """The explanation, where a module stands for the tensor that its call would return."""
    if not isinstance(owner, nn.Module) or not hasattr(Tensor, name):
        return None
    called, place = made_with_inputs(failure, owner)
    if not called:
        return None
    variable = failure.called(owner) or failure.names.module(owner)
    return Explanation(
        f"{variable} is the module {type(owner).__name__}, which {place} made, and not a tensor: "
        "it was given tensors where it is made.",
        (f"Make it first, with its own arguments, then call it: {called}.",),
    )


def _assigned(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return what was assigned to a parameter: a value with a graph, or one of the same shape."""
    held = failure.frames[-1].frame.f_locals
    owner, value = held.get("self"), held.get("value")
    parameter = owner._parameters.get(found["name"]) if isinstance(owner, nn.Module) else None
    is_computed = isinstance(value, Tensor) and value.grad_fn is not None
    leaves = leaves_of([value]) if isinstance(value, Tensor) and is_computed else []
    is_of_itself = any(one is parameter for one in leaves)
    variable = failure.names.variable(owner) if isinstance(owner, nn.Module) else "module"
    is_same = isinstance(value, Tensor) and getattr(parameter, "shape", None) == value.shape
    return {
        "is_of_itself": is_of_itself,
        "is_computed": is_computed and not is_of_itself,
        "is_copied": is_same and not is_computed,
        "may_be_wrapped": not is_computed,
        "shared": _data_of_parameter(failure),
        "owner": failure.called(owner, variable),
    }


def _data_of_parameter(failure: Failure) -> str:
    """The parameter whose ``.data`` was assigned, as it is written; empty if it was not."""
    statement = None if failure.user is None else statement_of(failure.user)
    value = statement.value if isinstance(statement, ast.Assign) else None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    is_data = isinstance(value, ast.Attribute) and value.attr == "data"
    return ast.unparse(value.value) if is_data else ""  # type: ignore[union-attr]


def _truth(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The condition that was to be decided; or that a loss was called where it is made."""
    last, node = failure.frames[-1], failure.frames[-1].expression
    asked, is_default = _asked(last)
    name = asked or failure.name_of(next(iter(failure.tensors), Operand(UNNAMED)))
    compared = _compared(last)
    return {
        "is_loss": last.file.endswith(os.path.join("nn", "_reduction.py")),
        "kind": "the loss" if failure.module is None else type(failure.module).__name__,
        "condition": ast.unparse(node) if isinstance(node, ast.Compare) else name,
        "given": "".join(f" ({shape_text(one.value)})" for one in failure.tensors[:1]),
        "choice": _choice(failure),
        **compared,
        "asked": asked,
        "is_plain": not any(compared.values()) and not is_default,
    }


def _compared(frame: TracebackFrame) -> dict[str, str]:
    """How ``x in list`` and ``x or y`` are written for tensors; empty of other conditions."""
    words = {"among": "", "default": "", "greater": "", "asked": ""}
    if frame.expression is None or frame.function is None:
        return words
    for node in ast.walk(frame.function):
        if getattr(node, "lineno", 0) != frame.line:
            continue
        match node:
            case ast.Compare(left=one, ops=[ast.In() | ast.NotIn()], comparators=[several]):
                a, b = ast.unparse(one), ast.unparse(several)
                words["among"] = f"any(torch.equal({a}, one) for one in {b})"
            case ast.BoolOp(
                op=ast.Or(), values=[ast.BoolOp(op=ast.And(), values=[test, one]), other]
            ):
                parts = [ast.unparse(part) for part in (one, test, other)]
                words["default"] = f"{parts[0]} if {parts[1]} else {parts[2]}"
                return words
            case ast.BoolOp(op=ast.Or(), values=[ast.Name(one), other]):
                words["default"] = f"{one} if {one} is not None else {ast.unparse(other)}"
            case ast.Call(func=ast.Name("max" | "min" as end), args=[one, other]):
                pair = f"{ast.unparse(one)}, {ast.unparse(other)}"
                words["greater"] = f"torch.{end}imum({pair})"
            case ast.Call(func=ast.Name("max" | "min" as end), args=[one]):
                words["greater"] = f"{grouped(ast.unparse(one))}.{end}()"
    return words


def _asked(frame: TracebackFrame) -> tuple[str, bool]:
    """The tensor that alone is a condition, and whether it is an argument that may be None."""
    nodes = ast.walk(frame.function) if frame.function is not None else ()
    tests = [one.test for one in nodes if isinstance(one, ast.If | ast.While | ast.IfExp)]
    tests = [one for one in tests if one.lineno == frame.line]
    tests += [part for one in tests if isinstance(one, ast.BoolOp) for part in one.values]
    tests = [one.operand if isinstance(one, ast.UnaryOp) else one for one in tests]
    for one in tests:
        is_name = isinstance(one, ast.Name | ast.Attribute)
        if is_name and isinstance(frame.value_of(one), Tensor):
            name = one.id if isinstance(one, ast.Name) else ""
            return ast.unparse(one), may_be_none(frame.function, name)
    return "", False


def _choice(failure: Failure) -> str:
    """An expression ``a if condition else b`` whose condition was to be decided, by element."""
    last, node = failure.frames[-1], failure.frames[-1].expression
    if not isinstance(node, ast.Compare) or last.function is None:
        return ""
    decided = ast.unparse(node)
    for one in ast.walk(last.function):
        if isinstance(one, ast.IfExp) and one.lineno <= last.line <= (one.end_lineno or 0):
            parts = [ast.unparse(part) for part in (one.test, one.body, one.orelse)]
            if parts[0] == decided and _are_elements(last, one):
                return f"torch.where({', '.join(parts)})"
    return ""


def _are_elements(frame: TracebackFrame, choice: ast.IfExp) -> bool:
    """Return whether a tensor that is compared is a branch too, and the other one fits it."""
    compared = {one.id for one in ast.walk(choice.test) if isinstance(one, ast.Name)}
    branches = [choice.body, choice.orelse]
    values = [frame.value_of(one) for one in branches]
    fit = all(one is MISSING or isinstance(one, Tensor | int | float) for one in values)
    names = [one for part in branches for one in ast.walk(part) if isinstance(one, ast.Name)]
    held = [frame.value_of(one) for one in names if one.id in compared]
    return fit and any(isinstance(one, Tensor) for one in held)


def _number(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    several = value.numel() if isinstance(value, Tensor) else "several"
    whole = _made_a_tensor(failure)
    shapes = _shapes_of(failure) if whole else []
    is_padded = len({one[1:] for one in shapes}) == 1 < len(set(shapes)) and all(shapes)
    return {
        "numel": found["numel"] or several,
        # Whole numbers and masks have no mean.
        "as_float": "" if isinstance(value, Tensor) and value.is_floating_point() else ".float()",
        "whole": whole,
        "is_one": not whole,
        "is_even": whole and len(set(shapes)) < 2,
        "is_padded": is_padded,
        "is_uneven": len(set(shapes)) > 1,
    }


def _shapes_of(failure: Failure) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors in the list that the program's call was given."""
    frame = failure.user
    node = None if frame is None else frame.expression
    held = frame.value_of(node.args[0]) if frame is not None and isinstance(node, ast.Call) else ()
    return [tuple(one.shape) for one in held if isinstance(one, Tensor)]


def _made_a_tensor(failure: Failure) -> str:
    """The list of tensors that was given to ``torch.tensor`` or the like, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or not node.args:
        return ""
    maker = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    is_maker = maker in ("tensor", "as_tensor", "array", "asarray") or maker.endswith("Tensor")
    held = frame.value_of(node.args[0])
    is_list = type(held) in (list, tuple) and any(
        isinstance(one, Tensor) or one is MISSING for one in held
    )
    if is_list and any(isinstance(one, int | float) for one in held):
        return ""
    return written(node.args[0], frame.file) if is_maker and is_list else ""


SITUATIONS: dict[str, Situation] = {
    "no forward": first_of(
        SituationRow(
            "{kind} has no forward, and was called.",
            ("row", "If they follow each other: for layer in {name}: x = layer(x)."),
            (
                "row",
                "Or make an nn.Sequential of them, which has a forward: nn.Sequential(*layers).",
            ),
            ("heads", "If each takes the same input: [layer(x) for layer in {name}]."),
            when="is_list",
        ),
        SituationRow(
            "{kind} has no forward, and was called.",
            "Call the module that is meant, by its key: {name}[key](x).",
            "If all take the same input: {{key: layer(x) for key, layer in {name}.items()}}.",
            when="is_dict",
        ),
        SituationRow(
            "{kind} has no forward, and was called.",
            ("close", "Call it forward: the class defines {close!r}."),
            (
                "inside",
                "The class has a forward inside of {inside}: take back its indentation, to the "
                "level of the other methods.",
            ),
            (
                "is_absent",
                "Define forward(self, ...) in the class, at the level of its other methods; if "
                "another method computes the output, call that.",
            ),
        ),
        facts=_no_forward,
    ),
    "before init": SituationRow(
        "A {what} was assigned to a module before nn.Module.__init__ had run.",
        "Call super().__init__() on the first line of __init__.",
        facts=lambda failure, found: {"what": found["what"].rstrip("s")},
    ),
    "no such attribute": _attribute,
    "no parameter": SituationRow(
        "{module} has the parameter {name!r}, and a plain tensor was assigned to it.",
        (
            "is_of_itself",
            "It is computed of the parameter itself: give it a name of its own, {name} = ... for "
            "self.{name} = ..., so that the parameter stays and is trained.",
        ),
        (
            "is_computed",
            "It is computed of others, which are to be trained: delete the parameter before, once, "
            "del module._parameters[{name!r}], or register it by torch.nn.utils.parametrize.",
        ),
        (
            "is_copied",
            "If the parameter is to take its values: with torch.no_grad(): "
            "{owner}.{name}.copy_(tensor).",
        ),
        (
            "shared",
            "If both are to be one and train together: assign the parameter itself, {shared}.",
        ),
        (
            "may_be_wrapped",
            "If another parameter is to take its place: nn.Parameter(tensor), before an optimizer "
            "is made.",
        ),
        about="tensors",
        facts=_assigned,
    ),
    "lazy parameter": SituationRow(
        "A lazy module has parameters without a shape until its first forward, and one was used.",
        "Run one batch through the model first, before its parameters are counted or trained.",
        about="tensors",
    ),
    "truth of many": first_of(
        SituationRow(
            "Tensors were given to {kind} where it is made; it takes them when it is called.",
            "Make it first, then call it: nn.{kind}()(input, target).",
            when="is_loss",
        ),
        SituationRow(
            "A tensor with several elements{given} was used where one answer, yes or no, is "
            "needed: if, and, or, not.",
            ("choice", "Choose element by element: {choice}."),
            ("among", "Compare whole tensors: {among}."),
            ("default", "Choose by a condition that is no tensor: {default}."),
            ("greater", "If the tensors are compared element by element: {greater}."),
            ("asked", "If it asks whether there is one: {asked} is not None."),
            ("is_plain", "Say which is meant: ({condition}).all(), or .any()."),
            (
                "is_plain",
                "Or compute element by element: torch.where(condition, a, b), and & | ~ for and or "
                "not.",
            ),
            about="tensors",
        ),
        facts=_truth,
    ),
    "number of many": SituationRow(
        "{name} has {numel} elements, and one number was to be made of it.",
        ("is_even", "Join them: torch.stack({whole}), in a new dimension."),
        (
            "is_padded",
            "If each is one sample, fill them up to one length: "
            "torch.nn.utils.rnn.pad_sequence({whole}, batch_first=True).",
        ),
        (
            "is_uneven",
            "If they are to stand one behind the other, in a dimension that they have: "
            "torch.cat({whole}).",
        ),
        (
            "whole",
            "Reduce each to one number first, if one is meant: {name_it}{as_float}.mean().item().",
        ),
        (
            "is_one",
            "If all are meant, one for each sample: {name_it}.tolist(), or go on with the tensor.",
        ),
        (
            "is_one",
            "If one number of all is meant: {name_it}{as_float}.mean().item(), or .sum().item().",
        ),
        ("is_one", "If one element is meant: {name_it}[i].item()."),
        about="argument",
        facts=_number,
    ),
    "item of meta": SituationRow(
        "{name} is on the meta device: it has a shape and no values.",
        "Make the model with values: model.to_empty(device='cpu'), then load its weights.",
        about="argument",
    ),
}
