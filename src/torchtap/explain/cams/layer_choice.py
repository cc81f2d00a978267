"""Find the layers that a map is made at: those that were asked for, or the last with a map."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from torchtap.core.errors import InputError
from torchtap.core.module_paths import Where, is_container, modules_of, unwrapped
from torchtap.core.plan import make_plan
from torchtap.core.record import FORWARD
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.cams.layer_notes import LAST, Activation, floating_leaves, gradients_of
from torchtap.explain.cams.map_layout import CHANNELS_FIRST, Layout, Layouts
from torchtap.explain.site_probe import (
    Noted,
    SiteProbe,
    Visit,
    noted,
    plan_of,
    with_graph,
)
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Chosen:
    """The layer of a map where none was asked for.

    Attributes:
        site: of the value.
        call: which call of the layer.
        kind: how the value reads.
        activation: what the layer returned, with its gradient, where the forward that chose the
            layer has shown it; the gradient is ``None`` where there is none.
        scores: of that forward, detached.
    """

    site: Site
    call: int
    kind: str
    activation: Activation | None
    scores: Tensor


def asked_layers(model: nn.Module, layer: Where | Site) -> list[Site]:
    """Return the outputs that a request names, in the order of the request.

    Args:
        model: any module.
        layer: as ``where`` of ``tt.watch``, of outputs: a path, a pattern, a module, a class, a
            site, or a list of them.

    Raises:
        SiteError: a pattern fits nothing; the message names what is near.
        InputError: another port was asked for, or a container that is never called.
    """
    items = layer if isinstance(layer, list | tuple) else [layer]
    layers: dict[Site, None] = {}
    for item in items:
        for site in _of_one(model, item):
            layers.setdefault(site)
    if not layers:
        raise InputError("layer is an empty list; expected a path, a module or a pattern.")
    return list(layers)


def _of_one(model: nn.Module, item: Any) -> Iterator[Site]:
    if isinstance(item, nn.Module):
        item = unwrapped(item)
    named = modules_of(model)[0].get(item) if type(item) is str and item else None
    if named is not None and not is_container(named):  # It needs no plan of all modules.
        yield Site(item, "output")
        return
    plan = make_plan(model, str(item) if isinstance(item, Site) else item)
    for pattern in plan.unmatched:  # A tt.mark.
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

    A context manager, which lets the graph go at its end.

    Args:
        subject: the model and its inputs, held.
        target: what is scored; its classes are those of this forward, where none are known.
        layouts: tells maps from other values.
        call: which call of a layer may be chosen; :data:`LAST` for any.
        begins: let a graph begin at values that have none.

    Attributes:
        returned: values that may be maps, in the order in which layers returned them; what the
            model itself returns is left out.
        scores: with their graph, if there is one.
    """

    def __init__(
        self,
        subject: Subject,
        target: Target,
        layouts: Layouts,
        *,
        call: int = LAST,
        begins: bool = False,
    ) -> None:
        self.returned: list[Noted] = []
        self._layouts = layouts
        self._call = call
        self._num_calls: Counter[Site] = Counter()
        self._root: set[Any] = set()
        self._modules = subject.modules
        self._begins = begins
        plan = plan_of(subject.modules, subject.modules, marks=("*",))
        self._probe = SiteProbe(subject.modules, plan, self._note)
        with ExitStack() as stack:
            stack.enter_context(self._probe)
            self.scores = subject.scores(target, floating_leaves(subject))
            # A checkpoint that runs again has to begin where it began before.
            self._probing = stack.pop_all() if begins else ExitStack()

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self._probing.close()
        self.returned.clear()
        self._root.clear()
        del self.scores

    def _note(self, tensor: Tensor, visit: Visit) -> Tensor | None:
        new = with_graph(tensor) if self._begins else None
        if visit.phase == FORWARD:
            self._add(noted(tensor if new is None else new, visit))
        return new

    def _add(self, one: Noted) -> None:
        if not one.site.path:
            self._root.add(_key(one.edges))
            return
        self._num_calls[one.site] += 1
        if one.is_dense and one.alias.dim() > 2 and one.alias.is_floating_point():
            self.returned.append(one)

    def layout(self, one: Noted) -> Layout | None:
        """Return the layout of a value, if it is a map."""
        found = self._layouts.of(one.site.path, one.alias)
        return found if isinstance(found, Layout) else None

    def names(self) -> str:
        """Return the layers that give a map, as the end of a message."""
        kinds = {one.site.path: kind_of(one.alias) for one in self.returned if self.layout(one)}
        if not kinds:
            return "No layer of this model gives one; layout= and grid= say what cannot be told."
        last = list(kinds.items())[-_MOST_NAMES:]
        shown = ", ".join(f"{path!r} ({kind})" for path, kind in reversed(last))
        more = f", and {len(kinds) - len(last)} before" if len(kinds) > len(last) else ""
        return f"Layers that give one, from the last: {shown}{more}."

    def fitting(self) -> Iterator[Noted]:
        """Yield the candidates that may be chosen, from the last.

        They are maps, no projections of tokens, and not what the model returns.
        """
        return (one for one in reversed(self.returned) if self._may_be_chosen(one))

    def _may_be_chosen(self, one: Noted) -> bool:
        if self._call not in (LAST, one.call):
            return False
        layout = self.layout(one)
        weight = getattr(self._modules.get(one.site.path), "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.dim() == 2
        if layout is None or (is_matrix and layout.name != CHANNELS_FIRST):
            return False
        return not one.edges or _key(one.edges) not in self._root

    def last_with_gradient(self) -> Chosen | None:
        """Return the last layer with a map that the score depends on at more than one place.

        Asked in growing groups from the end: the first is mostly the one.
        """
        if not self.scores.requires_grad:
            return None
        width, waiting = 1, (one for one in self.fitting() if one.edges)
        while group := list(itertools.islice(waiting, width)):
            gradients = gradients_of(self.scores, [one.edges[0] for one in group], again=True)
            for one, gradient in zip(group, gradients, strict=True):
                layout = self.layout(one)
                if gradient is None or layout is None:
                    continue
                if _num_places(layout.maps(gradient)) > 1:
                    return self.chosen(self._best_name(one), gradient)
            width *= 4
        return None

    def chosen(self, one: Noted, gradient: Tensor | None = None) -> Chosen:
        """Return a candidate without its graph."""
        activation = None
        # A part of the gradient of an overwritten view comes by way of its base.
        if one.is_whole and len(one.edges) < 2 and not self._begins:
            num = self._num_calls[one.site]
            activation = Activation(one.site, one.alias, gradient, one.call, num)
        kind, scores = kind_of(one.alias), self.scores.detach()
        return Chosen(one.site, one.call, kind, activation, scores)

    def _best_name(self, one: Noted) -> Noted:
        """Return the outermost layer that returned this very tensor and nothing else."""
        key = _key(one.edges)
        same = (other for other in self.returned if other.edges and _key(other.edges) == key)
        bare = [other for other in same if not other.site.leaf]
        return bare[-1] if bare else one


def last_layer(subject: Subject, target: Target, layouts: Layouts, *, call: int = LAST) -> Chosen:
    """Return the layer of a map where none was asked for.

    The last with a map that the score depends on at more than one place: after the last attention
    of a ViT only the class token counts, so the layer before that is found. Where there is no
    gradient at all (the model runs under ``no_grad``), the last with a map.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        layouts: tells maps from other values.
        call: which call of a layer may be chosen; :data:`LAST` for any.

    Raises:
        InputError: there is none.
    """
    with Survey(subject, target, layouts, call=call) as survey:
        chosen = survey.last_with_gradient()
        has_graphs = chosen is not None or all(one.edges for one in survey.fitting())
        names = "" if chosen else survey.names()
    if chosen is None and not has_graphs:
        with Survey(subject, target, layouts, call=call, begins=True) as survey:
            chosen = survey.last_with_gradient()
            last = next(survey.fitting(), None)
            if chosen is None and last is not None:
                chosen = survey.chosen(last)
    if chosen is None:
        raise InputError(
            f"No layer has a map that the score depends on at more than one place, for the inputs "
            f"{', '.join(map(kind_of, subject.inputs.values()))}; expected a batch, rows first. "
            f"{names}"
        )
    return chosen


def layers_with_maps(subject: Subject, target: Target, layouts: Layouts) -> str:
    """Return the layers that give a map, as the end of a message."""
    with Survey(subject, target, layouts) as survey:
        return survey.names()


def _key(edges: Sequence[GradientEdge]) -> Any:
    return tuple((edge.node, edge.output_nr) for edge in edges)


def _num_places(maps: Tensor) -> int:
    """Return the number of places of ``[B, C, *grid]`` that are other than 0 in some row."""
    return int(torch.count_nonzero((maps != 0).any(1).flatten(1).any(0)))
