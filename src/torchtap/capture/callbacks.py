"""The functions of a watch that PyTorch calls on modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from torchtap.capture.copy_policy import CopyPolicy
from torchtap.capture.gradient_ports import Gradients
from torchtap.capture.value_ports import Values
from torchtap.core.record import Record
from torchtap.core.stack_frames import caught_in
from torchtap.core.torch_private import (
    current_task,
    top_saved_hooks,
    tracing_state,
    transform_running,
)
from torchtap.hooks.hook_order import ROLE_OF_WATCH
from torchtap.hooks.module_hook import VALUES, Keywords, TapHook, keep_dynamo_out
from torchtap.hooks.tap import SiteState, Tap
from torchtap.hooks.tap_follower import Countable, TapFollower

if TYPE_CHECKING:
    from torchtap.capture.watched_calls import WatchOptions


class Listener(Countable, Protocol):
    """Interface of :class:`~torchtap.capture.watched_calls.WatchedCalls` to the hooks.

    The hooks report to it by this, so that no file of hooks imports its file.
    """

    options: WatchOptions
    step: int
    busy: set[int]
    hooks: TapFollower[Any]
    copy_policy: CopyPolicy
    values: Values
    gradients: Gradients
    emit: Callable[[Record], None]

    @property
    def is_entered_plainly(self) -> bool:
        """Return whether nothing is taken as the model is entered."""

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


class PreForward(TapHook[Listener]):
    """Forward pre-hook of a tap that must know when its module is entered."""

    # Slots of ``compiled.CompilablePreForward``, which this hook may become.
    __slots__ = ("asks", "part", "ticket")

    with_kwargs = True

    def __init__(self, owner: Listener, tap: Tap) -> None:
        super().__init__(owner, tap, ROLE_OF_WATCH[owner.options.looks])

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        if self.owner.recording:
            self.owner.enter(self.tap, module, args, kwargs or {})


class Begin(TapHook[Listener]):
    """Forward pre-hook of a part that programs call by itself: the step's state is taken then."""

    __slots__ = ("asks", "part", "ticket")

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.owner.recording:
            self.owner.begin(self.tap, trains=torch.is_grad_enabled())


class End(TapHook[Listener]):
    """Forward hook of such a part: its lazy parameters exist only now."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling() and self.owner.recording:
            self.owner.end()


class PostForward(TapHook[Listener]):
    """Forward hook. Its work for each call decides the price of watching.

    Nearly every call returns one tensor in plain training. That tensor is taken in a few steps, by
    ``take_plain``; ``WatchedCalls.leave`` takes all others.

    Args:
        has_frame: whether the module has a pre-hook, which made a frame of the call.
    """

    __slots__ = ("asks", "has_frame", "part", "ticket")

    with_kwargs = always_call = True

    def __init__(self, owner: Listener, tap: Tap, has_frame: bool) -> None:
        self.owner = owner
        self.tap = tap
        self.role = ROLE_OF_WATCH[owner.options.looks]
        self.has_frame = has_frame

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None
    ) -> None:
        engine = self.owner
        if not engine.recording:
            return
        tap, state, kept = self.tap, self.tap.plain_output, None
        if self.has_frame or engine.busy or not is_of_plain_training(output):
            self._leave(args, kwargs, output)
            return
        is_view = output._is_view()
        if state is not None and state.copies is None:
            kept = None if is_view else self._kept_first(state, output)
            if kept is None:
                self._leave(args, kwargs, output)
                return
        # Any code that holds a view can write through it; the end of a call around it is the last
        # chance to see that.
        if is_view and not engine.hooks.running.stack:
            self._leave(args, kwargs, output)  # No call around it will tell of writes into it.
            return
        if not tap.has_run:
            tap.note_first_call()
        tap.has_trained = True
        # No numbering by memory: in plain training no checkpoint runs this call again.
        call = next(tap.call_numbers)
        if state is not None:
            engine.values.take_plain(state, output, call, kept)
        state_of_gradient = tap.plain_gradient
        if state_of_gradient is not None:
            engine.gradients.expect_plain(state_of_gradient, output, call, is_view=is_view)

    def _kept_first(self, state: SiteState, output: Tensor) -> Tensor | None:
        """Return a copy of the first output; ``None`` where it takes more care to keep it."""
        frames = self.owner.hooks.running.stack
        if not frames:
            return None  # Nothing tells what the caller passed in.
        return self.owner.copy_policy.keep_first(state, output, frames[-1].foreign)

    def _leave(self, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        if type(kwargs) is not dict:  # See ``Keywords``.
            kwargs, output = {}, kwargs
        error = None
        if output is None:
            # What is compiled too stands between these functions and PyTorch's.
            caller: Any = sys._getframe(2)
            error = caught_in(caller) or caught_in(caller.f_back)
        self.owner.leave(self.tap, args, kwargs, output, has_frame=self.has_frame, error=error)


def is_of_plain_training(output: Any) -> bool:
    """Return whether a module returned one tensor with a graph, in a forward like any other.

    In a backward, in a checkpoint (which has hooks on saved tensors), inside a ``torch.func``
    transform and while ``torch.jit`` traces, calls need to be told apart first.
    """
    return (
        type(output) is Tensor
        and output.grad_fn is not None
        and current_task() == -1
        and top_saved_hooks(True) is None
        and transform_running() is None
        and tracing_state() is None
    )


keep_dynamo_out(
    Begin.__call__,
    PreForward.__call__,
    PostForward.__call__,
    reason=VALUES,
)
