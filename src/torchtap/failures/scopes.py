"""Expressions, and the functions that they stand in: running ones, and ones that have returned."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn

from torchtap.core.source_files import TORCH, is_of_library
from torchtap.failures.assignments import Assignment, assigned_before, names_in
from torchtap.failures.parsed_source import function_tree, source_tree, written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame, item_of, value_in

_CALLS = os.path.join(TORCH, "nn", "modules", "module.py")
"""The file whose functions run the ``forward`` of a module."""
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of the functions that Python makes of comprehensions."""
END = 1 << 30
"""A line below all others: a function that runs later finds the names of its file as they ended."""
Path = tuple[int | str | None, ...]
"""Items that are taken of a value, one of another; ``None`` is the item of a loop."""


class Expression(NamedTuple):
    """An expression of the program, or an item of its value.

    Attributes:
        node: its source.
        scope: the function that it stands in.
        path: the items that are taken of it.
        at: the line at which it is read, of an expression that stands in no line.
        is_same: of a step, whether the value before it is its value or an item of that, and not
            one that was converted or made of it.
    """

    node: ast.expr
    scope: Scope
    path: Path = ()
    at: int = 0
    is_same: bool = True

    @property
    def line(self) -> int:
        """Return the number of its line."""
        return self.at or self.node.lineno

    @property
    def text(self) -> str:
        """Return it as it stands in the source, with the items that are taken of it."""
        return self.with_items(self.path)

    def with_items(self, path: Path) -> str:
        """Return it as it stands in the source, with some items taken of it."""
        text = ast.unparse(self.node) if self.at else written(self.node, self.scope.file)
        first = path.index(None) if None in path else len(path)
        text += "".join(f"[{one!r}]" for one in path[:first])
        # Items of an item have no text of their own: a name of the loop stands for one.
        part = "part of " if any(one is not None for one in path[first:]) else ""
        return f"{part}an item of {text}" if first < len(path) else text

    @property
    def value(self) -> Any:
        """Return its value, if that is there still and certain; else :data:`MISSING`."""
        scope = self.scope
        # A name that was given another value since then no longer tells.
        if scope.frame is not None and any(
            scope.assignments(name, self.line) != scope.assignments(name, scope.line)
            for name in names_in(self.node)
        ):
            return MISSING
        value = scope.value_of(self.node)
        for key in self.path:
            value = MISSING if key is None else item_of(value, key)
        return value

    def part(self, node: ast.expr, path: Path = ()) -> Expression:
        """Return a part of this expression."""
        return Expression(node, self.scope, path, self.at)

    def elsewhere(self, node: ast.expr) -> Expression:
        """Return an expression of another line of the function, with the items of this one."""
        return Expression(node, self.scope, self.path)


