"""Rules on the scale of what flows forward: initial weights, saturation, collapse, dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, Finding
from torchtap.runs.rules.module_facts import LINEAR, RECTIFIERS
from torchtap.runs.rules.rule_view import Floats, View, median, shown

BOUNDED = {"Tanh": (1.0, 0.0), "Sigmoid": (2.0, -1.0), "Hardtanh": (1.0, 0.0)}
"""Class of a bounded activation -> factor and shift that bring its range to -1 to 1."""
_AT_BOUND = 1.001  # Above it by more than rounding, no value of -1 to 1 has such a mean square.


def large_init(
    view: View, *, logits: float = 12.0, gain: float = 8.0, std: float = 4.0, chance: float = 8.0
) -> Iterator[Finding]:
    """Weights so large at the start that outputs are far beyond what a loss can use.

    Args:
        view: of the run.
        logits: standard deviation of the logits in the first step; healthy are 0.06 to 7.5 (a
            trained model).
        gain: how many times larger a linear layer makes its input, and its weights make random
            ones; healthy are 0.2 to 3.3. Before a norm it does not matter.
        std: of that layer's output, beside the gain.
        chance: first loss over ``log(classes)``; healthy are 0.9 to 6.4.
    """
    if not view.sees_beginning:
        return
    gains = {
        path: _gain(view, path) for path in view.modules.leaves if view.modules.is_a(path, LINEAR)
    }
    gains = {path: value for path, value in gains.items() if not math.isnan(value)}
    spread = view.start(view.site("", "output"), "std")
    is_wide = (view.loss.num_classes > 0 and spread > logits) or _is_beyond_chance(view, chance)
    found = [
        path
        for path, value in gains.items()
        if value > gain
        and _weight_gain(view, path) > gain / 2
        and view.start(view.site(path, "output"), "std") > std
        and not view.modules.is_norm(view.modules.feeds(path) or "")
    ]
    if not found and is_wide and gains:
        found = [max(gains, key=lambda path: gains[path])]
    if (
        found
        or is_wide
        or any(_is_wide_embedding(view, one, rms=30) for one in view.modules.leaves)
    ):
        path = max(found, key=lambda one: gains[one]) if found else ""
        # Embeddings as large come first.
        path = next(filter(lambda one: _is_wide_embedding(view, one), view.modules.leaves), path)
        value = gains.get(path, math.nan)
        yield Finding(
            "large_init",
            ALARM,
            shown(path),
            (view.first,),
            f"in the first step it makes its input {value:.3g} times larger, and the output of the "
            f"model has a standard deviation of {spread:.3g}",
            {"gain": value, "std": spread},
            "Initialise with a standard deviation of about 1 / sqrt(fan_in), or put a norm there.",
        )


def _is_beyond_chance(view: View, times: float) -> bool:
    """Return whether the first loss of classes is far above that of a guess."""
    values, shape = view.loss.values, view.shape(view.site("", "output"))
    # What a backward begins from may be scaled, and what was logged is not.
    is_known = bool(view.loss.name) and view.judged.takes_log_softmax
    is_known = is_known and len(values) > 0 and len(shape) == 2
    return is_known and float(values[0]) > times * math.log(max(shape[1], 2))


def _is_wide_embedding(view: View, path: str, *, rms: float = 8.0) -> bool:
    """Return whether a module is an embedding whose vectors are far larger than others start."""
    return view.modules.is_a(path, {"Embedding"}) and (
        view.start(view.site(path, "output"), "rms") > rms
    )


def small_init(view: View, *, shrink: float = 0.05, weights: float = 0.01) -> Iterator[Finding]:
    """Weights so small at the start that a layer's output all but vanishes.

    The last layer is left alone, since a head may start near zero, and so are layers whose output
    is added to something larger, as that of a residual branch. Where most is frozen, what is
    trained are adapters, which start as nothing.

    Args:
        view: of the run.
        shrink: rms of a linear layer's output over that of its input; healthy are 0.2 to 3.3.
        weights: the same of its weights on random inputs, where a bias hides it.
    """
    if not view.sees_beginning or view.modules.frozen_share > 0.5:
        return
    for path in view.modules.leaves:
        if not view.modules.is_a(path, LINEAR) or path == view.modules.end:
            continue
        gain, own = _gain(view, path), _weight_gain(view, path)
        is_small = gain < shrink or own < weights
        if not (is_small and own > 0) or _is_added(view, path):
            continue
        yield Finding(
            "small_init",
            ALARM,
            shown(path),
            (view.first,),
            f"in the first step its weights make its input {1 / own:.3g} times smaller",
            {"gain": gain, "weight_gain": own},
            "Initialise with a standard deviation of about 1 / sqrt(fan_in).",
        )


def _is_added(view: View, path: str) -> bool:
    """Return whether the output of a layer is not what enters the next one."""
    after = view.modules.following(path)
    if after is None or view.modules.feeds(path):
        return False
    larger = view.start(view.site(after, "input"), "rms")
    return not larger < 2 * view.start(view.site(path, "output"), "rms")


def _weight_gain(view: View, path: str) -> float:
    """Return how many times larger a weight makes random inputs: rms times sqrt(fan_in)."""
    weight = view.site(path, "param", "weight")
    if weight is None:
        return math.nan
    return view.start(weight, "rms") * math.sqrt(math.prod(view.shape(weight)[1:]))


def _gain(view: View, path: str) -> float:
    """Return the rms of a module's output over that of its input in the first step."""
    before = view.start(view.site(path, "input"), "rms")
    after = view.start(view.site(path, "output"), "rms")
    return after / before if before > 0 else math.nan


