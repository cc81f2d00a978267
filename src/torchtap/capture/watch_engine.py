"""Carries out a plan on a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchtap.capture.bulk import find_hooked, has_ends_alone, make_hooks
from torchtap.capture.callbacks import Begin, End, PostForward, PreForward
from torchtap.capture.copy_policy import ALIAS
from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.plain_calls import (
    PlainHooks,
    counted_plainly,
    entered_plainly,
    plain_hooks,
)
from torchtap.capture.traceable import TraceableHooks
from torchtap.capture.training_facts import TrainingFacts
from torchtap.capture.watched_calls import WatchedCalls, WatchOptions
from torchtap.core.model_layout import Look
from torchtap.core.module_paths import Places
from torchtap.core.ports import STATE_PORTS
from torchtap.core.site import Site
from torchtap.hooks.call_follower import Row
from torchtap.hooks.calls import calling_themselves, outermost_parts
from torchtap.hooks.dynamo_hooks import shared_key
from torchtap.hooks.hidden_handle import tables_lock
from torchtap.hooks.marks import open_engines
from torchtap.hooks.tap import Tap
from torchtap.hooks.tap_follower import CallCounter

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

_NEED_ENTRY = frozenset({"input", "grad_input", "saved"})
"""Ports for which it must be known when the module was entered."""
_NEED_END = frozenset({"output", "grad_output"})
_STATE = frozenset(STATE_PORTS)
_OwnHook = PreForward | PostForward | CallCounter


class WatchEngine:
    """Puts the hooks on, counts the steps, takes the hooks off.

    Args:
        look: at the model, of which the plan was made. Not kept.
        plan: what is wanted.
        delivery: takes each record, inside the hooks.
        options: how values are taken.
        facts: note how the model is trained.

    Attributes:
        calls: take what flows. The hooks hold them, and not the engine.
        step: the running step.
        hooks: as of ``calls``.
        state: likewise.
        evaluations: likewise.
        places: where the tapped modules stand in the model.
        is_resting: whether the hooks are out of their tables: nothing is seen of the running step.
    """

    def __init__(
        self,
        look: Look,
        plan: Plan,
        delivery: SinkDispatch,
        options: WatchOptions,
        facts: TrainingFacts,
    ) -> None:
        self.calls = calls = WatchedCalls(look.modules[""], plan, delivery, options, facts)
        self._wants_ends_alone = has_ends_alone(plan)
        self.step = 0
        self.hooks, self.state, self.evaluations = calls.hooks, calls.state, calls.evaluations
        self.places: Places | None = None
        self.is_resting = False
        self._was_recording = False
        # A compiled graph can have values taken that are read at once, and breaks at other hooks.
        self._traceable = TraceableHooks() if options.copy == ALIAS else None
        self._moved: dict[str, str | None] | None = None
        self._followed: list[Tap] = []

    # ------------------------------------------------------------------ on, step, off

    def attach(self, look: Look) -> None:
        """Put the hooks on."""
        modules, calls, taps, root = look.modules, self.calls, self.hooks.taps, self.hooks.root
        self.places = self.state.places = _places_of(look, taps)
        with tables_lock:  # Until they are in, the key is of no hook.
            self._put_on(look)
        self._attach_to_parts(look)
        self.hooks.keep_fused_kernels({"": root, **taps}, modules)
        self.hooks.hold(calls.optimizers.attach())
        self.hooks.hold(calls.facts.attach())
        open_engines.add(calls)

    def _put_on(self, look: Look) -> None:
        """Put the hooks on the tapped modules."""
        hooked = find_hooked(look.every)
        rows, own = self._make_hooks(look, calling_themselves(look, hooked))
        if self._traceable is not None:
            self._traceable.add(own)
        self.hooks.put_on_all(rows, shared_key(hooked), look.layout.entries)

    def _make_hooks(self, look: Look, counted: set[int]) -> tuple[list[Row], list[_OwnHook]]:
        """Make the hooks of the tapped modules, and list those of Python.

        Args:
            look: at the model.
            counted: ids of the modules that may call themselves.
        """
        plainly, tapped = plain_hooks(self.calls), self.hooks.tapped(look.modules)
        rows: list[Row] = []
        own: list[_OwnHook] = []
        together = None
        if plainly is not None and self._wants_ends_alone and look.layout.is_comparable:
            tap, module = next(tapped)  # The model itself.
            rows.append(self._hooks_of(tap, module, plainly, counted, own))
            others = [tap for tap in self.hooks.taps.values() if tap is not self.hooks.root]
            modules = [look.modules[tap.path] for tap in others]
            together = make_hooks(plainly, others, modules, counted)
        if together is not None:
            return rows + together[0], own + together[1]
        rows += [self._hooks_of(tap, module, plainly, counted, own) for tap, module in tapped]
        return rows, own

    def _hooks_of(
        self,
        tap: Tap,
        module: nn.Module,
        plainly: PlainHooks | None,
        counted: set[int],
        own: list[_OwnHook],
    ) -> Row:
        """Make the hooks of one tap; those of Python are added to ``own``."""
        calls, ports = self.calls, tap.filters.keys()
        before: Any = None
        after: Any = None
        has_frame = tap is self.hooks.root or not ports.isdisjoint(_NEED_ENTRY)
        if has_frame or not ports.isdisjoint(_NEED_END):
            leaving = PostForward(calls, tap, has_frame)
            own.append(leaving)
            after = leaving if plainly is None else plainly(leaving)
        if has_frame:
            self._followed.append(tap)
            entering = PreForward(calls, tap)
            own.append(entering)
            before = entered_plainly(entering, after)
        # A second hook doubles the price of a call; a module that cannot call itself is numbered as
        # it ends.
        elif after is not None and id(module) in counted:
            counter = CallCounter(calls, tap)
            own.append(counter)
            before = counted_plainly(counter, after)
        return module, before, after

    def _attach_to_parts(self, look: Look) -> None:
        """Hear of the parts that may be called alone, and hold a module whose state is wanted."""
        modules, calls, taps, root = look.modules, self.calls, self.hooks.taps, self.hooks.root
        parts = list(self._parts_to_hear_of(modules))
        key = shared_key(look.every) if parts else None
        for path in parts:
            tap = taps.get(path, root)
            begin = Begin(calls, tap)
            if self._traceable is not None:
                self._traceable.add([begin])
            self.hooks.put_on(modules[path], pre_hook=begin, key=key)
            self.hooks.put_on(modules[path], post_hook=End(calls, tap))

    def _parts_to_hear_of(self, modules: Mapping[str, nn.Module]) -> Iterator[str]:
        if self._wants_ends_alone:
            return
        taps = self.hooks.taps
        wanted = [path for path, tap in taps.items() if not _STATE.isdisjoint(tap.filters)]
        for path in outermost_parts(modules) if wanted else ():
            is_entered = path in taps and taps[path].filters.keys() & _NEED_ENTRY
            if is_entered or isinstance(modules[path], torch.jit.ScriptModule):
                continue
            if any(one == path or one.startswith(f"{path}.") for one in wanted):
                yield path

    def begin_step(self, step: int, *, recording: bool) -> None:
        """Start ``step``; gradients still to come keep the step they belong to."""
        if self.is_resting and not recording:
            self.step = step
            return  # Nothing was recorded, and nothing will be.
        if not self._was_recording and not recording:
            self.step = step
            self._rest()
            return
        calls = self.calls
        if recording and calls.recording and calls.go_on(step):
            self.step = step
            return
        calls.end_pass()
        if calls.optimizers.is_wanted:
            calls.optimizers.end_step(has_run=calls.have_trained)
        calls.evaluations.end_step(self.step)
        self._number_step(step)
        self._record(recording)
        self._was_recording = recording
        calls.begin_step()
        if not recording:
            self._rest()

    def _rest(self) -> None:
        """Take the hooks out of their tables until a step is recorded."""
        self.hooks.rest()
        self.is_resting = True

    def _number_step(self, step: int) -> None:
        self.step = step
        self.calls.number_step(step)

    def pause(self) -> None:
        """Record nothing for a while; gradients of calls that were recorded still come."""
        self._record(False)

    def resume(self) -> None:
        """Record again, in the step that is running."""
        if self.hooks.running.is_stale():  # Calls that were left while it was paused.
            self.hooks.running.stack.clear()
        self._record(True)
        self._was_recording = True

    def _record(self, recording: bool) -> None:
        calls = self.calls
        if recording and self.is_resting:
            self._number_step(self.step)  # Steps that pass while hooks rest are counted here alone.
            self.hooks.wake()
            self.is_resting = False
        calls.recording = calls.state.recording = calls.optimizers.recording = recording

    def detach(self) -> None:
        """Take every hook off."""
        calls = self.calls
        calls.end_pass()
        self._moved = self.moved
        calls.optimizers.end_step(has_run=calls.have_trained, is_last=True)
        calls.evaluations.end_step(self.step)
        self._record(False)
        open_engines.discard(calls)
        self.hooks.release()
        for tap in self._followed:
            tap.take_plain = None  # It refers to all of this.
        if self._traceable is not None:
            self._traceable.release()
        calls.state.release()
        calls.gradients.release()

    @property
    def moved(self) -> dict[str, str | None]:
        """Path -> where the watched module stands now, of those that stand elsewhere or nowhere.

        In a wrapper at its path it stands where it stood. After detaching, those of then.
        """
        if self._moved is not None or self.places is None:
            return self._moved or {}
        if self.places.are_kept():
            return {}
        now = {path: self.places.now(path) for path in self.hooks.taps}
        return {
            path: at
            for path, at in now.items()
            if at is None or (at != path and not at.startswith(f"{path}."))
        }

    @property
    def order(self) -> tuple[str, ...]:
        """Return the paths of the tapped modules that were called, by their first call."""
        called = [(tap.order, path) for path, tap in self.hooks.taps.items() if tap.order >= 0]
        return tuple(path for _, path in sorted(called))

    def overwritten(self, site: Site) -> None:
        """Copy at this site from now on: a value that was kept as an alias is lost."""
        tap = self.hooks.taps.get(site.path) or self.hooks.marks.get(site.path)
        state = None if tap is None else tap.state(site.port, site.leaf)
        if state is not None:
            state.copies = True


def _places_of(look: Look, taps: Mapping[str, Tap]) -> Places:
    """Return where the tapped modules stand, which the layout of the model alone decides."""
    name = ("places", *taps)
    places: Places | None = look.layout.kept(name)
    if places is None:
        places = Places(look.modules[""], {path: look.modules[path] for path in taps})
        look.layout.keep(name, places)
    return places
