"""The functions of a watch that PyTorch calls on modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchtap.capture.gradient_ports import Gradients
from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record
from torchtap.core.stack_frames import caught_in
from torchtap.core.torch_private import (
    current_task,
    top_saved_hooks,
    tracing_state,
    transform_running,
)
from torchtap.hooks.module_hook import VALUES, Keywords, ModuleHook, keep_dynamo_out
from torchtap.hooks.module_hooks import Recording
from torchtap.hooks.taps import GradHook, Tap
from torchtap.hooks.tensor_hooks import TensorHooks


class Listener(Recording, Protocol):
    """Interface of a watch's engine to its hooks, see :class:`~torchtap.capture.engine.Engine`.

    The engine makes the hooks, and they report to it; this keeps the import in one direction.
    """

    role: str
    step: int
    busy: set[int]
    borrows: bool
    gradients: Gradients
    on_tensors: TensorHooks
    deliver_gradient: Callable[..., None]
    emit: Callable[[Record], None]

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A tapped module is entered."""

    def leave(
        self,
        tap: Tap,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        *,
        has_frame: bool,
        error: BaseException | None,
    ) -> None:
        """A tapped module returned, or raised an error."""

    def begin(self, tap: Tap, *, trains: bool) -> None:
        """A part of the model runs, maybe without the model itself."""

    def end(self) -> None:
        """The part that ran has returned."""

    def is_inside(self) -> bool:
        """Return whether this thread is inside a call that will tell of writes into views."""


class PreForward(ModuleHook[Listener]):
    """Forward pre-hook of a tap that must know when its module is entered."""

    __slots__ = ()

    def __init__(self, owner: Listener, tap: Tap) -> None:
        super().__init__(owner, tap, owner.role)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        if self.owner.recording:
            self.owner.enter(self.tap, module, args, kwargs or {})


class Begin(ModuleHook[Listener]):
    """Forward pre-hook of a part that programs call by itself: the step's state is taken then."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.owner.recording:
            self.owner.begin(self.tap, trains=torch.is_grad_enabled())


class End(ModuleHook[Listener]):
    """Forward hook of such a part: its lazy parameters exist only now."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling() and self.owner.recording:
            self.owner.end()


class PostForward(ModuleHook[Listener]):
    """Forward hook. What it does per call decides what watching costs.

    Nearly every call returns one tensor in plain training: that case is written out here,
    without a function call, and does what ``Engine.leave`` does for all others.
    """

    __slots__ = ("has_frame",)

    def __init__(self, owner: Listener, tap: Tap, *, has_frame: bool) -> None:
        super().__init__(owner, tap, owner.role)
        self.has_frame = has_frame

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None
    ) -> None:
        engine = self.owner
        if not engine.recording:
            return
        tap = self.tap
        state, state_of_gradient = tap.plain_output, tap.plain_gradient
        if (
            type(output) is not Tensor
            or self.has_frame
            or output.grad_fn is None
            or ((is_view := output._is_view()) and not engine.is_inside())
            or (state is not None and state.copies is not False)
            or engine.busy
            or current_task() != -1
            or top_saved_hooks(True) is not None
            or transform_running() is not None
            or tracing_state() is not None
        ):
            if type(kwargs) is not dict:
                kwargs, output = {}, kwargs
            error = None
            if output is None:
                # What is compiled too stands between this function and PyTorch's.
                caller = sys._getframe(1)
                error = caught_in(caller) or caught_in(caller.f_back)
            engine.leave(tap, args, kwargs, output, has_frame=self.has_frame, error=error)
            return
        tap.has_trained = True
        call = next(tap.calls)
        if state is not None:
            state.seen = True
            if not state.meter(output, engine.step):
                if engine.borrows:
                    kept, version = output, UNVERSIONED
                else:
                    kept = output.detach()
                    version = kept._version
                row = (state.site, engine.step, call, FORWARD, -1, (), kept, version)
                engine.emit(new_record(Record, row))
        if state_of_gradient is not None:
            if is_view:
                hook = engine.gradients.of_view(state_of_gradient, output, call)
            else:
                state_of_gradient.expected += 1
                hook = GradHook(engine.deliver_gradient, state_of_gradient, engine.step, call, ())
            engine.on_tensors.put(output, hook)


keep_dynamo_out(
    Begin.__call__,
    PreForward.__call__,
    PostForward.__call__,
    reason=VALUES,
)
