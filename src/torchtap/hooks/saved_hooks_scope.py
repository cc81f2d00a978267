"""Puts a pair of saved-tensor hooks on while some modules, or a ``with`` block, run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType, GeneratorType
from typing import Any

from torch import nn

from torchtap.core.plan import Plan
from torchtap.core.torch_private import current_task, may_push_saved_hooks
from torchtap.hooks.call_follower import CallFollower, FollowedCall, RunningCalls
from torchtap.hooks.module_hook import TapHook, keep_dynamo_out
from torchtap.hooks.saved_pairs import Pair, is_of_checkpoint, push, remove, top
from torchtap.hooks.tap import Tap

CHECKPOINT = (
    "ran inside a non-reentrant checkpoint, which keeps nothing but its inputs; offload around it, "
    "not in it"
)
BACKWARD = (
    "ran inside a backward, as what a reentrant checkpoint, an adjoint solver or a hook calls, "
    "and is used at once; offload around it, not in it"
)
FORBIDDEN = (
    "ran where saved-tensor hooks are forbidden, as torch.func and disable_saved_tensors_hooks do"
)
GENERATOR = (
    "returned a generator, whose body runs when the module has returned; take tt.offload without "
    "model=, as a block around the loop"
)
INSIDE_A_GRAPH = (
    "torchtap: tt.offload(model=...) has hooks on modules inside of what is compiled. Attach it to "
    "the compiled module, model=compiled and where='.', or put `with tt.offload(...):` around the "
    "call, compile with fullgraph=False, or export with strict=False"
)
"""Text of the error of ``fullgraph=True``."""


class _ScopedCall(FollowedCall):
    """A call of a module, and whether it put our pair on."""

    __slots__ = ("puts_on",)

    def __init__(self, tap: Tap, caller: FrameType, *, puts_on: bool) -> None:
        super().__init__(tap, caller)
        self.puts_on = puts_on


class ThreadState(RunningCalls[_ScopedCall]):
    """The calls that a thread is inside of, and the pairs below ours.

    Attributes:
        below: the pair that ours stands on, if ours is on.
        blocks: for each block that was begun and not ended, whether it put ours on.
        num_pauses: of the blocks that want nothing put on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.below: list[Pair | None] = []
        self.blocks: list[bool] = []
        self.num_pauses = 0

    @property
    def path(self) -> str:
        """Return the path of the innermost attached module that runs; of none the model's own."""
        return self.stack[-1].tap.path if self.stack else ""


