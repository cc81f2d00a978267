"""Names that the program may have meant in the place of those that it gave.

An operation that refuses a value says what it takes. Where the program has another value that
fits, and that nothing uses, or where a call gives two arguments in the place of each other, the
mistake is a name, and to change the layer or the value that came would hide it.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failed_call import which_call
from torchtap.failures.failure import Failure
from torchtap.failures.operands import shape_text
from torchtap.failures.parsed_source import written
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
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name)]


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
    if isinstance(given, ast.Subscript):
        return _other_item(frame, call, given, fits)
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


def uncalled(failure: Failure, kinds: tuple[type, ...]) -> str:
    """Return the name of a layer that a module has and its forward calls nowhere; else empty."""
    frame = failure.user
    owner = None if frame is None else frame.module
    if frame is None or owner is None or frame.function is None:
        return ""
    nodes = ast.walk(frame.function)
    called = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    found = [key for key, one in owner._modules.items() if isinstance(one, kinds)]
    return next((f"self.{key}" for key in found if key not in called), "")


def other_layer(failure: Failure, fits: Callable[[nn.Module], bool]) -> str:
    """Return the way out where a layer that ran before is called again; empty if it is no such.

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
