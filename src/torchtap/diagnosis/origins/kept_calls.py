"""The calls of the model in a step, kept by reference, so that the step can be replayed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.module_paths import every_module, mode_of, modules_of
from torchtap.core.preserved import RandomState
from torchtap.core.tensors import obstacle
from torchtap.core.torch_private import current_task, is_any_autocast_enabled
from torchtap.core.tree import leaves
from torchtap.diagnosis.origins.kept_buffers import Buffers, KeptBuffers
from torchtap.diagnosis.origins.user_lines import (
    NOWHERE,
    Line,
    line_of_backward,
    line_of_call,
    loss_of_backward,
)
from torchtap.diagnosis.origins.values import tensors_of
from torchtap.hooks.call_follower import CallFollower, FollowedCall
from torchtap.hooks.calls import outermost_parts
from torchtap.hooks.module_hook import Keywords, TapHook, keep_dynamo_out
from torchtap.hooks.tap import GradHook, Tap

Autocast = tuple[str, bool, torch.dtype]


@dataclass(slots=True)
class Arrived:
    """Gradients that arrived at outputs of a call.

    Attributes:
        task: number of the backward.
        place: of the output among the tensors that were returned.
        gradient: itself.
    """

    task: int
    place: int
    gradient: Tensor


@dataclass(slots=True, weakref_slot=True, eq=False)
class KeptCall:
    """One call of the model, or of a part that is called alone.

    Attributes:
        path: of the module.
        args: that it was called with.
        kwargs: likewise.
        random: states of the random generators before it.
        versions: of the tensors among its arguments.
        modes: of all modules of the model.
        autocast: device, whether it was on, and its dtype; none where it was off.
        buffers: of all modules of the model, as they were before it.
        lent: the parameters that it was called with, where ``functional_call`` lent it some.
        forward: the line that called the module.
        gradients: in the order of their arrival.
        backward: the line that began the backward.
        loss: the number that the backward began from, where that is known.
    """

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: list[Any]
    versions: list[int]
    modes: list[bool | None]
    autocast: tuple[Autocast, ...]
    buffers: KeptBuffers
    lent: dict[str, Tensor] | None = None
    forward: Line = NOWHERE
    gradients: list[Arrived] = field(default_factory=list)
    backward: Line = NOWHERE
    loss: Tensor | None = None
    handles: list[Any] = field(default_factory=list)

    @property
    def was_overwritten(self) -> bool:
        """Return whether an argument, or a buffer that is not copied, was written into since."""
        is_same = _versions(self.args, self.kwargs) == self.versions
        return not is_same or self.buffers.were_overwritten

    def release(self) -> None:
        """Take the hooks off the outputs."""
        while self.handles:
            self.handles.pop().remove()


class Kept:
    """Notes the calls of a model, and the gradients that arrive at what they return.

    Args:
        model: any module, wrappers are looked through.
        begun: called before a call is noted.
        arrived: called after a gradient has arrived.

    Attributes:
        modules: path -> module.
        every: all modules, wrappers too.
        buffers: of all modules.
        calls: of the running step.
    """

    def __init__(self, model: nn.Module, begun: Any, arrived: Any) -> None:
        self._model = model
        self.modules, _ = modules_of(model)
        self.every = every_module(model)
        self.calls: list[KeptCall] = []
        self._begun, self._arrived = begun, arrived
        self._follower: CallFollower[FollowedCall] = CallFollower()
        self._parts: CallFollower[FollowedCall] = CallFollower(self._follower.running)
        self._is_called = type(model).__name__ == "OptimizedModule"
        self._random = RandomState(self.every)
        self.buffers = Buffers(self.every)
        self._is_script = [isinstance(one, torch.jit.ScriptModule) for one in self.every]
        plain = [one for one in self.every if not isinstance(one, torch.jit.ScriptModule)]
        self._params = [(one, name) for one in plain for name in one._parameters]
        self._own_params = list(self._params_now())

    def attach(self) -> None:
        """Put the hooks on."""
        # The compiler would trace hooks inside of what it compiles: those on its wrapper stay out.
        is_compiled = type(self._model).__name__ == "OptimizedModule"
        root = self._model if is_compiled else self.modules[""]
        tap = Tap("", {})
        # Before the hooks of others: they change arguments in a replay once more.
        self._follower.put_on(
            root, pre_hook=_Enter(self, tap), post_hook=_Leave(self, tap), is_first=True
        )
        for path in () if self._is_called else outermost_parts(self.modules):
            tap = Tap(path, {})
            module = self.modules[path]
            self._parts.put_on(
                module, pre_hook=_Enter(self, tap), post_hook=_Leave(self, tap), is_first=True
            )

    def detach(self) -> None:
        """Take the hooks off the modules."""
        self._follower.release()
        self._parts.release()

    def enter(self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A call begins."""
        stack = self._follower.running.stack
        if stack and self._follower.running.is_stale():
            stack.clear()
        is_outermost = not stack
        stack.append(FollowedCall(tap, sys._getframe(2)))
        if not tap.path and not self._is_called:
            self._is_called = True  # Nothing is to be known of its parts.
            self._parts.release()
        if is_outermost and torch.is_grad_enabled() and current_task() == -1:
            self._begun()
            self.calls.append(self._kept(tap, args, dict(kwargs)))

    def _kept(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeptCall:
        lent: dict[str, Tensor] | None = None
        # torch.func.functional_call lends other tensors for the length of one call: a replay has to
        # lend them again.
        if any(map(is_not, self._params_now(), self._own_params)):
            lent = dict(self.modules[tap.path].named_parameters())
        return KeptCall(
            tap.path,
            args,
            kwargs,
            self._random.read(),
            _versions(args, kwargs),
            self._modes(),
            _autocast() if is_any_autocast_enabled() else (),
            self.buffers.keep(),
            lent,
            line_of_call(),
        )

    def _modes(self) -> list[bool | None]:
        # As mode_of does, which asks each module whether it is a ScriptModule.
        pairs = zip(self.every, self._is_script, strict=True)
        return [mode_of(one) if script else one.__dict__.get("training") for one, script in pairs]

    def _params_now(self) -> Iterator[Tensor | None]:
        return (one._parameters.get(name) for one, name in self._params)

    def leave(self, tap: Tap, output: Any) -> None:
        """A call ended."""
        running = self._follower.running
        running.leave(tap)
        if running.stack or not self.calls or self.calls[-1].path != tap.path:
            return
        if not torch.is_grad_enabled() or current_task() != -1:
            return
        call = self.calls[-1]
        for place, tensor in enumerate(tensors_of(output)):
            if tensor.requires_grad:
                # Weakly: the hook lives as long as the graph, and a call holds its arguments and
                # copies.
                hook = GradHook(_hand_on, weakref.ref(self), weakref.ref(call), place)
                call.handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def arrive(self, call: KeptCall, place: int, gradient: Tensor | None) -> None:
        """A gradient arrives at an output; compiled code sends none where no loss used it."""
        if gradient is None:
            return
        if not call.gradients:
            call.backward = line_of_backward()
            call.loss = loss_of_backward()
        call.gradients.append(Arrived(current_task(), place, gradient))
        self._arrived()


def _versions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
    """Return how often each tensor among arguments was written into, where PyTorch counts it."""
    found = (tensor for value in (*args, *kwargs.values()) for tensor in _tensors(value))
    return [one._version for one in found if obstacle(one) is None and not one.is_inference()]


def _tensors(value: Any) -> list[Tensor]:
    return [value] if type(value) is Tensor else [one for _, one in leaves(value)]


def _hand_on(
    kept: weakref.ref[Kept], call: weakref.ref[KeptCall], place: int, gradient: Tensor
) -> None:
    # The collector sees no cycle through autograd's nodes: the hook keeps nothing alive.
    owner, own = kept(), call()
    if owner is not None and own is not None:
        owner.arrive(own, place, gradient)


def _autocast() -> tuple[Autocast, ...]:
    devices = ["cpu"]
    if (found := torch.accelerator.current_accelerator()) is not None:
        devices.append(found.type)
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in devices
    )


class _Enter(TapHook[Kept]):
    """Forward pre-hook."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: Any, kwargs: Keywords = None) -> None:
        if not torch.compiler.is_compiling():
            self.owner.enter(self.tap, args, kwargs or {})


class _Leave(TapHook[Kept]):
    """Forward hook, called also where the module raised."""

    __slots__ = ()

    always_call = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.owner.leave(self.tap, output)


keep_dynamo_out(_Enter.__call__, _Leave.__call__, _hand_on)
