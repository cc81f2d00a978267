"""Layers and tensors that a program makes and no line of it reads: perhaps one of them is meant."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.misplaced_members import is_of_shapes
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
    given = tree.args.args if isinstance(tree, ast.FunctionDef) else []
    made = {one.id for one in nodes if isinstance(one.ctx, ast.Store)} | {one.arg for one in given}
    held = frame.own_names
    return [name for name in sorted(made - read) if isinstance(held.get(name), Tensor)]
