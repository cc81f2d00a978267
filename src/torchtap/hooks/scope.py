"""Puts a pair of saved-tensor hooks on while some modules, or a ``with`` block, run."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch import nn

from torchtap.core.plan import Plan
from torchtap.core.stack_frames import innermost_frames, is_on_stack
from torchtap.core.torch_private import current_task, may_push_saved_hooks
from torchtap.hooks.fused import FusedEncoderGuard
from torchtap.hooks.module_hook import Handle, ModuleHook, keep_dynamo_out
from torchtap.hooks.saved_pairs import Pair, is_of_checkpoint, push, remove, top
from torchtap.hooks.taps import Tap

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


class ThreadState(threading.local):
    """The state of one thread: paths of the modules that run, and the pairs below ours.

    Attributes:
        paths: the innermost last; first of all none.
        below: the pair that ours stands on, if ours is on.
        blocks: for each block that was begun and not ended, whether it put ours on.
        num_pauses: of the blocks that want nothing put on.
        calls: module calls that were entered: of which tap, the frame of ``nn.Module``'s own call,
            and whether it put our pair on.
        node: number that autograd's next node had when the latest tensor was packed.
        unfinished: what was packed since it has that number: the operation may not have ended.
    """

    def __init__(self) -> None:
        self.paths: list[str] = [""]
        self.below: list[Pair | None] = []
        self.blocks: list[bool] = []
        self.num_pauses = 0
        self.calls: list[tuple[Tap, FrameType, bool]] = []
        self.node = -1
        self.unfinished: list[weakref.ref[Any]] = []


class ModuleScope:
    """Puts one pair on and takes it off, in each thread by itself.

    Attributes:
        pair: ours.
        places: where each thread is.
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
        self.places = ThreadState()
        self._handles: list[Any] = []
        self._leaves: list[Any] = []
        self._inside: dict[int, FrameType] = {}  # Thread -> its outermost call.
        self._is_off = False
        self._fused: FusedEncoderGuard | None = None

    def path(self) -> str:
        """The innermost attached module that runs in this thread."""
        return self.places.paths[-1]

    # ------------------------------------------------------------------ for a block

    def begin(self) -> None:
        """Put the pair on, in this thread; once is enough."""
        assert self.pair is not None
        places, below = self.places, top()
        puts_on = not places.below and not self._is_inside_checkpoint(below, ".")
        if puts_on:
            push(self.pair)  # Raises where hooks are forbidden: nothing has begun, then.
            places.below.append(below)
        places.blocks.append(puts_on)

    def end(self) -> None:
        """Take it off."""
        assert self.pair is not None
        if self.places.blocks and self.places.blocks.pop():
            remove(self.pair)
            self.places.below.clear()

    def pause(self) -> None:
        """Put nothing on in this thread, until ``resume``."""
        self.places.num_pauses += 1

    def resume(self) -> None:
        """A block that wanted nothing put on has ended."""
        self.places.num_pauses -= 1

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
            module = modules[path]
            if isinstance(module, torch.jit.ScriptModule):
                continue
            enter, leave = _Enter(self, tap, around=around), _Leave(self, tap)
            self._handles.append(Handle(module.register_forward_pre_hook(enter)))
            self._leaves.append(Handle(module.register_forward_hook(leave, always_call=True)))
        self._fused = FusedEncoderGuard(taps)
        self._handles += self._fused.attach(modules)

    def detach(self) -> None:
        """Take the hooks off.

        Those that other threads need to leave the modules that they are inside of stay till then.
        """
        self._is_off = True
        self.on_begin = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self.places.calls:
            self._unwind(self.places.calls[-1][0])
        self._take_leaves_off()

    def _take_leaves_off(self) -> None:
        if not self._is_off:
            return
        # A call may have ended without a word, by a KeyboardInterrupt.
        # No variable holds the frames: this one's is among them, and would hold itself.
        for thread, caller in list(self._inside.items()):
            if not is_on_stack([caller], innermost_frames().get(thread)):
                self._inside.pop(thread, None)
        if not self._inside:
            for handle in self._leaves:
                handle.remove()
            self._leaves.clear()
            if self._fused is not None:
                self._fused.release()

    def enter(self, tap: Tap, *, around: bool) -> None:
        """A module is entered."""
        places = self.places
        if any(call[0] is tap for call in places.calls) and self._is_stale():
            self._unwind(places.calls[0][0])
        puts_on = around and not places.below and self._may_put_on(tap)
        self.entered.add(tap.path)
        caller = sys._getframe(2)
        self._inside.setdefault(threading.get_ident(), caller)
        places.calls.append((tap, caller, puts_on))
        places.paths.append(tap.path)
        if puts_on:
            if self.on_begin is not None:
                self.on_begin(tap.path)
            self.begin()

    def leave(self, tap: Tap) -> None:
        """It returned, or raised."""
        if any(call[0] is tap for call in self.places.calls):
            was_on = bool(self.places.below)
            self._unwind(tap)
            self._take_leaves_off()
            if was_on and not self.places.below and self.on_end is not None:
                self.on_end()

    def refuse(self, path: str, reason: str) -> None:
        """A module runs where we keep away."""
        self.refused.setdefault(reason, {})[path] = None

    def _is_stale(self) -> bool:
        """Return whether the calls of this thread were left behind by a KeyboardInterrupt."""
        return not is_on_stack([caller for _, caller, _ in self.places.calls], sys._getframe(1))

    def _may_put_on(self, tap: Tap) -> bool:
        if self.places.num_pauses:
            return False  # Where the user wants none.
        if not may_push_saved_hooks():
            self.refuse(tap.path, FORBIDDEN)
            return False
        if current_task() != -1:
            self.refuse(tap.path, BACKWARD)
            return False
        return not self._is_inside_checkpoint(top(), tap.path)

    def _is_inside_checkpoint(self, pair: Pair | None, path: str) -> bool:
        """It would keep what the checkpoint computes again, and confuse it."""
        is_inside = is_of_checkpoint(pair)
        if is_inside and current_task() == -1:
            self.refuse(path, CHECKPOINT)
        return is_inside

    def _unwind(self, tap: Tap) -> None:
        """Leave the innermost call of ``tap``, and all inside it that raised."""
        places = self.places
        while places.calls:
            found, _, puts_on = places.calls.pop()
            places.paths.pop()
            if puts_on:
                self.end()
            if not places.calls:
                self._inside.pop(threading.get_ident(), None)
            if found is tap:
                return


class _Enter(ModuleHook[ModuleScope]):
    """Forward pre-hook: says which module runs."""

    __slots__ = ("_around",)

    def __init__(self, owner: ModuleScope, tap: Tap, *, around: bool) -> None:
        super().__init__(owner, tap)
        self._around = around

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.enter(self.tap, around=self._around)


class _Leave(ModuleHook[ModuleScope]):
    """Forward hook: says that the module returned, or raised."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.leave(self.tap)
        if isinstance(output, GeneratorType):
            self.owner.refuse(self.tap.path, GENERATOR)


keep_dynamo_out(_Enter.__call__, _Leave.__call__, reason=INSIDE_A_GRAPH)
