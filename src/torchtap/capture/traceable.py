"""Hooks become those that a compiler can trace, once there is one.

Most programs have no compiler, and :mod:`~torchtap.capture.compiled` is imported with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torchtap.core.after_import import after_import
from torchtap.core.shared_state import members
from torchtap.core.torch_private import DYNAMO, imported_dynamo


class TraceableHooks:
    """The hooks of one engine that can be traced."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        _all_hooks.add(self)

    def add(self, hooks: Iterable[Any]) -> None:
        """Add hooks before they are put on modules, of :data:`~torchtap.capture.compiled.KINDS`."""
        self._waiting += hooks
        if imported_dynamo() is not None:
            self.prepare()

    def prepare(self) -> None:
        """Let all hooks be traced that cannot be yet."""
        from torchtap.capture.compiled import make_traceable

        while self._waiting:
            make_traceable(self._waiting.pop())

    def release(self) -> None:
        """Forget them."""
        self._waiting.clear()


_all_hooks: weakref.WeakSet[TraceableHooks] = weakref.WeakSet()


def _prepare_all() -> None:
    """The compiler was imported, and has traced nothing yet."""
    for hooks in members(_all_hooks):
        hooks.prepare()


after_import(DYNAMO, _prepare_all)
