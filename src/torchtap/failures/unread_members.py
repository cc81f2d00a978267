"""Layers and tensors that a program makes and no line of it reads: perhaps one of them is meant.

A change of the layer that refused its input, or of the input, would hide that mistake.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.misplaced_members import is_of_shapes
from torchtap.failures.operands import shape_text
from torchtap.failures.parsed_source import function_tree, written
from torchtap.failures.scopes import methods_of
from torchtap.failures.traceback_frame import TracebackFrame

_ALL_AT_ONCE = {"children", "named_children", "_modules", "__dict__", "__getattr__"}
"""Attributes by which a module reads its layers without their names."""


def unread_layer(failure: Failure, told: Sequence[str]) -> str:
    """Return the way out where a layer of the running module is never read; empty without one.

    A size that does not fit has that cause if another layer was called in its place, or the call of
    it was left out.

    Args:
        failure: the exception.
        told: the ways out that are known already, which may name the layer.
    """
    if not is_of_shapes(failure):
        return ""
    for frame in reversed(failure.frames):
        call, owner = frame.expression, frame.module
        if not frame.is_user or owner is None or not _is_of_self(call):
            continue
        unread = list(unread_layers(owner))
        if any(f"self.{name}" in way for name, _ in unread for way in told):
            return ""
        if unread and len(unread) < 3:
            said = " and ".join(f"self.{name} ({type(one).__name__})" for name, one in unread)
            which = "it" if len(unread) == 1 else "the one that is meant"
            return (
                f"If {said}, which no method of {type(owner).__name__} reads, belongs here: call "
                f"{which} before {written(call.func, frame.file)}, or in its place."
            )
    return ""


def _is_of_self(node: ast.AST | None) -> TypeGuard[ast.Call]:
    """Return whether an expression calls a member of ``self``."""
    func = node.func if isinstance(node, ast.Call) else None
    owner = func.value if isinstance(func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "self"


def unread_layers(owner: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers with parameters whose attribute no method of their module reads."""
    read: set[str] = set()
    for _, method in methods_of(type(owner)):
        tree = function_tree(method.__code__, method.__code__.co_firstlineno)
        nodes = list(ast.walk(tree)) if tree is not None else []
        # To initialise a weight is not to call its layer.
        inner = [
            one.value
            for one in nodes
            if isinstance(one, ast.Attribute) and one.attr in ("weight", "bias")
        ]
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read |= set() if node in inner else {node.attr}
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "vars"):
                return
    if not read or read & _ALL_AT_ONCE or isinstance(owner, nn.Sequential | nn.ModuleList):
        return
    for name, layer in owner._modules.items():
        is_layer = layer is not None and any(True for _ in layer.parameters())
        if name not in read and layer is not None and (is_layer or isinstance(layer, nn.Flatten)):
            yield name, layer


def unread_tensors(frame: TracebackFrame) -> list[str]:
    """Return the variables of a function that hold tensors and that none of its lines reads."""
    tree = frame.function
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.Name)] if tree else []
    read = {one.id for one in nodes if isinstance(one.ctx, ast.Load)}
    args = tree.args if isinstance(tree, ast.FunctionDef) else None
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs] if args is not None else []
    made = {one.id for one in nodes if isinstance(one.ctx, ast.Store)} | {one.arg for one in given}
    held = frame.own_names
    return [name for name in sorted(made - read) if isinstance(held.get(name), Tensor)]


def unread_value(failure: Failure, fits: Callable[[Tensor], bool]) -> str:
    """Return the way to give an operation the value that nothing reads; empty where none fits.

    Args:
        failure: the exception; the expression of the program that failed is a call of a name.
        fits: whether the operation takes a tensor.
    """
    frame = failure.user
    call = None if frame is None else frame.expression
    if frame is None or not isinstance(call, ast.Call) or len(call.args) != 1:
        return ""
    given = call.args[0]
    if isinstance(given, ast.Subscript):
        return _other_item(frame, call, given, fits)
    if not isinstance(given, ast.Name) or not isinstance(frame.function, ast.FunctionDef):
        return ""  # Names of a file may be read elsewhere.
    held = frame.own_names
    fitting = [
        name
        for name in unread_tensors(frame)
        if name in frame.code.co_varnames
        if held[name] is not held.get(given.id) and fits(held[name])
    ]
    if len(fitting) != 1:
        return ""
    name, func = fitting[0], written(call.func, frame.file)
    return (
        f"{name}, {shape_text(held[name])}, is read nowhere in {frame.code.co_name}: if it is "
        f"meant here, {func}({name})."
    )


def _other_item(
    frame: TracebackFrame, call: ast.Call, given: ast.Subscript, fits: Callable[[Tensor], bool]
) -> str:
    """Return the way to give the item of a dict that fits, where one alone does; else empty."""
    base = frame.value_of(given.value)
    items = base if type(base) is dict else {}
    value = frame.value_of(given)
    tensors = {
        key: one for key, one in items.items() if isinstance(one, Tensor) and one is not value
    }
    fitting = [key for key, one in tensors.items() if fits(one)]
    if len(fitting) != 1 or not isinstance(value, Tensor):
        return ""
    text = f"{written(given.value, frame.file)}[{fitting[0]!r}]"
    return (
        f"{text}, {shape_text(items[fitting[0]])}, fits: if it is meant here, "
        f"{written(call.func, frame.file)}({text})."
    )


def uncalled_layer(failure: Failure, kinds: tuple[type, ...]) -> str:
    """Return the name of a layer that a module has and its forward calls nowhere; else empty."""
    frame = failure.user
    owner = None if frame is None else frame.module
    if frame is None or owner is None or frame.function is None:
        return ""
    nodes = ast.walk(frame.function)
    called = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    found = [key for key, one in owner._modules.items() if isinstance(one, kinds)]
    return next((f"self.{key}" for key in found if key not in called), "")
