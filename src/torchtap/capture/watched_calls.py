"""Takes what flows through the calls of tapped modules."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.capture.bulk import taps_maker
from torchtap.capture.copy_policy import ALIAS, CopyPolicy
from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.evaluation import NO_GRADIENTS, Evaluations
from torchtap.capture.gradient_ports import Gradients, ModuleInputs
from torchtap.capture.graph_reasons import IN_TRANSFORM
from torchtap.capture.optimizer_ports import OptimizerPorts
from torchtap.capture.pending_gradient import OUTSIDE
from torchtap.capture.plain_calls import native_put_on, new_step_counter
from torchtap.capture.state_ports import State
from torchtap.capture.training_facts import TrainingFacts
from torchtap.capture.value_ports import Values
from torchtap.core.module_paths import mode_of
from torchtap.core.record import BACKWARD, EVAL, FORWARD
from torchtap.core.shared_state import new_lock
from torchtap.core.tensors import storage_id
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    tracing_state,
    transform_running,
)
from torchtap.core.tree import Leaf, argument_leaves, leaves
from torchtap.core.weak_method import weakly
from torchtap.hooks.backwards import Backwards
from torchtap.hooks.calls import UNIDENTIFIED, WHY_UNIDENTIFIED, Call
from torchtap.hooks.graph_edges import from_one_compiled_graph
from torchtap.hooks.module_hook import run_as_it_is
from torchtap.hooks.tap import RETURNED, TAKEN, SiteState, Tap
from torchtap.hooks.tap_follower import EXPORTED, TRACED, TapFollower
from torchtap.stats.kernels import native

if TYPE_CHECKING:
    from torchtap.capture.loss_facts import LossFacts
    from torchtap.core.plan import Plan


class _Frame(Call):
    """A call of which something is kept."""

    __slots__ = ("first_node", "first_view", "foreign", "inputs")

    def __init__(
        self, tap: Tap, number: int, phase: str, foreign: set[int], first_view: int = 0
    ) -> None:
        super().__init__(tap, number, phase, depth=4)
        self.foreign = foreign
        self.first_node = sequence_number()
        self.first_view = first_view
        self.inputs: ModuleInputs | None = None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The arguments of ``tt.watch`` that decide how values are taken.

    Attributes:
        copy: how values are kept, see :class:`~torchtap.capture.copy_policy.CopyPolicy`.
        grad_input: ``through`` or ``total``.
        looks: ``after`` the edits of the model, or ``before`` them.
        skips_evaluation: whether values of evaluation forwards are left out.
    """

    copy: str
    grad_input: str
    looks: str
    skips_evaluation: bool


def _new_hooks(plan: Plan, delivery: SinkDispatch, *, borrows: bool) -> TapFollower[_Frame]:
    """Make the hooks, with a tap for each module; native code takes plain calls where it can."""
    copies = False if borrows else None
    make_tap = partial(
        Tap,
        copies=copies,
        meter=delivery.meter,
        make_state=native.kernel().SiteState if native.takes_calls() else SiteState,
    )
    make_all = taps_maker(plan, delivery, copies)
    hooks: TapFollower[_Frame] = TapFollower(plan, make_tap, new_step_counter(), make_all)
    hooks.put_natively = native_put_on()
    return hooks