def saturated(view: View, *, limit: float = 0.85) -> Iterator[Finding]:
    """A bounded activation that sits at its bounds, where its gradient vanishes.

    The mean square of ``tanh`` (of ``2 sigmoid - 1``) is exact from the mean and the rms.

    Args:
        view: of the run.
        limit: of that mean square in the last steps; healthy are 0.28 to 0.46.
    """
    for path in view.modules.leaves:
        squares = saturation(view, path)
        late = median(squares[-10:])
        if path != view.modules.end and late > limit:
            since = int(np.argmax(squares > limit))
            yield Finding(
                "saturated",
                ALARM,
                shown(path),
                (int(view.steps[since]), view.last),
                f"its outputs sit at the bounds: mean square {late:.3f} of 1",
                {"mean_square": late},
                "Make what enters it smaller: initial weights, the scale of the data, a norm.",
            )


def saturation(view: View, path: str) -> Floats:
    """Return the mean square of a bounded activation over the steps, 1 where all is at a bound.

    It is NaN where the bounds are others: ``ReLU6`` is a ``Hardtanh`` from 0 to 6, and a
    ``Hardtanh`` may be given any bounds.
    """
    kind = next((one for one in BOUNDED if view.modules.is_a(path, {one})), None)
    if kind is None or view.modules.is_a(path, RECTIFIERS):
        return np.full(len(view.steps), math.nan)
    factor, shift = BOUNDED[kind]
    output = view.site(path, "output")
    mean, rms = view.series(output, "mean"), view.series(output, "rms")
    squares: Floats = (factor * rms) ** 2 + 2 * factor * shift * mean + shift**2
    return np.where(np.nanmax(squares, initial=0) > _AT_BOUND, math.nan, squares)


def dropout_high(view: View, *, limit: float = 0.7) -> Iterator[Finding]:
    """A dropout that leaves little of what flows.

    Args:
        view: of the run.
        limit: share that is dropped, as measured where zeros tell it, else as set. Healthy
            trainings use up to 0.5.
    """
    for path in view.modules.leaves:
        if not view.modules.is_a(path, {"_DropoutNd"}) or not view.modules.was_called(path):
            continue
        zeros_in = view.share(view.site(path, "input"), "zeros")
        zeros_out = view.share(view.site(path, "output"), "zeros")
        with np.errstate(all="ignore"):
            share = median(1 - (1 - zeros_out) / (1 - zeros_in))
        if math.isnan(share) and view.meta.modes.get(path, False):
            share = float(view.modules.setting(path, "p") or 0)
        if share > limit:
            yield Finding(
                "dropout_high",
                ALARM,
                shown(path),
                view.span,
                f"it drops {share:.0%} of its input",
                {"share": share},
                "Use a dropout of 0.1 to 0.5.",
            )


