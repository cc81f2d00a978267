"""A method of an object that the method does not keep alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref


def weakly(method: Any) -> Callable[..., Any]:
    """Return a function that calls a method while its object is alive, and does nothing later.

    For a part that calls the object which holds it: the two would be a cycle, and all that they
    hold would stay until the collector runs. ``weakref.WeakMethod`` makes six objects more, of
    which each watch has several.
    """
    owner, function = ref(method.__self__), method.__func__

    def call(*args: Any, **kwargs: Any) -> Any:
        alive = owner()
        return None if alive is None else function(alive, *args, **kwargs)

    return call
