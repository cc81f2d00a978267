"""Find the line of a function that gave a name the value that it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torchtap.failures.frame import Frame
from torchtap.failures.source import written

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MOST_CHARACTERS = 80


class Assignment(NamedTuple):
    """A statement that assigns a name.

    Attributes:
        line: of its beginning.
        text: the statement, in one line.
        value: what is assigned; ``None`` where it is not one expression, as in a loop.
    """

    line: int
    text: str
    value: ast.expr | None


class _Found(NamedTuple):
    statement: ast.stmt
    value: ast.expr | None
    blocks: tuple[tuple[ast.AST, str], ...]


def assignments_of(frame: Frame, name: str) -> list[Assignment]:
    """The statements, one of which gave a name its value before the frame's line ran.

    Follows the order of the lines, branches and loops, and not the calls: more than one is returned
    where the source alone does not tell.
    """
    function = frame.function
    if function is None or isinstance(function, ast.Lambda):
        return []
    every = _every_assignment(function, name)
    here = blocks_at(function, frame.line)
    before = [one for one in every if _end(one.statement) < frame.line]
    # The statement itself: of ``x = f(x)``, the name had its value before it.
    loops = [node for node, _ in here if isinstance(node, ast.For | ast.While | ast.AsyncFor)]
    again = [
        one
        for one in every
        if one not in before and any(node is loop for node, _ in one.blocks for loop in loops)
    ]
    found: list[_Found] = []
    for one in reversed(before):
        found.append(one)
        if set(map(_key, one.blocks)) <= set(map(_key, here)):
            break  # It runs whenever the frame's line does.
    if again and found and _is_in(found[-1], loops):
        again = []  # Within the loop it is assigned anew before the line.
    chosen = sorted({*_places(found), *_places(again)})
    by_line = {one.statement.lineno: one for one in every}
    return [_as_assignment(by_line[line], frame.file) for line in chosen]


def loop_over(frame: Frame, name: str) -> ast.For | None:
    """The innermost loop around a frame's line that gives a name each item in turn."""
    loops = [node for node, _ in blocks_at(frame.function, frame.line)] if frame.function else []
    found = [one for one in loops if isinstance(one, ast.For) and _names(one.target, name)]
    return found[-1] if found else None


def item_of_loop(loop: ast.For, name: str) -> ast.expr | None:
    """Return what a loop goes over: ``xs`` of ``for x in xs`` and ``for x, y in zip(xs, ys)``."""
    over, target = loop.iter, loop.target
    called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
    if called == "enumerate" and isinstance(over, ast.Call) and over.args:
        is_pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
        return over.args[0] if is_pair and _names(target.elts[1], name) else None  # type: ignore[attr-defined]
    if called == "zip" and isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
        pairs = zip(target.elts, over.args, strict=False)
        return next((part for one, part in pairs if _names(one, name)), None)
    return over if isinstance(target, ast.Name) and not called else None


def runs_before(function: ast.AST, line: int, here: int) -> bool | None:
    """Return whether a line of a function ran before another one that is running.

    Returns:
        ``None`` where it may have run, or not: it stands in a branch, below in a loop, or on the
        same line.
    """
    around, at = blocks_at(function, here), blocks_at(function, line)
    loops = [node for node, _ in around if isinstance(node, ast.For | ast.While | ast.AsyncFor)]
    if line == here:
        return None
    if line > here:
        return None if any(node is loop for node, _ in at for loop in loops) else False
    return True if set(map(_key, at)) <= set(map(_key, around)) else None


def _end(statement: ast.stmt) -> int:
    """The last line of a statement; of one with a block of others, of its head."""
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        first: int = body[0].lineno
        return max(statement.lineno, first - 1)
    return statement.end_lineno or statement.lineno


def _places(found: list[_Found]) -> Iterator[int]:
    return (one.statement.lineno for one in found)


def _is_in(found: _Found, loops: Sequence[ast.AST]) -> bool:
    return bool(loops) and any(node is loops[-1] for node, _ in found.blocks)


def _key(block: tuple[ast.AST, str]) -> tuple[int, str]:
    return id(block[0]), block[1]


def _as_assignment(found: _Found, file: str) -> Assignment:
    text = written(found.statement, file).partition(":" if found.value is None else "\0")[0]
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[: _MOST_CHARACTERS - 1]}…"
    return Assignment(found.statement.lineno, text, found.value)


@lru_cache(maxsize=1024)
def _every_assignment(function: ast.AST, name: str) -> tuple[_Found, ...]:
    return tuple(_statements(function, name, ()))


def _statements(
    node: ast.AST, name: str, blocks: tuple[tuple[ast.AST, str], ...]
) -> Iterator[_Found]:
    """The statements below a node that assign a name, in the order of the lines."""
    for field in _BLOCKS:
        for statement in getattr(node, field, None) or ():
            inside = (*blocks, (node, field))
            if isinstance(statement, _SCOPES):
                continue
            found = _assigned(statement, name)
            if found is not None:
                is_loop = isinstance(statement, ast.For | ast.AsyncFor)
                within = (*inside, (statement, "body")) if is_loop else inside
                yield _Found(statement, found[0], within)
            yield from _statements(statement, name, inside)


def _assigned(statement: ast.AST, name: str) -> tuple[ast.expr | None] | None:
    """The value that a statement gives a name, in a tuple; ``None`` if it gives it none."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if _names(target, name):
                return (_matching(target, statement.value, name),)
    if isinstance(statement, ast.AnnAssign) and _names(statement.target, name):
        return (statement.value,) if statement.value is not None else None
    if isinstance(statement, ast.For | ast.AsyncFor) and _names(statement.target, name):
        return (None,)
    if isinstance(statement, ast.With | ast.AsyncWith) and any(
        one.optional_vars is not None and _names(one.optional_vars, name) for one in statement.items
    ):
        return (None,)
    for inner in _own_expressions(statement):
        if isinstance(inner, ast.NamedExpr) and inner.target.id == name:
            return (inner.value,)
    return None


def _own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(statement):
        if field not in _BLOCKS:
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, ast.expr):
                    yield from ast.walk(one)


def _names(target: ast.AST, name: str) -> bool:
    if isinstance(target, ast.Name):
        return target.id == name
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(one, name) for one in target.elts)
    return isinstance(target, ast.Starred) and _names(target.value, name)


def _matching(target: ast.expr, value: ast.expr, name: str) -> ast.expr:
    """Return what a name is given: ``g()`` for ``b`` in ``a, b = f(), g()``, else the whole."""
    pairs = isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List)
    if pairs and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for one, part in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            if _names(one, name):
                return part  # type: ignore[no-any-return]
    return value


def blocks_at(function: ast.AST, line: int) -> tuple[tuple[ast.AST, str], ...]:
    """The blocks of statements that a line stands in, outermost first."""
    node, blocks = function, []
    while True:
        for field in _BLOCKS:
            inside = (
                [
                    one
                    for one in getattr(node, field, None) or ()
                    if one.lineno <= line <= (one.end_lineno or one.lineno)
                ]
                if hasattr(node, field) and not isinstance(getattr(node, field), ast.AST)
                else []
            )
            if inside:
                blocks.append((node, field))
                node = inside[-1]
                break
        else:
            return tuple(blocks)
