"""Who comes first in a module's table of hooks: edits and watches.

PyTorch runs hooks in the order of the table, each one seeing what the former returned. A watch
sees values after all edits, or before them, as it was asked; edits run in the order in which they
were made, and other people's hooks keep their places among themselves. Gradients come by in the
opposite direction, from the outermost module inwards.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torchtap.hooks.module_hook import EditCallback, WatchCallback
from torchtap.hooks.spots import EditGradHook, GradHook, SiteState

AFTER, BEFORE = "after", "before"


def put_edit(table: MutableMapping[int, Any], key: int) -> None:
    """A new hook of an edit stands at the end: whoever looks after edits goes behind it."""
    for other, hook in list(table.items()):
        if other != key and isinstance(hook, WatchCallback) and hook.engine.looks == AFTER:
            _to_end(table, other)


def put_watch(table: MutableMapping[int, Any], key: int) -> None:
    """A new hook of a watch stands at the end: one that looks before edits goes before them."""
    if table[key].engine.looks == AFTER:
        return
    others = [other for other in table if other != key]
    first = next((one for one in others if isinstance(table[one], EditCallback)), None)
    if first is not None:
        for other in others[others.index(first) :]:
            _to_end(table, other)


def put_gradient(table: MutableMapping[Any, Any], key: Any) -> None:
    """A new hook on a tensor stands at the end of the tensor's table, where hooks run in turn.

    A tensor that goes out of several modules as it is belongs to the innermost; its gradient comes
    in by the outermost. So a hook goes before those of modules further inside, and behind those of
    its own module. Where nobody edits, the order makes no difference.
    """
    if len(table) == 1 or not any(isinstance(hook, EditGradHook) for hook in table.values()):
        return
    others = [other for other in table if other != key]
    here = _home(table[key])
    own = [place for place, other in enumerate(others) if _home(table[other]) == here]
    behind = own[-1] + 1 if own else 0
    for other in others[behind:]:
        _to_end(table, other)


def _home(hook: Any) -> str | None:
    """Path of the module (or mark) that a hook of ours on a tensor belongs to."""
    if not isinstance(hook, GradHook):
        return None
    bound = (getattr(getattr(hook.func, "__self__", None), "spot", None), *hook.args[:1])
    return next((spot.site.path for spot in bound if isinstance(spot, SiteState)), None)


def _to_end(table: MutableMapping[Any, Any], key: Any) -> None:
    table[key] = table.pop(key)
