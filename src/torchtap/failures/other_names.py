"""Names that the program may have meant in the place of those that it gave.

Where a call gives two arguments in the place of each other, or calls one layer again in place of
another one, the mistake is a name: a change of the layer, or of its input, would hide it.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Mapping

from torch import nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failed_call import which_call
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import expression_of, written
from torchtap.failures.scopes import Expression, Scope, scope_of
from torchtap.failures.traceback_frame import TracebackFrame
from torchtap.failures.value_chains import made_of

_MOST_FRAMES = 4


def exchanged_arguments(failure: Failure) -> str:
    """Return the way out where a call gives two names in the place of each other; else empty.

    ``model(item, user)`` of a ``forward(self, user, item)``.
    """
    frames = [one for one in reversed(failure.frames) if one.is_user][:_MOST_FRAMES]
    for frame in frames:
        scope = scope_of(frame, failure.frames)
        way = _turned(scope, functools.partial(_is_about, failure, frame))
        if way:
            return way
    made = made_of(failure, failure.module)
    # The sizes that a layer was made with are what its message is about.
    texts = set() if made is None else {part.id for part in _names_in(made.call.text)}
    return "" if made is None else _turned(made.call.scope, lambda names: bool(texts & set(names)))


def _turned(scope: Scope, is_about: Callable[[tuple[str, str]], bool]) -> str:
    """Return the call of a function with two names in the other order; empty if it gives none."""
    call = scope.caller
    if call is None or not isinstance(call.node, ast.Call):
        return ""
    given = _names_given(scope, call)
    for name, other in given.items():
        if other != name and given.get(other) == name and is_about((name, other)):
            if _is_called_in_order(call, turned_names={name: other, other: name}):
                continue
            turned = _with_names(call, {name: other, other: name})
            return (
                f"{shown_file(call.scope.file)}:{call.line} gives {other} in the place of {name}, "
                f"and {name} in that of {other}: if that is a mistake, {turned}."
            )
    return ""


def _names_given(scope: Scope, call: Expression) -> Mapping[str, str]:
    """Return the arguments that a call gives by their place, and the names that it gives them."""
    by_place = set(map(id, getattr(call.node, "args", ())))
    found = {name: scope.argument(name) for name in scope.parameters}
    return {
        name: one.node.id
        for name, one in found.items()
        if one is not None and isinstance(one.node, ast.Name) and id(one.node) in by_place
    }


def _is_about(failure: Failure, frame: TracebackFrame, names: tuple[str, str]) -> bool:
    """Return whether an operand of the operation is one of the arguments, or made of it."""
    values = [frame.own_names.get(name) for name in names]
    texts = {part.id for one in failure.operands for part in _names_in(one.text)}
    is_here = failure.user is frame and bool(texts & set(names))
    return is_here or any(one.value is held for one in failure.tensors for held in values)


def _names_in(text: str) -> list[ast.Name]:
    tree = expression_of(text)
    nodes = ast.walk(tree) if tree is not None else ()
    return [node for node in nodes if isinstance(node, ast.Name)]


def _is_called_in_order(call: Expression, turned_names: Mapping[str, str]) -> bool:
    """Return whether the same function is called with the names in their order as well."""
    text, tree = _with_names(call, turned_names), call.scope.tree
    calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call)) if tree is not None else ()
    return any(ast.unparse(one) == text for one in calls)


def _with_names(call: Expression, names: Mapping[str, str]) -> str:
    """Return a call with other names in the place of those that it gives."""
    node = copy.deepcopy(call.node)
    assert isinstance(node, ast.Call)
    for one in node.args:
        if isinstance(one, ast.Name):
            one.id = names.get(one.id, one.id)
    return ast.unparse(node)


def other_layer(failure: Failure, fits: Callable[[nn.Module], bool]) -> str:
    """Return the way out where a layer that ran before is called again; else empty.

    Args:
        failure: the exception, within a layer.
        fits: whether another layer of the same class takes what came.
    """
    frame, module = failure.user, failure.module
    call = None if frame is None else frame.expression
    said = which_call(failure)
    is_again = bool(said) and " 1st call" not in f" {said}"
    is_again = is_again and frame is not None and frame.loop is None
    if frame is None or not is_again or not isinstance(call, ast.Call):
        return ""
    name, owner = written(call.func, frame.file), frame.module
    head = f"An earlier call of {name} took its input: if another layer is meant here, call that"
    if owner is None or not isinstance(call.func, ast.Attribute):
        return f"{head}."
    called = {
        one.attr for one in ast.walk(frame.function or call) if isinstance(one, ast.Attribute)
    }
    fitting = [
        key
        for key, one in owner._modules.items()
        if one is not None and type(one) is type(module) and one is not module
        if fits(one) and key not in called
    ]
    if len(fitting) != 1:
        return f"{head}."
    other, function = f"{written(call.func.value, frame.file)}.{fitting[0]}", frame.code.co_name
    return f"{head}, such as {other}, which takes this and is called nowhere in {function}."
