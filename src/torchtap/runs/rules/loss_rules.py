"""Rules on the loss: it rises, it stays, it is too good."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.optimizer_rules import update_ratios
from torchtap.runs.rules.rule_view import Floats, View, median


def loss_rises(
    view: View, *, sign: float = 2.0, rise: float = 0.05, noises: float = 4.0
) -> Iterator[Finding]:
    """A loss that is climbed.

    Exact where an optimizer was told to climb and the loss rises, and of a cross-entropy: its
    gradient is most negative at the true class, and with the sign turned most positive there.
    Otherwise the three thirds of the run rise, beyond the noise.

    Args:
        view: of the run.
        sign: the largest gradient over the magnitude of the smallest, of more than 3 classes.
        rise: share by which the last third is above the first.
        noises: standard errors between these thirds.
    """
    exact = list(_climbs(view, sign, rise))
    yield from exact
    if exact or len(view.loss) < 20 or not (view.loss.is_known and view.loss.is_logged):
        return
    values, third = view.loss.values, len(view.loss) // 3
    one, two, three = (
        values[:third].mean(),
        values[third : 2 * third].mean(),
        values[-third:].mean(),
    )
    error = view.loss.noise / math.sqrt(third)
    if three > two > one and three - one > max(noises * error, rise * abs(one)):
        yield Finding(
            "loss_rises",
            ALARM,
            ".",
            (view.loss.steps[0], view.loss.steps[-1]),
            f"the loss rises steadily: {one:.3g}, {two:.3g}, {three:.3g} in the thirds of the run",
            {"first": one, "second": two, "third": three},
            "Look at the sign of the loss.",
        )


def _climbs(view: View, sign: float, rise: float) -> Iterator[Finding]:
    """Yield what has an exact signature: ``maximize=True``, or the gradient of a cross-entropy."""
    climbing = [group for group in view.meta.optimizers if group.get("maximize")]
    if climbing and view.loss.fall < -rise:
        yield Finding(
            "loss_rises",
            ALARM,
            ".",
            view.span,
            f"{climbing[0]['optimizer']} has maximize=True, and the loss rises from "
            f"{view.loss.start:.3g} to {view.loss.end:.3g}",
            {"first": view.loss.start, "last": view.loss.end, "is_exact": True},
            "Leave maximize out, or turn the sign of the loss.",
        )
        return
    gradient = view.site("", "grad_output")
    top, bottom = median(view.series(gradient, "max")[:5]), median(view.series(gradient, "min")[:5])
    is_turned = view.loss.num_classes > 3 and top > sign * abs(bottom)
    if is_turned and (not view.loss.fall > 0 or _stays_wrong(view, top)):
        yield Finding(
            "loss_rises",
            ALARM,
            ".",
            view.span,
            f"the gradient of the logits lies between {bottom:.2g} and {top:.2g}: it climbs the "
            f"cross-entropy",
            {"max": top, "min": bottom, "is_exact": True},
            "Turn the sign of the loss.",
        )


def _stays_wrong(view: View, top: float) -> bool:
    """Return whether true classes are climbed, whatever was logged: the loss itself, or ``-loss``.

    A row's gradient is ``1 - p`` at its true class then, more than half of its share, and ``p``
    does not grow. Soft targets give less, or are reached.
    """
    shares = view.loss.wrong_share(view.loss.num_classes)
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return False
    rows = view.start(view.site("", "grad_output"), "numel") / view.loss.num_classes
    is_share = top * rows / view.loss.num_losses <= 1.001
    most = top * rows / view.loss.num_losses if is_share else top
    return 0.5 < most <= 1.001 and median(shares[-5:]) > 0.9 * median(shares[:5])


def labels(
    view: View, *, fall: float = 0.1, moves: float = 1e-4, chance: float = 0.93
) -> Iterator[Finding]:
    """Weights that move while a cross-entropy stays at chance: targets say nothing of inputs.

    A slow training is left alone: its loss is still falls beyond its scatter, or fell below
    chance steadily.

    Args:
        view: of the run.
        fall: share by which the loss moved, either way, from which on it does not stay.
        moves: median update over weight from which on the weights move.
        chance: share of ``log(classes)`` above which the last fifth of the loss is.
    """
    if len(view.loss) < 20 or not view.loss.is_known or not view.loss.num_classes:
        return
    usual = median([median(own) for own in update_ratios(view).values()])
    at_chance = math.log(view.loss.num_classes)
    is_still = abs(view.loss.fall) < fall and not _is_learning(view, at_chance)
    is_climbed = any(True for _ in _climbs(view, 2.0, fall))
    if is_still and not is_climbed and usual > moves and view.loss.end > chance * at_chance:
        yield Finding(
            "labels",
            ALARM,
            ".",
            view.span,
            f"weights move by {usual:.1g} a step and the loss stays, {view.loss.start:.4g} to "
            f"{view.loss.end:.4g}; chance is {at_chance:.4g}",
            {"fall": view.loss.fall, "update_ratio": usual, "chance": at_chance},
            "Look at some samples with their targets: shuffled, off by one, or constant?",
        )


def _is_learning(view: View, at_chance: float) -> bool:
    """Return whether the loss still falls beyond its scatter, or fell steadily below chance.

    A loss that begins above chance falls to it whatever the targets, and stays there.
    """
    values = view.loss.values
    still_falls = _falls(values[len(values) // 2 :])
    return still_falls or (view.loss.end < at_chance and _falls(values))


def _falls(values: Floats, *, errors: float = 3.0) -> bool:
    """Return whether the slope of a least-squares line is below 0 by some standard errors.

    The standard error is ``s / sqrt(sum((t - mean(t))^2))``, ``s`` the scatter about the line.
    """
    times = np.arange(len(values)) - (len(values) - 1) / 2
    squares = float((times**2).sum())
    slope = float((times * values).sum()) / squares
    scatter = float(np.std(values - values.mean() - slope * times, ddof=2))
    return slope < -errors * scatter / math.sqrt(squares)


def too_good(
    view: View, *, share: float = 0.05, classes: int = 5, fewest: int = 30
) -> Iterator[Finding]:
    """A loss near 0 within few steps: an easy task, or targets that are in the input. A note.

    Args:
        view: of the run.
        share: of the first loss that is left at the end.
        classes: more than these make an easy task unlikely.
        fewest: steps without which nothing is said.
    """
    values = view.loss.values
    if len(values) < fewest or not np.isfinite(values).all() or view.loss.num_classes <= classes:
        return
    first, last = float(values[:2].mean()), float(values[-5:].mean())
    if 0 < last < share * first:
        yield Finding(
            "too_good",
            NOTE,
            ".",
            view.span,
            f"the loss is {last:.2g} after {len(values)} steps, from {first:.2g}",
            {"first": first, "last": last},
            "Look whether the targets are in the input, as without a causal mask.",
        )
