"""The plain case of a call, taken natively: ``stats/kernels/calls.c``.

Nearly every call of a training is of a module that returns one plain tensor. Its forward hook, and
the hook on that tensor, do in C what ``PostForward`` and ``Gradients.expect_plain`` do, with the
tallies in the same objects. Whatever else is called goes on to them before anything was noted.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchtap.capture.pending_gradient import PendingGradient
from torchtap.capture.training_facts import IN_TRAINING
from torchtap.core.after_import import after_import
from torchtap.core.record import FORWARD, Record
from torchtap.core.torch_private import (
    DYNAMO,
    STAGES,
    current_task,
    is_legacy_batched,
    is_of_transform,
    sequence_number,
    top_saved_hooks,
    tracing_state,
    transform_running,
)
from torchtap.hooks.call_numbers import StepCounter
from torchtap.hooks.followed_views import FollowedView, ViewState
from torchtap.hooks.module_hook import NativeHook, NativePreHook, run_as_it_is
from torchtap.hooks.tap import GradHook, Meter, SiteState, no_meter
from torchtap.stats.kernels import native

if TYPE_CHECKING:
    from torchtap.capture.callbacks import Listener, PostForward, PreForward
    from torchtap.capture.gradient_ports import Gradients
    from torchtap.hooks.tap_follower import CallCounter


def new_step_counter() -> StepCounter:
    """Make what numbers the calls of each step, natively where plain calls are taken so."""
    if not native.takes_calls():
        return StepCounter()
    _bind()
    return cast(StepCounter, native.kernel().StepCounter())


def new_gradients(gradients: Gradients, emit: Callable[[Record], None], *, borrows: bool) -> Any:
    """Make what takes plain gradients natively, for one that takes all others.

    Args:
        gradients: that one.
        emit: takes each record.
        borrows: whether sinks have read a value when they return.
    """
    _bind()

    def resume(
        state: SiteState, step: int, call: int, alias: Tensor, version: int
    ) -> PendingGradient:
        return PendingGradient.resumed(gradients, state, step, call, ViewState(alias, version))

    def repair(
        view: Tensor,
        first: int,
        state: SiteState,
        step: int,
        call: int,
        alias: Tensor,
        version: int,
    ) -> tuple[PendingGradient, Any] | None:
        pending = resume(state, step, call, alias, version)
        handle = FollowedView(view, pending, None, first, pending.views[0]).repair()
        return None if handle is None else (pending, handle)

    run_as_it_is(resume, repair, type(gradients.on_tensors).join)  # Called by native hooks.
    on_tensors, backwards = gradients.on_tensors, gradients.backwards
    inside = gradients.views.inside
    return native.kernel().Gradients(
        gradients,
        on_tensors.tables,
        on_tensors.join,
        inside,
        resume,
        repair,
        emit,
        backwards,
        backwards.numbers,
        borrows,
    )


def plainly(hook: PostForward, listener: Listener) -> PostForward | NativeHook:
    """Return a hook that takes plain calls natively in front of another, or that one alone.

    Calls with a frame are followed by Python, and their tap is told how to take a plain output; but
    for those of the model itself, where the listener says so.
    """
    tap, gradients = hook.tap, listener.gradients.plain
    if gradients is None:
        return hook
    states = [state for state in (tap.plain_output, tap.plain_gradient) if state is not None]
    # Any other meter is Python, and nothing would be won.
    if not states or not all(_is_native(one.meter) for one in states):
        return hook
    # Handed over as objects: what C notes and what Python notes of later calls is in the same
    # place.
    running, calls = listener.hooks.running, tap.call_numbers
    leaving = native.kernel().Leaving(
        listener,
        listener.busy,
        running,
        tap,
        calls,
        tap.plain_output,
        tap.plain_gradient,
        gradients,
    )
    if not hook.has_frame:
        return NativeHook(native.kernel().leave, leaving, hook)
    tap.take_plain = leaving.take
    if tap is listener.hooks.root and listener.is_entered_plainly:
        return NativeHook(native.kernel().leave_model, leaving, hook)
    return hook


def entered_plainly(hook: PreForward, leave: PostForward | NativeHook) -> PreForward | NativeHook:
    """Return a pre-hook that enters natively the model's calls that ``leave`` leaves natively."""
    if not isinstance(leave, NativeHook):
        return hook
    return NativeHook(native.kernel().enter_model, leave.args[0], hook)


def counted_plainly(
    counter: CallCounter, leave: PostForward | NativeHook | None
) -> CallCounter | NativeHook:
    """Return a pre-hook that counts natively the calls that ``leave`` takes natively, or not."""
    if not isinstance(leave, NativeHook):
        return counter
    return NativePreHook(native.kernel().enter, leave.args[0], counter)


def _is_native(meter: Meter) -> bool:
    """Return whether the native code measures with this meter, or makes a record for it."""
    return meter is no_meter or isinstance(meter, native.kernel().Meter)


@cache
def _bind() -> None:
    """Hand PyTorch's functions to the native code, once."""
    native.kernel().bind_calls(
        current_task,
        top_saved_hooks,
        transform_running,
        tracing_state,
        sequence_number,
        Tensor.detach,
        GradHook,
        OrderedDict,
        no_meter,
        Record,
        FORWARD,
        is_legacy_batched,
        is_of_transform,
    )
    native.kernel().bind_model(
        sys.modules, DYNAMO, STAGES, torch.is_grad_enabled, sequence_number, IN_TRAINING
    )
    after_import("torch._dynamo", _trace_the_hook)


def _trace_the_hook() -> None:
    """Let the compiler trace the hook behind a native one, in its place."""
    kernel = native.kernel()
    for function in (kernel.enter, kernel.leave, kernel.enter_model, kernel.leave_model):
        # Dynamo cannot look into a C function and would break the graph at each hook.
        @torch.compiler.substitute_in_graph(function, skip_signature_check=True)
        def call_hook(leaving: Any, hook: Any, *arguments: Any) -> Any:
            return hook(*arguments)
