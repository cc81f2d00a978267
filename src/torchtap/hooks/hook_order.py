"""The order of our hooks in a module's table of hooks, by their roles.

PyTorch runs hooks in the order of the table, and passes to each what the one before it returned. A
watch sees values after all edits, or before them, as it was asked. Edits run in the order in which
they were made. Hooks of other libraries keep their order among themselves. The order of hooks on
tensors is that of :mod:`~torchtap.hooks.tensor_hooks`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

from torchtap.hooks.module_hook import EDIT, OWN_HOOKS, WATCH_AFTER, WATCH_BEFORE, ModuleHook

AFTER, BEFORE = "after", "before"
ROLE_OF_WATCH = {AFTER: WATCH_AFTER, BEFORE: WATCH_BEFORE}


def put_by_role(table: MutableMapping[int, Any], key: int) -> None:
    """Move a hook of ours, which was just put on a module, to where its role belongs.

    ``EDIT``: inserted before all ``WATCH_AFTER`` hooks. ``WATCH_BEFORE``: inserted before the first
    ``EDIT``. Others: appended. The other hooks keep their order.

    Args:
        table: of hooks.
        key: of the new hook.
    """
    role = table[key].role
    others = [other for other in table if other != key]
    if role == EDIT:
        behind = [other for other in others if _role(table[other]) == WATCH_AFTER]
    elif role == WATCH_BEFORE:
        first = next((other for other in others if _role(table[other]) == EDIT), None)
        behind = [] if first is None else others[others.index(first) :]
    else:
        behind = []
    # A key that is taken out and put in again goes to the end of an OrderedDict: so they end behind
    # the new hook, in their order.
    for other in behind:
        table[other] = table.pop(other)


def order_with(
    table: Mapping[int, Any], resting: Collection[int], before: Sequence[int]
) -> list[int]:
    """Return the keys of a table in their order, with those of hooks that rest where they belong.

    Args:
        table: of hooks.
        resting: keys of hooks that are not in the table now.
        before: the order of all when the last of those was put to rest. A hook that rests comes
            right behind the one that was before it.
    """
    order, place = list(table), 0
    for key in before:
        if key in resting:
            order.insert(place, key)
            place += 1
        # Hooks that were put on meanwhile are not in ``before``; they stay where they are.
        elif key in table:
            place = order.index(key) + 1
    return order


def put_back(
    table: MutableMapping[int, Any], key: int, hook: ModuleHook[Any], order: Sequence[int]
) -> None:
    """Put a hook that rested back into its table.

    Args:
        table: of hooks.
        key: of the hook.
        hook: which one.
        order: of all, see :func:`order_with`. Edits that were made meanwhile may stand behind a
            hook that reads after edits: it is put behind the last of them.
    """
    others = [other for other in order if other in table]
    place = len([other for other in order[: order.index(key)] if other in table])
    if hook.role == WATCH_AFTER:
        edits = [at for at, other in enumerate(others) if _role(table[other]) == EDIT]
        # Or an edit that was made while this hook rested would be read by no one.
        place = max([place, *(at + 1 for at in edits)])
    table[key] = hook
    for other in others[place:]:
        table[other] = table.pop(other)


def _role(hook: Any) -> str | None:
    return hook.role if isinstance(hook, OWN_HOOKS) else None
