"""One gradient on its way: its parts, the views it depends on, and the hooks that bring it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.core.distributed import is_distributed
from torchtap.core.no_grad import BATCHED, is_batched
from torchtap.core.record import FORWARD
from torchtap.core.torch_private import call_after_backward, current_node, current_task, will_run
from torchtap.hooks.followed_views import ViewState
from torchtap.hooks.graph_edges import (
    BoundaryEdge,
    Geometry,
)
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.tap import SiteState

NO_TASK = -1
PARTIAL = "the backward was asked for other gradients only (inputs=), so not all of it flowed"
PASSED_BY = (
    "an earlier backward with create_graph=True made paths around the module's own nodes, and what "
    "flows there is not known"
)
NO_NODE = (
    "compiled autograd is on, whose backwards run no nodes that could be asked whether all parts "
    "of this gradient come: turn it off (torch._dynamo.config.compiled_autograd = False)"
)
APART = (
    "it comes in several parts of distributed tensors (DTensor), and adding them up would take "
    "communication between the ranks"
)
SHARED = "shared memory"
"""Label of a gradient whose tensor was overwritten through a view: uses of that memory after the
write count, by whichever tensor."""
OUTSIDE = "outside the compiled graph"
"""Label of a gradient from what was done with the tensor after a compiled graph had returned it;
what the graph itself made of it is not in it."""


class Receiver(Protocol):
    """Interface of :class:`~torchtap.capture.gradient_ports.Gradients`, which takes gradients.

    Attributes:
        step: the running step.
    """

    step: int

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
        """A gradient has arrived."""

    def hold(self, handle: Any) -> None:
        """Remove this hook with all others."""


class PendingGradient:
    """The parts of one gradient, which arrive at one or several nodes of one backward.

    Attributes:
        num_parts: with one part it is delivered at once, else at the end of the backward.
        has_arrived: whether it was delivered, in any backward.
        graph_task: the backward that brought it and can be differentiated itself.
        given_up: the backward in which it is not available.
        views: watches over the views that the gradient depends on.
    """

    __slots__ = (
        "call",
        "given_up",
        "gradients",
        "graph_task",
        "has_arrived",
        "labels",
        "num_parts",
        "phase",
        "state",
        "step",
        "sums",
        "views",
    )

    def __init__(
        self,
        gradients: Receiver,
        state: SiteState,
        call: int,
        phase: str,
        labels: tuple[str, ...] = (),
        num_parts: int = 1,
    ) -> None:
        self.gradients = gradients
        self.state = state
        self.step = gradients.step
        self.call = call
        self.phase = phase
        self.labels = labels
        self.num_parts = num_parts
        self.views: tuple[ViewState, ...] = ()
        self.sums: dict[int, Tensor] = {}
        self.has_arrived = False
        self.graph_task = self.given_up = NO_TASK
        state.expected += 1

    @classmethod
    def resumed(
        cls, gradients: Receiver, state: SiteState, step: int, call: int, view: ViewState
    ) -> PendingGradient:
        """Go on with the gradient of a view that was expected natively, and is counted already."""
        pending = cls(gradients, state, call, FORWARD)
        state.expected -= 1
        pending.step = step
        pending.views = (view,)
        return pending

    def add(self, part: Tensor | None) -> None:
        """Take one part."""
        if part is None:
            return
        if is_batched(part):
            self.state.reason = BATCHED
            return
        if self.views and any(view.is_lost for view in self.views):
            self.state.reason = (
                "it is (or hands on) a view that was overwritten after the last watched module "
                "returned, where autograd loses its gradient. Mark the overwritten tensor with "
                "tt.mark, or return a copy"
            )
            return
        # Needs no callback at the end of the backward, which would hold the gradient until then.
        if self.num_parts == 1:
            self._deliver(part)
            return
        # With create_graph=True a part has a graph of its own, which the sum must neither grow nor
        # keep.
        part = part.detach()
        task = current_task()
        if task in self.sums:
            if not is_alike(self.sums[task], part):
                self.give_up(APART)
                return
            # Never in place: autograd may hand the buffer of the first part on to other nodes.
            self.sums[task] = self.sums[task] + part
        else:
            self.sums[task] = part
            call_after_backward(partial(self._finish, task))

    def give_up(self, reason: str) -> None:
        """It is not available in the backward that is running."""
        self.state.reason = reason
        # Counted once for each backward, however many of its parts cannot be had.
        if self.given_up != current_task():
            self.given_up = current_task()
            self.state.expected += self.has_arrived  # Expected once more, and never received.

    def on_overwritten(self, geometry: Geometry, argument: Geometry | None) -> Callable[..., Any]:
        """Make the hook of the ``CopySlices`` node that overwrote a view: one more part comes."""
        # From now on it is the sum of two nodes' parts, and known only when the backward ends.
        self.num_parts += 1
        self.labels = (*self.labels, SHARED)
        return partial(take_over, self, geometry, argument)

    def expect_ways_past(self, found: Iterable[BoundaryEdge]) -> None:
        """The graph grows in the backward that is running: later ones may go past these nodes."""
        if self.graph_task != NO_TASK:
            return
        self.graph_task = current_task()
        node: Any = current_node()
        for behind, slot in {node.next_functions[edge.slot] for edge in found}:
            if behind is not None:
                self.gradients.hold(behind.register_prehook(partial(self._arrive_behind, slot)))

    def _arrive_behind(self, slot: int, gradients: tuple[Tensor | None, ...]) -> None:
        """A gradient came to where the argument was made, maybe past the nodes of the module."""
        if current_task() != self.graph_task and gradients[slot] is not None:
            self.give_up(PASSED_BY)

    def _finish(self, task: int) -> None:
        gradient = self.sums.pop(task)
        if self.given_up != task:
            self._deliver(gradient)

    def _deliver(self, gradient: Tensor) -> None:
        self.has_arrived = True
        state, labels = self.state, self.labels
        self.gradients.deliver(state, self.step, self.call, labels, gradient, phase=self.phase)


def is_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two parts of a gradient can be added up without communication."""
    if not (is_distributed(one) or is_distributed(other)):
        return True
    return bool(getattr(one, "placements", None) == getattr(other, "placements", None))


