"""The plain case of a call, taken natively: ``stats/kernels/calls.c``.

Nearly every call of a training is of a module that returns one plain tensor. Its forward hook, and
the hook on that tensor, do in C what ``PostForward`` and ``Gradients.expect_plain`` do, with the
tallies in the same objects. Whatever else is called goes on to them before anything was noted.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchtap.capture.pending_gradient import PendingGradient
from torchtap.capture.training_facts import IN_TRAINING
from torchtap.core.record import FORWARD, Record
from torchtap.core.shared_state import once
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
from torchtap.hooks.hidden_handle import OwnEntries
from torchtap.hooks.hook_order import put_by_role
from torchtap.hooks.module_hook import (
    NativeHook,
    NativePreHook,
    run_as_it_is,
    trace_hooks_behind,
)
from torchtap.hooks.tap import GradHook, SiteState, Tap, first_calls, no_meter
from torchtap.hooks.tensor_hooks import TensorHooks
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


def kernel_with(part: str) -> Any:
    """Return the binary; ``None`` where calls are not taken natively, or it lacks this part."""
    kernel = native.kernel() if native.takes_calls() else None
    return kernel if hasattr(kernel, part) else None  # Or the binary is an older one.


def native_put_on() -> Callable[..., None] | None:
    """Return what puts hooks into their tables natively, where the binary does."""
    kernel: Any = native.kernel() if native.takes_calls() else None
    if not hasattr(kernel, "Table") or not hasattr(kernel.Handles, "wake"):
        return None  # Or the binary is an older one.
    _bind_tables()
    put_on: Callable[..., None] = native.kernel().put_on
    return put_on


@once
def _bind_tables() -> None:
    """Hand the native code what it needs to put hooks into tables, once."""
    native.kernel().bind_tables(OwnEntries, put_by_role)


def new_gradients(gradients: Gradients, emit: Callable[[Record], None], *, borrows: bool) -> Any:
    """Make what takes plain gradients natively, for one that takes all others.

    Args:
        gradients: that one.
        emit: takes each record.
        borrows: whether sinks have read a value when they return.
    """
    _bind()

    on_tensors, backwards = gradients.on_tensors, gradients.backwards
    inside = gradients.views.inside
    return native.kernel().Gradients(
        gradients,
        on_tensors.tables,
        on_tensors.join,
        inside,
        partial(_resume, gradients),
        partial(_repair, gradients),
        emit,
        backwards,
        backwards.numbers,
        borrows,
    )


def _resume(
    gradients: Gradients, state: SiteState, step: int, call: int, alias: Tensor, version: int
) -> PendingGradient:
    """Return what waits for the gradient of a view that was written into."""
    return PendingGradient.resumed(gradients, state, step, call, ViewState(alias, version))


def _repair(
    gradients: Gradients, view: Tensor, first: int, *waiting: Any
) -> tuple[PendingGradient, Any] | None:
    """Follow such a view to the node that took over, with the arguments of :func:`_resume`."""
    pending = _resume(gradients, *waiting)
    handle = FollowedView(view, pending, None, first, pending.views[0]).repair()
    return None if handle is None else (pending, handle)


run_as_it_is(_resume, _repair, TensorHooks.join)  # Called by native hooks.


class PlainHooks:
    """Makes hooks that take plain calls natively, each in front of another.

    Calls with a frame are followed by Python, and their tap is told how to take a plain output; but
    for those of the model itself, where the listener says so.

    Args:
        listener: of the hooks.
        gradients: takes plain gradients.

    Attributes:
        root: tap of the model itself.
        leave: the native hook.
        counts: that which counts calls, or ``None``.
    """

    def __init__(self, listener: Listener, gradients: Any) -> None:
        kernel = native.kernel()
        self.listener = listener
        self.root = listener.hooks.root
        self.leave, self.counts = kernel.leave, getattr(kernel, "enter_counted", None)
        self._gradients = gradients
        self._new_leaving, self._meters = kernel.Leaving, kernel.Meter
        is_copied = listener.copy_policy.copy == "auto" and hasattr(kernel.Leaving, "policy")
        self._policy = listener.copy_policy if is_copied else None

    def __call__(self, hook: PostForward) -> PostForward | NativeHook:
        """Return a native hook in front of this one, or this one where nothing would be won."""
        tap = hook.tap
        output, gradient = tap.plain_output, tap.plain_gradient
        # Any other meter is Python, and nothing would be won.
        for state in (output, gradient):
            if state is not None and not (
                state.meter is no_meter or isinstance(state.meter, self._meters)
            ):
                return hook
        if output is gradient is None:
            return hook
        leaving = self.leaving(tap, output, gradient)
        if not hook.has_frame:
            return NativeHook(self.leave, leaving, hook)
        tap.take_plain = leaving.take
        follows_models = tap is self.root and native.follows_models()
        if not follows_models or not self.listener.is_entered_plainly:
            return hook
        return NativeHook(native.kernel().leave_model, leaving, hook)

    def leaving(self, tap: Tap, output: SiteState | None, gradient: SiteState | None) -> Any:
        """Return what a native hook knows of its tap."""
        listener, calls = self.listener, tap.call_numbers
        # Handed over as objects: what C notes and what Python notes of later calls is in the same
        # place.
        made = self._new_leaving(
            listener,
            listener.busy,
            listener.hooks.running,
            tap,
            calls,
            output,
            gradient,
            self._gradients,
        )
        if self._policy is not None:
            made.policy = self._policy
        return made


def plain_hooks(listener: Listener) -> PlainHooks | None:
    """Return what makes hooks that take plain calls natively, where any do."""
    gradients = listener.gradients.plain
    return None if gradients is None else PlainHooks(listener, gradients)


def entered_plainly(hook: PreForward, leave: PostForward | NativeHook) -> PreForward | NativeHook:
    """Return a pre-hook that enters natively the model's calls that ``leave`` leaves natively."""
    if not isinstance(leave, NativeHook):
        return hook
    return NativeHook(native.kernel().enter_model, leave.args[0], hook)


def counted_plainly(
    counter: CallCounter, leave: PostForward | NativeHook | None
) -> CallCounter | NativeHook:
    """Return a pre-hook that counts natively the calls that ``leave`` takes natively, or not."""
    if not isinstance(leave, NativeHook) or not _counts_natively():
        return counter
    # The numbers, and not what the other hook has: the compiler checks before each run of a graph
    # that what two hooks have in common is one object.
    return NativePreHook(native.kernel().enter_counted, counter.tap.call_numbers, counter)


@once
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
    if native.follows_models():
        native.kernel().bind_model(
            sys.modules, DYNAMO, STAGES, torch.is_grad_enabled, sequence_number, IN_TRAINING
        )
    kernel = native.kernel()
    if hasattr(kernel, "bind_first_calls"):  # Else the binary is an older one.
        kernel.bind_first_calls(first_calls)
    of_models = (kernel.enter_model, kernel.leave_model) if native.follows_models() else ()
    counted = (kernel.enter_counted,) if _counts_natively() else ()
    trace_hooks_behind(kernel.leave, *counted, *of_models, find_trace=_find_trace)


def _counts_natively() -> bool:
    return hasattr(native.kernel(), "enter_counted")  # Else the binary is an older one.


def _find_trace() -> Callable[..., Any]:
    """Return the function that traces the hooks of a watch; there is a compiler by now."""
    from torchtap.capture.compiled import trace_hook

    return trace_hook
