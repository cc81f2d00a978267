"""Find the line of a function that gave a name the value that it has."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import LOOPS, TracebackFrame

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MOST_CHARACTERS = 80
Block = tuple[ast.AST, str]
"""A block of statements: what it is a part of, and which part, such as ``orelse``."""


class Assignment(NamedTuple):
    """A statement that assigns a name.

    Attributes:
        line: of its beginning.
        text: the statement, in one line.
        value: what is assigned; ``None`` where it is not one expression, as in a loop.
        position: of the name among those that share the value, as of ``b`` in ``a, b = f()``;
            ``None`` of one that has it alone.
        statement: itself.
        is_sure: whether it runs, and before, whenever the line does that was asked about.
    """

    line: int
    text: str
    value: ast.expr | None
    position: int | None = None
    statement: ast.stmt | None = None
    is_sure: bool = False


class _Found(NamedTuple):
    statement: ast.stmt
    value: ast.expr | None
    blocks: tuple[Block, ...]
    position: int | None = None


def assignments_of(frame: TracebackFrame, name: str) -> list[Assignment]:
    """Return the statements, one of which gave a name its value before the frame's line ran.

    Follows the order of the lines, branches and loops, and not the calls: more than one is returned
    where the source alone does not tell.
    """
    return assigned_before(frame.function, frame.line, frame.file, name)


def assigned_before(function: ast.AST | None, line: int, file: str, name: str) -> list[Assignment]:
    """Return the statements of a function, one of which gave a name its value before a line ran."""
    if function is None or isinstance(function, ast.Lambda):
        return []
    every = _every_assignment(function, name)
    here = blocks_at(function, line)
    loops = [node for node, _ in here if isinstance(node, LOOPS)]
    before = [one for one in every if _end(one.statement) < line]
    assignments: list[_Found] = []
    # From the line upwards: what stands in a branch may not have run, so the search goes on behind
    # it.
    for one in reversed(before):
        assignments.append(one)
        if set(one.blocks) <= set(here):
            break  # It runs whenever the frame's line does.
    # The statement itself too: of ``x = f(x)``, the name had its value before it.
    inside = [one for one in every if any(node in loops for node, _ in one.blocks)]
    # Inside a loop a line below may have run before this one, unless each round assigns the name
    # above.
    is_sure = bool(assignments) and set(assignments[-1].blocks) <= set(here)
    if not (is_sure and loops and loops[-1] in dict(assignments[-1].blocks)):
        assignments += [one for one in inside if one not in before]  # Of an earlier round.
    # One line stands for all its statements: a, b = f(); a, b = g() is shown once.
    by_line = {one.statement.lineno: one for one in every}
    sure = {one.statement.lineno for one in before if set(one.blocks) <= set(here)}
    lines = sorted({assignment.statement.lineno for assignment in assignments})
    return [_as_assignment(by_line[one], file)._replace(is_sure=one in sure) for one in lines]


def is_changed(function: ast.AST | None, name: str) -> bool:
    """Return whether a function gives a name another value by ``+=`` or the like, or deletes it."""
    return function is not None and name in _changed_names(function)


@lru_cache(maxsize=1024)
def _changed_names(function: ast.AST) -> frozenset[str]:
    found = (one for one in ast.walk(function) if isinstance(one, ast.AugAssign | ast.Global))
    names = (
        one.names if isinstance(one, ast.Global) else [ast.unparse(one.target)] for one in found
    )
    return frozenset(itertools.chain.from_iterable(names))


def looped_over(frame: TracebackFrame, name: str) -> ast.expr | None:
    """Return what the innermost loop or comprehension that gives a name each item goes over.

    ``xs`` of ``for x in xs``, ``for _, x in enumerate(xs)`` and ``for x, y in zip(xs, ys)``.
    """
    if frame.function is None:
        return None
    around = blocks_at(frame.function, frame.line)
    inside = (one for one in ast.walk(frame.function) if isinstance(one, ast.comprehension))
    loops: list[ast.comprehension | ast.For] = [
        one for one in inside if one.target.lineno <= frame.line <= _last(one.iter)
    ]
    loops += [node for node, _ in reversed(around) if isinstance(node, ast.For)]
    loop = next((one for one in loops if _names(one.target, name)), None)
    return None if loop is None else _items_given(loop.target, loop.iter, name)


def _items_given(target: ast.expr, over: ast.expr, name: str) -> ast.expr | None:
    """Return what a name gets an item of, in each round over an expression."""
    match target, over:
        case ast.Tuple(elts=[_, item]), ast.Call(func=ast.Name("enumerate"), args=[xs, *_]):
            return xs if _names(item, name) else None
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name("zip"), args=given):
            pairs = zip(targets, given, strict=False)
            return next((xs for one, xs in pairs if _names(one, name)), None)
        case _, ast.Call(func=ast.Name()):
            return None
        case ast.Name(), xs:
            return xs
    return None


def is_assigned_in_loop(frame: TracebackFrame, names: set[str]) -> bool:
    """Return whether a loop around the frame's line gives one of some names another value."""
    around = blocks_at(frame.function, frame.line) if frame.function else ()
    return any(
        isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id in names
        for loop, field in around
        if isinstance(loop, LOOPS) and field == "body"
        for one in ast.walk(loop)
    )