def is_wanted_beyond(found: Iterable[BoundaryEdge]) -> bool:
    """Return whether the running backward goes on to the argument that these edges lead to.

    If so, every node that leads there runs. To be called by a hook of the node that is running.
    """
    node: Any = current_node()
    following = node.next_functions
    try:
        # With inputs= the engine leaves out nodes that lead to none of them (compute_exec_info in
        # torch/csrc/autograd/engine.cpp): this node may run although the others do not.
        return any(will_run(following[edge.slot][0]) for edge in found)
    except RuntimeError:  # A leaf whose gradient was asked for.
        return True


def take_over(
    pending: PendingGradient,
    geometry: Geometry,
    argument: Geometry | None,
    grad_inputs: tuple[Tensor | None, ...],
    _: Any,
) -> None:
    """Node hook of the ``CopySlices`` that overwrote a returned view."""
    gradient = grad_inputs[0]
    if gradient is None or is_batched(gradient):
        pending.add(gradient)
        return
    part = geometry.cut(gradient)
    if argument is not None:
        # The view that was overwritten and the argument overlap somewhere in the base: put back
        # there, the part can be read where the argument lies.
        alone = torch.zeros_like(gradient)
        geometry.cut(alone).copy_(part)
        part = argument.cut(alone)
    pending.add(part)


def add_boundary_gradients(
    pending: PendingGradient,
    found: list[BoundaryEdge],
    shape: torch.Size | None,
    dtype: torch.dtype,
    grad_inputs: tuple[Tensor | None, ...],
    _: Any,
) -> None:
    """Node hook: the sum of what leaves the module through this node."""
    if pending.graph_task not in (NO_TASK, current_task()):
        pending.give_up(PASSED_BY)
    elif pending.num_parts > 1 and current_node() is None:
        pending.give_up(NO_NODE)
    elif pending.num_parts > 1 and not is_wanted_beyond(found):
        pending.give_up(PARTIAL)
    if pending.given_up == current_task():
        return
    # With create_graph the graph grows, also where this backward passes for other arguments only.
    if torch.is_grad_enabled() and any(
        one is not None and one.requires_grad for one in grad_inputs
    ):
        pending.expect_ways_past(found)
    total: Tensor | None = None
    for edge in found:
        part = grad_inputs[edge.slot]
        if part is None:
            continue
        if is_batched(part):
            pending.add(part)
            return
        if part.requires_grad:
            pending.graph_task = current_task()
        if is_distributed(part):
            is_whole = edge.geometry is None and (part.shape, part.dtype) == (shape, dtype)
            if not is_whole or not is_alike(part, part if total is None else total):
                pending.give_up(APART)
                return
        if edge.geometry is not None:
            part = edge.geometry.cut(part.detach())
        # A node's outputs are validated, that is summed to the shape of the input and cast to its
        # dtype, after its hooks ran (validate_outputs in torch/csrc/autograd/engine.cpp).
        if shape is not None and part.shape != shape:
            part = part.detach().sum_to_size(shape)
        if part.dtype != dtype:
            part = part.detach().to(dtype)
        total = part if total is None else total.detach() + part.detach()
    pending.add(total)


keep_dynamo_out(PendingGradient.add, PendingGradient._finish, take_over, add_boundary_gradients)