@dataclass(frozen=True, eq=False, repr=False)
class Scope:
    """A function that is running or has returned, or a file.

    Attributes:
        tree: its source.
        file: that it stands in.
        frames: of the exception.
        line: that was running; of a function that has returned, the last.
        frame: that runs it; ``None`` of a function that has returned.
        given: the global names of one that has returned.
        owner: the value of ``self`` in it.
        call: that ran it, where the source tells.
        itself: the expression of which ``self`` is the value.
        bound: the expressions that the names of a comprehension stand for, in one of its rounds.
    """

    tree: ast.AST | None
    file: str
    frames: Sequence[TracebackFrame]
    line: int = END
    frame: TracebackFrame | None = None
    given: Mapping[str, Any] | None = None
    owner: Any = MISSING
    call: Expression | None = None
    itself: Expression | None = None
    bound: Mapping[str, Expression] = field(default_factory=dict)

    def assignments(self, name: str, line: int) -> list[Assignment]:
        """Return the statements, one of which gave a name its value before a line ran."""
        return assigned_before(self.tree, line, self.file, name)

    def value_of(self, node: ast.AST) -> Any:
        """Return the value of an expression, if that is there still; else :data:`MISSING`."""
        if self.frame is not None:
            return self.frame.value_of(node)
        return value_in(node, self._value_of_name)

    def _value_of_name(self, name: str) -> Any:
        if name == "self":
            return self.owner
        if self.given is None or name in self.parameters or self.assignments(name, END):
            return MISSING
        return self.given.get(name, vars(builtins).get(name, MISSING))

    @cached_property
    def name(self) -> str:
        """Return the name of the function; empty of a file."""
        return str(getattr(self.tree, "name", ""))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of its arguments, without those of ``*`` and ``**``."""
        if not isinstance(self.tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return ()
        given = self.tree.args
        return tuple(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def argument(self, name: str) -> Expression | None:
        """Return the expression that an argument of the function was given by its caller."""
        call, is_bound, itself = self._called()
        if is_bound and name == self.parameters[0]:
            return itself
        if call is None or not isinstance(call.node, ast.Call):
            return None
        given = given_to(call, self.parameters[is_bound:], name)
        return given or (None if _is_open(call.node) else self._default(name))

    @property
    def caller(self) -> Expression | None:
        """Return the call that ran the function; ``None`` where the source does not tell."""
        return self._called()[0]

    def _called(self) -> tuple[Expression | None, bool, Expression | None]:
        """Return the call that ran the function, whether it is a method, and of what."""
        is_method = self.parameters[:1] in (("self",), ("cls",))
        if self.frame is None:
            return self.call, is_method, self.itself
        found = _caller_of(self.frames, self.frame)
        if found is None:
            return None, is_method, None
        caller, is_direct = found
        node = _call_in(caller, self.frame)
        if node is None:
            return None, is_method, None
        call = Expression(node, scope_of(caller, self.frames))
        own = node.func.value if isinstance(node.func, ast.Attribute) else None
        if self.name == "__init__":
            is_super = isinstance(own, ast.Call)
            return call, is_method, None if is_super else call
        itself = own if is_direct and self.name != "__call__" else node.func
        return call, is_method, None if itself is None else call.part(itself)

    def _default(self, name: str) -> Expression | None:
        """Return the value that stands in the head of the function."""
        if not isinstance(self.tree, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        args = self.tree.args
        names = [one.arg for one in (*args.posonlyargs, *args.args)]
        pairs = dict(zip(reversed(names), reversed(args.defaults), strict=False))
        pairs |= {
            one.arg: node
            for one, node in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if node is not None
        }
        return Expression(pairs[name], self) if name in pairs else None

    def around(self, node: ast.expr, name: str) -> Expression | Scope | None:
        """Return what a comprehension that runs as a function finds outside of itself.

        Returns:
            what it goes over, with the items that it gives to the name; the function around it for
            any other name. ``None`` of a function.
        """
        if self.frame is None or self.frame.code.co_name not in COMPREHENSIONS:
            return None
        further = self.frames[: self.frame.depth]
        frames = (one for one in reversed(further) if one.is_user and one.file == self.file)
        frame = next(frames, None)
        if frame is None:
            return None
        outer = scope_of(frame, self.frames)
        for one in ast.walk(self.tree) if self.tree is not None else ():
            for over in getattr(one, "generators", ()):
                path = path_to(over.target, name)
                if path is not None and any(part is node for part in ast.walk(one)):
                    return Expression(over.iter, outer, (None, *path))
        return outer

    def outer(self, name: str) -> Scope | None:
        """Return the function or file further out that has a name of its own."""
        if self.frame is not None and name in self.frame.code.co_freevars:
            code = self.frame.code
            around = (one for one in self.frames if code in one.code.co_consts)
            frame = next(around, None)
            return None if frame is None else scope_of(frame, self.frames)
        if isinstance(self.tree, ast.Module):
            return None
        running = (
            one for one in self.frames if one.code.co_name == "<module>" and one.file == self.file
        )
        frame = next(running, None)
        if frame is not None:
            return scope_of(frame, self.frames)
        given = self.frame.frame.f_globals if self.frame is not None else self.given
        return Scope(source_tree(self.file), self.file, self.frames, given=given)


def scope_of(frame: TracebackFrame, frames: Sequence[TracebackFrame]) -> Scope:
    """Return the function of a frame."""
    return Scope(frame.function, frame.file, frames, frame.line, frame)


def returned_scope(
    function: FunctionType,
    frames: Sequence[TracebackFrame],
    *,
    owner: Any = MISSING,
    call: Expression | None = None,
    itself: Expression | None = None,
) -> Scope | None:
    """Return a function of the program that has returned; ``None`` of one of a library."""
    code = function.__code__
    if is_of_library(code.co_filename):
        return None
    tree = function_tree(code, code.co_firstlineno)
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    given = function.__globals__
    return Scope(tree, code.co_filename, frames, given=given, owner=owner, call=call, itself=itself)


def given_to(call: Expression, names: Sequence[str], name: str) -> Expression | None:
    """Return the expression that a call gives an argument.

    Args:
        call: of the function.
        names: of the arguments that it may give by their place, in their order.
        name: of the argument.
    """
    node = call.node
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg == name:
            return call.part(keyword.value)
    at = names.index(name) if name in names else len(node.args)
    first = next((n for n, one in enumerate(node.args) if isinstance(one, ast.Starred)), END)
    if at < len(node.args) and at < first:
        return call.part(node.args[at])
    if first < END and first <= at and first == len(node.args) - 1:
        return call.part(node.args[first].value, (at - first,))  # type: ignore[attr-defined]
    opened = [keyword.value for keyword in node.keywords if keyword.arg is None]
    return call.part(opened[0], (name,)) if len(opened) == 1 else None


def _is_open(node: ast.Call) -> bool:
    is_starred = any(isinstance(one, ast.Starred) for one in node.args)
    return is_starred or any(keyword.arg is None for keyword in node.keywords)


def _caller_of(
    frames: Sequence[TracebackFrame], frame: TracebackFrame
) -> tuple[TracebackFrame, bool] | None:
    """Return the frame of the program that called a frame, and whether it did so itself.

    A call of a module goes through functions of PyTorch, and wrappers hand on what they are given.
    """
    is_direct = True
    for one in reversed(frames[: frame.depth]):
        if one.is_user:
            return one, is_direct
        is_first = isinstance(one.owner, nn.Sequential) and _runs_its_first(one)
        if not (one.file == _CALLS or isinstance(one.owner, _WRAPPERS) or is_first):
            return None
        is_direct = False
    return None


def path_to(target: ast.expr, name: str) -> Path | None:
    """Return the items that a name gets of what is assigned to a target."""
    match target:
        case ast.Name(id=own):
            return () if own == name else None
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for at, element in enumerate(elements):
                if isinstance(element, ast.Starred):
                    return None
                path = path_to(element, name)
                if path is not None:
                    return (at, *path)
    return None


def _call_in(caller: TracebackFrame, frame: TracebackFrame) -> ast.Call | None:
    """Return the call that ran a frame; ``None`` where it is not one alone.

    A generator runs while another function asks for its items: ``list(batches(data))``.
    """
    node = caller.expression
    inside = ast.walk(node) if node is not None else ()
    fitting = [one for one in inside if isinstance(one, ast.Call) and _runs(one, caller, frame)]
    return fitting[0] if len(fitting) == 1 or (fitting and fitting[0] is node) else None


def _runs(call: ast.Call, caller: TracebackFrame, frame: TracebackFrame) -> bool:
    """Return whether a call ran the function of a frame, as far as its name or value tells."""
    held, name = caller.value_of(call.func), frame.code.co_name
    if isinstance(held, FunctionType):
        return inspect.unwrap(held).__code__ is frame.code or held.__code__ is frame.code
    if isinstance(held, type):
        return name == "__init__"
    if held is not MISSING:
        return isinstance(held, nn.Module) or name == "__call__"
    func = call.func
    return getattr(func, "attr", getattr(func, "id", name)) == name


def _runs_its_first(frame: TracebackFrame) -> bool:
    first = next(iter(frame.owner._modules.values()), None)
    return first is not None and frame.names.get("module") is first


def methods_of(kind: type) -> Iterator[tuple[type, FunctionType]]:
    """Yield the methods that a class of the program has, with the class that defines each."""
    for one in kind.__mro__:
        for held in vars(one).values():
            plain = inspect.unwrap(held) if isinstance(held, FunctionType) else held
            if isinstance(plain, FunctionType) and not is_of_library(plain.__code__.co_filename):
                yield one, plain


def method_of(kind: type, name: str) -> FunctionType | None:
    """Return a method of a class or of its bases by its name; ``None`` without one."""
    found = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
    return found if isinstance(found, FunctionType) else None
