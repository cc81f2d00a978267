"""Makes torch.compile look at the modules' hook tables while some of ours are in them.

By default compiled code is reused for another module of the same class without looking at its
hooks, so that of several equal blocks only the first would be seen or edited.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_lock = threading.RLock()  # The collector may finish a holder while another one is counted.
_num_holders = 0
_before: bool | None = None


class HookGuards:
    """One holder's wish that what is compiled from now on depends on hook tables."""

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def hold(self) -> None:
        """Wish it, if there is a compiler by now. Cheap to call again."""
        if not self._is_held and "torch._dynamo" in sys.modules:
            self._is_held = True
            _count(1)

    def release(self) -> None:
        """Wish it no more."""
        if self._is_held:
            self._is_held = False
            _count(-1)

    def __del__(self) -> None:
        self.release()  # Of a watch that nobody closed.


def _count(change: int) -> None:
    """The first to come changes the setting, and the last to go changes it back."""
    global _num_holders, _before
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:  # The interpreter is going down.
        return
    config = dynamo.config
    with _lock:
        _num_holders += change
        if _num_holders == 1 and change == 1:
            _before = config.skip_nnmodule_hook_guards
            config.skip_nnmodule_hook_guards = False
        elif _num_holders == 0:
            config.skip_nnmodule_hook_guards = _before
