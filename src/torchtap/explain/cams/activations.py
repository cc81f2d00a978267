"""The value of a layer, and the gradient of a score there: right whatever overwrites it later."""

from __future__ import annotations

from collections.abc import Sequence

from torchtap.core.site import Site
from torchtap.explain.cams.layer_notes import (
    LAST,
    Activation,
    LayerNotes,
    LayerValues,
    floating_leaves,
    gradients_of,
)
from torchtap.explain.cams.rows_kept import keeps_rows
from torchtap.explain.cams.watched_layers import watched_gradients, why_no_value
from torchtap.explain.doubled_batch_probe import is_ambiguous
from torchtap.explain.site_probe import Noted, SiteProbe
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target


def values_at(
    subject: Subject, target: Target, sites: Sequence[Site], *, call: int = LAST
) -> LayerValues:
    """Return the values that layers return, and the scores.

    Grad mode stays on: without, PyTorch's encoder layers run as one kernel, with nothing to see
    inside.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each, :data:`LAST` for the last.

    Raises:
        InputError: a layer gave no value; the message says why.
    """
    notes = LayerNotes(copies=True)
    plan = notes.plan(subject, sites)
    with SiteProbe(subject.modules, plan, notes, reads=True, may_fuse=True):
        scores = subject.scores(target, floating_leaves(subject)).detach()
    activations = [notes.main(site, call) for site in sites]
    chosen = [notes.activation(activation) for activation in activations if activation is not None]
    if len(chosen) < len(sites):
        raise why_no_value(subject, target, sites, call, notes)
    return chosen, scores


def gradients_at(
    subject: Subject, target: Target, sites: Sequence[Site], *, call: int = LAST
) -> LayerValues:
    """Return the values of layers with the gradient of the scores there, and the scores.

    The backward ends at the layers, so it costs what lies behind them. The gradients are those that
    ``tt.watch`` gives at ``grad_output``.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        sites: outputs of layers, whole or one leaf.
        call: which call of each, :data:`LAST` for the last.

    Raises:
        InputError: there is no gradient; the message says why.
    """
    for begins in (False, True):
        notes = LayerNotes(begins=begins, copies=True)
        layer_values = _by_edges(subject, target, sites, call, notes)
        if layer_values is not None:
            return layer_values
        main = [notes.main(site, call) for site in sites]
        if all(one is None or one.edges for one in main):
            break
    return watched_gradients(subject, target, sites, call, begins=notes.begins)


def _by_edges(
    subject: Subject, target: Target, sites: Sequence[Site], call: int, notes: LayerNotes
) -> LayerValues | None:
    """Return values, gradients and scores; ``None`` where edges do not tell the gradients.

    An edge tells the gradient of what a layer returned. It does not where a view was overwritten
    later: the gradient comes partly by way of its base then.
    """
    plan = notes.plan(subject, sites)
    # A checkpoint that runs again in the backward has to begin where it began before.
    with SiteProbe(subject.modules, plan, notes, reads=not notes.begins):
        scores = subject.scores(target, floating_leaves(subject))
        chosen: list[Noted] = []
        for site in sites:
            one = notes.main(site, call)
            if one is None or not _has_own_edge(one):
                return None
            chosen.append(one)
        if not scores.requires_grad:
            return None
        # Before the backward, which frees the graph.
        are_shown = [
            is_ambiguous(one.alias, len(scores)) and keeps_rows(scores, one.edges[0].node)
            for one in chosen
        ]
        gradients = gradients_of(scores, [one.edges[0] for one in chosen])
    activations: list[Activation] = []
    for one, gradient, keeps in zip(chosen, gradients, are_shown, strict=True):
        if gradient is None:
            return None
        activations.append(notes.activation(one, gradient, keeps_rows=keeps))
    return activations, scores.detach()


def _has_own_edge(one: Noted) -> bool:
    return one.is_dense and bool(one.edges) and (len(one.edges) == 1 or one.is_whole)
