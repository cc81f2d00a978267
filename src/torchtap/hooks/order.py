"""Who comes first in a module's table of hooks: edits and watches.

PyTorch runs hooks in the order of the table, each one seeing what the former returned. A watch
sees values after all edits, or before them, as it was asked; edits run in the order in which they
were made, and other people's hooks keep their places among themselves.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torchtap.hooks.callbacks import EditCallback, Enter, Leave

AFTER, BEFORE = "after", "before"


def put_edit(table: MutableMapping[int, Any], key: int) -> None:
    """A new hook of an edit stands at the end: whoever looks after edits goes behind it."""
    for other, hook in list(table.items()):
        if other != key and isinstance(hook, Enter | Leave) and hook.engine.looks == AFTER:
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


def _to_end(table: MutableMapping[int, Any], key: int) -> None:
    table[key] = table.pop(key)
