"""Names that the program may have meant in the place of those that it gave.

An operation that refuses a value says what it takes. Where the program has another value that
fits, and that nothing uses, or where a call gives two arguments in the place of each other, the
mistake is a name, and to change the layer or the value that came would hide it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failed_call import which_call
from torchtap.failures.failure import Failure
from torchtap.failures.operands import shape_text
from torchtap.failures.parsed_source import written
from torchtap.failures.scopes import Expression, Scope, scope_of
from torchtap.failures.traceback_frame import TracebackFrame

_MOST_FRAMES = 4


def exchanged_arguments(failure: Failure) -> str:
    """Return the way out where a call gives two names in the place of each other; else empty.

    ``model(item, user)`` of a ``forward(self, user, item)``.
    """
    frames = [one for one in reversed(failure.frames) if one.is_user][:_MOST_FRAMES]
    for frame in frames:
        scope = scope_of(frame, failure.frames)
        call = scope.caller
        if call is None or not isinstance(call.node, ast.Call):
            continue
        given = _names_given(scope, call)
        for name, other in given.items():
            is_exchanged = other != name and given.get(other) == name
            if is_exchanged and _is_about(failure, frame, (name, other)):
                turned = _with_names(call, {name: other, other: name})
                return (
                    f"{shown_file(call.scope.file)}:{call.line} gives {other} in the place of "
                    f"{name}, and {name} in that of {other}: if that is a mistake, {turned}."
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
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _with_names(call: Expression, names: Mapping[str, str]) -> str:
    """Return a call with other names in the place of those that it gives."""
    node = copy.deepcopy(call.node)
    assert isinstance(node, ast.Call)
    for one in node.args:
        if isinstance(one, ast.Name):
            one.id = names.get(one.id, one.id)
    return ast.unparse(node)


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
    given, tree = call.args[0], frame.function
    if not isinstance(given, ast.Name) or not isinstance(tree, ast.FunctionDef):
        return ""  # Names of a file may be read elsewhere.
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    read = {node.id for node in nodes if isinstance(node.ctx, ast.Load)}
    held = frame.own_names
    fitting = [
        name
        for name, value in held.items()
        if name in frame.code.co_varnames and name not in read and isinstance(value, Tensor)
        if value is not held.get(given.id) and fits(value)
    ]
    if len(fitting) != 1:
        return ""
    name, func = fitting[0], written(call.func, frame.file)
    return (
        f"{name}, {shape_text(held[name])}, is read nowhere in {frame.code.co_name}: if it is "
        f"meant here, {func}({name})."
    )


def other_layer(failure: Failure, fits: Callable[[nn.Module], bool]) -> str:
    """Return the way out where a layer that ran before is called again; empty if it is no such.

    Args:
        failure: the exception, within a layer.
        fits: whether another layer of the same class takes what came.
    """
    frame, module = failure.user, failure.module
    call = None if frame is None else frame.expression
    is_again = frame is not None and frame.loop is None and bool(which_call(failure))
    if frame is None or not is_again or not isinstance(call, ast.Call):
        return ""
    name, owner = written(call.func, frame.file), frame.module
    head = f"{name} took what it was given before: if another layer is meant here, call that"
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
