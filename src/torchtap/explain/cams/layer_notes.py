"""Notes of what layers return in one forward, and the gradients of the scores there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from torchtap.core.errors import InputError
from torchtap.core.plan import Plan
from torchtap.core.record import FORWARD
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of, storage_id
from torchtap.core.torch_messages import REENTRANT_CHECKPOINT, says
from torchtap.explain.site_probe import OUTPUT, Noted, Visit, noted, plan_of, with_graph
from torchtap.explain.subject import Subject

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


LayerValues = tuple[list[Activation], Tensor]
"""The values of layers, in the order in which they were asked for, and the scores, detached."""


class LayerNotes:
    """A visitor of a probe at layers: it notes what they return, and where that is in the graph.

    Args:
        begins: let a graph begin at values that have none (all parameters are frozen, and the
            inputs are integers).
        copies: keep a copy of each value.

    Attributes:
        found: (site, call) -> the value, in the order of the calls.
        begins: as given.
    """

    def __init__(self, *, begins: bool = False, copies: bool = False) -> None:
        self.found: dict[tuple[Site, int], Noted] = {}
        self.begins = begins
        self._copies = copies
        self._taken: dict[tuple[str, int], set[int]] = {}

    def __call__(self, tensor: Tensor, visit: Visit) -> Tensor | None:
        if visit.site.port == "input":
            taken = self._taken.setdefault((visit.site.path, visit.call), set())
            taken.add(storage_id(tensor))
            return None
        # A checkpoint that runs the layer again begins where it began before.
        new = with_graph(tensor) if self.begins else None
        if visit.phase == FORWARD:
            if new is not None:
                self._refuse_shared(tensor, visit)
            flows = tensor if new is None else new
            self.found[visit.site, visit.call] = noted(flows, visit, copies=self._copies)
        return new

    def _refuse_shared(self, tensor: Tensor, visit: Visit) -> None:
        """Refuse a layer that returns its input's memory: other uses of it would be missed."""
        taken = self._taken.get((visit.site.path, visit.call), set())
        if storage_id(tensor) in taken - {0}:
            raise InputError(
                f"Layer {visit.site.path or '.'!r} returns the memory of its input, and nothing "
                f"before it requires grad, so its gradient cannot be told from that of its input. "
                f"Choose a layer before or after it, or let a parameter of the model require grad."
            )

    def plan(self, subject: Subject, sites: Sequence[Site]) -> Plan:
        """Return the plan of a probe that these notes are taken with."""
        ports = ("input", "output") if self.begins else OUTPUT
        return plan_of(subject.modules, [site.path for site in sites], ports)

    def main(self, site: Site, call: int) -> Noted | None:
        """Return the value that the wanted call returned at a site, if there is one."""
        of_call: dict[int, list[Noted]] = {}
        for one in self.found.values():
            if fits(one.site, site):
                of_call.setdefault(one.call, []).append(one)
        several = of_call.get(max(of_call, default=LAST) if call == LAST else call)
        return several[main_leaf([one.alias for one in several])] if several else None

    def activation(
        self, one: Noted, gradient: Tensor | None = None, *, keeps_rows: bool = False
    ) -> Activation:
        """Return a noted value, of which there is a copy, as the activation of its layer."""
        assert one.copy is not None
        others = tuple(
            [
                (two.site.leaf, kind_of(two.alias))
                for two in self.found.values()
                if two.call == one.call and two.site.path == one.site.path and two is not one
            ]
        )
        num = [two.site for two in self.found.values()].count(one.site)
        return Activation(
            site=one.site,
            value=one.copy,
            gradient=gradient,
            call=one.call,
            num_calls=num,
            others=others,
            keeps_rows=keeps_rows,
        )


def floating_leaves(subject: Subject) -> dict[str, Tensor]:
    """Return the floating inputs as leaves that require grad; none where all parameters do."""
    wants = [
        parameter.requires_grad
        for module in subject.modules.values()
        for parameter in module._parameters.values()
        if parameter is not None
    ]
    if wants and all(wants):
        return {}
    return {
        name: one.detach().clone().requires_grad_()
        for name, one in subject.inputs.items()
        if one.is_floating_point()
    }


def gradients_of(
    scores: Tensor, edges: Sequence[GradientEdge], *, again: bool = False
) -> tuple[Tensor | None, ...]:
    """Return gradients of the sum of the scores; ``None`` at edges that they do not depend on.

    Args:
        scores: ``float[rows]``, with their graph.
        edges: where.
        again: whether the graph is needed once more.
    """
    if not edges:
        return ()
    try:
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
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
    return gradients


def main_leaf(several: Sequence[Tensor]) -> int:
    """Return which of the values that one call returned is taken: the first that may be a map.

    It is the first floating one with three dimensions or more; where there is none, the one with
    most dimensions.
    """
    floating = [place for place, one in enumerate(several) if one.is_floating_point()]
    places = floating or list(range(len(several)))
    for place in places:
        if several[place].dim() > 2:
            return place
    return max(places, key=lambda place: several[place].dim())


def fits(found: Site, site: Site) -> bool:
    """Return whether a value came by at a site, or is part of what came by there."""
    return found.path == site.path and (not site.leaf or found.leaf == site.leaf)
