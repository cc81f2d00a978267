"""Carries out one edit on a model."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torchtap.core.errors import EditError
from torchtap.core.rebuild import replace, replace_arguments
from torchtap.core.record import BACKWARD, RECOMPUTE, UNVERSIONED, Record, new_record
from torchtap.core.site import Site
from torchtap.core.stack_frames import caught_in
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    tracing_state,
    transform_running,
)
from torchtap.core.tree import leaves
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.edit_counts import EditCounts
from torchtap.edits.gradient_edits import GradientEdits
from torchtap.edits.node_edits import NodeEdit, NodeEdits
from torchtap.edits.param_edits import ParamEdits
from torchtap.edits.plain_edits import plain_hooks
from torchtap.hooks.calls import (
    UNIDENTIFIED,
    WHY_UNIDENTIFIED,
    Call,
    number_in_report,
)
from torchtap.hooks.graph_edges import from_one_compiled_graph
from torchtap.hooks.marks import open_editors
from torchtap.hooks.module_hook import EDIT, EDITS, Keywords, TapHook, keep_dynamo_out
from torchtap.hooks.tap import RETURNED, TAKEN, SiteState, Tap
from torchtap.hooks.tap_follower import TRACED, CallCounter, TapFollower

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

WantsCall = Callable[[int], bool] | None
"""At which calls an edit works; ``None`` for all."""
Known = dict[int, tuple[Tensor, Tensor]]
"""Id of a tensor of one call -> it (or another could get its id), and what goes on in its place."""

_NO_VIEWS = 0
_serials = itertools.count()


class _Frame(Call):
    """A call whose tensors are edited.

    Attributes:
        first_node: nodes with this number and larger ones were made within the call; 0 where no
            gradient of what it returns is edited.
        first_view: how many views were followed when it began.
    """

    __slots__ = ("first_node", "first_view")

    def __init__(
        self, tap: Tap, number: int, phase: str, first_node: int = 0, first_view: int = 0
    ) -> None:
        Call.__init__(self, tap, number, phase, depth=4)
        self.first_view = first_view
        self.first_node = first_node


class EditEngine:
    """Puts the hooks of one edit on, changes what flows, takes them off.

    Args:
        plan: what is to be changed.
        change: how.
        wants_call: which calls of a module, by number; ``None`` for all.
        nodes: changes autograd nodes in place of tensors.
        follows_model: whether calls of the model are followed too, as backwards, steps, and reports
            of what never came need it. A study runs one forward and asks for none of them.

    Attributes:
        serial: edits are made in this order.
        step: the running step.
        is_on: whether it is edited; hooks look at nothing else first.
        taps: path -> tap.
        marks: name -> tap of the marks that were reached, ``None`` if not wanted.
        reached: see :class:`~torchtap.edits.edit_counts.EditCounts`.
        fired: likewise.
        lost: gradients that went by without being changed, with reasons.
        num_entries: how often the model was called.
        why_silent: why nothing came to a site, where there is one reason for all.
    """

    why_silent: str | None = None

    def __init__(
        self,
        plan: Plan,
        change: CheckedEdit,
        *,
        wants_call: WantsCall,
        nodes: NodeEdit | None = None,
        follows_model: bool = True,
    ) -> None:
        self.plan = plan
        self._follows_model = follows_model
        self.serial = next(_serials)
        self.change = change
        self.step = 0
        self.is_on = False
        self.num_entries = 0
        self._hooks: TapFollower[_Frame] = TapFollower(plan)
        self.taps, self.root, self.marks = self._hooks.taps, self._hooks.root, self._hooks.marks
        counts = EditCounts()
        self.reached, self.fired, self._count = counts.reached, counts.fired, counts.add
        self.gradients = GradientEdits(change, self._count)
        self.lost = self.gradients.lost
        self.nodes = None if nodes is None else NodeEdits(nodes, change.name, self._count)
        self._params = ParamEdits(plan, self.taps, self.gradients, wants_call)
        self._wants_call = wants_call

    # ------------------------------------------------------------------ on, step, off

    def attach(self, modules: Mapping[str, nn.Module]) -> None:
        """Put the hooks on. ``modules``: path -> module."""
        for tap, module in self._hooks.tapped(modules):
            is_followed = tap is self.root and self._follows_model
            before, after = _sides(tap, is_root=is_followed, has_nodes=self.nodes is not None)
            self._hooks.put_on_counting(
                module,
                **self._hooks_of(tap, before=before, after=after),
                counter=CallCounter(self, tap),
            )
        self._params.put_on()
        if self.plan.patterns:  # Nothing else can select a mark.
            open_editors.add(self)

    def _hooks_of(self, tap: Tap, *, before: bool, after: bool) -> dict[str, Any]:
        """Make the hooks of one module, each if it is needed."""
        enter = EditPreForward(self, tap, EDIT) if before else None
        leave = EditPostForward(self, tap, has_frame=before) if after else None
        if enter is not None and leave is not None and self._is_of_gradients_alone(tap):
            running, blank = self._hooks.running, partial(object.__new__, _Frame)
            plain = plain_hooks(enter, leave, running, blank)
            if plain is not None:
                return dict(zip(("pre_hook", "post_hook"), plain, strict=True))
        return {"pre_hook": enter, "post_hook": leave}

    def _is_of_gradients_alone(self, tap: Tap) -> bool:
        """Return whether every call of a module is edited, at what flows back to its output."""
        is_any_call = self._wants_call is None and self.nodes is None
        is_alone = tap.filters.keys() == {"grad_output"} and tap.plain_gradient is not None
        return is_any_call and is_alone and tap is not self.root

    def begin_step(self, step: int, *, is_on: bool) -> None:
        """Start ``step``; gradients still to come keep the step they belong to."""
        self.step = self.gradients.step = step
        self.is_on = self._params.is_on = is_on
        self._hooks.restart()
        if self.gradients.are_edited:
            self.gradients.begin_step()

    def detach(self) -> None:
        """Take every hook off."""
        self.is_on = False
        open_editors.discard(self)
        self._hooks.release()
        self._params.release()
        self.gradients.release()
        if self.nodes is not None:
            self.nodes.release()

    @property
    def recording(self) -> bool:
        """Return whether calls count."""
        return self.is_on

    # ------------------------------------------------------------------ forward

    def enter(
        self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Edit the arguments of a tapped module that is entered; returns new ones, if any."""
        if _is_traced(tap):
            return None
        if tap is self.root:
            self._enter_model()
        number, phase = self._hooks.identifier.identify(tap, args, kwargs)
        # Asking costs more than the rest of a frame, in a step that has left the caches cold.
        first_node = sequence_number() if tap.filters else 0
        first_view = len(self.gradients.views) if self.gradients.are_edited else 0
        call = _Frame(tap, number, phase, first_node, first_view)
        self._hooks.running.stack.append(call)
        takes_arguments = "input" in tap.filters or "grad_input" in tap.filters
        if not takes_arguments or not self._is_wanted(call):
            return None
        new = partial(self._new_argument, call, {})
        return replace_arguments(args, kwargs, new, tap.unseen[TAKEN], inside=new)

    def leave(
        self,
        tap: Tap,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        *,
        has_frame: bool,
    ) -> Any:
        """Edit the output of a tapped module; ``None`` where it raised."""
        if _is_traced(tap):
            return None
        left = self._hooks.running.leave(tap) if has_frame else ()
        call = left[-1] if left else None
        if call is None:
            number, phase = self._hooks.identifier.identify(tap, args, kwargs)
            call = _Frame(tap, number, phase, sequence_number() if has_frame else 0)
        elif self.gradients.are_edited:
            self.gradients.leave(
                call.first_view, output, is_outermost=not self._hooks.running.stack
            )
        if self._params.are_edited and tap is self.root:
            self._params.put_on()  # Lazy parameters exist only now.
            if self._params.hooks and current_task() == -1:
                self.gradients.announce(output)
        if output is None or not tap.filters or not self._is_wanted(call):
            return None
        if self.nodes is not None:
            number = number_in_report(call.number, call.phase)
            self.nodes.leave(tap, output, call.first_node, number)
            return None
        if type(output) is Tensor:
            new = self._flowing_out(call, tap.plain_output, tap.plain_gradient, {}, output)
        else:
            if "grad_output" in tap.filters:
                _refuse_graph_outputs(self.change.name, tap, output)
            change = partial(self._new_output, call, {})
            new = replace(output, change, tap.unseen[RETURNED], inside=change)
        # The return value of the outermost call is followed no further.
        if self.gradients.are_edited and not self._hooks.running.stack:
            self.gradients.leave(_NO_VIEWS, None, is_outermost=True)
        return new

    def mark(self, tensor: Tensor, name: str) -> Tensor:
        """Edit an intermediate tensor that was marked; returns what is to flow on."""
        if not self.is_on or (not self._hooks.running.stack and current_task() == -1):
            return tensor
        tap = self._hooks.mark_tap(name)
        if tap is None or _is_traced(tap):
            return tensor
        number, phase = self._hooks.identifier.identify(tap, (tensor,), {})
        # Its first node is 0: made by the module that marks it, not handed on by it.
        call = _Frame(tap, number, phase)
        if not self._is_wanted(call):
            return tensor
        return self._flowing_out(call, tap.plain_output, tap.plain_gradient, {}, tensor)

    def _enter_model(self) -> None:
        if self._hooks.running.stack and self._hooks.running.is_stale():
            self._hooks.running.stack.clear()
        self.num_entries += 1
        self._hooks.dynamo_setting.hold()
        if current_task() == -1 and not self._hooks.running.stack:
            self._hooks.identifier.enter_model()
            if self.gradients.are_edited:
                self.gradients.enter_model()
        if self._params.are_edited:
            self._params.put_on()

    def _is_wanted(self, call: Call) -> bool:
        if call.number == UNIDENTIFIED:
            raise EditError(
                f"Edit {self.change.name!r} at {call.tap.path or '.'!r} (step {self.step}): "
                f"{WHY_UNIDENTIFIED}, so it could be edited differently from the first time. Edit "
                f"the checkpointed module itself, or one outside of it."
            )
        if self._wants_call is None:
            return True
        return call.phase is not BACKWARD and self._wants_call(call.number)

    # ------------------------------------------------------------------ one tensor

    def _new_argument(
        self, call: _Frame, known: Known, leaf: str, tensor: Tensor, holder: str = ""
    ) -> Tensor:
        tap = call.tap
        state = _state_of_value(tap, "input", leaf, holder)
        if state is not None:
            tensor = self._changed(state, tensor, call)
        state = tap.state("grad_input", leaf)
        if state is None:
            return tensor
        # One tensor in several slots (self-attention) stays one: its gradient is the sum.
        if id(tensor) not in known:
            gradients, phase = self._check_gradients(), call.phase_of_gradients
            known[id(tensor)] = tensor, gradients.isolated(state, tensor, call.number, phase)
        return known[id(tensor)][1]

    def _new_output(
        self, call: _Frame, known: Known, leaf: str, tensor: Tensor, holder: str = ""
    ) -> Tensor:
        state = _state_of_value(call.tap, "output", leaf, holder)
        state_of_gradient = call.tap.state("grad_output", leaf)
        return self._flowing_out(call, state, state_of_gradient, known, tensor)

    def _flowing_out(
        self,
        call: _Frame,
        state: SiteState | None,
        state_of_gradient: SiteState | None,
        known: Known,
        tensor: Tensor,
    ) -> Tensor:
        if state is not None:
            tensor = self._changed(state, tensor, call)
        if state_of_gradient is None:
            return tensor
        if id(tensor) not in known:
            known[id(tensor)] = tensor, self._with_edited_gradient(state_of_gradient, tensor, call)
        return known[id(tensor)][1]

    def _with_edited_gradient(self, state: SiteState, tensor: Tensor, call: _Frame) -> Tensor:
        gradients = self._check_gradients()
        node: Any = tensor.grad_fn
        is_others = node is None or node._sequence_nr() < call.first_node
        if tensor.requires_grad and is_others:  # It may be used elsewhere too.
            return gradients.of_own(state, tensor, call.number, call.phase_of_gradients)
        gradients.of_tensor(state, tensor, call.number, call.phase_of_gradients)
        return tensor

    def _changed(self, state: SiteState, tensor: Tensor, call: Call) -> Tensor:
        row = (state.site, self.step, call.number, call.phase, -1, (), tensor, UNVERSIONED)
        new = self.change(tensor, new_record(Record, row))
        if call.phase is not RECOMPUTE:
            self._count(state, number_in_report(call.number, call.phase), new is not None)
        return tensor if new is None else new

    def _check_gradients(self) -> GradientEdits:
        if transform_running() is not None:
            raise EditError(
                f"Edit {self.change.name!r} changes gradients, which torch.func transforms compute "
                f"without calling hooks. Edit outputs, or differentiate with torch.autograd."
            )
        return self.gradients


