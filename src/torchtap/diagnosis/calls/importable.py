"""Names by which classes and functions are imported again."""

from __future__ import annotations

import importlib
from typing import Any

from torchtap.core.torch_private import HOMES_OF_FUNCTIONS

_HOMES = (*HOMES_OF_FUNCTIONS, "math", "operator")
"""Modules that are searched for functions of C, which do not say where they stand."""
WAY = "hand in tensors, lists, dicts or dataclasses"


class UnwritableError(Exception):
    """A value that cannot be written without pickle; the argument says why."""


def in_words(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def name_of(value: Any) -> str:
    """Return ``package.module:Outer.inner`` of a class or function that can be imported.

    Raises:
        UnwritableError: it cannot be, as it stands in a function, in ``__main__``, or nowhere.
    """
    path: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    home: Any = getattr(value, "__module__", None)
    what = f"{'class' if isinstance(value, type) else 'function'} {path}"
    if "<lambda>" in path:
        raise UnwritableError("it is a lambda; give it a name in a module that can be imported")
    if "<locals>" in path:
        raise UnwritableError(f"the {what} is made in a function; move it into a module of its own")
    if home == "__main__":
        raise UnwritableError(
            f"the {what} is of __main__, which no other process can import; move it into a file "
            f"that is imported"
        )
    own = getattr(value, "__name__", path)  # Of torch.relu, which is said to be of another class.
    for module in dict.fromkeys(one for one in (home, *_HOMES) if one):
        for known in dict.fromkeys((path, own)):
            if _found(module, known) is value:
                return f"{module}:{known}"
    raise UnwritableError(f"the {what} of {home} cannot be imported by that name")


def _found(module: str, path: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
