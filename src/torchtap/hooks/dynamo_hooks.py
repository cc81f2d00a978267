"""Makes torch.compile look at the modules' hook tables while some of ours are in them.

By default compiled code is reused for another module of the same class without looking at its
hooks, so that of several equal blocks only the first would be seen or edited. With the look, it is
reused only where the hooks have the same numbers in the tables: those of one watch share theirs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.after_import import after_import
from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import DYNAMO, imported_dynamo, set_default
from torchtap.hooks.hidden_handle import keys_in

_NAME = "skip_nnmodule_hook_guards"

_lock = new_lock()  # The collector may finish a holder while another one is counted.
_num_holders = 0
_default_before: Any = None
_is_overridden = False
_shared_keys: list[int] = []


class DynamoHookSetting:
    """Holds the setting by which code compiled from now on, in any thread, depends on hooks."""

    __slots__ = ("__weakref__", "_is_held", "_is_over", "_stop_waiting")

    def __init__(self) -> None:
        self._is_held = self._is_over = False
        self._stop_waiting: weakref.finalize[..., DynamoHookSetting] | None = None

    def hold(self) -> None:
        """Hold the setting, if Dynamo is imported by now. Cheap to call again.

        After :meth:`release` it does nothing: a call in another thread may still be running.
        """
        if self._is_held or DYNAMO not in sys.modules:
            return
        with _lock:
            if not (self._is_held or self._is_over):
                self._is_held = True
                _count(1)

    def hold_in_time(self) -> None:
        """Hold the setting now, or as soon as Dynamo is imported. Cheap to call again.

        Hooks that are not in their tables now tell nobody that a model is compiled.
        """
        self.hold()
        if self._is_held or self._is_over or self._stop_waiting is not None:
            return
        itself = weakref.ref(self)

        def hold() -> None:
            setting = itself()
            if setting is not None:
                setting.hold()

        # Also of a watch that is never closed.
        self._stop_waiting = weakref.finalize(self, after_import(DYNAMO, hold))
        self._stop_waiting.atexit = False

    def release(self) -> None:
        """Withdraw the request, for good."""
        if self._stop_waiting is not None:
            self._stop_waiting()
        with _lock:
            self._is_over = True
            if self._is_held:
                self._is_held = False
                _count(-1)

    def __del__(self) -> None:
        if self._is_held:  # By a watch that was never closed.
            self.release()


def _count(change: int) -> None:
    """Change the setting for the first holder, and change it back for the last one.

    Dynamo's ``config`` shows a value only to the thread that set it, while models run in any
    thread and the collector finishes holders in any: so the default is changed, which all threads
    share. A value that the program itself has set goes before the default, and is changed too, in
    the thread that holds first.
    """
    global _num_holders, _default_before, _is_overridden
    dynamo = imported_dynamo()
    if dynamo is None:  # The interpreter is shutting down.
        return
    config = dynamo.config
    _num_holders += change
    if _num_holders == 1 and change == 1:
        _default_before = set_default(config, _NAME, False)
        _is_overridden = bool(getattr(config, _NAME))
        if _is_overridden:
            setattr(config, _NAME, False)
    elif _num_holders == 0:
        set_default(config, _NAME, _default_before)
        if _is_overridden:
            setattr(config, _NAME, True)


def shared_key(modules: Iterable[nn.Module]) -> int:
    """Return a key under which no module has a hook; often the one of a watch that is closed."""
    tables: list[Any] = [t for m in modules for t in (m._forward_pre_hooks, m._forward_hooks)]
    # Hooks that rest are in no table, and come back.
    taken = {key for table in tables if table or table.__dict__ for key in keys_in(table)}
    for key in _shared_keys:
        if key not in taken:
            return key
    _shared_keys.append(new_key())
    return _shared_keys[-1]


def new_key() -> int:
    """Return a key that no hook has had."""
    key = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    return key
