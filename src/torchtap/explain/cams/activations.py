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
from torchtap.core.tensors import kind_of, storage_id
from torchtap.core.torch_messages import REENTRANT_CHECKPOINT, says
from torchtap.edits.edit import edit
from torchtap.explain.cams.rows_kept import keeps_rows
from torchtap.explain.rows import is_ambiguous
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

LAST = -1
NO_GRADIENT = "Methods that need no gradient: eigencam, scorecam, ablationcam, cam."


@dataclass(frozen=True, slots=True)
class Activation:
    """The value that one call of a layer returned.

    Attributes:
        site: path of the layer, port ``output``, and leaf.
        value: as it was when the layer returned, detached.
        gradient: of the sum of the scores there, over all uses of the value; ``None`` where none
            was asked for.
        call: which call of the layer it was, from 0.
        num_calls: how often the layer was called.
        others: what else that call returned: leaf -> how it reads.
        keeps_rows: whether the graph shows that dimension 0 of the value counts the scores.
    """

    site: Site
    value: Tensor
    gradient: Tensor | None
    call: int
    num_calls: int
    others: tuple[tuple[str, str], ...] = ()
    keeps_rows: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """A spy's note of a value.

    Attributes:
        copy: of the value.
        alias: of it, detached; it is what was returned while its version is the same.
        version: of the value.
    """

    copy: Tensor
    alias: Tensor
    version: int

    @property
    def is_whole(self) -> bool:
        """Return whether nothing has been written to it."""
        return not self.alias.is_inference() and self.alias._version == self.version


class LayerSpy:
    """An edit that changes nothing: it notes where the values of layers stand in the graph.

    A :class:`~torch.autograd.graph.GradientEdge` stays what it is when the tensor is overwritten
    later, and a backward that is asked for it goes no further.

    Args:
        begins: put a leaf in the place of values that have no graph (all parameters are frozen, and
            the inputs are integers), so that the graph begins there.
        keeps: note the values too.

    Attributes:
        edges: (site, call) -> edges of the value, and of the tensor that it is a view of.
        seen: (site, call) -> whether the value required grad, in the order of the calls.
        noted: (site, call) -> the value, where values are kept.
        begins: as given.
    """

    writes_nothing = takes_record = True

    def __init__(self, *, begins: bool = False, keeps: bool = False) -> None:
        self.noted: dict[tuple[Site, int], Noted] = {}
        self._keeps = keeps
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
        if self._keeps:
            alias = tensor.detach()
            version = -1 if tensor.is_inference() else tensor._version
            self.noted[place] = Noted(alias.clone(), alias, version)
        return new

    def _refuse_shared(self, tensor: Tensor, record: Record) -> None:
        """Refuse a layer that returns its input's memory: other uses of it would be missed."""
        taken = self._taken.get((record.site.path, record.call), set())
        if storage_id(tensor) in taken - {0}:
            raise InputError(
                f"Layer {record.site.path or '.'!r} returns the memory of its input, and nothing "
                f"before it requires grad, so its gradient cannot be told from that of its input. "
                f"Choose a layer before or after it, or let a parameter of the model require grad."
            )


def edges_of(tensor: Tensor) -> Iterable[GradientEdge]:
    """Yield the gradient edges of a tensor, as it stands in the graph now.

    When a view is overwritten, its gradient comes partly by way of its base: then that is asked
    for too.
    """
    yield get_gradient_edge(tensor)
    base = tensor._base if tensor._is_view() else None
    if base is not None and base.requires_grad:
        yield get_gradient_edge(base)


def floating_leaves(subject: Subject) -> dict[str, Tensor]:
    """The floating inputs as leaves that require grad; none where all parameters require it."""
    tables = (module._parameters for module in subject.modules.values() if module._parameters)
    wants = [one.requires_grad for table in tables for one in table.values() if one is not None]
    if wants and all(wants):
        return {}
    return {
        name: one.detach().clone().requires_grad_()
        for name, one in subject.inputs.items()
        if one.is_floating_point()
    }


def values_at(
    subject: Subject, target: Target, sites: Sequence[Site], *, call: int = LAST
) -> tuple[list[Activation], Tensor]:
    """Return the values that layers return, and the scores.

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
    """Return the values of layers with the gradient of the scores there, and the scores.

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
    found = _seen_by_spy(subject, target, sites, call)
    if found is None:
        found = _backward(subject, target, sites, LayerSpy(), call)
    if found is None:
        found = _backward(subject, target, sites, LayerSpy(begins=True), call)
    assert found is not None
    return found


