"""The order of our hooks in a module's table of hooks, by their roles.

PyTorch runs hooks in the order of the table, and passes to each what the one before it returned. A
watch sees values after all edits, or before them, as it was asked. Edits run in the order in which
they were made. Hooks of other libraries keep their order among themselves. Gradients arrive in the
opposite direction, from the outermost module inwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

from torchtap.core.site import Site
from torchtap.hooks.module_hook import EDIT, OWN_HOOKS, WATCH_AFTER, WATCH_BEFORE, ModuleHook
from torchtap.hooks.site_state import EditGradHook, GradHook

AFTER, BEFORE = "after", "before"
ROLE_OF_WATCH = {AFTER: WATCH_AFTER, BEFORE: WATCH_BEFORE}


def put_by_role(table: MutableMapping[int, Any], key: int) -> None:
    """Move a hook of ours, which was just put on a module, to where its role belongs.

    A hook that reads after edits stays at the end. Behind a new edit, those are moved to the end.
    A hook that reads before edits is new at the end too: the first edit, and all hooks behind it,
    are moved behind the new hook, in the order in which they were.

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
    for other in behind:
        _to_end(table, other)


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
        place = max([place, *(at + 1 for at in edits)])
    table[key] = hook
    for other in others[place:]:
        _to_end(table, other)


def _role(hook: Any) -> str | None:
    return hook.role if isinstance(hook, OWN_HOOKS) else None


def put_gradient(table: MutableMapping[Any, Any], key: Any) -> None:
    """Move a new hook on a tensor from the end of the tensor's table to where it belongs.

    A tensor that goes out of several modules as it is belongs to the innermost; its gradient comes
    in by the outermost. So a hook goes before those of modules further inside, and behind those of
    its own module. Without edits the order makes no difference.
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
    # A hook is a method of a pending gradient, which has the state, or a plain function that gets
    # the state as its first argument: making an object for each gradient would cost more.
    bound = (getattr(getattr(hook.func, "__self__", None), "state", None), *hook.args[:1])
    sites = (getattr(state, "site", None) for state in bound)
    return next((site.path for site in sites if isinstance(site, Site)), None)


def _to_end(table: MutableMapping[Any, Any], key: Any) -> None:
    table[key] = table.pop(key)
