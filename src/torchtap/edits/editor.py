"""Carries out one edit on a model."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.distributed import gathered_parameters
from torchtap.core.errors import EditError
from torchtap.core.rebuild import replace, replace_arguments
from torchtap.core.record import BACKWARD, RECOMPUTE, UNVERSIONED, Record, new_record
from torchtap.core.site import Site
from torchtap.core.stack_frames import caught_in
from torchtap.core.tensors import obstacle
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    tracing_state,
    transform_running,
)
from torchtap.core.tree import leaves
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.gradients import GradientEdits
from torchtap.edits.nodes import NodeEdit, NodeEdits
from torchtap.hooks.calls import (
    NOT_IDENTIFIED,
    UNIDENTIFIED,
    Call,
    counted_as,
)
from torchtap.hooks.graph import from_one_compiled_graph
from torchtap.hooks.marks import open_editors
from torchtap.hooks.module_hook import EDIT, EDITS, Keywords, ModuleHook, keep_dynamo_out
from torchtap.hooks.module_hooks import TRACED, CallCounter, ModuleHooks
from torchtap.hooks.param_hooks import SWAPPED, ParamHooks, is_hooked, owned, tapped_params
from torchtap.hooks.taps import RETURNED, TAKEN, SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

WantsCall = Callable[[int], bool] | None
"""At which calls an edit works; ``None`` for all."""
EDITABLE = ("input", "output", "grad_input", "grad_output", "param_grad")
MOST_CALLS = 1 << 16
"""Calls of one site that are counted apart; a program that never steps stays flat in memory."""


Known = dict[int, tuple[Tensor, Tensor]]
"""Id of a tensor of one call -> it (or another could get its id), and what goes on in its place."""

_NO_VIEWS = 0
_serials = itertools.count()


class _Frame(Call):
    """A call whose tensors are edited."""

    __slots__ = ("first_node", "first_view")

    def __init__(self, tap: Tap, number: int, phase: str, first_view: int) -> None:
        Call.__init__(self, tap, number, phase, depth=4)
        self.first_view = first_view
        self.first_node = sequence_number()


class EditEngine:
    """Puts the hooks of one edit on, changes what flows, takes them off.

    Args:
        plan: what is to be changed.
        change: how.
        wants_call: which calls of a module, by number; ``None`` for all.
        nodes: changes autograd nodes in place of tensors.

    Attributes:
        serial: edits are made in this order.
        step: the running step.
        is_on: whether it is edited; hooks look at nothing else first.
        taps: path -> tap.
        marks: name -> tap of the marks that were reached, ``None`` if not wanted.
        reached: site -> call -> how often the function was asked.
        fired: site -> call -> how often it replaced the tensor.
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
    ) -> None:
        self.plan = plan
        self.serial = next(_serials)
        self.change = change
        self.step = 0
        self.is_on = False
        self.num_entries = 0
        self._hooks: ModuleHooks[_Frame] = ModuleHooks(plan)
        self.taps, self.root, self.marks = self._hooks.taps, self._hooks.root, self._hooks.marks
        self.reached: dict[SiteState, Counter[int]] = {}
        self.fired: dict[SiteState, Counter[int]] = {}
        self.gradients = GradientEdits(change, self.count)
        self.nodes = None if nodes is None else NodeEdits(nodes, change.name, self.count)
        self._wants_call = wants_call
        self._running, self._numbering = self._hooks.running, self._hooks.numbering
        self._params = ParamHooks()

    # ------------------------------------------------------------------ on, step, off

    def attach(self, modules: Mapping[str, nn.Module]) -> None:
        """Put the hooks on. ``modules``: path -> module."""
        for tap, module in self._hooks.tapped(modules):
            before, after = self._sides(tap)
            self._hooks.hook(
                module,
                before=EditPreForward(self, tap, EDIT) if before else None,
                after=EditPostForward(self, tap, has_frame=before) if after else None,
                counter=CallCounter(self, tap),
            )
        self.hook_params()
        if self.plan.patterns:  # Nothing else can select a mark.
            open_editors.add(self)

    def _sides(self, tap: Tap) -> tuple[bool, bool]:
        """Return whether a hook is needed before, and after, the module runs."""
        if tap is self.root:  # It must be known when the model runs.
            return True, True
        before = any(port in tap.filters for port in ("input", "grad_input", "grad_output"))
        before = before or self.nodes is not None
        is_flow = set(tap.filters) & {"output", "grad_output", "grad_input"}
        return before, bool(before or is_flow)

    def begin_step(self, step: int, *, is_on: bool) -> None:
        """Start ``step``; gradients still to come keep the step they belong to."""
        self.step = self.gradients.step = step
        self.is_on = is_on
        self._hooks.restart()
        self.gradients.backwards.restart()
        self.gradients.settle()

    def detach(self) -> None:
        """Take every hook off."""
        self.is_on = False
        open_editors.discard(self)
        self._hooks.release()
        self._params.release(
            param for _, _, param in tapped_params(self.plan, self.taps, "param_grad")
        )
        self.gradients.release()
        if self.nodes is not None:
            self.nodes.release()

    @property
    def recording(self) -> bool:
        """Return whether calls count."""
        return self.is_on

    @property
    def lost(self) -> dict[SiteState, str]:
        """Gradients that went by without being changed, with reasons."""
        return self.gradients.lost

    # ------------------------------------------------------------------ forward

    def enter(
        self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A tapped module is entered; returns what it is to be called with instead."""
        if self._is_dormant(tap):
            return None
        if tap is self.root:
            self._enter_model()
        number, phase = self._numbering.number(tap, args, kwargs)
        call = _Frame(tap, number, phase, len(self.gradients.views))
        self._running.stack.append(call)
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
        """A tapped module returned (or raised: then ``output`` is ``None``)."""
        if self._is_dormant(tap):
            return None
        call = self._running.pop(tap) if has_frame else None
        if call is None:
            number, phase = self._numbering.number(tap, args, kwargs)
            call = _Frame(tap, number, phase, _NO_VIEWS)
        else:
            self.gradients.leave(call.first_view, output, is_outermost=not self._running.stack)
        if tap is self.root:
            self.hook_params()  # Lazy parameters exist only now.
            if self._params and current_task() == -1:
                self.gradients.announce(output)
        if output is None or not tap.filters or not self._is_wanted(call):
            return None
        if self.nodes is not None:
            number = counted_as(call.number, call.phase)
            self.nodes.leave(tap, output, call.first_node, number)
            return None
        if type(output) is Tensor:
            new = self._flowing_out(call, tap.plain_output, tap.plain_gradient, {}, output)
        else:
            if "grad_output" in tap.filters:
                self._refuse_graph_outputs(tap, output)
            change = partial(self._new_output, call, {})
            new = replace(output, change, tap.unseen[RETURNED], inside=change)
        if not self._running.stack:  # What it returned itself is followed no further.
            self.gradients.leave(_NO_VIEWS, None, is_outermost=True)
        return new

    def mark(self, tensor: Tensor, name: str) -> Tensor:
        """An intermediate tensor names itself; returns what is to flow on."""
        if not self.is_on or (not self._running.stack and current_task() == -1):
            return tensor
        tap = self._hooks.mark_tap(name)
        if tap is None or self._is_dormant(tap):
            return tensor
        number, phase = self._numbering.number(tap, (tensor,), {})
        call = _Frame(tap, number, phase, _NO_VIEWS)
        call.first_node = 0  # Made by the module that marks it, not handed on by it.
        if not self._is_wanted(call):
            return tensor
        return self._flowing_out(call, tap.plain_output, tap.plain_gradient, {}, tensor)

    def _enter_model(self) -> None:
        if self._running.stack and self._running.is_stale():
            self._running.stack.clear()
        self.num_entries += 1
        self._hooks.guards.hold()
        if current_task() == -1 and not self._running.stack:
            self.gradients.backwards.forget_failed()
            self._numbering.enter_model()
            self.gradients.views.drop()  # Left behind by a KeyboardInterrupt.
            self.gradients.settle()
            self.gradients.prune()
        self.hook_params()

    def _is_wanted(self, call: Call) -> bool:
        if call.number == UNIDENTIFIED:
            raise EditError(
                f"Edit {self.change.name!r} at {call.tap.path or '.'!r} (step {self.step}): "
                f"{NOT_IDENTIFIED}, so it could be edited differently from the first time. Edit "
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

    def _refuse_graph_outputs(self, tap: Tap, output: Any) -> None:
        found = leaves(output)
        together = from_one_compiled_graph(tensor for _, tensor in found)
        for leaf, tensor in found:
            if id(tensor) in together and tap.state("grad_output", leaf) is not None:
                site = Site(tap.path, "grad_output", leaf)
                raise EditError(
                    f"Edit {self.change.name!r} cannot change the gradient at {site}: one compiled "
                    f"graph returned this tensor and another, and what flows between them inside "
                    f"the graph is out of reach. Edit a module further inside, which breaks the "
                    f"graph there."
                )

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
            self.count(state, counted_as(call.number, call.phase), new is not None)
        return tensor if new is None else new

    def count(self, state: SiteState, call: int, has_replaced: bool) -> None:
        """The function was asked at a site."""
        reached = self.reached.get(state)
        if reached is None:
            reached = self.reached[state] = Counter()
            self.fired[state] = Counter()
            state.seen = True
        if call >= MOST_CALLS:
            call = MOST_CALLS
        reached[call] += 1
        if has_replaced:
            self.fired[state][call] += 1

    def _check_gradients(self) -> GradientEdits:
        if transform_running() is not None:
            raise EditError(
                f"Edit {self.change.name!r} changes gradients, which torch.func transforms compute "
                f"without calling hooks. Edit outputs, or differentiate with torch.autograd."
            )
        return self.gradients

    def _is_dormant(self, tap: Tap) -> bool:
        if not self.is_on:
            return True
        if tracing_state() is not None:
            tap.reason = TRACED
            return True
        return False

    # ------------------------------------------------------------------ parameters

    def hook_params(self) -> None:
        """Hook the parameters whose gradients are to be changed, also those that are new."""
        seen: set[int] = set()
        gathered = gathered_parameters()
        for state, module, param in tapped_params(self.plan, self.taps, "param_grad"):
            if obstacle(param) is not None:
                continue
            if id(param) in seen:
                state.reason = "another selected module owns the same parameter; edited there"
                continue
            seen.add(id(param))
            self._hook_param(state, module, gathered.get(id(param), param))

    def _hook_param(self, state: SiteState, module: nn.Module, param: Tensor) -> None:
        path, name = state.site.path, state.site.leaf
        if self._params.has(path, name, param):
            if self._params.was_swapped(path, name, param):
                self.lost[state] = SWAPPED
            return
        if not param.requires_grad or not param.is_leaf:
            state.reason = "it does not require grad" if param.is_leaf else "it is no leaf"
            return
        handles: list[RemovableHandle] = []
        hook = partial(self._change_param, state, weakref.ref(module), handles)
        handles.append(param.register_hook(hook))  # type: ignore[no-untyped-call]
        self._params.add(path, name, param, handles[0])

    def _change_param(
        self,
        state: SiteState,
        module: Callable[[], nn.Module | None],
        handles: list[RemovableHandle],
        gradient: Tensor | None,
    ) -> Tensor | None:
        if gradient is None or not self.is_on:
            return None
        if not any(is_hooked(one, handles[0]) for one in owned(module(), state.site.leaf)):
            return None
        call = self.gradients.backwards.number()
        if self._wants_call is not None and not self._wants_call(call):
            return None
        state.expected += 1
        state.received += 1
        return self.gradients.change(state, gradient, self.step, call)


def _state_of_value(tap: Tap, port: str, leaf: str, holder: str) -> SiteState | None:
    """The state of a value to be changed. In an object only what was asked for by its name.

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


class EditPreForward(ModuleHook[EditEngine]):
    """Forward pre-hook of an edit."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> Any:
        return self.owner.enter(self.tap, args, kwargs or {}) if self.owner.is_on else None


class EditPostForward(ModuleHook[EditEngine]):
    """Forward hook of an edit."""

    __slots__ = ("has_frame",)

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
keep_dynamo_out(EditEngine._change_param)
