"""Find where a None came from: a call that returned it, an argument left out, or neither."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtap.failures.assignments import Assignment, assignments_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.followed_values import end_of
from torchtap.failures.parsed_source import expression_of, function_tree, last_name, written
from torchtap.failures.scopes import Expression, scope_of
from torchtap.failures.situation_row import SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame


class _Maker(NamedTuple):
    """A call that returned None.

    Attributes:
        call: as it is written, with its line.
        code: what it calls, in words; empty if that is not known.
        is_silent: whether that function has no ``return`` with a value.
        is_partial: whether it has one, and may end without it.
        changed: the object that it changes in place, as it is written; empty of a function.
    """

    call: str
    code: str
    is_silent: bool
    is_partial: bool
    changed: str


def none_words(failure: Failure, frame: TracebackFrame, node: ast.expr | None) -> dict[str, Any]:
    """Return the words of :data:`NONE_ROWS` for an expression that is None."""
    maker = _maker(failure, frame, node)
    is_silent = maker is not None and maker.is_silent
    is_partial = maker is not None and maker.is_partial
    name = last_name(node)
    taker = "" if is_silent else _given_at(frame, node)
    argument = name if taker else ""
    if not taker and not is_silent and not is_partial:
        taker, argument = _default_behind(failure, frame, node)
    is_picture = node is not None and is_read_from_file(frame, node)
    own = f"{name}." if isinstance(node, ast.Name) else ""
    by = f" ({maker.call.rstrip(',')})" if maker else ""
    return {
        "text": "it" if node is None else written(node, frame.file),
        "is_silent": is_silent,
        "is_partial": is_partial,
        "is_own": bool(own) and maker is not None and maker.call.startswith(own),
        "maker": maker.code if maker and (is_silent or is_partial) else "",
        "made": maker.call if maker else "",
        "by": by,
        "changed": maker.changed if maker and is_silent and isinstance(node, ast.Name) else "",
        "taker": taker,
        "argument": argument,
        "given": f"{argument}=..., in the call of the module"
        if " " in taker
        else f"{taker}(..., {argument}=...)",
        "is_picture": is_picture,
        "beside": _beside(frame, node),
    }


def explained_none(
    failure: Failure,
    found: re.Match[str],
    text: str,
    needs: str,
    maker: nn.Module | None = None,
) -> Explanation:
    """Return the explanation of an expression that is None where a value is needed.

    Args:
        failure: the exception.
        found: its message.
        text: the expression, as the program writes it.
        needs: what needs the value, such as ``fc (Linear) takes a tensor as 'input'``.
        maker: the module that returned the value, if that is known.
    """
    frame = failure.user or failure.frames[-1]
    words = none_words(failure, frame, _node_of(frame, text))
    if maker is not None and not words["maker"]:
        words |= _of_module(failure, maker)
    words |= {"text": text, "needs": needs}
    unknown = SituationRow("{text} is None, and {needs}.", *UNKNOWN)
    return first_of(*NONE_ROWS, unknown, facts=lambda failure, found: words)(failure, found)


def _of_module(failure: Failure, maker: nn.Module) -> dict[str, Any]:
    """Return the words of a value that a module returned, such as a member of a Sequential."""
    code = type(maker).forward.__code__
    tree = function_tree(code, code.co_firstlineno)
    is_giving = tree is not None and any(_gives(one) for one in ast.walk(tree))
    is_known = isinstance(tree, ast.FunctionDef)
    return {
        "maker": f"the forward of {failure.names.module(maker)}",
        "is_silent": is_known and not is_giving,
        "is_partial": is_known and is_giving and _may_end(tree.body),  # type: ignore[union-attr]
    }


def _node_of(frame: TracebackFrame, text: str) -> ast.expr | None:
    """Return a text as an expression that the line of a frame reads; ``None`` of other words."""
    parsed = expression_of(text)
    if parsed is None:
        return None
    wanted = ast.unparse(parsed)
    inside = ast.walk(frame.expression) if frame.expression is not None else ()
    found = (one for one in inside if isinstance(one, ast.expr) and ast.unparse(one) == wanted)
    is_name = isinstance(parsed, ast.Name | ast.Attribute)
    return next(found, parsed if is_name else None)


def _maker(failure: Failure, frame: TracebackFrame, node: ast.expr | None) -> _Maker | None:
    one = _only_assignment(frame, node)
    value = one.value if one is not None and one.position is None else node
    call, line = (
        (value, 0 if one is None else one.line) if isinstance(value, ast.Call) else (None, 0)
    )
    if call is None:
        return None
    called = call.func
    changed = written(called.value, frame.file) if isinstance(called, ast.Attribute) else ""
    tree, code = _function_of(failure, frame, called)
    text = written(call, frame.file)
    is_giving = tree is not None and any(_gives(one) for one in ast.walk(tree))
    is_module = isinstance(called, ast.Attribute) and _is_module(frame, called.value)
    return _Maker(
        f"{text}, line {line}," if line else text,
        code,
        tree is not None and not is_giving,
        is_giving and isinstance(tree, ast.FunctionDef) and _may_end(tree.body),
        changed if is_module else "",
    )


def _only_assignment(frame: TracebackFrame, node: ast.expr | None) -> Assignment | None:
    made = assignments_of(frame, node.id) if isinstance(node, ast.Name) else []
    return made[0] if len(made) == 1 else None


def _is_module(frame: TracebackFrame, owner: ast.expr) -> bool:
    kind = _kind_of(frame, owner)
    return kind is not None and issubclass(kind, nn.Module)


def _kind_of(frame: TracebackFrame, owner: ast.expr) -> type | None:
    """Return the class of an object, also of one that is made in place: ``Net(3)``."""
    value = frame.value_of(owner)
    if value is not MISSING:
        return type(value)
    made = frame.value_of(owner.func) if isinstance(owner, ast.Call) else None
    return made if isinstance(made, type) else None


def _function_of(
    failure: Failure, frame: TracebackFrame, called: ast.expr
) -> tuple[ast.AST | None, str]:
    """Return the source of what a call runs, and how it is called; neither where not known."""
    value = frame.value_of(called)
    name = written(called, frame.file)
    if isinstance(value, nn.Module):
        name, value = f"the forward of {failure.names.module(value)}", type(value).forward
    elif value is MISSING and isinstance(called, ast.Attribute):
        kind = _kind_of(frame, called.value)
        # Module.eval returns what train returns, which a class may define anew.
        is_eval = called.attr == "eval" and kind is not None and issubclass(kind, nn.Module)
        method = "train" if is_eval else called.attr
        value = None if kind is None else inspect.getattr_static(kind, method, None)
        name = f"{kind.__name__}.{method}" if kind is not None else name
    code = getattr(value, "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    is_function = isinstance(tree, ast.FunctionDef)
    return (tree, name) if is_function else (None, "")


def _gives(node: ast.AST) -> bool:
    """Return whether a node returns or yields a value."""
    is_none = isinstance(getattr(node, "value", None), ast.Constant) and node.value.value is None  # type: ignore[attr-defined]
    is_return = isinstance(node, ast.Return) and node.value is not None and not is_none
    return is_return or isinstance(node, ast.Yield | ast.YieldFrom)


def _may_end(body: list[ast.stmt]) -> bool:
    """Return whether a block may end without a ``return`` of a value or an exception."""
    match body[-1]:
        case ast.Return() as last:
            return not _gives(last)
        case ast.Raise():
            return False
        case ast.If(body=one, orelse=other):
            return not other or _may_end(one) or _may_end(other)
        case ast.With(body=one):
            return _may_end(one)
        case ast.Try() | ast.While() | ast.Match():
            return False  # It takes more to tell.
    return True


def is_read_from_file(frame: TracebackFrame, node: ast.expr) -> bool:
    """Return whether OpenCV read the value of a file, which gives None where it cannot."""
    made = assignments_of(frame, node.id) if isinstance(node, ast.Name) else []
    calls = [one.value for one in made if isinstance(one.value, ast.Call)]
    return any(written(one.func).endswith("imread") for one in calls)


def _given_at(frame: TracebackFrame, node: ast.expr | None) -> str:
    """Return the function or class that takes a value which has None as its default.

    A name is looked for among the parameters of the running function, an attribute of ``self``
    among those of ``__init__``. Empty if none does.
    """
    if isinstance(node, ast.Name):
        is_taken = not assignments_of(frame, node.id)
        is_default = is_taken and may_be_none(frame.function, node.id)
        kind = type(frame.owner).__name__
        name = kind if frame.code.co_name == "__init__" else frame.code.co_name
        return name if is_default else ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        init = type(frame.owner).__init__ if frame.owner is not None else None
        is_taken = node.value.id == "self" and init is not None
        try:
            parameters = inspect.signature(init).parameters if is_taken and init else {}
        except (TypeError, ValueError):
            return ""
        known = parameters.get(node.attr)
        is_none = known is not None and known.default is None
        return type(frame.owner).__name__ if is_none else ""
    return ""


def _default_behind(
    failure: Failure, frame: TracebackFrame, node: ast.expr | None
) -> tuple[str, str]:
    """Return the function further in that was to be given the value, and the argument's name."""
    if node is None:
        return "", ""
    scope = scope_of(frame, failure.frames)
    end = end_of(Expression(node, scope, (), frame.line))
    args = getattr(end.scope.tree, "args", None)
    names = end.scope.parameters
    is_none = isinstance(end.node, ast.Constant) and end.node.value is None and not end.path
    if not is_none or not isinstance(args, ast.arguments):
        return "", ""
    fitting = [one for one in names if _default_node(end.scope.tree, one) is end.node]
    kind = type(end.scope.owner).__name__ if end.scope.owner is not MISSING else ""
    owner = {"__init__": kind, "forward": f"the forward of {kind}" if kind else "forward"}
    return (owner.get(end.scope.name, end.scope.name), fitting[0]) if fitting else ("", "")


