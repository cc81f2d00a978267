"""A method of an object that the method does not keep alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method while its object is alive, and does nothing later.

    For a part that calls the object which holds it: the two would be a cycle, and all that they
    hold would stay until the collector runs.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = reference()
        return None if alive is None else alive(*args, **kwargs)

    return call
