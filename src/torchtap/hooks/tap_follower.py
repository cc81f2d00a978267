"""The part that the engines of watches and of edits share: hooks on modules, calls, and marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import nn

from torchtap.hooks.call_follower import CallFollower
from torchtap.hooks.call_numbers import StepCounter
from torchtap.hooks.calls import Call, CallIdentifier, may_call_itself
from torchtap.hooks.dynamo_hooks import DynamoHookSetting
from torchtap.hooks.module_hook import VALUES, ModuleHook, NativeHook, TapHook, keep_dynamo_out
from torchtap.hooks.tap import Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

TRACED = "it ran while torch.jit was tracing"
EXPORTED = "it ran while torch.export was tracing, where tensors have no values"
"""Why a call was neither recorded nor edited."""
_NO_HOOKS = "a ScriptModule takes no hooks"


class Countable(Protocol):
    """Interface of the owner of a hook that only counts: the engine of a watch or of an edit."""

    @property
    def recording(self) -> bool:
        """Return whether calls count now."""


class CallCounter(TapHook[Countable]):
    """Forward pre-hook of a module that may call itself, where its end is all that is wanted."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.owner.recording:
            self.tap.call_numbers.enter()


OneCall = TypeVar("OneCall", bound=Call)


class TapFollower(CallFollower[OneCall]):
    """The hooks of one engine on the modules of a model, and the calls that they follow.

    Args:
        plan: which modules are tapped.
        make_tap: makes a tap of a path, its filters, and the ``steps`` of this object.
        steps: counts the steps.
        make_all: makes the taps of the plan at once, of one without filters.

    Attributes:
        taps: path -> tap.
        root: tap of the model itself; followed even if no site of it is selected.
        marks: name -> tap of the marks that were reached, ``None`` if not wanted.
        shadowed_marks: marks without a tap because a module has the same name.
        identifier: tells number and phase of each call within the step.
        dynamo_setting: lets code that is compiled from now on depend on hooks.
    """

    def __init__(
        self,
        plan: Plan,
        make_tap: Callable[..., Tap] = Tap,
        steps: StepCounter | None = None,
        make_all: Callable[[Tap], Iterable[Tap]] | None = None,
    ) -> None:
        super().__init__()
        self._steps = StepCounter() if steps is None else steps
        self._make_tap = make = partial(make_tap, steps=self._steps)
        first = make("", {})
        each = (make(tap.path, tap.filters) for tap in plan.taps)
        self.taps = {tap.path: tap for tap in (each if make_all is None else make_all(first))}
        self.root = self.taps.get("") or first
        self.marks: dict[str, Tap | None] = {}
        self.shadowed_marks: set[str] = set()
        self.identifier = CallIdentifier()
        self.dynamo_setting = DynamoHookSetting()
        self._plan = plan

    # ------------------------------------------------------------------ on, step, off

    def tapped(self, modules: Mapping[str, nn.Module]) -> Iterator[tuple[Tap, nn.Module]]:
        """Yield the model and its tapped modules, of those that take hooks.

        Args:
            modules: path -> module.
        """
        # The model itself is among them, tapped or not: its calls are what all others are inside
        # of.
        for path in dict.fromkeys(["", *self.taps]):
            tap, module = self.taps.get(path, self.root), modules[path]
            if isinstance(module, torch.jit.ScriptModule):
                tap.reason = _NO_HOOKS
            else:
                yield tap, module

    def put_on_counting(
        self,
        module: nn.Module,
        *,
        pre_hook: ModuleHook[Any] | NativeHook | None,
        post_hook: TapHook[Any] | NativeHook | None,
        counter: ModuleHook[Any] | NativeHook,
        key: int | None = None,
    ) -> None:
        """Put the hooks of one tap on a module, so that its calls can be counted.

        Args:
            module: of the tap.
            pre_hook: forward pre-hook, if one is needed.
            post_hook: forward hook, if one is needed.
            counter: forward pre-hook that counts calls, used where only ``post_hook`` is needed and
                the module may call itself.
            key: see :meth:`~torchtap.hooks.call_follower.CallFollower.put_on`.
        """
        # A second hook doubles the price of a call; a module that cannot call itself is numbered as
        # it ends.
        if post_hook is not None and pre_hook is None and may_call_itself(module):
            pre_hook = counter
        self.put_on(module, pre_hook=pre_hook, post_hook=post_hook, key=key)

    def restart(self) -> None:
        """Begin a step: no call is running, and calls are numbered from 0."""
        self.identifier.restart()
        # A step is closed between forwards: what is left here are calls that an interrupt ended.
        self.running.stack.clear()
        self._steps.current += 1

    def go_on(self) -> bool:
        """Begin a step unless a call is running, and return whether it was begun."""
        if self.running.stack:
            return False
        self.identifier.restart()
        self._steps.current += 1
        return True

    def rest(self) -> None:
        """Take the hooks out of their tables; code that is compiled meanwhile depends on that."""
        self.dynamo_setting.hold_in_time()
        super().rest()

    def release(self) -> None:
        """Take every hook off."""
        super().release()
        self.dynamo_setting.release()
        self.running.stack.clear()

    # ------------------------------------------------------------------ marks

    def mark_tap(self, name: str) -> Tap | None:
        """Return the tap of a mark, made when it is first reached; ``None`` if it is not wanted."""
        # Kept also where it is not wanted: a mark asks in each forward, and patterns are slow.
        if name not in self.marks:
            filters = self._plan.mark_filters(name)
            is_taken = name in self._plan.types or name in self._plan.aliases
            if filters and is_taken:
                self.shadowed_marks.add(name)
            is_wanted = filters and not is_taken
            self.marks[name] = self._make_tap(name, filters) if is_wanted else None
        return self.marks[name]


keep_dynamo_out(CallCounter.__call__, reason=VALUES)
