"""Calls a function when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """Stands first among the finders until the module has been imported; the others find it.

    A program that only asks for the spec of the module ends nothing.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._asking = threading.local()
        self._is_over = False

    def leave(self) -> None:
        """Wait no more."""
        self._is_over = True
        # A new list: an import in another thread may be going through the old one, and would pass
        # over the finder that takes the place of this one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the awaited module, whose loader then also runs the action."""
        if name != self._name or hasattr(self._asking, "others"):
            return None
        self._asking.others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            del self._asking.others
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # That of its class is seen again, once for all.
            execute(module)
            if not self._is_over:
                self.leave()
                self._action()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call a function once, when a module of this name has been imported, or now if it has been.

    Args:
        name: of the module.
        action: must not raise.

    Returns:
        what ends the waiting; safe to call twice.
    """
    if name in sys.modules:
        action()
        return lambda: None
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.leave