def _is_traced(tap: Tap) -> bool:
    """Return whether ``torch.jit`` is tracing, which would write the edit into its graph."""
    if tracing_state() is None:
        return False
    tap.reason = TRACED
    return True


def _state_of_value(tap: Tap, port: str, leaf: str, holder: str) -> SiteState | None:
    """Return the state of a value to be changed; in an object only if asked for by its name.

    Nothing can be put in its place there, so naming it is an error. A pattern that takes all of a
    port means the tensors that can be changed, and the others are said to be absent.
    """
    state = tap.state(port, leaf)
    if state is None or not holder or not tap.filters[port].is_open:
        return state
    side = TAKEN if port == "input" else RETURNED
    tap.unseen[side][leaf] = (
        f"an attribute of a {holder}, which an edit neither copies nor writes into because others "
        f"may hold it"
    )
    return None


def _sides(tap: Tap, *, is_root: bool, has_nodes: bool) -> tuple[bool, bool]:
    """Return whether a hook is needed before, and after, the module runs."""
    if is_root:  # It must be known when the model runs.
        return True, True
    before = any(port in tap.filters for port in ("input", "grad_input", "grad_output"))
    before = before or has_nodes
    is_flow = set(tap.filters) & {"output", "grad_output", "grad_input"}
    return before, bool(before or is_flow)


