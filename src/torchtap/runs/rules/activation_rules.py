"""Rules on activations: a second softmax, a last one that cuts, one that is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.loss_operations import Meeting
from torchtap.runs.rules.module_facts import LINEAR, RECTIFIERS
from torchtap.runs.rules.rule_view import View, median, shown
from torchtap.runs.rules.scale_rules import BOUNDED, saturation


def double_softmax(view: View, *, tolerance: float = 1e-3) -> Iterator[Finding]:
    """A loss that applies softmax (or sigmoid) itself, on an output that has been through one.

    The outputs sum to 1, and their gradient to 0 with both signs in every row: that of a
    cross-entropy of logits. Of a log-likelihood of probabilities it is of one sign. Since such
    logits lie between 0 and 1, the true class gets at most ``e / (e + c - 1)`` of ``c`` classes,
    and the gradient never falls below what that leaves; of a squared error it is smaller.

    Exact where a watch saw the operations of the loss: a softmax enters another, or a sigmoid the
    binary cross-entropy of logits, also where both are outside of the model.

    Args:
        view: of the run.
        tolerance: of both sums.
    """
    seen = list(_seen_twice(view))
    yield from seen
    if seen:
        return
    output, gradient = view.site("", "output"), view.site("", "grad_output")
    shape = view.shape(output)
    low, high = view.series(output, "min"), view.series(output, "max")
    if not len(view.steps) or not (
        np.nanmin(low, initial=1) >= 0 and np.nanmax(high, initial=0) <= 1
    ):
        return
    for classes in {shape[-1], shape[1]} if len(shape) > 1 else ():
        total = median(view.series(output, "mean")) * classes
        with np.errstate(all="ignore"):
            is_zero = median(abs(view.series(gradient, "mean")) / view.series(gradient, "rms"))
        dense = 1 - median(view.share(gradient, "zeros"))
        if classes < 2 or not abs(total - 1) < tolerance or not is_zero < tolerance:
            continue
        if dense > 0.5 and _is_bounded_cross_entropy(view, classes):
            yield Finding(
                "double_softmax",
                ALARM,
                shown(view.modules.end),
                view.span,
                f"the outputs sum to {total:.4f} over {classes} classes, and their gradient to 0: "
                f"the loss applies softmax to probabilities",
                {"sum": total, "classes": classes},
                "Leave the softmax out of the model: cross_entropy takes logits.",
            )
            return


_TWICE = {
    ("LogSoftmax", "Softmax"): "softmax",
    ("LogSoftmax", "Exp"): "exponential",
    ("BinaryCrossEntropyWithLogits", "Sigmoid"): "sigmoid",
}
"""Operation and what enters it -> which activation is applied twice."""


def _seen_twice(view: View) -> Iterator[Finding]:
    """Yield an activation that is applied twice, or over a dim that is not that of classes."""
    if any(True for _ in _over_batch(view)):
        return
    for one in view.judged.meetings():
        twice = _TWICE.get((one.upper, one.lower))
        is_ours = not one.is_outside and bool(view.modules.end)
        if twice == "sigmoid" and is_ours:
            continue  # It is the last module: see ``final_activation``.
        if twice is None and not _is_over_samples(view, one):
            continue
        text = (
            f"the loss applies its own {one.upper} to what has been through a {twice}"
            if twice
            else f"a softmax over dim {one.settings['dim']} enters the loss, which takes logs of "
            f"probabilities that sum to 1 over the classes"
        )
        yield Finding(
            "double_softmax",
            ALARM,
            shown(view.modules.end if is_ours else ""),
            view.span,
            text,
            {"upper": one.upper, "lower": one.lower, "is_outside": one.is_outside},
            "Leave one of them out: cross_entropy takes logits, and normalises over the classes.",
        )
        return


def _is_over_samples(view: View, one: Meeting) -> bool:
    """Return whether a likelihood takes logs that are normalised over samples or time."""
    if one.upper not in ("NllLoss", "NllLoss2D") or one.lower != "LogSoftmax":
        return False
    shape = view.shape(view.site("", "output"))
    num_dims, dim = len(shape), one.settings.get("dim")
    # Of pairs, whose true ones stand on the diagonal, both dims are classes.
    if not isinstance(dim, int) or num_dims < 2 or shape[0] == shape[1]:
        return False
    dim = dim % num_dims if dim < 0 else dim
    return dim == 0 or (one.upper == "NllLoss" and one.is_flattened and 0 < dim < num_dims - 1)


def _is_bounded_cross_entropy(view: View, classes: int) -> bool:
    """Return whether the gradient is as large as probabilities for logits leave it.

    Of few classes that of a squared error is as large, but not within what the outputs of the step
    allow: from ``low`` to ``high``, the true class of ``c`` gets ``1 / (1 + (c - 1) exp(d))``, with
    ``d`` between ``low - high`` and ``high - low``.
    """
    shares = view.loss.wrong_share(classes)
    if not median(shares) > 0.8 * (1 - math.e / (math.e + classes - 1)):
        return False
    if classes > 4:
        return True
    output, gradient = view.site("", "output"), view.site("", "grad_output")
    spread = view.series(output, "max") - view.series(output, "min")
    rows = view.series(gradient, "numel") / classes / view.loss.num_losses
    scale = np.where(view.series(gradient, "l1") > 2.0001 * view.loss.num_losses, 1.0, rows)
    most = 1 - 1 / (1 + (classes - 1) * np.exp(spread))
    least = 1 - 1 / (1 + (classes - 1) * np.exp(-spread))
    found = view.series(gradient, "absmax") * scale
    there = np.isfinite(found) & np.isfinite(spread)
    is_within = bool((found[there] <= 1.01 * most[there]).all())
    return is_within and median(shares / least) > 0.8


def _double_sigmoid(view: View) -> Iterator[Finding]:
    """A last sigmoid under the binary cross-entropy of logits, which applies its own.

    Its gradient is ``sigmoid(y) - t``: 0.5 to 0.731 for ``t = 0``, and -0.5 to -0.269 for
    ``t = 1``, since ``y`` lies between 0 and 1; over the elements or samples if the loss is a mean.
    """
    gradient = view.site("", "grad_output")
    if not view.modules.is_a(view.modules.end, {"Sigmoid"}):
        return
    high, low = view.series(gradient, "max"), view.series(gradient, "min")
    size, rows = view.series(gradient, "numel"), (view.shape(gradient) or (1,))[0]
    for scale in (size, np.full(len(size), float(rows)), np.ones(len(size))):
        top, bottom = high * scale, low * scale
        there = ~np.isnan(top)
        is_two_sided = (top[there] >= 0.499) & (top[there] <= 0.7321)
        is_two_sided &= (bottom[there] >= -0.501) & (bottom[there] <= -0.268)
        if not (there.any() and is_two_sided.all()):
            continue
        yield Finding(
            "final_activation",
            ALARM,
            shown(view.modules.end),
            view.span,
            f"its gradient lies between {bottom[there].min():.3g} and {top[there].max():.3g} of an "
            f"element's share: the loss applies sigmoid to what is between 0 and 1",
            {
                "max": float(top[there].max()),
                "min": float(bottom[there].min()),
                "is_exact": True,
            },
            "Leave the sigmoid out: binary_cross_entropy_with_logits takes logits.",
        )
        return


def final_activation(
    view: View, *, cut: float = 0.25, bound: float = 0.6, fall: float = 0.6
) -> Iterator[Finding]:
    """A last activation that the targets cannot be reached through.

    A rectifier under a cross-entropy; a bounded function that sits at its bounds while the loss
    does not fall; one whose output is the same number for everything, as a softmax over one unit;
    a sigmoid before a loss that applies its own; a softmax over the samples of the batch.

    Args:
        view: of the run.
        cut: share of the logits that a rectifier sets to 0.
        bound: mean square of a bounded function, of 1.
        fall: share by which the loss falls where a bounded function is right.
    """
    path = view.modules.end
    output = view.site(path, "output")
    zeros = median(view.share(output, "zeros"))
    reached = list(_out_of_reach(view))
    if not reached and view.modules.is_a(path, RECTIFIERS) and zeros > cut:
        is_trained = bool(view.meta.optimizers) or median(view.norm("update")) > 0
        is_alarm = view.loss.num_classes > 0 or (is_trained and view.loss.fall < fall)
        yield Finding(
            "final_activation",
            ALARM if is_alarm else NOTE,
            shown(path),
            view.span,
            f"it sets {zeros:.0%} of the model's output to 0, which then gets no gradient",
            {"zeros": zeros},
            "Leave the last activation out.",
        )
    exact = [
        *reached,
        *_double_sigmoid(view),
        *_over_batch(view),
        *_constant(view),
    ]
    yield from exact
    late = median(saturation(view, path)[-10:])
    if not exact and view.modules.is_a(path, BOUNDED) and late > bound and view.loss.fall < fall:
        yield Finding(
            "final_activation",
            ALARM,
            shown(path),
            view.span,
            f"it sits at its bounds (mean square {late:.2f} of 1) and the loss does not fall",
            {"mean_square": late, "fall": view.loss.fall},
            "Leave the last activation out, or scale the targets into its range.",
        )


_RANGES = {
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
    "Exp": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
}
"""Operation at the end of a model -> the numbers that it gives."""


def _out_of_reach(view: View, *, beyond: float = 0.1) -> Iterator[Finding]:
    """Targets that the last operation cannot give, by a tenth of their range or more."""
    low, high = view.judged.range_of_targets
    least, most = _RANGES.get(view.judged.end, (-math.inf, math.inf))
    margin = beyond * (high - low)
    if low < least - margin or high > most + margin:
        yield Finding(
            "final_activation",
            ALARM,
            shown(view.modules.end),
            view.span,
            f"targets reach from {low:.3g} to {high:.3g}, and {view.judged.end.lower()} at the end "
            f"of the model gives {least:g} to {most:g}",
            {"lowest": low, "highest": high, "is_exact": True},
            "Leave the last activation out, or scale the targets into its range.",
        )


def _over_batch(view: View) -> Iterator[Finding]:
    """A last softmax over the first dim, which is that of samples."""
    path = view.modules.end
    shape = view.shape(view.site(path, "output"))
    total = median(view.series(view.site(path, "output"), "mean")) * (shape[0] if shape else 0)
    is_first = view.modules.is_a(path, {"Softmax"}) and view.modules.setting(path, "dim") == 0
    if is_first and len(shape) == 2 and abs(total - 1) < 1e-3:
        yield Finding(
            "final_activation",
            ALARM,
            shown(path),
            view.span,
            f"its outputs sum to {total:.4f} over the {shape[0]} samples of a batch: its dim is 0",
            {"sum": total, "samples": shape[0], "is_exact": True},
            "Leave it out for cross_entropy, which takes logits, or use dim=1.",
        )


def _constant(view: View) -> Iterator[Finding]:
    """A last activation that gives one number whatever enters it, in every step."""
    path = view.modules.end
    output, entered = view.site(path, "output"), view.site(path, "input")
    low, high = view.series(output, "min"), view.series(output, "max")
    varies = view.series(entered, "max") > view.series(entered, "min")
    is_activation = path and not view.meta.num_parameters.get(path)
    if is_activation and len(low) > 1 and (low == high).all() and varies.all():
        yield Finding(
            "final_activation",
            ALARM,
            shown(path),
            view.span,
            f"its output is {low[0]:.3g} for everything that enters it, so no gradient comes back",
            {"value": float(low[0]), "is_exact": True},
            "Leave the last activation out; a softmax needs more than one unit.",
        )


def no_activation(view: View) -> Iterator[Finding]:
    """A linear layer whose output enters the next one unchanged: both are one linear layer.

    A bottleneck between them is meant, and so is a grouped convolution before a pointwise one.
    An output that is used elsewhere as well, as around an adapter, is none of these: its gradient
    over all uses is not the one that comes through the next layer.

    Args:
        view: of the run.
    """
    linear = [path for path in view.modules.leaves if view.modules.is_a(path, LINEAR)]
    for path, following in pairwise(linear):
        output, entered = view.site(path, "output"), view.site(following, "input")
        # Zeros are equal whatever is between them.
        is_nothing = not np.nanmax(view.series(output, "absmax"), initial=0) > 0
        if is_nothing or not view.are_equal(output, entered) or _is_meant(view, path, following):
            continue
        whole, through = view.site(path, "grad_output"), view.site(following, "grad_input")
        has_gradients = any(True for _ in view.sites("grad_input"))
        if has_gradients and not view.are_equal(whole, through):
            continue
        yield Finding(
            "no_activation",
            ALARM,
            shown(path),
            view.span,
            f"its output enters {following} unchanged: both together are one linear map",
            {"next": following},
            "Put an activation between them, or leave one of them out.",
        )


def _is_meant(view: View, path: str, following: str) -> bool:
    if (view.modules.setting(path, "groups") or 1) > 1 or (
        view.modules.setting(following, "groups") or 1
    ) > 1:
        return True
    # A convolution makes each number of all that its window holds.
    weight = view.shape(view.site(path, "param", "weight"))
    sides = [math.prod(weight[1:]), _width(view, following, "output")]
    return _width(view, path, "output") < min(sides)


def _width(view: View, path: str, port: str) -> int:
    shape = view.shape(view.site(path, port))
    if len(shape) < 2:
        return 0
    return shape[1] if view.modules.is_a(path, {"_ConvNd"}) else shape[-1]