def names_in(node: ast.AST) -> set[str]:
    """Return the names that an expression reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def runs_before(function: ast.AST, line: int, here: int) -> bool | None:
    """Return whether a line of a function ran before another one that is running.

    Returns:
        ``None`` where it may have run, or not: it stands in a branch, below in a loop, or on the
        same line.
    """
    around, at = blocks_at(function, here), blocks_at(function, line)
    if line < here:
        return True if set(at) <= set(around) else None
    loops = {node for node, _ in around if isinstance(node, LOOPS)}
    return None if line == here or not loops.isdisjoint(dict(at)) else False


def _end(statement: ast.stmt) -> int:
    """Return the last line of a statement; of one with a block of others, of its head."""
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        first: int = body[0].lineno
        return max(statement.lineno, first - 1)
    return statement.end_lineno or statement.lineno


def _as_assignment(found: _Found, file: str) -> Assignment:
    text = written(found.statement, file).partition(":" if found.value is None else "\0")[0]
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[: _MOST_CHARACTERS - 1]}…"
    return Assignment(found.statement.lineno, text, found.value, found.position, found.statement)


@lru_cache(maxsize=1024)
def _every_assignment(function: ast.AST, name: str) -> tuple[_Found, ...]:
    return tuple(_statements(function, name, ()))


def _statements(node: ast.AST, name: str, blocks: tuple[Block, ...]) -> Iterator[_Found]:
    """Yield the statements below a node that assign a name, in the order of the lines."""
    for field in _BLOCKS:
        for statement in _block(node, field):
            inside = (*blocks, (node, field))
            # A name of an inner function or class is another variable.
            if isinstance(statement, _SCOPES):
                continue
            assigned = _assigned(statement, name)
            if assigned is not None:
                # The target of a loop has its value within the body alone: a loop of no rounds
                # assigns nothing.
                is_loop = isinstance(statement, ast.For | ast.AsyncFor)
                within = (*inside, (statement, "body")) if is_loop else inside
                yield _Found(statement, assigned[0], within, _position(statement, name))
            yield from _statements(statement, name, inside)


def _block(node: ast.AST, field: str) -> list[Any]:
    held = getattr(node, field, None)  # The body of a lambda is no list.
    return held if isinstance(held, list) else []


def _assigned(statement: ast.AST, name: str) -> tuple[ast.expr | None] | None:
    """Return the value that a statement gives a name, in a tuple; ``None`` if it gives it none."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if _names(target, name):
                return (_matching(target, statement.value, name),)
    if isinstance(statement, ast.AnnAssign) and _names(statement.target, name):
        return (statement.value,) if statement.value is not None else None
    given = [statement.target] if isinstance(statement, ast.For | ast.AsyncFor) else []
    if isinstance(statement, ast.With | ast.AsyncWith):
        given = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    if any(_names(one, name) for one in given):
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
        return any(_names(element, name) for element in target.elts)
    return isinstance(target, ast.Starred) and _names(target.value, name)


def _position(statement: ast.AST, name: str) -> int | None:
    """Return the position of a name among the targets that share one value."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names)], value=ast.Call()):
            return next((at for at, one in enumerate(names) if _names(one, name)), None)
    return None


def _matching(target: ast.expr, value: ast.expr, name: str) -> ast.expr:
    """Return what a name is given: ``g()`` for ``b`` in ``a, b = f(), g()``, else the whole."""
    pairs = isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List)
    if pairs and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for one, part in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            if _names(one, name):
                return part  # type: ignore[no-any-return]
    return value


def blocks_at(function: ast.AST, line: int) -> tuple[Block, ...]:
    """Return the blocks of statements that a line stands in, outermost first."""
    for field in _BLOCKS:
        around = [one for one in _block(function, field) if _first(one) <= line <= _last(one)]
        if around:
            return ((function, field), *blocks_at(around[-1], line))
    return ()


def _first(statement: Any) -> int:
    # A case has no position of its own (ast.match_case).
    at: ast.AST = statement.pattern if isinstance(statement, ast.match_case) else statement
    return at.lineno  # type: ignore[attr-defined,no-any-return]


def _last(statement: Any) -> int:
    at = statement.body[-1] if isinstance(statement, ast.match_case) else statement
    return at.end_lineno or at.lineno