def _seen_by_spy(
    subject: Subject, target: Target, sites: Sequence[Site], call: int
) -> tuple[list[Activation], Tensor] | None:
    """Values, gradients and scores, without a watch; ``None`` where one is needed.

    An edge tells the gradient of what a layer returned. A watch is needed for views that are
    overwritten, whose gradient comes partly by way of their base, and to say why there is none.
    """
    spy = LayerSpy(keeps=True)
    where = _patterns(sites, "output")
    try:
        with edit(subject.model, where, spy, missing="ignore", name="layers"):
            scores = subject.scores(target, floating_leaves(subject))
        places = [_place(spy, site, call) for site in sites]
        chosen = [one for one in places if one is not None]
        if len(chosen) < len(sites) or not scores.requires_grad:
            return None
        are_shown = [_are_rows_shown(spy, one, scores) for one in chosen]
        gradients = gradients_of(scores, [spy.edges[one][0] for one in chosen])
        if any(one is None for one in gradients):
            return None
        several = zip(chosen, gradients, are_shown, strict=True)
        return [_of_spy(spy, *one) for one in several], scores.detach()
    finally:
        spy.edges.clear()
        spy.noted.clear()


def _place(spy: LayerSpy, site: Site, call: int) -> tuple[Site, int] | None:
    """Return the wanted one of the values noted at a site; ``None`` where its edge will not do."""
    fitting = [place for place in spy.noted if _fits(place[0], site)]
    number = max((one[1] for one in fitting), default=-1) if call == LAST else call
    several = [place for place in fitting if place[1] == number]
    if not several:
        return None
    main = main_leaf([(place[0], spy.noted[place].alias) for place in several])
    place = several[main]
    edges, noted = spy.edges.get(place, []), spy.noted[place]
    is_enough = noted.alias.layout is torch.strided and not noted.alias.is_nested
    return place if edges and is_enough and (len(edges) == 1 or noted.is_whole) else None


def _are_rows_shown(spy: LayerSpy, place: tuple[Site, int], scores: Tensor) -> bool:
    is_open = is_ambiguous(spy.noted[place].alias, len(scores))
    return is_open and keeps_rows(scores, spy.edges[place][0].node)


def _of_spy(
    spy: LayerSpy, place: tuple[Site, int], gradient: Tensor | None, is_shown: bool
) -> Activation:
    site, call = place
    value = spy.noted[place].copy
    beside = [(one, spy.noted[one, number].alias) for one, number in spy.noted if number == call]
    num = len({number for one, number in spy.noted if one == site})
    return Activation(site, value, gradient, call, num, _others(site, beside), is_shown)


def main_leaf(several: Sequence[tuple[Site, Tensor]]) -> int:
    """Return which of the values that one call returned is taken: the first that may be a map.

    It is the first floating one with three dimensions or more; where there is none, the one with
    most dimensions.
    """
    floating = [place for place, (_, one) in enumerate(several) if one.is_floating_point()]
    places = floating or list(range(len(several)))
    for place in places:
        if several[place][1].dim() > 2:
            return place
    return max(places, key=lambda place: several[place][1].dim())


def _others(site: Site, several: Sequence[tuple[Site, Tensor]]) -> tuple[tuple[str, str], ...]:
    """Return the other values that a call has returned."""
    return tuple(
        (one.leaf, kind_of(value))
        for one, value in several
        if one.path == site.path and one.port == site.port and one.leaf != site.leaf
    )


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
        if says(error, REENTRANT_CHECKPOINT):
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
    beside = [(one.site, one.value) for one in kept if one.call == value.call]
    others = _others(value.site, beside)
    if port is None:
        return Activation(value.site, value.value, None, value.call, num, others)
    where = Site(value.site.path, port, value.site.leaf)
    for one in kept:
        if one.site == where and one.call == value.call:
            return Activation(value.site, value.value, one.value, value.call, num, others)
    raise InputError(
        f"The score has no gradient at layer {site.path or '.'!r}: {_why(seen, where)}. "
        f"{NO_GRADIENT}"
    )


def _one(records: Sequence[Record], seen: Watch, site: Site, call: int) -> Record:
    """The record of the call that is wanted; of several leaves as :func:`main_leaf` says."""
    calls = sorted({one.call for one in records})
    if not calls:
        raise InputError(f"Layer {site.path or '.'!r} gave no value: {_why(seen, site)}.")
    number = calls[-1] if call == LAST else call
    if number not in calls:
        raise InputError(
            f"Layer {site.path or '.'!r} was called {len(calls)} times; there is no call {call}."
        )
    found = [one for one in records if one.call == number]
    return found[main_leaf([(one.site, one.value) for one in found])]


def _why(seen: Watch, site: Site) -> str:
    reasons = [entry.reason for entry in seen.absent if _fits(entry.site, site)]
    own = [e.reason for e in seen.absent if e.site.port == site.port and _fits(e.site, site)]
    return next(iter([*own, *reasons]), "it does not depend on what the layer returned")
