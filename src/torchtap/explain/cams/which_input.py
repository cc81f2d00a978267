"""Find which of several inputs a layer's value lies over, where sizes do not tell."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.explain.cams.layer_notes import Activation
from torchtap.explain.cams.map_layout import Fit
from torchtap.explain.same_scores import REJECTIONS
from torchtap.explain.shared_read_probe import swapped
from torchtap.explain.site_probe import SiteProbe, Visit, plan_of
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

_CLOSE = 1e-5
"""Share of the largest value by which two runs on one device may differ."""


def told_apart(
    subject: Subject, target: Target, one: Activation, fits: Sequence[Fit]
) -> tuple[Fit, str]:
    """Return how a value lies over an input, and what the reader should know of the choice.

    A value lies over what it depends on: the model is run with other values in each input.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        one: the value.
        fits: two or more.

    Raises:
        InputError: the value depends on several, over which the maps would be different.
    """
    several = [fit for fit in fits if _depends(subject, target, one, _name(fit))] or list(fits)
    first, *others = several
    if not others:
        return first, ""
    if any(fit.layout != first.layout or fit.size != first.size for fit in others):
        shown = " and ".join(f"{_name(fit)!r} as {fit.layout}" for fit in several)
        raise InputError(
            f"Layer {one.site.path or '.'!r} returned {kind_of(one.value)}, which depends on "
            f"{len(several)} inputs and may lie over each of them: {shown}. Say which, as in "
            f"over={_name(first)!r}."
        )
    shown = ", ".join(repr(_name(fit)) for fit in others)
    return first, (
        f"layer {one.site.path or '.'!r} depends on {len(several)} inputs of one size: the map is "
        f"laid over {_name(first)!r}; over= takes another ({shown})"
    )


def _name(fit: Fit) -> str:
    assert fit.extent is not None
    return fit.extent.name


def _depends(subject: Subject, target: Target, one: Activation, name: str) -> bool:
    """Return whether an input changes the value; assumed where the model does not run."""
    changed: list[bool] = []

    def note(tensor: Tensor, visit: Visit) -> None:
        if (visit.site, visit.call) == (one.site, one.call):
            changed.append(not _are_close(tensor, one.value))

    plan = plan_of(subject.modules, [one.site.path])
    try:
        # With gradients: without, PyTorch's encoder layers run as one kernel.
        with SiteProbe(subject.modules, plan, note, reads=True), torch.enable_grad():
            subject.scores(target, {name: swapped(subject.inputs[name].detach())})
    except REJECTIONS:
        return changed[0] if changed else True  # A module after the layer has raised.
    return not changed or changed[0]


def _are_close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    wide = expected.detach().double()
    finite = wide[wide.isfinite()]
    slack = _CLOSE * float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(found.detach().double(), wide, rtol=0, atol=slack, equal_nan=True)
