"""Rules on the steps of the optimizer: too large, too small, none, decay, rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, Finding
from torchtap.runs.rules.rule_view import NO_STEP, Floats, View, largest, median, shown, why_absent

_EARLY = 12


def lr_high(
    view: View, *, high: float = 0.12, alone: float = 0.6, rise: float = 1.5, fall: float = 0.05
) -> Iterator[Finding]:
    """Steps so large that weights are overwritten rather than improved.

    Args:
        view: of the run.
        high: update over weight: the median over matrices of the largest of the first 12 steps.
            Healthy are 5e-4 to 0.5, so the loss must have risen as well, or not have fallen.
        alone: the same, unless the loss fell to half without having risen, or to a fifth.
        rise: by which factor the loss rose in the first 15 steps, and did not fall to half of its
            first number later.
        fall: share by which the loss fell at least where all is well.
    """
    ratios = {
        site: own for site, own in update_ratios(view).items() if not _starts_small(view, site)
    }
    if not ratios:
        return
    tops = {site: largest(own[1:_EARLY] if len(own) > 1 else own) for site, own in ratios.items()}
    early = median(tops.values())
    values = view.loss.values
    has_share = view.loss.is_known and not view.loss.is_around_0
    has_risen = has_share and values[1:15].max() > rise * values[0] > 0
    has_learnt = view.loss.is_known and 0 < view.loss.end < 0.5 * values[0]
    is_bad = bool((has_risen or view.loss.fall < fall) and not has_learnt)
    is_fruitful = has_learnt and (not has_risen or view.loss.end < 0.2 * values[0])
    if not ((early > alone and not is_fruitful) or (early > high and is_bad)):
        return
    path = max(tops, key=lambda site: tops[site]).path
    rates = sorted({group["lr"] for group in view.meta.optimizers if "lr" in group})
    yield Finding(
        "lr_high",
        ALARM,
        ".",
        (view.first, int(view.steps[min(_EARLY, len(view.steps) - 1)])),
        f"an update is {early:.2g} of the weight (median over matrices of the largest of the first "
        f"steps), the largest at {shown(path)}",
        {"update_ratio": early, "fall": view.loss.fall, "lr": rates},
        "Divide the learning rate by 10, or warm it up.",
    )


def _starts_small(view: View, site: Site) -> bool:
    """Return whether a matrix starts near zero: any step is large beside it."""
    return view.start(site, "rms") * math.sqrt(math.prod(view.shape(site)[1:])) < 0.05


def steps_too_small(
    view: View,
    *,
    low: float = 2e-6,
    stuck: float = 1e-4,
    fall: float = 0.02,
    fewest: int = 20,
) -> Iterator[Finding]:
    """Steps so small that nothing is learned.

    Args:
        view: of the run.
        low: the largest update over weight ever, median over matrices; healthy are from 5e-4 on.
        stuck: the same where the loss does not fall.
        fall: share by which the loss falls where all is well.
        fewest: steps without which nothing is said: a warm-up begins with small ones.
    """
    if len(view.steps) < fewest:
        return
    most = median([largest(own) for own in update_ratios(view).values()])
    is_stuck = most < stuck and (view.loss.fall < fall or view.loss.is_within_noise)
    is_rounded = most == 0 and median(view.norm("update")) == 0 < median(view.norm("param_grad"))
    if not (0 < most < low or (is_stuck and most > 0) or is_rounded):
        return
    rates = sorted({group["lr"] for group in view.meta.optimizers if "lr" in group})
    yield Finding(
        "steps_too_small",
        ALARM,
        ".",
        view.span,
        f"an update is never more than {most:.1g} of the weight",
        {"update_ratio": most, "fall": view.loss.fall, "lr": rates},
        "Multiply the learning rate by 10 to 1000.",
    )


def updates_stop(view: View, *, limit: float = 1e-6) -> Iterator[Finding]:
    """Updates that end while gradients go on, or that never began: no optimizer made a step.

    Args:
        view: of the run.
        limit: norm of all updates over the largest, below which there are none. The last 15 % of
            the steps are left alone: a schedule may end at 0.
    """
    if _never_stepped(view):
        yield Finding(
            "updates_stop",
            ALARM,
            ".",
            view.span,
            f"no optimizer made a step in {len(view.steps)} steps with gradients, and the weights "
            f"stay as they are",
            {"since": view.first, "optimizer_steps": 0},
            "Call optimizer.step() after backward().",
        )
        return
    updates, gradients = view.norm("update"), view.norm("param_grad")
    made = np.flatnonzero(~np.isnan(updates))
    updates, gradients = updates[made], gradients[made]
    if len(made) < 20 or not median(updates[:5]) > 0:
        return
    still = updates < limit * np.nanmax(updates)
    since = len(still) - int(np.argmin(still[::-1])) if not still.all() else 0
    if since > 0.85 * len(made) or not median(gradients[since:]) > 1e-4 * median(gradients[:5]):
        return
    step = int(view.steps[made[since]])
    yield Finding(
        "updates_stop",
        ALARM,
        ".",
        (step, view.last),
        f"updates are 0 from step {step} on, and gradients are not",
        {"since": step},
        "Look at the schedule of the learning rate, and at clipping.",
    )


def _never_stepped(view: View, *, fewest: int = 20) -> bool:
    """Return whether all weights stand in a run with gradients that watched for updates in vain.

    A training by hand moves them without an optimizer, and gradients that are accumulated over
    fewer steps than ``fewest`` wait for one.
    """
    weights = [view.series(site, "l1") for site in view.sites("param")]
    are_known = bool(weights) and all(np.isfinite(own).any() for own in weights)
    return (
        len(view.steps) >= fewest
        and view.sees_beginning
        and not view.meta.optimizers
        and not view.meta.foreign_steps
        and NO_STEP in why_absent(view, "update")
        and bool((view.norm("param_grad") > 0).sum() >= fewest)
        and are_known
        and all(np.ptp(own[np.isfinite(own)]) == 0 for own in weights)
    )


def decay_high(
    view: View, *, angle: float = -0.5, lost: float = 0.3, gone: float = 0.8, decay: float = 0.1
) -> Iterator[Finding]:
    """A weight decay that is stronger than what is learned.

    The cosine of an update and its weight follows from three norms; decay pulls it to -1.

    Args:
        view: of the run.
        angle: median cosine over the first half of the run, of each matrix. Healthy trainings lost
            0.01 to 0.7 of a norm, but not along the weights.
        lost: share of its norm that each matrix lost.
        gone: share of its norm that half of the matrices lost, where nothing is learned.
        decay: a setting of it, beside that.
    """
    cosines, losses = [], []
    for site in view.matrices:
        weight, update = view.series(site, "l2"), view.series(view.beside(site, "update"), "l2")
        before, after, step = weight[:-1], weight[1:], update[:-1]
        if np.isfinite(before * after * step).sum() < 10 or not weight[0] > 0:
            continue
        with np.errstate(all="ignore"):
            cosine = (after**2 - before**2 - step**2) / (2 * before * step)
        cosines.append(median(cosine[: len(cosine) // 2]))
        losses.append(1 - weight[np.isfinite(weight)][-1] / weight[0])
    is_pulled = bool(cosines) and max(cosines) < angle and min(losses) > lost
    decays = sorted({group.get("weight_decay", 0) for group in view.meta.optimizers})
    is_set_high = max(decays, default=0) >= decay and not view.loss.fall > 0.2
    is_gone = median(losses) > gone
    if len(losses) < 2 or not (is_pulled or (is_set_high and is_gone)):
        return
    yield Finding(
        "decay_high",
        ALARM,
        ".",
        view.span,
        f"updates point against the weights (cosine {max(cosines):.2f} or less), and each matrix "
        f"lost {min(losses):.0%} of its norm or more",
        {"cosine": median(cosines), "lost": median(losses), "weight_decay": decays},
        "Use a smaller weight decay, such as 0.01 with AdamW.",
    )


def stale_low_precision(view: View, *, limit: float = 0.9, share: float = 0.5) -> Iterator[Finding]:
    """Weights in bfloat16 or float16 that a step is too small to change.

    Args:
        view: of the run.
        limit: share of an update's elements that are 0, where less than half of the gradient's are.
        share: of the matrices in a small format.
    """
    found, num_small = [], 0
    for site in view.matrices:
        if view.dtype(site) not in ("bfloat16", "float16"):
            continue
        num_small += 1
        zeros = median(view.share(view.beside(site, "update"), "zeros"))
        if zeros > limit and median(view.share(view.beside(site, "param_grad"), "zeros")) < 0.5:
            found.append((site, zeros))
    if found and len(found) >= share * num_small:
        site, zeros = found[0]
        yield Finding(
            "stale_low_precision",
            ALARM,
            shown(site.path),
            view.span,
            f"{zeros:.0%} of its update is lost to rounding in {view.dtype(site)}, and as much in "
            f"{len(found)} of {num_small} matrices",
            {"zeros": zeros, "matrices": len(found)},
            "Keep the weights in float32 and compute under autocast.",
        )


def update_ratios(view: View) -> dict[Site, Floats]:
    """Return the norm of each matrix' update over its own, in the steps in which there was one."""
    found = {one: view.series(view.beside(one, "update"), "update_ratio") for one in view.matrices}
    kept = {one: ratios[np.isfinite(ratios)] for one, ratios in found.items()}
    return {one: ratios for one, ratios in kept.items() if len(ratios)}
