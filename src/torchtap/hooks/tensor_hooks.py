"""Our hooks on tensors of a graph: put on without a handle each, in order, and taken off at once.

Gradients arrive from the outermost module inwards, so their hooks stand in the opposite order of
those on modules.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any

from torch import Tensor

from torchtap.core.site import Site
from torchtap.hooks.hidden_handle import tables_lock
from torchtap.hooks.tap import EditGradHook, GradHook


class TensorHooks:
    """The hook tables of tensors that hold a hook of one owner's.

    Args:
        is_ours: whether a hook in such a table is the owner's.

    Attributes:
        tables: each of them once. A tensor and its node own the table, and it goes with them.
    """

    def __init__(self, is_ours: Callable[[GradHook], bool]) -> None:
        self.tables: list[weakref.ref[Any]] = []
        self._is_ours = is_ours

    def put(self, tensor: Tensor, hook: GradHook) -> None:
        """Hook a plain tensor that an operation made."""
        hooks: Any = tensor._backward_hooks
        if hooks is None:
            # As Tensor.register_hook (torch/_tensor.py), less its handle: a third of the time.
            hooks = OrderedDict()
            tensor._backward_hooks = hooks
            tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
            self.tables.append(weakref.ref(hooks))
            # The hook is its own key, so no number has to be drawn for a handle.
            hooks[hook] = hook
        else:
            self.join(hooks, hook)

    def join(self, hooks: Any, hook: GradHook) -> None:
        """Put a hook into a table that others made, which is remembered once, to clean it."""
        with tables_lock:  # Another thread may take off those of another owner.
            # That of a tensor that was hooked before may be known already: each is cleaned once.
            if not any(isinstance(other, GradHook) and self._is_ours(other) for other in hooks):
                self.tables.append(weakref.ref(hooks))
            hooks[hook] = hook
            put_gradient(hooks, hook)

    def prune(self) -> None:
        """Forget the tables of tensors that were freed."""
        self.tables[:] = [table for table in self.tables if table() is not None]

    def release(self) -> None:
        """Take every hook off, also those on tensors of graphs that are still alive."""
        for table in list(self.tables):
            hooks = table() or {}
            with tables_lock:
                for hook in list(hooks):
                    if isinstance(hook, GradHook) and self._is_ours(hook):
                        del hooks[hook]
        self.tables.clear()


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
        table[other] = table.pop(other)


def _home(hook: Any) -> str | None:
    """Path of the module (or mark) that a hook of ours on a tensor belongs to."""
    if not isinstance(hook, GradHook):
        return None
    # A hook is a method of a pending gradient, which has the state, or a plain function that gets
    # the state as its first argument: making an object for each gradient would cost more.
    bound = (getattr(getattr(hook.func, "__self__", None), "state", None), *hook.args[:1])
    sites = (getattr(state, "site", None) for state in bound)
    return next((site.path for site in sites if isinstance(site, Site)), None)
