"""The value of a layer, and the gradient of a score there: right whatever overwrites it later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchtap.capture.watch import Watch, watch
from torchtap.core.errors import InputError
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Pattern, Site
from torchtap.core.tensors import storage_id
from torchtap.edits.edit import edit
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

LAST = -1
NO_GRADIENT = "Methods that need no gradient: eigencam, scorecam, ablationcam, cam."


@dataclass(frozen=True, slots=True)
class Activation:
    """What one call of a layer returned.

    Attributes:
        site: path of the layer, port ``output``, and leaf.
        value: as it was when the layer returned, detached.
        gradient: of the sum of the scores there, over all uses of the value; ``None`` where none
            was asked for.
        call: which call of the layer it was, from 0.
        num_calls: how often the layer was called.
    """

    site: Site
    value: Tensor
    gradient: Tensor | None
    call: int
    num_calls: int


class LayerSpy:
    """An edit that changes nothing: it notes where the values of layers stand in the graph.

    A :class:`~torch.autograd.graph.GradientEdge` stays what it is when the tensor is overwritten
    later, and a backward that is asked for it goes no further.

    Args:
        begins: put a leaf in the place of values that have no graph (all parameters are frozen, and
            the inputs are integers), so that the graph begins there.

    Attributes:
        edges: (site, call) -> edges of the value, and of the tensor that it is a view of.
        seen: (site, call) -> whether the value required grad, in the order of the calls.
        begins: as given.
    """

    writes_nothing = True

    def __init__(self, *, begins: bool = False) -> None:
        self.edges: dict[tuple[Site, int], list[GradientEdge]] = {}
        self.seen: dict[tuple[Site, int], bool] = {}
        self.begins = begins
        self._taken: dict[tuple[str, int], set[int]] = {}

    def __call__(self, tensor: Tensor, record: Record) -> Tensor | None:
        if record.phase != FORWARD:
            return None
        if record.site.port == "input":
            taken = self._taken.setdefault((record.site.path, record.call), set())
            taken.add(storage_id(tensor))
            return None
        place = record.site, record.call
        new = None
        if self.begins and not tensor.requires_grad and tensor.is_floating_point():
            self._refuse_shared(tensor, record)
            with torch.enable_grad():
                new = tensor.detach().clone().requires_grad_().clone()
        flows = tensor if new is None else new
        self.seen[place] = flows.requires_grad
        if flows.requires_grad:
            self.edges[place] = list(edges_of(flows))
        return new

    def _refuse_shared(self, tensor: Tensor, record: Record) -> None:
        """What goes on beside what the layer returned would be missed."""
        taken = self._taken.get((record.site.path, record.call), set())
        if storage_id(tensor) in taken - {0}:
            raise InputError(
                f"Layer {record.site.path or '.'!r} returns the memory of its input, and nothing "
                f"before it requires grad, so its gradient cannot be told from that of its input. "
                f"Choose a layer before or after it, or let a parameter of the model require grad."
            )


def edges_of(tensor: Tensor) -> Iterable[GradientEdge]:
    """Where a tensor stands in the graph now.

    When a view is overwritten, its gradient comes partly by way of its base: then that is asked
    for too.
    """
    yield get_gradient_edge(tensor)
    base = tensor._base if tensor._is_view() else None
    if base is not None and base.requires_grad:
        yield get_gradient_edge(base)


def floating_leaves(subject: Subject) -> dict[str, Tensor]:
    """The floating inputs as leaves that require grad; none where all parameters require it."""
    params = list(subject.model.parameters())
    if params and all(param.requires_grad for param in params):
        return {}
    return {
        name: one.detach().clone().requires_grad_()
        for name, one in subject.inputs.items()
        if one.is_floating_point()
    }


def values_at(
    subject: Subject, target: Target, sites: Sequence[Site], *, call: int = LAST
) -> tuple[list[Activation], Tensor]:
    """What layers return, and the scores.

    Grad mode stays on: without, PyTorch's encoder layers run as one kernel, with nothing to see
    inside.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each, :data:`LAST` for the last.
    """
    kept: list[Record] = []
    where = _patterns(sites, "output")
    try:
        with watch(subject.model, where, to=kept.append, copy="always") as seen:
            scores = subject.scores(target, floating_leaves(subject)).detach()
        return [_activation(seen, kept, site, call, None) for site in sites], scores
    finally:
        kept.clear()  # A watch is freed by the garbage collector, and these are large.


def gradients_at(
    subject: Subject, target: Target, sites: Sequence[Site], *, call: int = LAST
) -> tuple[list[Activation], Tensor]:
    """What layers return, with the gradient of the scores there, and the scores.

    The backward ends at the layers, so it costs what lies behind them. The gradients are those that
    ``tt.watch`` gives at ``grad_output``.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each, :data:`LAST` for the last.

    Raises:
        InputError: there is no gradient.
    """
    found = _backward(subject, target, sites, LayerSpy(), call)
    if found is None:
        found = _backward(subject, target, sites, LayerSpy(begins=True), call)
    assert found is not None
    return found


def _backward(
    subject: Subject, target: Target, sites: Sequence[Site], spy: LayerSpy, call: int
) -> tuple[list[Activation], Tensor] | None:
    """Values, gradients and scores; ``None`` if a value has no graph that could begin there."""
    kept: list[Record] = []
    try:
        seen, scores = _watched(subject, target, sites, spy, call, kept)
        if not spy.begins and not all(_has_graph(spy, site, call) for site in sites):
            return None
        return [_activation(seen, kept, site, call, "grad_output") for site in sites], scores
    finally:
        kept.clear()  # Watches and edits are freed by the garbage collector; graphs are large.
        spy.edges.clear()


def _watched(
    subject: Subject,
    target: Target,
    sites: Sequence[Site],
    spy: LayerSpy,
    call: int,
    kept: list[Record],
) -> tuple[Watch, Tensor]:
    ports = ("input", "output") if spy.begins else ("output",)
    with ExitStack() as stack:
        spying = edit(subject.model, _patterns(sites, *ports), spy, missing="ignore", name="layers")
        stack.enter_context(spying)
        where = _patterns(sites, "output", "grad_output")
        seen = stack.enter_context(watch(subject.model, where, to=kept.append, copy="always"))
        scores = subject.scores(target, floating_leaves(subject))
        if scores.requires_grad:
            if not spy.begins:  # What checkpoints run again has to begin where it began before.
                spying.close()
            edges = [edge for found in _chosen(spy, sites, call).values() for edge in found]
            gradients_of(scores, edges)
        elif spy.begins:
            _refuse_no_graph(subject, sites)
    return seen, scores.detach()


def gradients_of(
    scores: Tensor, edges: Sequence[GradientEdge], *, again: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients of the sum of the scores; ``None`` at edges that they do not depend on.

    Args:
        scores: ``float[rows]``, with their graph.
        edges: where.
        again: whether the graph is needed once more.
    """
    if not edges:
        return ()
    try:
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            scores.sum(), edges, allow_unused=True, retain_graph=again
        )
    except RuntimeError as error:
        if "checkpoint" in str(error):
            error.add_note(
                f"A map reads gradients with torch.autograd.grad, which leaves .grad alone and "
                f"does not go through reentrant checkpoints. Use checkpoint(use_reentrant=False), "
                f"or turn checkpointing off. {NO_GRADIENT}"
            )
        raise
    return found


