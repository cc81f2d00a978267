"""Rules on gradients: vanishing, exploding, added up by mistake, lost in a small format."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, Finding
from torchtap.runs.rules.rule_view import Floats, View, median, shown

_EARLY = 10
_FEWEST_STEPS = 5


def vanishing(view: View, *, limit: float = 1e-4) -> Iterator[Finding]:
    """Gradients that get lost on their way to the first layers.

    Args:
        view: of the run.
        limit: rms of the gradient of the first matrix over the largest of the later half; healthy
            are 0.08 to 2.9.
    """
    rows = _rms_of_gradients(view)
    if len(rows) < 3:
        return
    (site, first), later = rows[0], rows[len(rows) // 2 :]
    largest = max(later, key=lambda row: row[1])
    if largest[1] > 0 and 0 < first < limit * largest[1]:
        ratio = first / largest[1]
        yield Finding(
            "vanishing",
            ALARM,
            shown(site.path),
            view.span,
            f"the rms of its gradient is {first:.2g}, {ratio:.1g} of that at {largest[0].path}",
            {"ratio": ratio, "first": first, "later": largest[1]},
            "Use residual connections, norms, or an activation that does not saturate.",
        )


def exploding(view: View, *, limit: float = 300.0, norm: float = 1e3) -> Iterator[Finding]:
    """Gradients that grow on their way to the first layers, or are huge in all.

    Args:
        view: of the run.
        limit: rms of the gradient of the first matrix over that of the last; healthy are 0.11 to
            2.9.
        norm: of all gradients together, in the first ten steps; healthy are up to 25.
    """
    rows = _rms_of_gradients(view)
    if len(rows) >= 3 and rows[-1][1] > 0 and rows[0][1] > limit * rows[-1][1]:
        ratio = rows[0][1] / rows[-1][1]
        text = f"the rms of its gradient is {rows[0][1]:.2g}, {ratio:.3g} times that at the end"
        evidence = {"ratio": ratio}
        path = rows[0][0].path
    else:
        total = median(view.norm("param_grad")[:_EARLY])
        if not total > norm or not rows:
            return
        path = max(rows, key=lambda row: row[1])[0].path
        text = f"the norm of all gradients is {total:.3g} in the first steps"
        evidence = {"norm": total}
    yield Finding(
        "exploding",
        ALARM,
        shown(path),
        view.span,
        text,
        evidence,
        "Look at the initial weights and the scale of the data; clip the norm of the gradient.",
    )


def _rms_of_gradients(view: View) -> list[tuple[Site, float]]:
    """Return the matrices that have a gradient with its median rms, in the order of calls."""
    found = []
    for site in view.matrices:
        if view.modules.is_a(site.path, {"Embedding", "EmbeddingBag"}):
            continue  # Most of its rows get none.
        rms = median(view.series(view.beside(site, "param_grad"), "rms"))
        if not math.isnan(rms):
            found.append((site, rms))
    return found


def no_zero_grad(view: View, *, tolerance: float = 1e-3) -> Iterator[Finding]:
    """Gradients of earlier steps that were never set to zero.

    The gradient of a bias is the sum of ``grad_output``, and so never of a larger magnitude: the
    latter tells it where all sums are 0, as under a softmax. Only steps right after one that an
    optimizer made are looked at: in between, gradients may be accumulated on purpose. Exact where a
    watch saw that no backward began without the gradients of the step before.

    Args:
        view: of the run.
        tolerance: by which the sum is missed in the first step, over its magnitudes; ten times as
            much later. Healthy trainings miss it by 2e-9 to 2.5e-7.
    """
    kept, of = view.judged.num_kept, view.judged.num_steps
    if of >= _FEWEST_STEPS:
        if kept > 0.9 * of:
            yield Finding(
                "no_zero_grad",
                ALARM,
                ".",
                view.span,
                f"{kept} of {of} steps were made with gradients of the step before in them",
                {"kept": kept, "of": of},
                "Call optimizer.zero_grad() in each step.",
            )
        return
    wrong, checked, worst = [], 0, 0.0
    for path in view.modules.leaves:
        miss = _miss_of_sum(view, path)
        if not np.isfinite(miss[:1]).any():
            continue
        later = miss[_after_updates(view)]
        later = later[np.isfinite(later)][2:]
        if len(later) < 3 or not miss[0] < tolerance:
            continue
        checked += 1
        beyond = _excess(view, path)
        is_beyond = beyond[0] < 0 and np.mean(beyond[_after_updates(view)][2:] > tolerance) > 0.5
        if np.mean(later > 10 * tolerance) > 0.7 or is_beyond:
            wrong.append(path)
            worst = max(worst, median(later), median(beyond))
    if wrong and len(wrong) >= 0.3 * checked:
        yield Finding(
            "no_zero_grad",
            ALARM,
            ".",
            (int(view.steps[1]), view.last),
            f"in {len(wrong)} of {checked} layers the gradient of the bias is not the sum of "
            f"grad_output any more, as it is in the first step: earlier gradients are in it",
            {"layers": len(wrong), "checked": checked, "miss": worst},
            "Call optimizer.zero_grad() in each step.",
        )


def _after_updates(view: View) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    made = ~np.isnan(view.norm("update"))
    found = np.zeros(len(made), dtype=bool)
    found[1:] = made[:-1] if made.any() else True
    return found


def _miss_of_sum(view: View, path: str) -> Floats:
    """Return how far the gradient of a bias misses the sum of ``grad_output``, in each step."""
    bias, arrived = view.site(path, "param_grad", "bias"), view.site(path, "grad_output")
    is_plain = view.modules.is_a(path, {"Linear", "_ConvNd", "LayerNorm", "_NormBase"})
    if bias is None or arrived is None or not is_plain or view.dtype(arrived) != "float32":
        return np.full(len(view.steps), math.nan)
    own = view.series(bias, "mean") * view.series(bias, "numel")
    whole = view.series(arrived, "mean") * view.series(arrived, "numel")
    with np.errstate(all="ignore"):
        found: Floats = abs(own - whole) / view.series(arrived, "l1")
    return found


def _excess(view: View, path: str) -> Floats:
    """Return by how much the gradient of a bias is of a larger magnitude than ``grad_output``."""
    bias, arrived = view.site(path, "param_grad", "bias"), view.site(path, "grad_output")
    with np.errstate(all="ignore"):
        found: Floats = view.series(bias, "l1") / view.series(arrived, "l1") - 1
    return found


def underflow(view: View, *, limit: float = 0.4, small: float = 1e-6) -> Iterator[Finding]:
    """Gradients in float16 that are lost, or so small that little of them is left.

    The smallest step of float16 is 6e-8. Gradients of 1e-5 are common in healthy trainings, and
    subnormal without harm.

    Args:
        view: of the run.
        limit: share of the sites whose gradient is as small, of those in float16.
        small: rms of a gradient, below which it keeps less than 5 bits.
    """
    rms = {
        site: median(view.series(site, "rms"))
        for port in ("grad_output", "param_grad")
        for site in view.sites(port)
        if view.dtype(site) == "float16"
    }
    lost = [site for site, value in rms.items() if value < small]
    if not lost or len(lost) <= limit * len(rms):
        return
    path = max(lost, key=lambda site: view.modules.order.get(site.path, 0)).path
    yield Finding(
        "underflow",
        ALARM,
        shown(path),
        view.span,
        f"the rms of the gradient is below {small:.0e} at {len(lost)} of {len(rms)} sites in "
        f"float16, whose smallest step is 6e-08",
        {"sites": len(lost), "of": len(rms), "rms": rms[lost[0]]},
        "Scale the loss (torch.amp.GradScaler), or use bfloat16.",
    )
