"""Carries out a plan on a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.capture.callbacks import Begin, End, PostForward, PreForward
from torchtap.capture.compiled import (
    IN_TRANSFORM,
    CompilableBegin,
    CompilableCallCounter,
    CompilablePostForward,
    CompilablePreForward,
)
from torchtap.capture.copy_policy import ALIAS, CopyPolicy
from torchtap.capture.evaluation import NO_GRADIENTS, Evaluations
from torchtap.capture.gradient_ports import Gradients, ModuleInputs
from torchtap.capture.optimizer_ports import OptimizerPorts
from torchtap.capture.pending_gradient import OUTSIDE
from torchtap.capture.state_ports import State
from torchtap.capture.value_ports import Values
from torchtap.core.modules import Places
from torchtap.core.preserved import mode_of
from torchtap.core.record import BACKWARD, EVAL, FORWARD, Record
from torchtap.core.site import STATE_PORTS, Site
from torchtap.core.tensors import storage_id
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    tracing_state,
    transform_running,
)
from torchtap.core.tree import argument_leaves, leaves
from torchtap.hooks.calls import (
    NOT_IDENTIFIED,
    UNIDENTIFIED,
    Call,
    outermost_parts,
)
from torchtap.hooks.fused import FusedEncoderGuard
from torchtap.hooks.graph import from_one_compiled_graph
from torchtap.hooks.guards import shared_number
from torchtap.hooks.marks import open_engines
from torchtap.hooks.module_hook import Handle
from torchtap.hooks.module_hooks import EXPORTED, TRACED, CallCounter, ModuleHooks
from torchtap.hooks.order import AFTER, ROLE_OF_WATCH
from torchtap.hooks.taps import RETURNED, TAKEN, Meter, SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

_NEED_ENTRY = frozenset({"input", "grad_input", "saved"})
"""Ports for which it must be known when the module was entered."""


class _Frame(Call):
    """A call of which something is kept."""

    __slots__ = ("first_node", "first_view", "foreign", "passage")

    def __init__(
        self, tap: Tap, number: int, phase: str, foreign: set[int], first_view: int = 0
    ) -> None:
        super().__init__(tap, number, phase, depth=4)
        self.foreign = foreign
        self.first_node = sequence_number()
        self.first_view = first_view
        self.passage: ModuleInputs | None = None


class Engine:
    """Puts the hooks on, keeps what flows, takes them off.

    Args:
        model: where the plan was made.
        plan: what is wanted.
        emit: takes each record, inside the hooks.
        copy: how values are kept, see ``Keeper``.
        grad_input: ``through`` or ``total``.
        busy: threads that are inside a sink now; what they run is not recorded.
        meter: makes what takes the values of a site without a record, see ``SiteState``.
        numbers_backwards: whether the number of the backward must be right where only parameters
            are watched, and a reentrant checkpoint runs backwards of its own.
        looks: ``after`` the edits of the model, or ``before`` them.
        skips_evaluation: whether values of evaluation forwards are left out.

    Attributes:
        step: the running step.
        recording: whether it is recorded; hooks look at nothing else first.
        marks: name -> tap of the marks that were reached, ``None`` if not wanted.
        namesakes: marks that were not recorded, because a module has their name.
        borrows: whether records hold what flows itself, because it is read at once.
        num_entries: how often the model (or, from outside, a tapped part of it) was called.
        places: where the tapped modules stand in the model.
        wants_state: whether anything is wanted that must be taken when a step's first call begins.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        emit: Callable[[Record], None],
        *,
        copy: str,
        grad_input: str,
        busy: set[int],
        meter: Callable[[Site], Meter] | None = None,
        numbers_backwards: bool = True,
        looks: str = AFTER,
        skips_evaluation: bool = False,
    ) -> None:
        self.plan = plan
        self.looks = looks
        self.role = ROLE_OF_WATCH[looks]
        self.emit = emit
        self.busy = busy
        self.skips_evaluation = skips_evaluation
        self.step = 0
        self.recording = False
        self.num_entries = 0
        self._numbers_backwards = numbers_backwards
        self.borrows = copy == ALIAS
        copies = False if self.borrows else None
        make_tap = partial(Tap, copies=copies, meter=meter)
        self._hooks: ModuleHooks[_Frame] = ModuleHooks(plan, make_tap)
        self.taps, self.root = self._hooks.taps, self._hooks.root
        self.marks, self.namesakes = self._hooks.marks, self._hooks.namesakes
        self.keeper = CopyPolicy(copy)
        self.values = Values(model, self.keeper, emit, skips_evaluation=skips_evaluation)
        self.state = State(plan, self.taps, emit, borrows=self.borrows)
        take_state = self.take_state
        self.optimizers = OptimizerPorts(plan, self.taps, emit, take_state, borrows=self.borrows)
        self.wants_state = self.state.is_wanted or self.optimizers.is_wanted
        self.gradients = Gradients(self.keeper, emit, self.state.deliver, grad_input, looks)
        self.fused = FusedEncoderGuard({"": self.root, **self.taps})
        self.evaluations = Evaluations(self.root, busy)
        # At hand for the hooks, which are called for every module.
        self.deliver_gradient = self.gradients.deliver
        self.on_tensors = self.gradients.on_tensors
        self._take_value = self.values.take
        self._running, self._numbering = self._hooks.running, self._hooks.numbering
        self._lock = threading.RLock()  # A sink that is given a parameter may make a step.
        self._head: Tap | None = None
        self._was_training: bool | None = None
        self._is_state_taken = self._was_recording = False
        self._has_trained = False  # In this step: else no optimizer has to make one.
        self.places: Places | None = None
        self._moved: dict[str, str | None] | None = None

    # ------------------------------------------------------------------ on, step, off

    def attach(self, modules: Mapping[str, nn.Module]) -> None:
        """Put the hooks on. ``modules``: path -> module."""
        self.places = Places(modules[""], {path: modules[path] for path in self.taps})
        self.state.places = self.places
        number = shared_number(modules.values())
        enter = CompilablePreForward if self.borrows else PreForward
        leave = CompilablePostForward if self.borrows else PostForward
        count = CompilableCallCounter if self.borrows else CallCounter
        for tap, module in self._hooks.tapped(modules):
            has_frame = tap is self.root or not tap.filters.keys().isdisjoint(_NEED_ENTRY)
            is_left = has_frame or "output" in tap.filters or "grad_output" in tap.filters
            self._hooks.hook(
                module,
                before=enter(self, tap) if has_frame else None,
                after=leave(self, tap, has_frame=has_frame) if is_left else None,
                counter=count(self, tap),
                number=number,
            )
        number = shared_number(modules.values())
        for path in self._parts_to_hear_of(modules):
            tap = self.taps.get(path, self.root)
            begin = (CompilableBegin if self.borrows else Begin)(self, tap)
            self._hooks.hook_before(modules[path], begin, number)
            self._hooks.hold([Handle(modules[path].register_forward_hook(End(self, tap)))])
        self._hooks.hold(self.fused.attach(modules))
        self._hooks.hold(self.optimizers.attach())
        open_engines.add(self)

    def _parts_to_hear_of(self, modules: Mapping[str, nn.Module]) -> Iterator[str]:
        """Parts that may be called without the model, and hold a module whose state is wanted."""
        wanted = [path for path, tap in self.taps.items() if tap.filters.keys() & set(STATE_PORTS)]
        for path in outermost_parts(modules) if wanted else ():
            is_entered = path in self.taps and self.taps[path].filters.keys() & _NEED_ENTRY
            if is_entered or isinstance(modules[path], torch.jit.ScriptModule):
                continue
            if any(one == path or one.startswith(f"{path}.") for one in wanted):
                yield path

    def begin_step(self, step: int, *, recording: bool) -> None:
        """Start ``step``; gradients still to come keep the step they belong to."""
        if not self._was_recording and not recording:
            self._number_step(step)
            return  # Nothing was recorded, and nothing will be.
        self._end_pass()
        self.optimizers.end_step(has_run=self._is_state_taken and self._has_trained)
        self.evaluations.end_step(self.step)
        self._number_step(step)
        self._record(recording)
        self._was_recording = recording
        self._is_state_taken = self._has_trained = False
        self._hooks.restart()
        self.gradients.backwards.restart()
        self.gradients.release_leaves(force=True)
        self.gradients.prune(force=True)
        self.gradients.views.drop()

    def _number_step(self, step: int) -> None:
        self.step = self.values.step = self.gradients.step = step
        self.state.step = self.optimizers.step = step

    def pause(self) -> None:
        """Record nothing for a while; gradients of calls that were recorded still come."""
        self._record(False)

    def resume(self) -> None:
        """Record again, in the step that is running."""
        if self._running.is_stale():  # Calls that were left while it was paused.
            self._running.stack.clear()
        self._record(True)
        self._was_recording = True

    def _record(self, recording: bool) -> None:
        self.recording = self.state.recording = self.optimizers.recording = recording

    def detach(self) -> None:
        """Take every hook off."""
        self._end_pass()
        self._moved = self.moved
        has_run = self._is_state_taken and self._has_trained
        self.optimizers.end_step(has_run=has_run, is_last=True)
        self.evaluations.end_step(self.step)
        self._record(False)
        open_engines.discard(self)
        self._hooks.release()
        self.fused.release()
        self.state.release()
        self.gradients.release()

    @property
    def moved(self) -> dict[str, str | None]:
        """Path -> where the watched module stands now, of those that stand elsewhere or nowhere.

        In a wrapper at its path it stands where it stood. After detaching, those of then.
        """
        if self._moved is not None or self.places is None:
            return self._moved or {}
        now = {path: self.places.now(path) for path in self.taps}
        return {
            path: at
            for path, at in now.items()
            if at is None or (at != path and not at.startswith(f"{path}."))
        }

    def overwritten(self, site: Site) -> None:
        """A value that was kept as an alias is lost: copy at this site from now on."""
        tap = self.taps.get(site.path) or self.marks.get(site.path)
        state = None if tap is None else tap.state(site.port, site.leaf)
        if state is not None:
            state.copies = True

    def _end_pass(self) -> None:
        self._head = None
        self.state.deliver()  # Of a backward that raised.
        self.keeper.learn()

    # ------------------------------------------------------------------ forward

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A tapped module is entered."""
        if self._is_dormant(tap, is_counted=False):
            return
        frames = self._running.stack
        found = argument_leaves(args, kwargs, tap.unseen[TAKEN])
        if tap is self.root and frames and self._running.is_stale():
            frames.clear()
            self.gradients.views.drop()
        is_outermost = not frames or tap is self.root
        if is_outermost:
            self._enter_model(tap, module, is_nested=bool(frames))
        foreign = (
            {storage_id(tensor) for _, tensor in found} if is_outermost else frames[-1].foreign
        )
        is_training = tap is not self.root or mode_of(module) is not False
        call, phase = self._number(tap, args, kwargs, is_training=is_training)
        frame = _Frame(tap, call, phase, foreign, len(self.gradients.views))
        frames.append(frame)
        if phase is EVAL:
            self.evaluations.begin()
        elif is_outermost:
            self._has_trained = True
        for leaf, tensor in found if "input" in tap.filters else ():
            self._take_value(tap.state("input", leaf), tensor, call, phase, foreign)
        if "grad_input" in tap.filters and phase is EVAL:
            for leaf, tensor in found:
                self._refuse_gradient(tap.state("grad_input", leaf), tensor)
        elif "grad_input" in tap.filters:
            frame.passage = self.gradients.passage(frame, found)

    def leave(
        self,
        tap: Tap,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        *,
        has_frame: bool,
        error: BaseException | None = None,
    ) -> None:
        """A tapped module returned, or raised ``error``: then ``output`` is ``None``."""
        if self._is_dormant(tap):
            return
        frame = self._running.pop(tap) if has_frame else None
        is_outermost = not self._running.stack
        found = leaves(output, tap.unseen[RETURNED])
        if frame is None:
            frame = self._frameless(tap, args, kwargs)
        else:
            outputs = {id(tensor) for _, tensor in found}
            self.gradients.views.leave(frame.first_view, outputs, is_outermost=is_outermost)
        together = from_one_compiled_graph(t for _, t in found) if len(found) > 1 else ()
        for leaf, tensor in found:
            state = tap.state("output", leaf)
            self._take_value(state, tensor, frame.number, frame.phase, frame.foreign)
            labels = (OUTSIDE,) if id(tensor) in together else ()
            self._expect(tap.state("grad_output", leaf), tensor, frame, labels)
        if error is not None and frame.phase in (FORWARD, EVAL):  # A checkpoint stops by raising.
            is_skipped = frame.phase is EVAL and self.skips_evaluation
            tap.raised[type(error).__name__] += not is_skipped
        if frame.passage is not None and error is None:
            self.gradients.connect(frame.passage, [tensor for _, tensor in found])
        if "saved" in tap.filters and frame.phase in (FORWARD, BACKWARD):
            outputs_of = [tensor for _, tensor in found]
            self.values.take_saved(tap, outputs_of, frame.first_node, frame.number, frame.phase)
        if is_outermost:
            self.evaluations.end()
            self.values.saved.restart()
            self.gradients.views.drop()  # No call ends after this one to follow them.
        if is_outermost and has_frame:
            self.state.look(self.gradients.backwards)  # Lazy parameters exist only now.
        is_announced = self._numbers_backwards and self.state.hooks_params
        if tap is self.root and is_announced and current_task() == -1:
            self.gradients.announce(tensor for _, tensor in found)

    def mark(self, tensor: Tensor, name: str) -> None:
        """An intermediate tensor names itself."""
        if not self.recording or (not self._running.stack and current_task() == -1):
            return
        tap = self._hooks.mark_tap(name)
        if tap is None or self._is_dormant(tap):
            return
        self.gradients.views.repair()
        frame = self._frameless(tap, (tensor,), {})
        self._take_value(tap.state("output", ""), tensor, frame.number, frame.phase, frame.foreign)
        self._expect(tap.state("grad_output", ""), tensor, frame)

    def _expect(
        self, state: SiteState | None, tensor: Tensor, frame: _Frame, labels: tuple[str, ...] = ()
    ) -> None:
        if frame.phase is EVAL:
            self._refuse_gradient(state, tensor)
        else:
            self.gradients.expect(state, tensor, frame.number, frame.phase_of_gradients, labels)

    def _enter_model(self, tap: Tap, module: nn.Module, *, is_nested: bool) -> None:
        self.num_entries += 1
        self.guard_hooks()
        if current_task() == -1 and not is_nested:
            self.gradients.backwards.forget_failed()
            self._numbering.enter_model()
            # A model may be called part by part: a pass ends where the first part comes again.
            if self._head in (None, tap):
                self.keeper.learn()
                self._head = tap
        mode = mode_of(module)
        if mode is not self._was_training:
            self._was_training = mode
            self.keeper.forget()
        self.gradients.prune(force=False)
        if current_task() == -1:
            self.gradients.release_leaves(force=False)
        self.take_state()

    def take_state(self, *, is_late: bool = False) -> None:
        """Take parameters and buffers, once a step, when the model is entered.

        Args:
            is_late: it was not, and an optimizer is about to make its step.
        """
        self._has_trained |= is_late
        with self._lock:
            if not self._is_state_taken:
                self._is_state_taken = True
                self.values.forget_storages()
                self.state.take(self.gradients.backwards, is_late=is_late)
                self.optimizers.name_sites()

    def begin(self, tap: Tap, *, trains: bool) -> None:
        """A part of the model runs, maybe without the model itself."""
        self._has_trained |= trains
        if not self._is_state_taken and not self._is_dormant(tap, is_counted=False):
            self.num_entries += 1
            self.guard_hooks()
            self.take_state()

    def end(self) -> None:
        """The part that ran has returned."""
        if not self._running.stack and current_task() == -1:  # Else the model's own end is to come.
            self.state.look(self.gradients.backwards)

    def phase_in_graph(self, tap: Tap, *, trains: bool) -> str:
        """The phase of a value that a compiled graph computes in a forward."""
        frames = self._running.stack
        if frames:
            return frames[0].phase
        return self.evaluations.phase_in_graph(tap, trains=trains)

    def guard_hooks(self) -> None:
        """Let code that is compiled from now on depend on the hook tables; cheap to call again."""
        self._hooks.guards.hold()

    def _number(
        self, tap: Tap, args: Any, kwargs: Mapping[str, Any], *, is_training: bool = True
    ) -> tuple[int, str]:
        call, phase = self._numbering.number(tap, args, kwargs)
        frames = self._running.stack
        if phase is not FORWARD:
            self.gradients.backwards.number()
        elif not frames:
            trains = is_training and torch.is_grad_enabled()
            phase = self.evaluations.phase(tap, trains=trains, evaluates=not is_training)
        elif frames[0].phase is EVAL:
            phase = EVAL
        if call == UNIDENTIFIED:
            tap.unidentified[f"{NOT_IDENTIFIED}: it has phase {BACKWARD!r}"] += 1
            return next(tap.calls_in_backward), BACKWARD
        return call, phase

    # ------------------------------------------------------------------ small things

    def is_inside(self) -> bool:
        """Return whether this thread is inside a call that will tell of writes into views."""
        return bool(self._running.stack)

    def _frameless(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> _Frame:
        """A call that was not seen on entering."""
        call, phase = self._number(tap, args, kwargs)
        frames = self._running.stack
        if frames:
            return _Frame(tap, call, phase, frames[-1].foreign)
        foreign = {storage_id(tensor) for _, tensor in argument_leaves(args, kwargs)}
        return _Frame(tap, call, phase, foreign)

    def _is_dormant(self, tap: Tap, *, is_counted: bool = True) -> bool:
        if transform_running() is not None:
            reason = IN_TRANSFORM
        elif tracing_state() is not None:
            reason = TRACED
        elif torch.compiler.is_exporting():
            reason = EXPORTED
        else:
            return bool(self.busy) and threading.get_ident() in self.busy
        if is_counted:
            tap.unidentified[reason] += 1
        return True

    def _refuse_gradient(self, state: SiteState | None, tensor: Tensor) -> None:
        """Say that the gradient of an evaluation forward was wanted and is not recorded."""
        if state is not None and tensor.requires_grad and not self.skips_evaluation:
            state.expected += 1
            state.reason = NO_GRADIENTS
