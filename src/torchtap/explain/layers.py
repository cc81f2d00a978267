"""Which layers a map is made at: those that were asked for, or the last with a map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from torchtap.core.errors import InputError
from torchtap.core.modules import Where, unwrapped
from torchtap.core.plan import make_plan
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.edits.edit import edit
from torchtap.explain.activations import edges_of, floating_leaves, gradients_of
from torchtap.explain.layout import CHANNELS_FIRST, Layout, Layouts
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """One call of a layer that gave a map; its edges hold the graph.

    Attributes:
        site: of the map.
        layout: of its value.
        kind: how the value reads.
        edges: where it stands in the graph; empty where it has none.
    """

    site: Site
    layout: Layout
    kind: str
    edges: tuple[GradientEdge, ...]


def asked_layers(model: nn.Module, layer: Where | Site) -> list[Site]:
    """The outputs that a request names, in the order of the request.

    Args:
        model: any module.
        layer: as ``where`` of ``tt.watch``, of outputs: a path, a pattern, a module, a class, a
            site, or a list of them.

    Raises:
        SiteError: a pattern fits nothing; the message names what is near.
        InputError: another port was asked for, or a container that is never called.
    """
    items = layer if isinstance(layer, list | tuple) else [layer]
    found: dict[Site, None] = {}
    for item in items:
        for site in _of_one(model, item):
            found.setdefault(site)
    if not found:
        raise InputError("layer is an empty list; expected a path, a module or a pattern.")
    return list(found)


def _of_one(model: nn.Module, item: Any) -> Iterator[Site]:
    if isinstance(item, nn.Module):
        item = unwrapped(item)
    plan = make_plan(model, str(item) if isinstance(item, Site) else item)
    for pattern in plan.unmatched:  # Of a tt.mark.
        yield Site(pattern.path, "output")
    taps = [(tap, tap.module()) for tap in plan.taps]
    called = [tap for tap, one in taps if one is None or type(one).forward is not nn.Module.forward]
    if taps and not called:
        tap = taps[0][0]
        children = [path for path in plan.types if path.startswith(f"{tap.path}.")]
        raise InputError(
            f"Layer {tap.path or '.'!r} is a {tap.type}, which is never called: its parts are. "
            f"Name one of them, as {children[-1] if children else '...'!r}."
        )
    for tap in called:
        for port, chosen in tap.filters.items():
            if port != "output":
                raise InputError(
                    f"layer names {Site(tap.path, port)}; a map is made at what a layer returns. "
                    f"Leave the port away."
                )
            yield Site(tap.path, port, chosen.include[0] if len(chosen.include) == 1 else "")


class Survey:
    """One forward, in which every layer that gives a map is noted.

    A context manager, which lets the graph go at its end: edits are freed by the garbage collector.

    Args:
        subject: the model and its inputs, held.
        target: what is scored; its classes are those of this forward, where none are known.
        layouts: tells maps from other values.
        begins: let a graph begin at values that have none.

    Attributes:
        candidates: in the order in which the layers returned; the model itself is none.
        scores: with their graph, if there is one.
    """

    def __init__(
        self, subject: Subject, target: Target, layouts: Layouts, *, begins: bool = False
    ) -> None:
        self.candidates: list[Candidate] = []
        self._layouts = layouts
        self._root: set[Any] = set()
        self._modules = subject.modules
        self._begins = begins
        with edit(subject.model, "*", _Noting(self._note), missing="ignore", name="layers"):
            self.scores = subject.scores(target, floating_leaves(subject))

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self.candidates.clear()
        self._root.clear()
        del self.scores

    def _note(self, tensor: Tensor, record: Record) -> Tensor | None:
        new = None
        if self._begins and not tensor.requires_grad and tensor.is_floating_point():
            tensor = new = _with_graph(tensor)
        if record.phase == FORWARD:
            self._add(tensor, record)
        return new

    def _add(self, tensor: Tensor, record: Record) -> None:
        edges = tuple(edges_of(tensor)) if tensor.requires_grad else ()
        if not record.site.path:
            self._root.add(_key(edges))
            return
        layout = self._layouts.of(record.site.path, tensor)
        if isinstance(layout, Layout):
            self.candidates.append(Candidate(record.site, layout, kind_of(tensor), edges))

    def names(self) -> str:
        """The layers that give a map, as the end of a message."""
        found = {one.site.path: one.kind for one in self.candidates}
        if not found:
            return "No layer of this model gives one; layout= and grid= say what cannot be told."
        last = list(found.items())[-_MOST_NAMES:]
        shown = ", ".join(f"{path!r} ({kind})" for path, kind in reversed(last))
        more = f", and {len(found) - len(last)} before" if len(found) > len(last) else ""
        return f"Layers that give one, from the last: {shown}{more}."

    @property
    def fitting(self) -> list[Candidate]:
        """Those that may be chosen: no projections of tokens, and not what the model returns."""
        return [one for one in self.candidates if self._may_be_chosen(one)]

    def _may_be_chosen(self, one: Candidate) -> bool:
        weight = getattr(self._modules.get(one.site.path), "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.dim() == 2
        if is_matrix and one.layout.name != CHANNELS_FIRST:
            return False
        return not one.edges or _key(one.edges) not in self._root

    def last_with_gradient(self) -> Candidate | None:
        """The last layer with a map that the score depends on at more than one place.

        Asked in growing groups from the end: the first is mostly the one.
        """
        if not self.scores.requires_grad:
            return None
        fitting = self.fitting
        width, waiting = 1, [one for one in fitting if one.edges]
        while waiting:
            group, waiting = waiting[-width:], waiting[:-width]
            gradients = gradients_of(self.scores, [one.edges[0] for one in group], again=True)
            for one, gradient in reversed(list(zip(group, gradients, strict=True))):
                if gradient is not None and _num_places(one.layout.maps(gradient)) > 1:
                    return _best_name(one, fitting)
            width *= 4
        return None


def last_layer(subject: Subject, target: Target, layouts: Layouts) -> Candidate:
    """The layer of a map where none was asked for.

    The last with a map that the score depends on at more than one place: after the last attention
    of a ViT only the class token counts, so the layer before that is found. Where there is no
    gradient at all (the model runs under ``no_grad``), the last with a map.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        layouts: tells maps from other values.

    Raises:
        InputError: there is none.
    """
    with Survey(subject, target, layouts) as survey:
        found = survey.last_with_gradient()
        has_graphs = all(one.edges for one in survey.fitting)
        names = survey.names()
    if found is None and not has_graphs:
        with Survey(subject, target, layouts, begins=True) as survey:
            found = survey.last_with_gradient() or next(iter(survey.fitting[-1:]), None)
    if found is None:
        raise InputError(
            f"No layer has a map that the score depends on at more than one place. {names}"
        )
    return found


def layers_with_maps(subject: Subject, target: Target, layouts: Layouts) -> str:
    """The layers that give a map, as the end of a message."""
    with Survey(subject, target, layouts) as survey:
        return survey.names()


def _best_name(one: Candidate, fitting: Sequence[Candidate]) -> Candidate:
    """Of the layers that returned this very tensor the outermost that returned nothing else."""
    same = [other for other in fitting if other.edges and _key(other.edges) == _key(one.edges)]
    bare = [other for other in same if not other.site.leaf]
    return bare[-1] if bare else one


def _with_graph(tensor: Tensor) -> Tensor:
    with torch.enable_grad():
        return tensor.detach().clone().requires_grad_().clone()


class _Noting:
    """An edit that looks."""

    writes_nothing = True

    def __init__(self, note: Callable[[Tensor, Record], Tensor | None]) -> None:
        self._note = note

    def __call__(self, tensor: Tensor, record: Record) -> Tensor | None:
        return self._note(tensor, record)


def _key(edges: Sequence[GradientEdge]) -> Any:
    return tuple((edge.node, edge.output_nr) for edge in edges)


def _num_places(maps: Tensor) -> int:
    """At how many places of a gradient ``[B, C, *grid]`` some row has another number than 0."""
    return int(torch.count_nonzero((maps != 0).any(1).flatten(1).any(0)))