def _chosen(spy: LayerSpy, sites: Sequence[Site], call: int) -> Mapping[Any, list[GradientEdge]]:
    """The edges of the calls that are wanted, of each leaf."""
    wanted: dict[Any, list[GradientEdge]] = {}
    for (found, number), edges in spy.edges.items():
        if any(_fits(found, site) for site in sites) and call in (LAST, number):
            wanted[found if call == LAST else (found, number)] = edges  # The last one stays.
    return wanted


def _has_graph(spy: LayerSpy, site: Site, call: int) -> bool:
    states = [
        has_graph
        for (found, number), has_graph in spy.seen.items()
        if _fits(found, site) and call in (LAST, number)
    ]
    return not states or states[-1]


def _refuse_no_graph(subject: Subject, sites: Sequence[Site]) -> None:
    raise InputError(
        f"The score of this {type(subject.modules['']).__name__} has no gradient at "
        f"{', '.join(repr(site.path or '.') for site in sites)}: what follows runs under "
        f"torch.no_grad or detaches. {NO_GRADIENT}"
    )


def _patterns(sites: Sequence[Site], *ports: str) -> list[Pattern]:
    return [Pattern(site.path or ".", ports) for site in sites]


def _fits(found: Site, site: Site) -> bool:
    return found.path == site.path and (not site.leaf or found.leaf == site.leaf)


def _activation(
    seen: Watch, kept: Sequence[Record], site: Site, call: int, port: str | None
) -> Activation:
    kept = [one for one in kept if one.phase == FORWARD]
    records = [one for one in kept if one.site.port == "output" and _fits(one.site, site)]
    value = _one(records, seen, site, call)
    num = len({one.call for one in records})
    if port is None:
        return Activation(value.site, value.value, None, value.call, num)
    where = Site(value.site.path, port, value.site.leaf)
    for one in kept:
        if one.site == where and one.call == value.call:
            return Activation(value.site, value.value, one.value, value.call, num)
    raise InputError(
        f"The score has no gradient at layer {site.path or '.'!r}: {_why(seen, where)}. "
        f"{NO_GRADIENT}"
    )


def _one(records: Sequence[Record], seen: Watch, site: Site, call: int) -> Record:
    """The record of the call that is wanted; of several leaves the first with most dimensions."""
    calls = sorted({one.call for one in records})
    if not calls:
        raise InputError(f"Layer {site.path or '.'!r} gave no value: {_why(seen, site)}.")
    number = calls[-1] if call == LAST else call
    if number not in calls:
        raise InputError(
            f"Layer {site.path or '.'!r} was called {len(calls)} times; there is no call {call}."
        )
    found = [one for one in records if one.call == number]
    floating = [one for one in found if one.value.is_floating_point()] or found
    return max(floating, key=lambda one: one.value.dim())


def _why(seen: Watch, site: Site) -> str:
    reasons = [entry.reason for entry in seen.absent if _fits(entry.site, site)]
    own = [e.reason for e in seen.absent if e.site.port == site.port and _fits(e.site, site)]
    return next(iter([*own, *reasons]), "it does not depend on what the layer returned")
