"""The statement that writes in place, and how it reads out of place."""

from __future__ import annotations

import ast
import copy
import linecache

from torch import Tensor

from torchtap.failures.traceback_frame import TracebackFrame


def statement_of(frame: TracebackFrame) -> ast.stmt | None:
    """Return the statement that a frame was running; ``None`` where the source is not there."""
    function = frame.function
    if function is None:
        return None
    statements = [
        one
        for one in ast.walk(function)
        if isinstance(one, ast.stmt) and not hasattr(one, "body")
        if one.lineno <= frame.line <= (one.end_lineno or one.lineno)
    ]
    return statements[-1] if statements else None


def statement_at(file: str, line: int) -> ast.stmt | None:
    """Return the statement on one line of a file; ``None`` where it does not stand there alone."""
    try:
        body = ast.parse(linecache.getline(file, line).strip()).body
    except (SyntaxError, ValueError):
        return None
    return body[0] if len(body) == 1 else None


def is_read_below(frame: TracebackFrame, name: str, line: int) -> bool:
    """Return whether a function reads a name below a line."""
    return frame.function is not None and any(
        isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)
        for one in ast.walk(frame.function)
        if getattr(one, "lineno", 0) > line
    )


def out_of_place(statement: ast.AST | None) -> str:
    """Return a statement as one that makes a new tensor: ``x = x * m`` of ``x *= m``.

    ``x = x.masked_fill(x < 0, 0)`` of ``x[x < 0] = 0``; empty where it assigns to another part of a
    tensor, or has no form out of place.
    """
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id=name), slice=mask)],
            value=ast.Constant() | ast.UnaryOp() as value,
        ) if _is_mask_of(mask, name):
            return f"{name} = {name}.masked_fill({ast.unparse(mask)}, {ast.unparse(value)})"
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id=name), slice=mask)], value=ast.Name(id=value)
        ) if _is_mask_of(mask, name):
            return f"{name} = torch.where({ast.unparse(mask)}, {value}, {name})"
        case ast.AugAssign(target=ast.Name() | ast.Attribute()):
            read = _loaded(statement.target)
            result = ast.BinOp(read, statement.op, statement.value)
            return f"{ast.unparse(statement.target)} = {ast.unparse(result)}"
        case ast.Expr(value=ast.Call() as call):
            new, target = _without_underscores(call)
            is_place = isinstance(target, ast.Name | ast.Attribute)
            return f"{ast.unparse(target)} = {ast.unparse(new)}" if new and is_place else ""
    return ""


def _is_mask_of(mask: ast.expr, name: str) -> bool:
    """Return whether a mask has an answer for each element of a tensor: it is computed from all."""
    text = ast.unparse(mask.left if isinstance(mask, ast.Compare) else mask)
    every = ("abs",) if isinstance(mask, ast.Compare) else ("isnan", "isinf")
    calls = {form for one in every for form in (f"{name}.{one}()", f"torch.{one}({name})")}
    return text in calls or (isinstance(mask, ast.Compare) and text == name)


def called_out_of_place(call: ast.AST | None) -> str:
    """Return a call in place as one that returns a new tensor: ``x.squeeze(0)``."""
    new = _without_underscores(call)[0] if isinstance(call, ast.Call) else None
    return "" if new is None else ast.unparse(new)


def _without_underscores(call: ast.Call) -> tuple[ast.Call | None, ast.expr]:
    """Return a chain of calls in place as one out of place, and what it begins at."""
    # Trees are cached for all notes, so none is changed.
    changed = copy.deepcopy(call)
    node: ast.expr = changed
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.endswith("__"):
            if not hasattr(Tensor, name[:-1]) or name == "requires_grad_":
                return None, node
            node.func.attr = name[:-1]
        node = node.func.value
    return (changed if ast.unparse(changed) != ast.unparse(call) else None), node


def _loaded(target: ast.expr) -> ast.expr:
    read = copy.deepcopy(target)
    read.ctx = ast.Load()  # type: ignore[attr-defined]
    return read
