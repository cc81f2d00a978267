"""Rules on units: dead ones, and those that cannot become different."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.module_facts import RECTIFIERS
from torchtap.runs.rules.rule_view import Floats, View, median, shown

_FEWEST_UNITS = 16


def dead(
    view: View, *, limit: float = 0.5, window: int = 24, most: float = 0.95, fall: float = 0.2
) -> Iterator[Finding]:
    """Units of a rectifier that are zero for every sample.

    The gradient of a bias is exactly zero where its unit is zero for the whole batch, so the
    biases of the layer before a rectifier count its dead units. Without them, its zeros do: units
    are counted as dead only as far as the zeros of all samples suffice for. An alarm where nearly
    all are, or where the loss does not fall; a note else, since a batch does not wake every unit.

    Args:
        view: of the run.
        limit: share of dead units in the last steps; healthy are 0 to 0.56 (0.88 of layers with few
            units, which are left alone).
        window: how many of the last steps.
        most: that share, from which on it is an alarm whatever the loss does.
        fall: share by which the loss falls where all is well.
    """
    for path in view.modules.leaves:
        if not view.modules.is_a(path, RECTIFIERS) or path == view.modules.end:
            continue
        shares, num_units = _shares_of_dead(view, path)
        late, early = median(shares[-window:]), median(shares[:3])
        if num_units < _FEWEST_UNITS or not late >= limit:
            continue
        began = "from the start" if early > late / 2 else "after some steps"
        since = int(np.argmax(shares >= limit))
        yield Finding(
            "dead",
            NOTE if late < most and view.loss.fall > fall else ALARM,
            shown(path),
            (int(view.steps[since]), view.last),
            f"{late:.0%} of its {num_units} units are 0 for every sample, {began}",
            {"share": late, "units": num_units, "at_start": early},
            "Lower the learning rate, look at biases and initial weights, or use a leaky one.",
        )


def _shares_of_dead(view: View, path: str) -> tuple[Floats, int]:
    """Return the share of dead units of a rectifier in each step, and how many units it has."""
    entered = view.site(path, "input")
    zeros = view.share(view.site(path, "output"), "zeros")
    for other in view.modules.leaves:
        bias = view.site(other, "param_grad", "bias")
        if bias is not None and view.are_equal(view.site(other, "output"), entered):
            # A bias gets none either where nothing comes back from what follows.
            return np.minimum(view.share(bias, "zeros"), zeros), int(view.start(bias, "numel"))
    units = math.prod(view.shape(view.site(path, "output"))[1:])
    # Where 90 % is zero no unit need be dead; where all but nothing is, most are.
    return np.where(zeros > 0.98, zeros, np.where(np.isnan(zeros), math.nan, 0.0)), units


def symmetric(view: View) -> Iterator[Finding]:
    """A weight matrix of one value: all its units stay alike.

    One of zeros is left alone where a gradient comes in the first steps, as of a layer that starts
    as nothing on purpose: behind another such layer its gradient is 0 in the first step alone.

    Args:
        view: of the run.
    """
    if not view.sees_beginning:
        return
    for site in view.matrices:
        std, top = view.start(site, "std"), view.start(site, "absmax")
        if not std <= 1e-12 * max(1.0, top) or not view.start(site, "numel") >= 4:
            continue
        if top == 0 and not _gets_nothing(view, site):
            continue
        yield Finding(
            "symmetric",
            ALARM,
            shown(site.path),
            (view.first,),
            f"every element of {site.leaf} is {view.start(site, 'mean'):.3g} in the first step",
            {"value": view.start(site, "mean")},
            "Initialise it with random numbers: equal units get equal gradients, and stay equal.",
        )


def _gets_nothing(view: View, site: Site, *, share: float = 1e-3) -> bool:
    """Return whether a parameter is to be trained, and has hardly a gradient in the first steps."""
    name = f"{site.path}.{site.leaf}" if site.path else site.leaf
    if not view.meta.requires_grad.get(name, True):
        return False
    every = [_early_gradient(view, one) for one in view.matrices]
    most = max((one for one in every if one == one), default=math.nan)
    own = _early_gradient(view, site)
    # Without any gradient it stays as it is: see ``detached``.
    return own <= share * most or (own != own and view.series(site, "absmax")[-1] == 0)


def _early_gradient(view: View, site: Site) -> float:
    """Return the largest norm of a parameter's gradient in the first three steps; NaN for none."""
    norms = view.series(view.beside(site, "param_grad"), "l2")[:3]
    norms = norms[np.isfinite(norms)]
    return float(norms.max()) if len(norms) else math.nan