class SavedHooksScope:
    """Puts one pair on and takes it off, in each thread by itself.

    Attributes:
        pair: ours.
        thread: calls and pairs of each thread.
        entered: paths of modules that were called.
        refused: reason -> paths of modules that ran where we keep away.
        on_begin: called with the path of a module that puts ours on.
        on_end: called when that module has been left.
    """

    def __init__(self) -> None:
        self.pair: Pair | None = None
        self.entered: set[str] = set()
        self.refused: dict[str, dict[str, None]] = {}
        self.on_begin: Callable[[str], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.thread = ThreadState()
        self._follower: CallFollower[_ScopedCall] = CallFollower(self.thread)
        self._outermost: dict[int, _ScopedCall] = {}  # Of each thread that is inside of any.
        self._is_off = False

    def path(self) -> str:
        """Return the innermost attached module that runs in this thread."""
        return self.thread.path

    # ------------------------------------------------------------------ for a block

    def begin(self) -> None:
        """Put the pair on, in this thread; once is enough."""
        assert self.pair is not None
        thread, below = self.thread, top()
        puts_on = not thread.below and not self._is_inside_checkpoint(below, ".")
        if puts_on:
            push(self.pair)  # Raises where hooks are forbidden: nothing has begun, then.
            thread.below.append(below)
        # Noted for each block, since only the one that put the pair on takes it off.
        thread.blocks.append(puts_on)

    def end(self) -> None:
        """Take it off."""
        assert self.pair is not None
        if self.thread.blocks and self.thread.blocks.pop():
            remove(self.pair)
            self.thread.below.clear()

    def pause(self) -> None:
        """Put nothing on in this thread, until ``resume``."""
        self.thread.num_pauses += 1

    def resume(self) -> None:
        """End a block that wanted nothing put on."""
        self.thread.num_pauses -= 1

    # ------------------------------------------------------------------ for modules

    def attach(self, plan: Plan, modules: Mapping[str, nn.Module], *, around: bool) -> None:
        """Hook modules: while the outermost of them runs, the pair is on.

        Args:
            plan: which.
            modules: path -> module.
            around: put the pair on; if not, only follow which module runs.
        """
        taps = {planned.path: Tap(planned.path, planned.filters) for planned in plan.taps}
        for path, tap in taps.items():
            enter, leave = _Enter(self, tap, around=around), _Leave(self, tap)
            self._follower.put_on(modules[path], pre_hook=enter, post_hook=leave)
        self._follower.keep_fused_kernels(taps, modules)

    def detach(self) -> None:
        """Take the hooks off.

        Other threads keep the hooks by which they leave the modules that they are inside of.
        """
        # Another thread may be inside of a module with our pair on its own stack, which only that
        # thread can take off.
        self._is_off = True
        self.on_begin = None
        self._follower.remove_pre_hooks()
        while self.thread.stack:
            self._unwind(self.thread.stack[-1].tap)
        self._release_if_left()

    def _release_if_left(self) -> None:
        if not self._is_off:
            return
        for thread, outermost in list(self._outermost.items()):
            # A call that a BaseException ended never reports; its frame tells.
            if outermost.is_over():
                self._outermost.pop(thread, None)
        if not self._outermost:
            self._follower.release()

    def enter(self, tap: Tap, *, around: bool) -> None:
        """Note that a module is entered, and put the pair on if none is."""
        thread = self.thread
        if thread.has(tap) and thread.is_stale():
            self._unwind(thread.stack[0].tap)
        # Once: what our pair does not handle goes to the pair below, which would be ours again.
        puts_on = around and not thread.below and self._may_put_on(tap)
        self.entered.add(tap.path)
        # Frame 0 is this function, 1 the hook, 2 nn.Module's own call, which ends with the module.
        call = _ScopedCall(tap, sys._getframe(2), puts_on=puts_on)
        # Read by detach() in another thread, which cannot see this thread's stack.
        self._outermost.setdefault(call.thread, call)
        thread.stack.append(call)
        if puts_on:
            if self.on_begin is not None:
                self.on_begin(tap.path)
            self.begin()

    def leave(self, tap: Tap) -> None:
        """Note that a module returned, or raised, and take off the pair that it put on."""
        if self.thread.has(tap):
            was_on = bool(self.thread.below)
            self._unwind(tap)
            self._release_if_left()
            if was_on and not self.thread.below and self.on_end is not None:
                self.on_end()

    def _unwind(self, tap: Tap) -> None:
        """Leave the innermost call of ``tap``, and all inside it that raised."""
        for call in self.thread.leave(tap):
            if call.puts_on:
                self.end()
        if not self.thread.stack:
            self._outermost.pop(threading.get_ident(), None)

    def refuse(self, path: str, reason: str) -> None:
        """Note that a module runs where the pair is not put on, and why."""
        self.refused.setdefault(reason, {})[path] = None

    def _may_put_on(self, tap: Tap) -> bool:
        if self.thread.num_pauses:
            return False  # Where the user wants none.
        if not may_push_saved_hooks():
            self.refuse(tap.path, FORBIDDEN)
            return False
        if current_task() != -1:
            self.refuse(tap.path, BACKWARD)
            return False
        return not self._is_inside_checkpoint(top(), tap.path)

    def _is_inside_checkpoint(self, pair: Pair | None, path: str) -> bool:
        """Return whether a checkpoint is around: offloading would keep what it computes again."""
        is_inside = is_of_checkpoint(pair)
        if is_inside and current_task() == -1:
            self.refuse(path, CHECKPOINT)
        return is_inside


class _Enter(TapHook[SavedHooksScope]):
    """Forward pre-hook: says which module runs."""

    __slots__ = ("_around",)

    def __init__(self, owner: SavedHooksScope, tap: Tap, *, around: bool) -> None:
        super().__init__(owner, tap)
        self._around = around

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.enter(self.tap, around=self._around)


class _Leave(TapHook[SavedHooksScope]):
    """Forward hook: says that the module returned, or raised."""

    __slots__ = ()

    always_call = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.leave(self.tap)
        if isinstance(output, GeneratorType):
            self.owner.refuse(self.tap.path, GENERATOR)


keep_dynamo_out(_Enter.__call__, _Leave.__call__, reason=INSIDE_A_GRAPH)
