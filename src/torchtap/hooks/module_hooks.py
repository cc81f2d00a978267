"""The part that the engines of watches and of edits share: hooks on modules, calls, and marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from torchtap.hooks.calls import EnteredCalls, Numbering, OneCall, Running, may_call_itself
from torchtap.hooks.guards import HookGuards, renumber
from torchtap.hooks.module_hook import VALUES, Handle, ModuleHook, keep_dynamo_out
from torchtap.hooks.order import put_by_role
from torchtap.hooks.taps import Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Filter, Plan

TRACED = "it ran while torch.jit was tracing"
EXPORTED = "it ran while torch.export was tracing, where tensors have no values"
"""Why a call was neither recorded nor edited."""
_NO_HOOKS = "a ScriptModule takes no hooks"


class Recording(Protocol):
    """Interface of the owner of a hook that only counts: the engine of a watch or of an edit."""

    @property
    def recording(self) -> bool:
        """Return whether calls count now."""


class CallCounter(ModuleHook[Recording]):
    """Forward pre-hook of a module that may call itself, where its end is all that is wanted."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.owner.recording:
            self.tap.calls.enter()  # type: ignore[attr-defined]


class ModuleHooks(Generic[OneCall]):
    """The hooks of one engine on the modules of a model, and the calls that they follow.

    Args:
        plan: which modules are tapped.
        make_tap: makes a tap of a path and its filters.

    Attributes:
        taps: path -> tap.
        root: tap of the model itself, which is followed even if nothing of it is wanted.
        marks: name -> tap of the marks that were reached, ``None`` if not wanted.
        namesakes: marks that have no tap, because a module has their name.
        numbering: of calls within the step.
        running: calls that each thread is inside of.
        guards: let code that is compiled from now on depend on hooks.
    """

    def __init__(
        self, plan: Plan, make_tap: Callable[[str, Mapping[str, Filter]], Tap] = Tap
    ) -> None:
        self.taps = {planned.path: make_tap(planned.path, planned.filters) for planned in plan.taps}
        self.root = self.taps.get("") or Tap("", {})
        self.marks: dict[str, Tap | None] = {}
        self.namesakes: set[str] = set()
        self.numbering = Numbering()
        self.running: Running[OneCall] = Running()
        self.guards = HookGuards()
        self._plan = plan
        self._make_tap = make_tap
        self._handles: list[Any] = []

    # ------------------------------------------------------------------ on, step, off

    def tapped(self, modules: Mapping[str, nn.Module]) -> Iterator[tuple[Tap, nn.Module]]:
        """The model and its tapped modules, of those that take hooks.

        Args:
            modules: path -> module.
        """
        for path in dict.fromkeys(["", *self.taps]):
            tap, module = self.taps.get(path, self.root), modules[path]
            if isinstance(module, torch.jit.ScriptModule):
                tap.reason = _NO_HOOKS
            else:
                yield tap, module

    def hook(
        self,
        module: nn.Module,
        *,
        before: ModuleHook[Any] | None,
        after: ModuleHook[Any] | None,
        counter: ModuleHook[Any],
        number: int | None = None,
    ) -> None:
        """Put the hooks of one tap on a module.

        Args:
            module: of the tap.
            before: forward pre-hook, if one is needed.
            after: forward hook, if one is needed; called too where the module raises.
            counter: forward pre-hook that counts calls, used where only ``after`` is needed and
                the module may call itself.
            number: key of the hooks in the module's tables, see
                :func:`~torchtap.hooks.guards.shared_number`.
        """
        if after is not None and before is None and may_call_itself(module):
            after.tap.count = EnteredCalls
            self.hook_before(module, counter, number)
        if before is not None:
            self.hook_before(module, before, number, with_kwargs=True)
        if after is not None:
            made = module.register_forward_hook(after, with_kwargs=True, always_call=True)
            self._keep(made, module._forward_hooks, number)

    def hook_before(
        self,
        module: nn.Module,
        hook: ModuleHook[Any],
        number: int | None = None,
        *,
        with_kwargs: bool = False,
    ) -> None:
        """Put one forward pre-hook on a module."""
        made = module.register_forward_pre_hook(hook, with_kwargs=with_kwargs)
        self._keep(made, module._forward_pre_hooks, number)

    def _keep(self, made: RemovableHandle, table: Any, number: int | None) -> None:
        if number is not None:
            renumber(made, number)
        handle = Handle(made)
        self._handles.append(handle)
        put_by_role(table, handle.id)

    def hold(self, handles: Iterable[Any]) -> None:
        """Remove these hooks together with those on modules."""
        self._handles += handles

    def restart(self) -> None:
        """A new step: no call is running, and calls are numbered from 0."""
        self.numbering.restart()
        self.running.stack.clear()
        for tap in (self.root, *self.taps.values(), *self.marks.values()):
            if tap is not None:
                tap.restart()

    def release(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.guards.release()
        self.running.stack.clear()

    # ------------------------------------------------------------------ marks

    def mark_tap(self, name: str) -> Tap | None:
        """The tap of a mark, made when the mark is first reached; ``None`` if it is not wanted."""
        if name not in self.marks:
            filters = self._plan.mark_filters(name)
            is_taken = name in self._plan.types or name in self._plan.aliases
            if filters and is_taken:
                self.namesakes.add(name)
            is_wanted = filters and not is_taken
            self.marks[name] = self._make_tap(name, filters) if is_wanted else None
        return self.marks[name]


keep_dynamo_out(CallCounter.__call__, reason=VALUES)
