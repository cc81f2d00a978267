"""Lets a module write into copies of its buffers while it runs.

Putting values back afterwards would not do: a write raises the version of the buffer, by which
autograd knows that what it saved for backward is no longer there. What a call saves are the copies,
and those are not written into any more.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch import Tensor, nn

from torchtap.core.stack_frames import innermost_frames, is_on_stack
from torchtap.hooks.module_hook import EDIT, EDITS, Handle, ModuleHook, keep_dynamo_out
from torchtap.hooks.taps import Tap


class _Visit:
    """One call of a module that has been entered and not yet left."""

    __slots__ = ("caller", "copies", "thread")

    def __init__(self, copies: dict[str, Tensor], caller: FrameType) -> None:
        self.copies = copies
        self.thread = threading.get_ident()
        self.caller = caller  # nn.Module's own call.

    def is_over(self) -> bool:
        """Return whether the call has left every stack: a BaseException ended it and ran no hooks.

        A KeyboardInterrupt is one, and so is what ``tt.features`` leaves a forward by.
        """
        return not is_on_stack([self.caller], innermost_frames().get(self.thread))


class _Lent:
    """The buffers of a module that is running, and its calls, the outermost first."""

    __slots__ = ("module", "originals", "visits")

    def __init__(self, module: nn.Module, originals: dict[str, Tensor]) -> None:
        self.module = module
        self.originals = originals
        self.visits: list[_Visit] = []


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
        # Old-fashioned spectral norm writes in a pre-hook: ours comes before.
        enter, leave = _Enter(self, tap, EDIT), _Leave(self, tap, EDIT)
        settle = _Settle(self, tap)
        made = [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
            module.register_state_dict_pre_hook(settle),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(settle),  # type: ignore[no-untyped-call]
        ]
        self._handles = [Handle(one) for one in made]
        _everywhere.add(self)

    def enter(self, module: nn.Module, caller: FrameType) -> None:
        """A call begins."""
        self.settle(id(module))
        lent = self._lent.get(id(module))
        if lent is None:
            found = {name: module._buffers.get(name) for name in self._names}
            own = {name: buffer for name, buffer in found.items() if buffer is not None}
            lent = self._lent[id(module)] = _Lent(module, own)
        made = {id(buffer): buffer.clone() for buffer in lent.originals.values()}
        copies = {name: made[id(buffer)] for name, buffer in lent.originals.items()}
        lent.visits.append(_Visit(copies, caller))
        module._buffers.update(copies)

    def leave(self, module: nn.Module) -> None:
        """A call ended, perhaps by an error."""
        lent = self._lent.get(id(module))
        if lent is None:
            return
        mine = [visit for visit in lent.visits if visit.thread == threading.get_ident()]
        if mine:
            lent.visits.remove(mine[-1])
        self._show(lent)

    def settle(self, key: int) -> None:
        """Forget the calls of a module that ended unheard."""
        lent = self._lent.get(key)
        if lent is not None and any(visit.is_over() for visit in lent.visits):
            lent.visits = [visit for visit in lent.visits if not visit.is_over()]
            self._show(lent)

    def settle_all(self) -> None:
        """Forget all calls that ended unheard."""
        for key in list(self._lent):
            self.settle(key)

    def detach(self) -> None:
        """Listen no more; every buffer is back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for lent in list(self._lent.values()):
            lent.visits.clear()
            self._show(lent)
        _everywhere.discard(self)

    def _show(self, lent: _Lent) -> None:
        """Let the module see what belongs to its innermost call."""
        if lent.visits:
            lent.module._buffers.update(lent.visits[-1].copies)
            return
        lent.module._buffers.update(lent.originals)
        self._lent.pop(id(lent.module), None)


_everywhere: weakref.WeakSet[BufferCopies] = weakref.WeakSet()


def settle_stand_ins() -> None:
    """Put back the buffers of calls that were left by a BaseException."""
    for buffer_copies in list(_everywhere):
        buffer_copies.settle_all()


class _Enter(ModuleHook[BufferCopies]):
    """Forward pre-hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.enter(module, sys._getframe(1))


class _Leave(ModuleHook[BufferCopies]):
    """Forward hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.leave(module)


class _Settle(ModuleHook[BufferCopies]):
    """Hook before a state dict is made or loaded."""

    __slots__ = ()

    def __call__(self, module: nn.Module, *_: Any) -> None:
        self.owner.settle(id(module))


keep_dynamo_out(_Enter.__call__, _Leave.__call__, reason=EDITS)
