"""Gradients that are zero whatever the training does, so that nobody searches for the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchtap.core.site import Site
from torchtap.core.text import plural

if TYPE_CHECKING:
    from torchtap.runs.run import Run

_NORMS = ("_BatchNorm", "_InstanceNorm")
_LAYERS = ("_ConvNd", "Linear")
_PORTS = ("param_grad", "step_grad")
_ROUNDING = 1e-4
"""A bias's gradient below this share of the weight's is rounding."""


def zero_by_construction(run: Run, sites: Sequence[Site] | None = None) -> dict[Site, str]:
    """Gradients of biases that a normalisation right behind takes out: site -> reason.

    A batch norm in training subtracts the mean over the batch, and with it every bias before it,
    whose gradient is 0 up to rounding. It is said where the run shows both: the next module in
    the same parent is a batch norm (or instance norm), and the gradient is below 1e-4 of that of
    the weight beside it in every step.

    Args:
        run: any run.
        sites: those that are asked about; all by default.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        >>> with tt.watch(net, "*:param_grad") as w:
        ...     net(torch.randn(8, 4)).exp().sum().backward()
        >>> from torchtap.plot.zero_gradients import zero_by_construction
        >>> zero_by_construction(w.run)
        {Site(path='0', port='param_grad', leaf='bias'): 'the batch norm 1 subtracts it again'}
    """
    asked = run.sites if sites is None else sites
    why_zero = {}
    for site in asked:
        if site.port not in _PORTS or site.leaf != "bias":
            continue
        norm = _norm_behind(run, site.path)
        weight = Site(site.path, site.port, "weight")
        if norm and weight in run and _is_rounding(run, site, weight):
            why_zero[site] = f"the batch norm {norm} subtracts it again"
    return why_zero


def zero_words(run: Run, sites: Sequence[Site], step: int | None) -> list[str]:
    """Say in a sentence which sites have such gradients, if any has.

    Args:
        run: any run.
        sites: that are drawn.
        step: the last of the run; none without steps.
    """
    why_zero = {} if step is None else zero_by_construction(run, sites)
    if not why_zero:
        return []
    site, reason = next(iter(why_zero.items()))
    if len(why_zero) == 1:
        return [f"{site} is zero by construction, up to rounding: {reason}."]
    return [
        f"{plural(len(why_zero), 'gradient')} of biases are zero by construction, up to rounding, "
        f"as {site}: {reason}."
    ]


def _norm_behind(run: Run, path: str) -> str:
    """Return the path of the normalisation that stands right behind a layer in the same parent."""
    modules = run.meta.modules
    if not any(name in modules.get(path, ()) for name in _LAYERS):
        return ""
    parent = path.rpartition(".")[0]
    behind = list(modules)[list(modules).index(path) + 1 :]
    siblings = (one for one in behind if one.rpartition(".")[0] == parent)
    following = next(siblings, "")
    return following if any(name in modules.get(following, ()) for name in _NORMS) else ""


def _is_rounding(run: Run, bias: Site, weight: Site) -> bool:
    own, beside = run.array(bias, "l2"), run.array(weight, "l2")
    both = np.isfinite(own) & np.isfinite(beside) & (beside > 0)
    return bool(both.any() and (own[both] <= _ROUNDING * beside[both]).all())
