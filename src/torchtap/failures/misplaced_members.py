"""Modules that stand in a Sequential where they were not meant to."""

from __future__ import annotations

import re

from torch import nn

from torchtap.failures.failure import Failure

_BRACES = re.compile(r"\{\w*\}")
_OF_SHAPES = re.compile(r"\b(sizes?|shapes?|channels?|dim(ension)?s?|elements|\dD)\b")
_LOADING = "Error(s) in loading state_dict"


def misplaced(failure: Failure) -> str:
    """Return the way out where the running module has such a place; empty if it has none.

    PyTorch says of it that shapes do not fit; an error about anything else has another cause.
    """
    module = failure.module
    if not _is_of_shapes(failure):
        return ""
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


def _is_of_shapes(failure: Failure) -> bool:
    is_computed = isinstance(failure.error, RuntimeError) and not failure.text.startswith(_LOADING)
    return is_computed and _OF_SHAPES.search(failure.text) is not None


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