def _default_node(tree: ast.AST | None, name: str) -> ast.expr | None:
    """Return the value of an argument in the head of a function; ``None`` if it has none."""
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    args = tree.args
    names = [one.arg for one in (*args.posonlyargs, *args.args)]
    pairs = dict(zip(reversed(names), reversed(args.defaults), strict=False))
    keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    pairs |= {one.arg: value for one, value in keywords if value is not None}
    return pairs.get(name)


def may_be_none(tree: ast.AST | None, name: str) -> bool:
    """Return whether an argument of a function has None as its default."""
    value = _default_node(tree, name)
    return isinstance(value, ast.Constant) and value.value is None


def _beside(frame: TracebackFrame, node: ast.expr | None) -> str:
    """Return the names that the assignment of a name gives tensors; empty if it gives none."""
    one = _only_assignment(frame, node)
    target = one.statement.targets[0] if one and isinstance(one.statement, ast.Assign) else None
    names = target.elts if isinstance(target, ast.Tuple) else []
    held = [name.id for name in names if isinstance(name, ast.Name)]
    return ", ".join(name for name in held if isinstance(frame.names.get(name), Tensor))


_BESIDE = ("beside", "If another part of it is meant: {beside}, assigned beside it.")
_IF_MISSING = "If it may be missing: use it only if {text_it} is not None."
NONE_ROWS = (
    SituationRow(
        "{text} is None: {maker} has no return with a value{by}.",
        (
            "changed",
            "If {changed} itself is meant, which it changes in place: call it on a line of its "
            "own, without {text} = in front.",
        ),
        "Return the value at the end of {maker}.",
        when="is_silent",
    ),
    SituationRow(
        "{text} is None, which {made} returned.",
        "If it changes {text} in place, as eval() and train() do: call it on a line of its own, "
        "without {text} = in front. Where a class defines train itself, return self at its end.",
        "If another object is meant: check what the call returns.",
        when="is_own",
    ),
    SituationRow(
        "{text} is None: {maker} returns a value on some of its paths only{by}.",
        "If it is to give a value here: return one on each path of {maker}, or call it so that it "
        "takes the path that has one.",
        _IF_MISSING,
        when="is_partial",
    ),
    SituationRow(
        "{text} is None, which is the default of {argument} in {taker}.",
        _BESIDE,
        "If it is needed: give it, {given}.",
        "If it may be left out: use it only if {text_it} is not None.",
        when="taker",
    ),
    SituationRow(
        "{text} is None: cv2.imread gives None where the file is not there, or is no picture.",
        "Check the path: os.path.exists(path), from the folder in which the program runs.",
        when="is_picture",
    ),
)
"""Rows of a value that is None, the surest cause first, in words of :func:`none_words`."""
UNKNOWN = (
    _BESIDE,
    _IF_MISSING,
    "If not: check what gave None, such as a function without return, or an option that is off.",
)
"""The ways out where the cause is not known."""
