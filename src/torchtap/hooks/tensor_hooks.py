"""Our hooks on tensors of a graph: put on without a handle each, and all taken off at once."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchtap.hooks.hook_order import put_gradient
from torchtap.hooks.site_state import GradHook


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
            hooks[hook] = hook
        else:
            self.join(hooks, hook)

    def join(self, hooks: Any, hook: GradHook) -> None:
        """Put a hook into a table that others made, which is remembered once, to clean it."""
        # The table of a tensor that was hooked before may be known already: each is cleaned once.
        if not any(isinstance(other, GradHook) and self._is_ours(other) for other in hooks):
            self.tables.append(weakref.ref(hooks))
        hooks[hook] = hook
        put_gradient(hooks, hook)

    def prune(self) -> None:
        """Forget the tables of tensors that were freed."""
        self.tables[:] = [table for table in self.tables if table() is not None]

    def release(self) -> None:
        """Take every hook off, also those on tensors of graphs that are still alive."""
        for table in self.tables:
            hooks = table() or {}
            for hook in list(hooks):
                if isinstance(hook, GradHook) and self._is_ours(hook):
                    del hooks[hook]
        self.tables.clear()
