"""The lines behind an expression that failed, computed as if it had a value."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from torch import nn

from torchtap.failures.assignments import blocks_at
from torchtap.failures.failure import Failure
from torchtap.failures.stand_ins import Refused, StandIns, Unknown
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_MOST_STATEMENTS = 12
_GIVING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_PARTS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"})
"""Code that is a part of a statement of another frame."""


class _Returned(Exception):
    """The function has returned a value, its argument."""


def is_refused_below(failure: Failure, frame: TracebackFrame, values: StandIns) -> bool:
    """Return whether PyTorch refuses a line further on, for the value of an expression.

    The rest of its function is computed, as far as it reads that value, and of the functions that
    called it, up to the first branch or loop. Variables that the lines before computed from the
    same operands are not known.

    Args:
        failure: the exception.
        frame: where the expression stands.
        values: of the frame, with that of the expression.
    """
    try:
        returned = _returned(frame, values)
        return _is_refused_outside(failure, frame, values, returned)
    except Refused:
        return True
    except Unknown:
        return False


def _is_refused_outside(
    failure: Failure, frame: TracebackFrame, values: StandIns, value: Any
) -> bool:
    """Return whether what the function returned is refused where it was called."""
    for outer in reversed(failure.frames[: frame.depth]):
        if outer.is_torch and isinstance(outer.owner, nn.Sequential):
            running = outer.names.get("module")
            members = list(outer.owner._modules.values())
            at = next((at for at, one in enumerate(members) if one is running), len(members))
            for one in members[at + 1 :]:
                value = values.layer(one, value)
        elif not outer.is_torch or not outer.file.endswith("nn/modules/module.py"):
            if not outer.is_user:
                raise Unknown
            further = StandIns(outer, {id(outer.expression): value}, values.layers)
            return is_refused_below(failure, outer, further)
    return False


def _returned(frame: TracebackFrame, values: StandIns) -> Any:
    """Run the statement of the frame's line and those behind it, and return what they return."""
    function = None if frame.code.co_name in _PARTS else frame.function
    blocks = blocks_at(function, frame.line) if function is not None else ()
    if function is None or not blocks:
        raise Unknown
    owner, field = blocks[-1]
    statements = getattr(owner, field)
    for name in _made_from(frame, function) - values.names.keys():
        values.names[name] = MISSING
    ahead = [one for one in statements if (one.end_lineno or one.lineno) >= frame.line]
    try:
        for statement in ahead[:_MOST_STATEMENTS]:
            _run(statement, values, is_first=statement is ahead[0])
    except _Returned as done:
        return done.args[0]
    raise Unknown  # A loop begins anew, or a branch goes on behind it.


def _made_from(frame: TracebackFrame, function: ast.AST) -> set[str]:
    """Return the variables of a function that may be computed from those of the frame's expression.

    With other values of these they would be others, too: a size that was read, a kept input.
    """
    own = {name for name in _names_in(frame.expression) if _is_data(frame.names.get(name))}
    made, num_known = set(own), -1
    statements = [one for one in ast.walk(function) if isinstance(one, _GIVING)]
    while len(made) != num_known:
        num_known = len(made)
        for one in statements:
            if made & _names_in(one):
                made |= _names_in(one, ast.Store)
    return made - own


def _names_in(node: ast.AST | None, context: type = ast.expr_context) -> set[str]:
    nodes = ast.walk(node) if node is not None else ()
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


def _is_data(value: object) -> bool:
    return not callable(value) and not inspect.ismodule(value)


def _run(statement: ast.stmt, values: StandIns, *, is_first: bool) -> None:
    """Run a statement; one that reads nothing of what was computed here gives unknown values."""
    read = _names_in(statement)
    is_of_it = is_first or any(values.names.get(name, MISSING) is not MISSING for name in read)
    match statement:
        case ast.Return(value=ast.expr() as value):
            raise _Returned(values.of(value))
        case ast.Assign(targets=[target], value=value):
            _assign(target, _value(value, values) if is_of_it else MISSING, values)
        case ast.Expr(value=value):
            if is_of_it and _value(value, values) is MISSING:
                values.names.update(dict.fromkeys(read & values.names.keys(), MISSING))
        case ast.Pass():
            pass
        case _:
            raise Unknown


def _value(node: ast.expr, values: StandIns) -> Any:
    try:
        return values.of(node)
    except Unknown:
        return MISSING


def _assign(target: ast.expr, value: Any, values: StandIns) -> None:
    match target:
        case ast.Name(id=name):
            values.names[name] = value
        case ast.Tuple(elts=parts):
            is_known = isinstance(value, tuple | list) and len(value) == len(parts)
            for at, part in enumerate(parts):
                _assign(part, value[at] if is_known else MISSING, values)
        case _:
            raise Unknown  # An object, which others may read.
