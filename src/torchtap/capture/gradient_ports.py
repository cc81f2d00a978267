"""Hears of gradients: of tensors as they are now, and of what flows out to a module's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtap.capture.copy_policy import ALIAS, CopyPolicy
from torchtap.capture.pending_gradient import PendingGradient, add_boundary_gradients
from torchtap.capture.plain_calls import new_gradients
from torchtap.core.inference_mode import normal_copy
from torchtap.core.no_grad import BATCHED, why_no_grad
from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record
from torchtap.core.torch_frames import adds_to_buffers
from torchtap.core.torch_private import (
    current_task,
    is_legacy_batched,
    is_of_transform,
    sequence_number,
)
from torchtap.core.weak_method import weakly
from torchtap.hooks.backwards import Backwards
from torchtap.hooks.calls import Call
from torchtap.hooks.followed_views import FollowedViews
from torchtap.hooks.graph_edges import (
    EDITED,
    BoundaryEdge,
    Edge,
    Geometry,
    InputEdge,
    Node,
    before_edits,
    boundary_edges,
    edge_of,
    geometry_in_base,
    input_edges,
)
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.tap import GradHook, SiteState
from torchtap.hooks.tensor_hooks import TensorHooks
from torchtap.stats.kernels import native

BUFFERED = (
    "the backward of a custom function adds it to a buffer of autograd (ctx.input_grad_buffers), "
    "and PyTorch refuses hooks that would see it; grad_output of the module before has the total"
)


class ModuleInputs:
    """The arguments of one call whose gradients through the module are wanted.

    Attributes:
        states: number of the argument -> its state.
        tensors: number of the argument -> the tensor.
        shapes: number of the argument -> its shape as it came; ``t_`` and the like change it.
        labels: number of the argument -> what is to be known of its gradient.
        entering: where they enter the graph.
        path: of the module.
        phase: of the gradients.
        first: number of the first node that the module can have made.
        versions: number of the argument -> its version, of views that show their base in another
            dtype: a write into one goes past all nodes that are known here.
    """

    __slots__ = (
        "call",
        "entering",
        "first",
        "labels",
        "path",
        "phase",
        "shapes",
        "states",
        "tensors",
        "versions",
    )

    def __init__(self, path: str, call: int, phase: str) -> None:
        self.path = path
        self.call = call
        self.phase = phase
        self.states: dict[int, SiteState] = {}
        self.tensors: dict[int, Tensor] = {}
        self.shapes: dict[int, torch.Size | None] = {}
        self.labels: dict[int, tuple[str, ...]] = {}
        self.entering: dict[Edge, list[InputEdge]] = {}
        self.first = 0
        self.versions: dict[int, int] = {}


class Gradients:
    """All gradients that one engine waits for.

    Args:
        copy_policy: keeps values.
        emit: takes records.
        ended: called at the end of each backward.
        grad_input: ``through`` or ``total``.
        looks: ``after`` edits, or ``before`` them.

    Attributes:
        on_tensors: our hooks on what operations made.
        views: that were returned, and may yet be overwritten.
        plain: takes plain gradients natively, if they are.
    """

    def __init__(
        self,
        copy_policy: CopyPolicy,
        emit: Callable[[Record], None],
        ended: Callable[[], None],
        grad_input: str,
        looks: str,
    ) -> None:
        self.step = 0
        self._looks_before = looks == "before"
        self.backwards = Backwards(ended)
        self._copy_policy = copy_policy
        self._emit = emit
        self._grad_input = grad_input
        self.views: FollowedViews[PendingGradient] = FollowedViews(weakly(self.hold))
        self.on_tensors = TensorHooks(weakly(self._is_ours))
        borrows = copy_policy.copy == ALIAS
        is_native = native.takes_calls()
        self.plain = new_gradients(self, emit, borrows=borrows) if is_native else None
        self._leaves: list[Any] = []
        self._handles: list[Any] = []
        self._prune_at = 1024

    # ------------------------------------------------------------------ delivery

    def deliver(
        self,
        state: SiteState,
        step: int,
        call: int,
        labels: tuple[str, ...],
        gradient: Tensor | None,
        *,
        phase: str = FORWARD,
    ) -> None:
        """Take a gradient that has arrived."""
        if gradient is None:
            return
        # torch.autograd.grad(..., is_grads_batched=True) and torch.func send wrappers of many
        # gradients through the same hooks: each would be measured as if it were one.
        if is_legacy_batched(gradient) or is_of_transform(gradient):  # See ``is_batched``.
            state.reason = BATCHED
            return
        state.received += 1
        state.seen = True
        # A meter knows nothing of labels and phases.
        if not labels and phase is FORWARD and state.meter(gradient, step):
            return
        # Asked before the value is kept: in its first backward it looks for the caller's gradients.
        number = self.backwards.number()
        given = self.backwards.given
        is_plain = type(gradient) is Tensor and not gradient.requires_grad
        # The work of keep(), in short.
        if is_plain and state.copies is False and not given:
            kept, version = gradient, gradient._version
        elif is_plain and state.copies:
            kept, version = normal_copy(gradient), UNVERSIONED
        else:
            kept, version, part = self._copy_policy.keep(state, gradient, given)
            labels += part
        row = (state.site, step, call, phase, number, labels, kept, version)
        self._emit(new_record(Record, row))

    # ------------------------------------------------------------------ of a tensor as it is

    def expect(
        self,
        state: SiteState | None,
        tensor: Tensor,
        call: int,
        phase: str,
        labels: tuple[str, ...] = (),
    ) -> None:
        """Receive the gradient of a tensor as it is now, over all its uses."""
        if state is None:
            return
        if not tensor.requires_grad:
            state.reason = why_no_grad(tensor)
        # No backward runs through the graph that a non-reentrant checkpoint makes anew: it is
        # thrown away when its saved tensors are taken, so a hook on it would wait for ever.
        elif call >= 0 and (current_task() == -1 or not _is_graph_discarded()):
            pending = PendingGradient(self, state, call, phase, labels)
            self._hook(tensor, GradHook(pending.add))
            pending.views = self.views.follow(tensor, pending)

    def expect_plain(self, state: SiteState, tensor: Tensor, call: int, *, is_view: bool) -> None:
        """Receive the gradient of a plain tensor of a training forward: ``expect`` in short.

        Args:
            state: of the site.
            tensor: made by an operation.
            call: number of the call.
            is_view: whether the tensor is a view; a call around it tells of writes into it.
        """
        if is_view:
            pending = PendingGradient(self, state, call, FORWARD)
            pending.views = self.views.follow(tensor, pending)
            hook = GradHook(pending.add)
        else:
            state.expected += 1
            hook = GradHook(self.deliver, state, self.step, call, ())
        # Hooked as it is now: a write in place later gives the tensor another node, and this hook
        # stays with the old one, whose gradient is that of the value taken.
        # (register_full_backward_hook refuses such modules, pytorch/pytorch#61519.)
        self.on_tensors.put(tensor, hook)

    def announce(self, outputs: Iterable[Tensor]) -> None:
        """Number the backward where it starts from these.

        A reentrant checkpoint inside it runs backwards of its own. Where parameters are all that
        is watched, those would be the first to be received, and be taken for the outermost.
        """
        for tensor in outputs:
            if tensor.requires_grad:
                self._hook(tensor, GradHook(self._begin))

    def _begin(self, _: Tensor | None) -> None:
        self.backwards.number()

    # ------------------------------------------------------------------ through a module

    def note_inputs(
        self, entered: Call, arguments: list[tuple[str, Tensor]]
    ) -> ModuleInputs | None:
        """Note where the arguments of a module that is entered come into the graph."""
        tap, call, phase = entered.tap, entered.number, entered.phase_of_gradients
        inputs = ModuleInputs(tap.path, call, phase)
        for place, (leaf, tensor) in enumerate(arguments):
            state = tap.state("grad_input", leaf)
            if state is None:
                continue
            if not tensor.requires_grad or not torch.is_grad_enabled():
                state.reason = why_no_grad(tensor)
            elif self._grad_input == "total":
                self.expect(state, tensor, call, phase, ("total",))
            elif call >= 0 and (current_task() == -1 or not _is_graph_discarded()):
                inputs.states[place] = state
                inputs.tensors[place] = tensor
                # A nested tensor is never broadcast, and one of strided memory has no shape.
                inputs.shapes[place] = None if tensor.is_nested else tensor.shape
                base = tensor._base if tensor._is_view() else None
                if base is not None and base.dtype != tensor.dtype:
                    inputs.versions[place] = tensor._version
        if not inputs.states:
            return None
        inputs.entering = input_edges(inputs.tensors.items())
        inputs.first = sequence_number()
        self._look_behind_edits(inputs)
        for sharing in inputs.entering.values():
            places = [entry.place for entry in sharing if entry.geometry is None]
            if len(places) > 1:
                label = f"sum of {len(places)} slots"
                inputs.labels.update(dict.fromkeys(places, (label,)))
        return inputs

    def _look_behind_edits(self, inputs: ModuleInputs) -> None:
        """Put the edges behind the gradient edits of this module in the place of theirs."""
        for edge, sharing in list(inputs.entering.items()):
            outside, first = before_edits(edge, inputs.path)
            if outside != edge:
                inputs.first = min(inputs.first, first)
                inputs.entering.setdefault(outside, []).extend(sharing)
                del inputs.entering[edge]

    def connect(self, inputs: ModuleInputs, outputs: Iterable[Tensor]) -> None:
        """Find where the arguments of a module entered, now that its graph is there."""
        for place, version in inputs.versions.items():
            if inputs.tensors[place]._version != version:
                state = inputs.states.pop(place)
                state.expected += 1
                state.reason = "it is a view in another dtype, and the module overwrote it"
        unchanged: set[int] = set()
        roots = []
        for tensor in outputs:
            if not tensor.requires_grad:
                continue
            # Returned as it came, an argument has no node of the module behind it: what flows
            # through the module cannot be told from what else flows to the tensor.
            direct = [
                entry.place
                for entry in inputs.entering.get(edge_of(tensor), ())
                if entry.geometry is None and entry.place in inputs.states
            ]
            for place in direct:
                # A module may return one argument several times, and its gradient comes once.
                if place not in unchanged:
                    unchanged.add(place)
                    state, call, phase = inputs.states[place], inputs.call, inputs.phase
                    self.expect(state, tensor, call, phase, ("total",))
            if not direct and tensor.grad_fn is not None:
                roots.append(tensor)
        nodes_of: dict[int, dict[Node, list[BoundaryEdge]]] = {}
        edited = inputs.path if self._looks_before else None
        for node, slots in boundary_edges(roots, inputs.entering, inputs.first, edited).items():
            for edge in slots:
                if edge.place in inputs.states and edge.place not in unchanged:
                    nodes_of.setdefault(edge.place, {}).setdefault(node, []).append(edge)
        for place, nodes in nodes_of.items():
            if any(map(adds_to_buffers, nodes)):
                state = inputs.states[place]
                state.expected += 1
                state.reason = BUFFERED
            else:
                self._connect_argument(inputs, place, nodes, roots)
        for place in inputs.states.keys() - nodes_of.keys() - unchanged:
            state = inputs.states[place]
            state.expected += 1
            state.reason = "what the module returned does not depend on it"

    def _connect_argument(
        self,
        inputs: ModuleInputs,
        place: int,
        nodes: dict[Node, list[BoundaryEdge]],
        outputs: list[Tensor],
    ) -> None:
        tensor = inputs.tensors[place]
        labels = inputs.labels.get(place, ())
        state, call, phase = inputs.states[place], inputs.call, inputs.phase
        pending = PendingGradient(self, state, call, phase, labels, len(nodes))
        for node, found in nodes.items():
            hook = partial(
                add_boundary_gradients, pending, found, inputs.shapes[place], tensor.dtype
            )
            if self._looks_before and node.metadata.get(EDITED) == inputs.path:
                # Before the identity's own hooks, which are the edits.
                handle = node.register_prehook(partial(_as_prehook, hook))
            else:
                handle = node.register_hook(hook)
            self._handles.append(handle)
        for output in outputs:
            # A write into a view of the argument goes past the view's node.
            if output._is_view() and output._base is not None:
                if output._base is tensor:
                    pending.views += self.views.follow(output, pending, Geometry.whole(tensor))
                elif tensor._is_view() and output._base is tensor._base:
                    pending.views += self.views.follow(output, pending, geometry_in_base(tensor))

    # ------------------------------------------------------------------ hooks on tensors

    def _hook(self, tensor: Tensor, hook: GradHook) -> None:
        if type(tensor) is not Tensor or tensor.grad_fn is None:
            handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            if tensor.grad_fn is None:
                # It would outlive the graph: it is kept with its owner until a gradient came.
                self._leaves.append((handle, getattr(hook.func, "__self__", None)))
            else:
                self._handles.append(handle)
            return
        self.on_tensors.put(tensor, hook)

    def _release_leaves(self, *, force: bool) -> None:
        """Take the hooks off tensors that outlive their graph; those that fired, or all."""
        kept = []
        for handle, owner in self._leaves:
            if force or not isinstance(owner, PendingGradient) or owner.has_arrived:
                handle.remove()
            else:
                kept.append((handle, owner))
        self._leaves = kept

    def release(self) -> None:
        """Take every hook off, also those on tensors of graphs that are still alive."""
        self._release_leaves(force=True)
        self.on_tensors.release()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.views.drop()
        if self.plain is not None:
            self.plain.release()

    def hold(self, handle: Any) -> None:
        """Take this hook off with the others."""
        self._handles.append(handle)

    def _is_ours(self, hook: GradHook) -> bool:
        owner = getattr(hook.func, "__self__", None)
        return getattr(owner, "gradients", owner) is self  # Of one gradient, or of all.

    @property
    def are_pruned(self) -> bool:
        """Return whether a step can begin without :meth:`prune`."""
        if self._leaves or self._handles:
            return False
        return len(self.on_tensors.tables) < self._prune_at

    def prune(self, *, force: bool) -> None:
        """Forget what belongs to graphs that were freed, and to leaves whose gradient came."""
        if self._leaves and (force or current_task() == -1):
            self._release_leaves(force=force)
        on_tensors = self.on_tensors
        num_known = len(on_tensors.tables) + len(self._handles)
        if not force and num_known < self._prune_at:
            return
        if num_known:
            on_tensors.prune()
            # The table of hooks belongs to its tensor or node, and the handle refers to it weakly:
            # with the table gone, the graph was freed.
            if self._handles:
                self._handles = [h for h in self._handles if h.hooks_dict_ref() is not None]
            num_known = len(on_tensors.tables) + len(self._handles)
        # Twice what is alive, so that pruning costs a constant share of hooking, however long a
        # graph lives.
        self._prune_at = 1024 + 2 * num_known


def _is_graph_discarded() -> bool:
    """Asked inside a backward alone, where modules rarely run."""
    from torchtap.hooks.checkpoint_calls import is_graph_discarded

    return is_graph_discarded()


def _as_prehook(hook: Callable[[Any, Any], None], gradients: tuple[Tensor | None, ...]) -> None:
    """A pre-hook of an identity node: its incoming gradient is its outgoing one, before edits."""
    hook(gradients, None)


keep_dynamo_out(Gradients.deliver, Gradients._begin, _as_prehook)
