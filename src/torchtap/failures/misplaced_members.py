"""Modules that stand where they were not meant to: in a Sequential, or in another one's place."""

from __future__ import annotations

import ast
import re

from torch import nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import function_tree, written
from torchtap.failures.scopes import methods_of

_BRACES = re.compile(r"\{\w*\}")
_OF_SHAPES = re.compile(r"\b(sizes?|shapes?|channels?|dim(ension)?s?|elements|\dD)\b")
_LOADING = "Error(s) in loading state_dict"


def misplaced(failure: Failure) -> str:
    """Return the way out where the running module has such a place; empty if it has none.

    PyTorch says of it that shapes do not fit; an error about anything else has another cause.
    """
    module = failure.module
    if not is_of_shapes(failure):
        return ""
    running = (frame.module for frame in reversed(failure.frames))
    found = (_of_two(failure, one) for one in dict.fromkeys(running) if one is not None)
    replaced = next(filter(None, found), "")
    if replaced:
        return replaced
    for _, parent in failure.names.modules():
        if not isinstance(parent, nn.Sequential) or module is None:
            continue
        name = next((name for name, one in parent._modules.items() if one is module), "")
        if _BRACES.search(name):
            return _of_braces(name)
        is_named = name and not name.isdigit()
        if is_named and type(parent) is nn.Sequential and any(map(str.isdigit, parent._modules)):
            return _of_attribute(failure, parent, name)
    return ""


def is_of_shapes(failure: Failure) -> bool:
    """Return whether the message says that sizes do not fit."""
    is_computed = isinstance(failure.error, RuntimeError | ValueError)
    is_computed = is_computed and not failure.text.startswith(_LOADING)
    return is_computed and _OF_SHAPES.search(failure.text) is not None


def _of_two(failure: Failure, module: nn.Module) -> str:
    """Say so where a module took the place of another one that had its name."""
    for _, parent in failure.names.modules():
        name = next((name for name, one in parent._modules.items() if one is module), "")
        for _, method in methods_of(type(parent)) if name else ():
            code = method.__code__
            tree = function_tree(code, code.co_firstlineno)
            made = _made_of_one_name(tree, f"self.{name}") if code.co_name == "__init__" else []
            if len(made) > 1:
                file = code.co_filename
                texts = [f"{written(one, file)} of {shown_file(file)}:{one.lineno}" for one in made]
                return (
                    f"self.{name} is assigned more than once in __init__, {', then '.join(texts)}, "
                    "and the last one takes the place of the others: if each of them is meant, "
                    "give it a name of its own, there and where it is called."
                )
    return ""


def _made_of_one_name(tree: ast.AST | None, target: str) -> list[ast.Call]:
    """Return the calls that a function gives one attribute, one behind the other.

    None where it reads the attribute, or a branch or a loop decides which one it gets.
    """
    named = [
        node
        for node in (ast.walk(tree) if isinstance(tree, ast.FunctionDef) else ())
        if isinstance(node, ast.Attribute) and ast.unparse(node) == target
    ]
    made = [
        one.value
        for one in (tree.body if isinstance(tree, ast.FunctionDef) else ())
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call)
        if any(target == ast.unparse(goal) for goal in one.targets)
    ]
    is_told = len(made) == len(named) and len({ast.unparse(one) for one in made}) == len(made)
    return made if is_told else []


def _of_braces(name: str) -> str:
    return (
        f"The name {name!r} has braces: if an f-string was meant, f{name!r}, each module of that "
        "name has taken the place of the one before it, and the others are gone."
    )


def _of_attribute(failure: Failure, parent: nn.Sequential, name: str) -> str:
    """Say so where a module was set as an attribute of a Sequential that has others by number."""
    holder = failure.names.variable(parent)
    return (
        f"{name} was set as an attribute of an nn.Sequential, which calls all of its modules, one "
        f"behind the other: if it is no step of it, keep it elsewhere, as a variable or in a class "
        f"that has {holder} and {name} as attributes."
    )
