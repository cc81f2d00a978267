"""Modules that stand in a Sequential where they were not meant to."""

from __future__ import annotations

import re

from torch import nn

from torchtap.failures.failure import Failure

_BRACES = re.compile(r"\{\w*\}")


def misplaced(failure: Failure) -> str:
    """Return the way out where the running module has such a place; empty if it has none.

    PyTorch says of it that shapes do not fit, whatever their message: the evidence is the name.
    """
    module = failure.module
    for _, parent in failure.names.modules():
        if not isinstance(parent, nn.Sequential) or module is None:
            continue
        names = [name for name, one in parent._modules.items() if one is module]
        if names:
            return _of_braces(names[0]) or _of_attribute(failure, parent, names[0])
    return ""


def _of_braces(name: str) -> str:
    if not _BRACES.search(name):
        return ""
    return (
        f"The name {name!r} has braces: if an f-string was meant, f{name!r}, each module of that "
        "name has taken the place of the one before it, and the others are gone."
    )


def _of_attribute(failure: Failure, parent: nn.Sequential, name: str) -> str:
    """Say so where a module was set as an attribute of a Sequential that has others by number."""
    is_numbered = name.isdigit() or not any(one.isdigit() for one in parent._modules)
    if is_numbered or type(parent) is not nn.Sequential:
        return ""
    holder = failure.names.variable(parent)
    return (
        f"{name} was set as an attribute of an nn.Sequential, which calls all of its modules, one "
        f"behind the other: if it is no step of it, keep it elsewhere, as a variable or in a class "
        f"that has {holder} and {name} as attributes."
    )