def collapsed(
    view: View,
    *,
    tolerance: float = 1e-3,
    rank: float = 1.02,
    fades: float = 0.12,
    small: float = 0.03,
) -> Iterator[Finding]:
    """All samples of a batch look the same to a layer, or to what comes after one.

    Where all rows of a linear layer's input are equal, the gradient of its weight is the outer
    product of one row and the gradient of its bias, and so the product of their norms is its norm.
    Where ``effective_rank`` was measured, that of the first step tells it as well. The outputs of a
    layer that is trained away fade, as a code does under too strong a prior.

    Args:
        view: of the run.
        tolerance: of that equation. Inputs that differ miss it by more than 1e-2.
        rank: effective rank of an output in the first step.
        fades: standard deviation of a layer's output in the last steps over that in the first;
            healthy are from 0.15 on.
        small: the same deviation in the last steps.
    """
    linear = [path for path in view.modules.leaves if view.modules.is_a(path, {"Linear"})]
    # What is alike on purpose, as a time that all samples share, is not all there is.
    if linear and _is_collapsed(view, linear[-1], tolerance, rank):
        path = next(one for one in linear if _is_collapsed(view, one, tolerance, rank))
        miss = _miss_of_one_row(view, path)
        lowest = view.start(view.site(path, "output"), "effective_rank")
        yield _collapse(
            view,
            path,
            "all samples give the same here: its input does not vary within a batch",
            {"miss": median(miss), "at_start": median(miss[:5]), "effective_rank": lowest},
        )
        return
    away, size = view.judged.variation
    if len(away) >= 10 and not len(view.judged.agreement):
        early, late, share = median(away[:3]), median(away[-8:]), median((away / size)[-8:])
        if late < fades * early and share < 0.05:
            yield _collapse(
                view,
                "",
                f"outputs become alike: they deviate by {early:.2g} within a batch in the first "
                f"steps, and by {late:.2g}, {share:.1%} of their size, in the last",
                {"first": early, "last": late},
            )
            return
    for path in view.modules.leaves:
        spread = view.series(view.site(path, "output"), "std")
        spread = spread[np.isfinite(spread)]
        if len(spread) < 20 or not view.modules.is_a(path, LINEAR):
            continue
        early, late = median(spread[:3]), median(spread[-8:])
        if 0 < late < min(fades * early, small):
            yield _collapse(
                view,
                path,
                f"its outputs fade, from a standard deviation of {early:.2g} to {late:.2g}",
                {"first": early, "last": late},
            )
            return


def _collapse(view: View, path: str, text: str, evidence: dict[str, float]) -> Finding:
    advice = "Look for an average or a norm over the batch, or an input that is ignored."
    if "last" in evidence:
        advice = "Look for a term of the loss that pulls it to 0, such as a prior with much weight."
    return Finding("collapsed", ALARM, shown(path), view.span, text, evidence, advice)


def _is_collapsed(view: View, path: str, tolerance: float, rank: float) -> bool:
    output = view.site(path, "output")
    is_flat = view.start(output, "effective_rank") < rank and view.shape(output)[-1:] >= (8,)
    return is_flat or median(_miss_of_one_row(view, path)) < tolerance


def _miss_of_one_row(view: View, path: str) -> Floats:
    """Return how far ``|dW| = |x| |db|`` is missed, relative, in each step; NaN where unknown."""
    source = view.site(path, "input")
    weight, bias = Site(path, "param_grad", "weight"), Site(path, "param_grad", "bias")
    shape = view.shape(source)
    rows = math.prod(shape[:-1]) if len(shape) > 1 else 0
    if rows < 4:
        return np.full(len(view.steps), math.nan)
    row = view.series(source, "l2") / math.sqrt(rows)
    product = row * view.series(_there(view, bias), "l2")
    found = view.series(_there(view, weight), "l2")
    with np.errstate(all="ignore"):
        miss: Floats = abs(found - product) / product
    miss[~(product > 0)] = math.nan
    return miss


def _there(view: View, site: Site) -> Site | None:
    return view.site(site.path, site.port, site.leaf)
