"""Lets a module write into copies of its buffers while it runs.

Putting values back afterwards would not do: a write raises the version of the buffer, by which
autograd knows that what it saved for backward is no longer there. A call saves the copies, which
are not written into any more.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch import Tensor, nn

from torchtap.core.shared_state import members
from torchtap.hooks.call_follower import CallFollower, FollowedCall
from torchtap.hooks.hidden_handle import HiddenHandle
from torchtap.hooks.module_hook import EDITS, NEEDED, ModuleHook, keep_dynamo_out
from torchtap.hooks.tap import Tap


class _CallWithCopies(FollowedCall):
    """One call of a module, and the copies that it writes into."""

    __slots__ = ("copies",)

    def __init__(self, tap: Tap, caller: FrameType, copies: dict[str, Tensor]) -> None:
        super().__init__(tap, caller)
        self.copies = copies


class _Lent:
    """The buffers of a module that is running, and its calls, in the order of their beginning.

    A stack for each thread would not do: a module has one set of buffers, and the call that was
    entered last, in whatever thread, decides which copies it has.
    """

    __slots__ = ("calls", "module", "originals")

    def __init__(self, module: nn.Module, originals: dict[str, Tensor]) -> None:
        self.module = module
        self.originals = originals
        self.calls: list[_CallWithCopies] = []


class BufferCopies:
    """Gives every call of a module copies of some of its buffers, and takes them away again.

    A module that calls itself, and one that runs in several threads, gets copies for each call. A
    module is a key by itself: the replicas of ``DataParallel`` share the hooks of the first.

    Args:
        names: of the buffers.
    """

    def __init__(self, tap: Tap, module: nn.Module, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._lent: dict[int, _Lent] = {}
        self._tap = tap
        self._follower: CallFollower[_CallWithCopies] = CallFollower()
        # Old-fashioned spectral norm writes in a pre-hook: ours comes before.
        enter, leave, settle = _Enter(self, NEEDED), _Leave(self, NEEDED), _Settle(self)
        self._follower.put_on(module, pre_hook=enter, post_hook=leave, is_first=True)
        made = [
            module.register_state_dict_pre_hook(settle),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(settle),  # type: ignore[no-untyped-call]
        ]
        self._follower.hold(map(HiddenHandle.of, made))
        _everywhere.add(self)

    def enter(self, module: nn.Module, caller: FrameType) -> None:
        """Give a call that begins its copies."""
        # A call that an interrupt ended left its copies in the module; they must not become the
        # originals.
        self.settle(id(module))
        lent = self._lent.get(id(module))
        if lent is None:
            own_buffers = {name: module._buffers.get(name) for name in self._names}
            own = {name: buffer for name, buffer in own_buffers.items() if buffer is not None}
            lent = self._lent[id(module)] = _Lent(module, own)
        # One copy for a buffer that stands under two names, so that they stay one.
        made = {id(buffer): buffer.clone() for buffer in lent.originals.values()}
        copies = {name: made[id(buffer)] for name, buffer in lent.originals.items()}
        lent.calls.append(_CallWithCopies(self._tap, caller, copies))
        # Into the table, past nn.Module.__setattr__, which calls the hooks for registered buffers.
        module._buffers.update(copies)

    def leave(self, module: nn.Module) -> None:
        """Take the copies of a call away that ended, perhaps by an error."""
        lent = self._lent.get(id(module))
        if lent is None:
            return
        # The last of this thread: calls of one thread are nested, those of several end in any
        # order.
        mine = [call for call in lent.calls if call.thread == threading.get_ident()]
        if mine:
            lent.calls.remove(mine[-1])
        self._show(lent)

    def settle(self, key: int) -> None:
        """Forget the calls of a module that ended unheard."""
        lent = self._lent.get(key)
        # Nearly never: a frame is asked for each call, which costs less than to make the list anew.
        if lent is not None and any(call.is_over() for call in lent.calls):
            lent.calls = [call for call in lent.calls if not call.is_over()]
            self._show(lent)

    def settle_all(self) -> None:
        """Forget all calls that ended unheard."""
        for key in list(self._lent):
            self.settle(key)

    def detach(self) -> None:
        """Listen no more; every buffer is back."""
        self._follower.release()
        for lent in list(self._lent.values()):
            lent.calls.clear()
            self._show(lent)
        _everywhere.discard(self)

    def _show(self, lent: _Lent) -> None:
        """Let the module see what belongs to its innermost call."""
        if lent.calls:
            lent.module._buffers.update(lent.calls[-1].copies)
            return
        lent.module._buffers.update(lent.originals)
        self._lent.pop(id(lent.module), None)


_everywhere: weakref.WeakSet[BufferCopies] = weakref.WeakSet()


def settle_stand_ins() -> None:
    """Put back the buffers of calls that were left by a BaseException."""
    for buffer_copies in members(_everywhere):
        buffer_copies.settle_all()


class _Enter(ModuleHook[BufferCopies]):
    """Forward pre-hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.enter(module, sys._getframe(1))


class _Leave(ModuleHook[BufferCopies]):
    """Forward hook."""

    __slots__ = ()

    always_call = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.leave(module)


class _Settle(ModuleHook[BufferCopies]):
    """Hook before a state dict is made or loaded."""

    __slots__ = ()

    def __call__(self, module: nn.Module, *_: Any) -> None:
        self.owner.settle(id(module))


keep_dynamo_out(_Enter.__call__, _Leave.__call__, reason=EDITS)