def _refuse_graph_outputs(name: str, tap: Tap, output: Any) -> None:
    outputs = leaves(output)
    together = from_one_compiled_graph(tensor for _, tensor in outputs)
    for leaf, tensor in outputs:
        if id(tensor) in together and tap.state("grad_output", leaf) is not None:
            site = Site(tap.path, "grad_output", leaf)
            raise EditError(
                f"Edit {name!r} cannot change the gradient at {site}: one compiled "
                f"graph returned this tensor and another, and what flows between them inside "
                f"the graph is out of reach. Edit a module further inside, which breaks the "
                f"graph there."
            )


class EditPreForward(TapHook[EditEngine]):
    """Forward pre-hook of an edit."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> Any:
        return self.owner.enter(self.tap, args, kwargs or {}) if self.owner.is_on else None


class EditPostForward(TapHook[EditEngine]):
    """Forward hook of an edit."""

    __slots__ = ("has_frame",)

    with_kwargs = always_call = True

    def __init__(self, owner: EditEngine, tap: Tap, *, has_frame: bool) -> None:
        super().__init__(owner, tap, EDIT)
        self.has_frame = has_frame

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None
    ) -> Any:
        editor = self.owner
        if not editor.is_on:
            return None
        if type(kwargs) is not dict:
            kwargs, output = {}, kwargs
        error = caught_in(sys._getframe(1))
        if error is not None:
            output = None  # The module raised, or a hook before this one: nothing flows on.
            if current_task() == -1:  # Inside a backward, a checkpoint stops by raising.
                self.tap.raised[type(error).__name__] += 1
        return editor.leave(self.tap, args, kwargs, output, has_frame=self.has_frame)


keep_dynamo_out(EditPreForward.__call__, EditPostForward.__call__, reason=EDITS)
