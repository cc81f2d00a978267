"""Gradients of layers as ``tt.watch`` gives them, where no edge of the graph tells.

A watch follows views that are overwritten, whose gradient comes partly by way of their base, and
says why there is no value, or no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.autograd.graph import GradientEdge

from torchtap.capture.watch import watch
from torchtap.capture.watch_handle import Watch
from torchtap.core.errors import InputError
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Pattern, Site
from torchtap.explain.cams.layer_notes import (
    LAST,
    NO_GRADIENT,
    Activation,
    LayerNotes,
    LayerValues,
    fits,
    floating_leaves,
    gradients_of,
)
from torchtap.explain.site_probe import SiteProbe
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target


def watched_gradients(
    subject: Subject, target: Target, sites: Sequence[Site], call: int, *, begins: bool
) -> LayerValues:
    """Return the values of layers with the gradient of the scores there, and the scores.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each, :data:`LAST` for the last.
        begins: let a graph begin at values that have none.

    Raises:
        InputError: there is no value, or no gradient; the message says why.
    """
    kept: list[Record] = []
    notes = LayerNotes(begins=begins, copies=True)
    where = _patterns(sites, "output", "grad_output")
    probe = SiteProbe(subject.modules, notes.plan(subject, sites), notes, reads=not begins)
    try:
        with probe, watch(subject.model, where, to=kept.append, copy="always") as seen:
            scores = subject.scores(target, floating_leaves(subject))
            if scores.requires_grad:
                gradients_of(scores, _wanted_edges(notes, sites, call))  # Ends at the layers.
            elif begins:
                raise _no_graph(subject, sites)
        activations = [_activation(seen, kept, notes, site, call) for site in sites]
        return activations, scores.detach()
    finally:
        kept.clear()  # A watch is freed by the garbage collector, and these are large.


def why_no_value(
    subject: Subject, target: Target, sites: Sequence[Site], call: int, notes: LayerNotes
) -> InputError:
    """Return the error of the first of some layers that gave no value.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each.
        notes: of a forward, which lack a value.
    """
    with watch(subject.model, _patterns(sites, "output"), to=lambda _: None) as seen:
        subject.scores(target, floating_leaves(subject))
    site = next(one for one in sites if notes.main(one, call) is None)
    return _no_value(seen, notes, site, call)


def _patterns(sites: Sequence[Site], *ports: str) -> list[Pattern]:
    return [Pattern(site.path or ".", ports) for site in sites]


def _wanted_edges(notes: LayerNotes, sites: Sequence[Site], call: int) -> list[GradientEdge]:
    """Return the edges of the wanted calls, of each leaf."""
    wanted: dict[tuple[Site, int], tuple[GradientEdge, ...]] = {}
    for (found, number), one in notes.found.items():
        if one.edges and call in (LAST, number) and any(fits(found, site) for site in sites):
            wanted[found, call] = one.edges  # The last one stays.
    return [edge for edges in wanted.values() for edge in edges]


def _no_graph(subject: Subject, sites: Sequence[Site]) -> InputError:
    return InputError(
        f"The score of this {type(subject.modules['']).__name__} has no gradient at "
        f"{', '.join(repr(site.path or '.') for site in sites)}: what follows runs under "
        f"torch.no_grad or detaches. {NO_GRADIENT}"
    )


def _activation(
    seen: Watch, kept: Sequence[Record], notes: LayerNotes, site: Site, call: int
) -> Activation:
    one = notes.main(site, call)
    if one is None:
        raise _no_value(seen, notes, site, call)
    where = Site(one.site.path, "grad_output", one.site.leaf)
    for record in kept:
        if record.site == where and record.call == one.call and record.phase == FORWARD:
            return notes.activation(one, record.value)
    raise InputError(
        f"The score has no gradient at layer {site.path or '.'!r}: {_why(seen, where)}. "
        f"{NO_GRADIENT}"
    )


def _no_value(seen: Watch, notes: LayerNotes, site: Site, call: int) -> InputError:
    num = len({one.call for one in notes.found.values() if fits(one.site, site)})
    if not num:
        return InputError(f"Layer {site.path or '.'!r} gave no value: {_why(seen, site)}.")
    return InputError(
        f"Layer {site.path or '.'!r} was called {num} times; there is no call {call}."
    )


def _why(seen: Watch, site: Site) -> str:
    reasons = [entry.reason for entry in seen.absent if fits(entry.site, site)]
    own = [e.reason for e in seen.absent if e.site.port == site.port and fits(e.site, site)]
    return next(iter([*own, *reasons]), "it does not depend on what the layer returned")
