"""Makes torch.compile look at the modules' hook tables while some of ours are in them.

By default compiled code is reused for another module of the same class without looking at its
hooks, so that of several equal blocks only the first would be seen or edited. With the look, it is
reused only where the hooks have the same numbers in the tables: those of one watch share theirs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

_lock = threading.RLock()  # The collector may finish a holder while another one is counted.
_num_holders = 0
_before: bool | None = None
_numbers: list[int] = []


class HookGuards:
    """One request that code compiled from now on is guarded on hook tables."""

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def hold(self) -> None:
        """Ask for guards on hook tables, if Dynamo is imported by now. Cheap to call again."""
        if not self._is_held and "torch._dynamo" in sys.modules:
            self._is_held = True
            _count(1)

    def release(self) -> None:
        """Withdraw the request."""
        if self._is_held:
            self._is_held = False
            _count(-1)

    def __del__(self) -> None:
        self.release()  # Of a watch that was never closed.


def _count(change: int) -> None:
    """The first to come changes the setting, and the last to go changes it back."""
    global _num_holders, _before
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:  # The interpreter is shutting down.
        return
    config = dynamo.config
    with _lock:
        _num_holders += change
        if _num_holders == 1 and change == 1:
            _before = config.skip_nnmodule_hook_guards
            config.skip_nnmodule_hook_guards = False
        elif _num_holders == 0:
            config.skip_nnmodule_hook_guards = _before


def shared_number(modules: Iterable[nn.Module]) -> int:
    """A number under which no module has a hook; often the one of a watch that is closed."""
    taken = {key for m in modules for key in (*m._forward_pre_hooks, *m._forward_hooks)}
    for number in _numbers:
        if number not in taken:
            return number
    _numbers.append(RemovableHandle.next_id)
    RemovableHandle.next_id += 1
    return _numbers[-1]


def renumber(handle: RemovableHandle, number: int) -> None:
    """Let a hook that was just put on have another number in its tables."""
    tables = [reference() for reference in (*handle.extra_dict_ref, handle.hooks_dict_ref)]
    held = [table for table in tables if table is not None and handle.id in table]
    for table in held:  # The hooks last: a call in another thread looks at what is noted of each.
        table[number] = table[handle.id]
    for table in reversed(held):
        del table[handle.id]
    handle.id = number
