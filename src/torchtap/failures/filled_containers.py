"""Tell whether a list or dict may have been written to since it was made.

An item of a literal is the item that a program reads only while nobody writes another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from torchtap.core.source_files import is_of_library
from torchtap.failures.parsed_source import function_tree
from torchtap.failures.scopes import Expression, Scope, method_of, methods_of
from torchtap.failures.traceback_frame import MISSING

_WRITERS = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update"),
        *("setdefault", "pop", "popleft", "popitem", "remove", "clear", "sort", "reverse"),
        *("rotate", "shuffle", "heappush", "heappop", "__setitem__"),
    }
)
"""Methods and functions that write into a container."""
_MOST_CALLS = 4
"""Calls, one inside of the other, that a container is followed through."""


def may_be_filled(one: Expression) -> bool:
    """Return whether what a name or an attribute holds may have been given other items."""
    text = ast.unparse(one.node)
    if _is_written(one.scope.tree, text, one.scope, _MOST_CALLS):
        return True
    owner = one.scope.value_of(ast.Name("self")) if text.startswith("self.") else MISSING
    methods = () if owner is MISSING else methods_of(type(owner))
    trees = (_tree_of(method) for _, method in methods)
    return any(_writes(tree, text) for tree in trees if tree is not None)


def _is_written(tree: ast.AST | None, text: str, scope: Scope | None, calls: int) -> bool:
    """Return whether a function writes into a container, itself or by a function that it calls."""
    if tree is None:
        return False
    if _writes(tree, text):
        return True
    given = [(call, at) for call in _calls(tree) for at in _arguments_that_are(call, text)]
    if given and calls == 0:
        return True
    return any(_is_written_by(call, at, scope, calls - 1) for call, at in given)


@lru_cache(maxsize=1024)
def _writes(tree: ast.AST, text: str) -> bool:
    return any(_is_or_holds(target, text) for node in ast.walk(tree) for target in _targets(node))


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the containers that a statement or a call writes into."""
    match node:
        case ast.Subscript(value=base, ctx=ast.Store() | ast.Del()):
            yield base
        case ast.AugAssign(target=target):
            yield target
        case ast.Call(func=ast.Attribute(value=base, attr=attr), args=args) if attr in _WRITERS:
            yield from (base, *args[:1])


def _is_or_holds(target: ast.expr, text: str) -> bool:
    """Return whether a target is a container, or an item inside of it."""
    while ast.unparse(target) != text:
        if not isinstance(target, ast.Subscript):
            return False
        target = target.value
    return True


@lru_cache(maxsize=256)
def _calls(tree: ast.AST) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _arguments_that_are(call: ast.Call, text: str) -> Iterator[int | str | None]:
    """Yield the places and names of the arguments by which a call is given a container."""
    for at, given in enumerate(call.args):
        if ast.unparse(given) == text:
            yield at
    for keyword in call.keywords:
        if keyword.arg is not None and ast.unparse(keyword.value) == text:
            yield keyword.arg


def _is_written_by(call: ast.Call, at: int | str | None, scope: Scope | None, calls: int) -> bool:
    called = MISSING if scope is None else scope.value_of(call.func)
    function = _function_of(called, call, scope)
    if function is None:
        # A class or function of a library reads what it is given, unless its name says more.
        is_known = isinstance(called, type | BuiltinFunctionType | FunctionType | nn.Module)
        return not (is_known or _is_of_module(call.func, scope))
    if is_of_library(function.__code__.co_filename):
        return function.__name__ in _WRITERS
    tree = _tree_of(function)
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    names = [one.arg for one in (*tree.args.posonlyargs, *tree.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    name = names[at] if isinstance(at, int) and at < len(names) else at
    inner = Scope(tree, function.__code__.co_filename, (), given=function.__globals__)
    return isinstance(name, str) and _is_written(tree, name, inner, calls)


def _function_of(called: Any, call: ast.Call, scope: Scope | None) -> FunctionType | None:
    """Return the function of Python that a call runs; ``None`` where that is not known."""
    if isinstance(called, FunctionType):
        return called
    if isinstance(called, type):
        return method_of(called, "__init__")
    if isinstance(called, nn.Module):
        return method_of(type(called), "forward")
    if isinstance(call.func, ast.Attribute) and scope is not None:
        owner = scope.value_of(call.func.value)
        return None if owner is MISSING else method_of(type(owner), call.func.attr)
    return None


def _is_of_module(func: ast.expr, scope: Scope | None) -> bool:
    """Return whether what is called is a method of a tensor or a function of a built-in module."""
    owner = scope.value_of(func.value) if scope and isinstance(func, ast.Attribute) else MISSING
    return owner is not MISSING and not hasattr(type(owner), "__dict__")


def _tree_of(function: FunctionType) -> ast.AST | None:
    code = function.__code__
    return function_tree(code, code.co_firstlineno)