class WatchedCalls:
    """Takes what is wanted of each call, as the hooks on modules tell of it.

    Args:
        model: where the plan was made.
        plan: what is wanted.
        delivery: takes each record, inside the hooks.
        options: how values are taken.
        facts: note how the model is trained.

    Attributes:
        options: as given.
        facts: likewise.
        looks: whether values are read ``after`` the edits of the model, or ``before`` them.
        emit: takes each record.
        busy: threads that are inside a sink now; what they run is not recorded.
        step: the running step.
        recording: whether it is recorded; hooks look at nothing else first.
        num_entries: how often the model (or, from outside, a tapped part of it) was called.
        hooks: on the model and its tapped modules, with taps, marks and the calls that run.
        copy_policy: decides what is copied.
        values: the ports ``input``, ``output`` and ``saved``.
        gradients: the ports ``grad_input`` and ``grad_output``.
        state: the ports ``param``, ``buffer`` and ``param_grad``.
        optimizers: the ports ``step_grad`` and ``update``.
        evaluations: tells evaluation from training.
        losses: what they tell of the training, if it is asked for.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        delivery: SinkDispatch,
        options: WatchOptions,
        facts: TrainingFacts,
    ) -> None:
        self.options = options
        self.facts = facts
        self.looks = options.looks
        self.emit = emit = delivery.emit
        self.busy = delivery.busy
        self.step = self.num_entries = 0
        self.recording = False
        self._borrows = borrows = options.copy == ALIAS
        self.hooks = _new_hooks(plan, delivery, borrows=borrows)
        self.copy_policy = CopyPolicy(options.copy)
        skips = options.skips_evaluation
        self.values = Values(model, self.copy_policy, emit, skips_evaluation=skips)
        self.state = State(plan, self.hooks.taps, emit, borrows=borrows)
        self.gradients = Gradients(
            self.copy_policy, emit, self.state.deliver, options.grad_input, options.looks
        )
        take = weakly(self.take_state)
        self.optimizers = OptimizerPorts(plan, self.hooks.taps, emit, take, borrows=borrows)
        self.evaluations = Evaluations(self.hooks.root, self.busy)
        self.losses: LossFacts | None = None
        # They are for rules, which read statistics.
        if borrows and "grad_output" in self.hooks.root.filters:
            from torchtap.capture.loss_facts import LossFacts

            self.losses = LossFacts(self.gradients, facts)
        self._wants_saved = "saved" in plan.ports
        self._wants_state = self.state.is_wanted or self.optimizers.is_wanted
        self._is_ended_in_parts = self._wants_state or not borrows
        # A reentrant checkpoint runs backwards of its own. Where only parameters are watched, only
        # a sink that reads which backward it was needs the right one.
        self._numbers_backwards = self._wants_state and delivery.reads_backward
        self._state_lock = new_lock()  # A sink that is given a parameter may make a step.
        self._is_state_taken = False
        self._has_trained = False  # In this step: else no optimizer has to make one.
        self._head: Tap | None = None
        self._was_training: bool | None = None
        # Native hooks fill this in place of its own function.
        self.blank_frame = partial(object.__new__, _Frame)

    # ------------------------------------------------------------------ steps

    @property
    def have_trained(self) -> bool:
        """Return whether the running step has a call that an optimizer is to follow."""
        return self._is_state_taken and self._has_trained

    @property
    def is_entered_plainly(self) -> bool:
        """Return whether nothing is taken as the model is entered."""
        at_entry = {"input", "grad_input", "saved"}
        return (
            not self._wants_state
            and not self._wants_saved
            and (at_entry.isdisjoint(self.hooks.root.filters))
        )

    def end_pass(self) -> None:
        """Note that the running step ends: no call of it is to come."""
        self._head = None
        if self._wants_state:
            self.state.deliver()  # Of a backward that raised.
        if not self._borrows:
            self.copy_policy.learn()

    def begin_step(self) -> None:
        """Begin a step: its calls are numbered from 0."""
        self._is_state_taken = self._has_trained = False
        self.hooks.restart()
        self.gradients.backwards.restart()
        self.gradients.prune(force=True)
        self.gradients.views.drop()

    def number_step(self, step: int) -> None:
        """Give all that takes values the number of the running step."""
        self.step = self.values.step = self.gradients.step = step
        self.state.step = self.optimizers.step = step

    def go_on(self, step: int) -> bool:
        """Begin a step after one that leaves nothing to be done, as most do; else do nothing.

        It does what ``end_pass``, ``number_step`` and ``begin_step`` do, in few calls: code that
        runs once a step has left the processor's caches, where each function takes some 3 us.

        Returns:
            whether it was begun.
        """
        gradients = self.gradients
        if self._is_ended_in_parts or gradients.backwards.numbers or not gradients.are_pruned:
            return False
        if gradients.views.inside.views or not self.evaluations.are_plain or not self.hooks.go_on():
            return False
        self._head = None
        self._is_state_taken = self._has_trained = False
        self.step = self.values.step = gradients.step = step
        self.state.step = self.optimizers.step = step
        return True

    # ------------------------------------------------------------------ forward

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Take the arguments of a tapped module that is entered."""
        if self._is_dormant(tap, is_counted=False):
            return
        frames = self.hooks.running.stack
        found = argument_leaves(args, kwargs, tap.unseen[TAKEN])
        # A forward that a KeyboardInterrupt left has run no forward hook: see FollowedCall.is_over.
        if tap is self.hooks.root and frames and self.hooks.running.is_stale():
            # Left by the interrupt, they would make this call look nested in one that is over.
            frames.clear()
            self.gradients.views.drop()
        is_outermost = not frames or tap is self.hooks.root
        if is_outermost:
            self._enter_model(tap, module, is_nested=bool(frames))
        # The caller of the model may write into what it gave, at any time; calls inside share what
        # is known of that.
        foreign = _foreign(found, self.options) if is_outermost else frames[-1].foreign
        is_training = tap is not self.hooks.root or mode_of(module) is not False
        # Before the frame is pushed, which would make this call look like one inside itself.
        call, phase = self._number(tap, args, kwargs, is_training=is_training)
        frame = _Frame(tap, call, phase, foreign, len(self.gradients.views))
        frames.append(frame)
        if phase is EVAL:
            self.evaluations.begin()
        elif is_outermost:
            self._has_trained = True
            if torch.is_grad_enabled():
                self.facts.note_forward(is_training=is_training)
        for leaf, tensor in found if "input" in tap.filters else ():
            self.values.take(tap.state("input", leaf), tensor, call, phase, foreign)
        if "grad_input" in tap.filters and phase is EVAL:
            for leaf, tensor in found:
                self._refuse_gradient(tap.state("grad_input", leaf), tensor)
        elif "grad_input" in tap.filters:
            frame.inputs = self.gradients.note_inputs(frame, found)

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
        """Take the output of a tapped module; ``None`` where it raised ``error``."""
        if self._is_dormant(tap):
            return
        left = self.hooks.running.leave(tap) if has_frame else ()
        frame = left[-1] if left else None
        # Asked after the call itself was popped.
        is_outermost = not self.hooks.running.stack
        found = leaves(output, tap.unseen[RETURNED])
        if frame is None:
            frame = self._frameless(tap, args, kwargs)
        else:
            outputs = {id(tensor) for _, tensor in found}
            self.gradients.views.leave(frame.first_view, outputs, is_outermost=is_outermost)
        take = tap.take_plain if left and frame.phase is FORWARD else None
        if take is not None and not self._borrows and not self.is_own_memory(output, frame.foreign):
            take = None
        if take is None or not take(output, frame.number):
            self._take_all(tap, found, frame)
        # A non-reentrant checkpoint leaves a recomputed call by raising _StopRecomputationError
        # (torch/utils/checkpoint.py) as soon as it has all the tensors that it needs.
        if error is not None and frame.phase in (FORWARD, EVAL):
            is_skipped = frame.phase is EVAL and self.options.skips_evaluation
            tap.raised[type(error).__name__] += not is_skipped
        if frame.inputs is not None and error is None:
            self.gradients.connect(frame.inputs, [tensor for _, tensor in found])
        if "saved" in tap.filters and frame.phase in (FORWARD, BACKWARD):
            outputs_of = [tensor for _, tensor in found]
            self.values.take_saved(tap, outputs_of, frame.first_node, frame.number, frame.phase)
        if is_outermost:
            if self.busy:
                self.evaluations.end()
            if self._wants_saved:
                self.values.saved.restart()
            losses = self.losses
            if losses is not None and tap is self.hooks.root and frame.phase is FORWARD:
                losses.expect_at(self.step, found, args, kwargs)
            self.gradients.views.drop()  # No call ends after this one to follow them.
        if self._wants_state and is_outermost and has_frame:
            self.state.look(self.gradients.backwards)  # Lazy parameters exist only now.
        is_announced = self._numbers_backwards and self.state.hooks_params
        if is_announced and tap is self.hooks.root and current_task() == -1:
            self.gradients.announce(tensor for _, tensor in found)

    def _take_all(self, tap: Tap, found: list[Leaf], frame: _Frame) -> None:
        """Take all tensors that a module returned, and expect their gradients."""
        together = from_one_compiled_graph(t for _, t in found) if len(found) > 1 else ()
        for leaf, tensor in found:
            state = tap.state("output", leaf)
            self.values.take(state, tensor, frame.number, frame.phase, frame.foreign)
            labels = (OUTSIDE,) if id(tensor) in together else ()
            self._expect(tap.state("grad_output", leaf), tensor, frame, labels)

    def mark(self, tensor: Tensor, name: str) -> None:
        """Take an intermediate tensor that was marked."""
        # A mark outside of the model belongs to no call, unless a checkpoint computes a part of it
        # again.
        if not self.recording or (not self.hooks.running.stack and current_task() == -1):
            return
        tap = self.hooks.mark_tap(name)
        if tap is None or self._is_dormant(tap):
            return
        # The marked tensor may have written into a view that a module returned before.
        self.gradients.views.repair()
        frame = self._frameless(tap, (tensor,), {})
        self.values.take(tap.state("output", ""), tensor, frame.number, frame.phase, frame.foreign)
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
        self.hooks.dynamo_setting.hold()
        if current_task() == -1 and not is_nested:
            self.gradients.backwards.forget_failed()
            self.hooks.identifier.enter_model()
            self._begin_pass(tap)
        mode = mode_of(module)
        # Another mode may write in place elsewhere: what was learned of copies holds no longer.
        if mode is not self._was_training:
            self._was_training = mode
            self.copy_policy.forget()
        self.gradients.prune(force=False)
        self.take_state()

    def _begin_pass(self, tap: Tap) -> None:
        """Note the first part that is called: a pass ends where it comes again."""
        if self._head in (None, tap):
            if not self._borrows:
                self.copy_policy.learn()
            self._head = tap

    def begin_training(self, tap: Tap) -> None:
        """Note for a native hook that the model is entered in training, as it was not before."""
        self.hooks.dynamo_setting.hold()
        if not tap.has_run:
            tap.note_first_call()
        tap.has_run = tap.has_trained = True
        # See ``_enter_model``.
        if self._was_training is not True:
            self._was_training = True
            self.copy_policy.forget()
        self.facts.note_forward(is_training=True)

    def new_foreign(self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[int]:
        """Begin a pass for a native hook; return the storages that the caller may write into."""
        self._begin_pass(tap)
        return _foreign(argument_leaves(args, kwargs, tap.unseen[TAKEN]), self.options)

    def take_state(self, *, is_late: bool = False) -> None:
        """Take parameters and buffers, once a step, when the model is entered.

        Args:
            is_late: it was not, and an optimizer is about to make its step.
        """
        # An optimizer that is about to step has trained the model, though no call of it was seen.
        self._has_trained |= is_late
        with self._state_lock:
            if not self._is_state_taken:
                self._is_state_taken = True
                self.values.forget_storages()
                if self._wants_state:
                    self.state.take(self.gradients.backwards, is_late=is_late)
                    self.optimizers.name_sites()

    def begin(self, tap: Tap, *, trains: bool) -> None:
        """Take the state of the step as a part of the model runs, maybe alone."""
        self._has_trained |= trains
        if not self._is_state_taken and not self._is_dormant(tap, is_counted=False):
            self.num_entries += 1
            self.hold_dynamo_setting()
            self.take_state()

    def end(self) -> None:
        """Look at parameters that a part made as it ran without the model."""
        if (
            not self.hooks.running.stack and current_task() == -1
        ):  # Else the model's own end is to come.
            self.state.look(self.gradients.backwards)

    def phase_in_graph(self, tap: Tap, *, trains: bool) -> str:
        """Return the phase of a value that a compiled graph computes in a forward."""
        frames = self.hooks.running.stack
        if frames:
            return frames[0].phase
        return self.evaluations.phase_in_graph(tap, trains=trains)

    def hold_dynamo_setting(self) -> None:
        """Let code that is compiled from now on depend on the hook tables; cheap to call again."""
        self.hooks.dynamo_setting.hold()

    def _number(
        self, tap: Tap, args: Any, kwargs: Mapping[str, Any], *, is_training: bool = True
    ) -> tuple[int, str]:
        call, phase = self.hooks.identifier.identify(tap, args, kwargs)
        frames = self.hooks.running.stack
        # Now, before a backward inside of it (a reentrant checkpoint's) is the first to be seen.
        if phase is not FORWARD:
            self.gradients.backwards.number()
        elif not frames:
            trains = is_training and torch.is_grad_enabled()
            phase = self.evaluations.phase(tap, trains=trains, evaluates=not is_training)
        elif frames[0].phase is EVAL:
            phase = EVAL
        if call == UNIDENTIFIED:
            tap.unidentified[f"{WHY_UNIDENTIFIED}: it has phase {BACKWARD!r}"] += 1
            return next(tap.call_numbers_in_backward), BACKWARD
        return call, phase

    def _frameless(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> _Frame:
        """Return a call that was not seen on entering."""
        call, phase = self._number(tap, args, kwargs)
        frames = self.hooks.running.stack
        if frames:
            return _Frame(tap, call, phase, frames[-1].foreign)
        return _Frame(tap, call, phase, _foreign(argument_leaves(args, kwargs), self.options))

    @staticmethod
    def is_own_memory(output: Any, foreign: set[int]) -> bool:
        """Return whether an output is a tensor of neither the caller's memory nor the model's."""
        if type(output) is not Tensor or output._is_view() or output.grad_fn is None:
            return False
        return storage_id(output) not in foreign

    def _is_dormant(self, tap: Tap, *, is_counted: bool = True) -> bool:
        if transform_running() is not None:
            reason = IN_TRANSFORM
        elif tracing_state() is not None:
            reason = TRACED
        elif torch.compiler.is_exporting():
            reason = EXPORTED
        else:
            # A sink runs the model for itself in this thread: that is nobody's training.
            return bool(self.busy) and threading.get_ident() in self.busy
        if is_counted:
            tap.unidentified[reason] += 1
        return True

    def _refuse_gradient(self, state: SiteState | None, tensor: Tensor) -> None:
        """Say that the gradient of an evaluation forward was wanted and is not recorded."""
        if state is not None and tensor.requires_grad and not self.options.skips_evaluation:
            state.expected += 1
            state.reason = NO_GRADIENTS


def _foreign(arguments: list[Leaf], options: WatchOptions) -> set[int]:
    """Return the storages that the caller passed in, and may write into once they are kept."""
    if options.copy == ALIAS:
        return set()
    return {storage_id(tensor) for _, tensor in arguments}


# Native hooks call these, and Dynamo looks at each frame of Python that they begin.
run_as_it_is(WatchedCalls.new_foreign, WatchedCalls.is_own_memory, WatchedCalls.begin_training)
run_as_it_is(Backwards.forget_failed)
