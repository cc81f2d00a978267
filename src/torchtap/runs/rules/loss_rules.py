"""Rules on the loss: it rises, it stays, it is too good."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.optimizer_rules import update_ratios
from torchtap.runs.rules.rule_view import Floats, View, median
from torchtap.runs.rules.squared_error import (
    is_of_all_pairs,
    ratio_of_squares,
    share_of_all_pairs,
)


def loss_rises(
    view: View,
    *,
    sign: float = 2.0,
    rise: float = 0.05,
    noises: float = 4.0,
    steep: float = 0.5,
    times: float = 10.0,
) -> Iterator[Finding]:
    """A loss that is climbed.

    Exact where the operations of a loss turn the sign of an error that grows, where an optimizer
    was told to climb and the loss rises, of a cross-entropy (its gradient
    is most negative at the true class, and with the sign turned most positive there) and of a
    squared error that is logged with its sign turned. A loss below 0 that grows without bound, ever
    faster, has no minimum. Otherwise the three thirds of the run rise beyond the noise, as they are
    or in their logarithms: an alarm where they rise steeply, a note else, as adversaries do.

    Args:
        view: of the run.
        sign: the largest gradient over the magnitude of the smallest, of more than 3 classes.
        rise: share by which the last third is above the first.
        noises: standard errors between these thirds.
        steep: the same share, from which on it is an alarm.
        times: by which factor a loss below 0 outgrows its first numbers.
    """
    exact = list(_climbs(view, sign, rise))
    yield from exact
    if exact:
        return
    values = _before_it_breaks(view)
    if len(values) < 20 or not view.loss.is_logged:
        return
    if _has_no_bound(values, times):
        yield _unbounded(view, values)
        return
    if ratio_of_squares(view) < 0:
        return  # Minus an error that shrinks.
    logs = np.log(values) if (values > 0).all() else values
    if _rises(values, rise, noises) or (logs is not values and _rises(logs, rise, noises)):
        one, two, three = _thirds(values)
        yield Finding(
            "loss_rises",
            ALARM if three - one > steep * abs(one) else NOTE,
            ".",
            (view.loss.steps[0], view.loss.steps[-1]),
            f"the loss rises steadily: {one:.3g}, {two:.3g}, {three:.3g} in the thirds of the run",
            {"first": one, "second": two, "third": three},
            "Look at the sign of the loss.",
        )


def _before_it_breaks(view: View) -> Floats:
    """Return the loss up to the first number that is not finite."""
    bad = np.flatnonzero(~np.isfinite(view.loss.values))
    return view.loss.values[: bad[0]] if len(bad) else view.loss.values


def _thirds(values: Floats) -> tuple[float, float, float]:
    third = len(values) // 3
    parts = values[:third], values[third : 2 * third], values[-third:]
    one, two, three = (float(part.mean()) for part in parts)
    return one, two, three


def _rises(values: Floats, rise: float, noises: float) -> bool:
    """Return whether the thirds rise, beyond the noise from step to step and by a share."""
    one, two, three = _thirds(values)
    error = float(np.std(np.diff(values))) / math.sqrt(2) / math.sqrt(len(values) // 3)
    return three > two > one and three - one > max(noises * error, rise * abs(one))


def _has_no_bound(values: Floats, times: float) -> bool:
    """Return whether a loss falls far below 0, ever faster.

    A fall that ends at a minimum slows down: its last fifth has the least of it. A quarter of all
    is more than steps of one size make.
    """
    first, last = values[:3], float(values[-3:].mean())
    fifth = float(values[-len(values) // 5 - 3 : -len(values) // 5].mean())
    total = float(first.mean()) - last
    return last < -times * float(abs(first).max()) and fifth - last > 0.25 * total


def _unbounded(view: View, values: Floats) -> Finding:
    first, last = float(values[:3].mean()), float(values[-3:].mean())
    return Finding(
        "loss_rises",
        ALARM,
        ".",
        view.span,
        f"the loss falls without bound, ever faster, from {first:.3g} to {last:.3g}: it has no "
        f"minimum",
        {"first": first, "last": last, "is_exact": True},
        "Look at the sign of the loss, and whether it fits the output: nll_loss takes logs of "
        "probabilities, and a binary cross-entropy targets between 0 and 1.",
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
    if view.judged.is_turned:
        yield from _turned(view, rise)
        return
    values = _before_it_breaks(view)
    if ratio_of_squares(view) < 0 and values[-3:].mean() < (1 + rise) * values[:3].mean():
        yield Finding(
            "loss_rises",
            ALARM,
            ".",
            view.span,
            f"the loss is minus a squared error, by its gradient: the error grows from "
            f"{-values[0]:.3g} to {-values[-1]:.3g}",
            {"first": values[0], "last": values[-1], "is_exact": True},
            "Turn the sign of the loss.",
        )
        return
    gradient = view.site("", "grad_output")
    top, bottom = median(view.series(gradient, "max")[:5]), median(view.series(gradient, "min")[:5])
    if view.sees_beginning and not top > sign * abs(bottom):
        # It may grow so fast that a few steps are enough to be sure of wrong classes.
        top, bottom = view.start(gradient, "max"), view.start(gradient, "min")
    is_turned = view.loss.num_classes > 3 and top > sign * abs(bottom)
    rises_at_once = len(values) > 9 and values[5:10].mean() > (1 + rise) * values[:3].mean() > 0
    if is_turned and (not view.loss.fall > 0 or rises_at_once or _stays_wrong(view, top)):
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


def _turned(view: View, rise: float) -> Iterator[Finding]:
    """Yield a loss whose sign is turned, and which grows: adversaries turn that of a part."""
    values = view.judged.values[1]
    values = values[np.isfinite(values)]
    early, late = float(values[:5].mean()), float(values[-5:].mean())
    if late < early - rise * abs(early):
        yield Finding(
            "loss_rises",
            ALARM,
            ".",
            view.span,
            f"backwards begin from minus an error, which grows from {-early:.3g} to {-late:.3g}",
            {"first": early, "last": late, "is_exact": True},
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
    view: View,
    *,
    fall: float = 0.1,
    moves: float = 1e-4,
    chance: float = 0.93,
    still: float = 0.05,
    agreement: float = 0.05,
    travel: float = 0.1,
    fewest: int = 14,
) -> Iterator[Finding]:
    """Targets that say nothing of inputs, or a loss that compares each output with all targets.

    An alarm where outputs never agree with targets: a watch correlates both over each batch, and
    what all targets have in common counts nothing. Without it, an alarm of a cross-entropy at
    chance, and of another that stays while weights go far; a note where rivals have several losses.

    A slow training is left alone: its loss still falls beyond its scatter, or fell below
    chance steadily.

    Args:
        view: of the run.
        fall: share by which the loss moved, either way, from which on it does not stay.
        moves: median update over weight from which on the weights move.
        chance: share of ``log(classes)`` above which the last fifth of the loss is.
        still: share by which any other loss moved, from which on it does not stay.
        agreement: mean correlation of outputs and targets over the second half, below which there
            is none; also less than three standard errors. Healthy trainings have 0.1 to 1, targets
            of others -0.03 to 0.04.
        travel: sum of all updates over weight, below which outputs had no time to agree.
        fewest: steps without which nothing is said of it.
    """
    if view.judged.is_reshaped:
        yield _reshaped(view)
        return
    if is_of_all_pairs(view):
        yield _of_all_pairs(view, share_of_all_pairs(view))
        return
    # A loss that lost nine tenths was learned, as that of a policy, whose targets move.
    if len(view.judged.agreement) >= fewest and not view.loss.fall > 0.9:
        if _says_nothing(view, agreement, travel):
            yield _of_others(view)
            return
        if _late(view.judged.agreement).mean() > 2 * agreement:
            return
    if len(view.loss) < 20 or not view.loss.is_known:
        return
    pairs = share_of_all_pairs(view)
    if pairs > 0.2:
        yield _of_all_pairs(view, pairs)
        return
    usual = median([median(own) for own in update_ratios(view).values()])
    at_chance = math.log(view.loss.num_classes or 1)
    is_still = abs(view.loss.fall) < fall and not _is_learning(view, at_chance)
    is_climbed = any(True for _ in _climbs(view, 2.0, fall))
    is_chance = view.loss.num_classes > 0 and view.loss.end > chance * at_chance
    if is_climbed:
        return
    if not (is_still and usual > moves and is_chance):
        yield from _stays(view, usual, 10 * moves, still)
    else:
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


def _says_nothing(view: View, limit: float, travel: float) -> bool:
    """Return whether outputs agreed with targets at no time, though weights move."""
    found = view.judged.agreement
    if not median([float(own.sum()) for own in update_ratios(view).values()]) > travel:
        return False
    early, late = found[: -len(_late(found))], _late(found)
    error = float(late.std()) / math.sqrt(len(late))
    return bool(abs(early.mean()) < 2 * limit and late.mean() < min(limit, 3 * error + 1e-6))


def _reshaped(view: View) -> Finding:
    return Finding(
        "labels",
        ALARM,
        ".",
        view.span,
        "outputs are reshaped to classes first, and that gives each class numbers of others",
        {},
        "Turn the dims: transpose(1, 2), or flatten samples and places together.",
    )


def _late(values: Floats) -> Floats:
    """Return the second half."""
    return values[len(values) // 2 :]


def _of_others(view: View) -> Finding:
    late = float(_late(view.judged.agreement).mean())
    return Finding(
        "labels",
        ALARM,
        ".",
        view.span,
        f"outputs and targets correlate by {late:.3f} over the samples of a batch: what is learned "
        f"has nothing to do with the targets",
        {"agreement": late, "fall": view.loss.fall},
        "Look at some samples with their targets: shuffled, off by one, or constant?",
    )


def _of_all_pairs(view: View, share: float) -> Finding:
    return Finding(
        "labels",
        ALARM,
        ".",
        view.span,
        "each output is compared with the targets of all samples"
        + (f", and {share:.0%} of the loss stays whatever the outputs" if share else ""),
        {"share": share},
        "Give outputs and targets one shape: [B, 1] and [B] are broadcast to [B, B].",
    )


def _stays(view: View, usual: float, moves: float, still: float) -> Iterator[Finding]:
    """Yield a loss that stays and is not at a known chance, while weights move."""
    half = view.loss.values[len(view.loss) // 2 :]
    if abs(view.loss.fall) < still and usual > moves and not _falls(half):
        # Rivals hold each other, and a plateau has an end: one kind of loss, and far to go.
        travel = median([float(own.sum()) for own in update_ratios(view).values()])
        is_alarm = view.judged.has_one and travel > 0.1
        yield Finding(
            "labels",
            ALARM if is_alarm else NOTE,
            ".",
            view.span,
            f"weights move by {usual:.1g} a step and the loss stays, {view.loss.start:.4g} to "
            f"{view.loss.end:.4g}: it was at its minimum, or targets say nothing of inputs",
            {"fall": view.loss.fall, "update_ratio": usual},
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
    view: View, *, share: float = 0.05, classes: int = 5, fewest: int = 30, copied: float = 0.995
) -> Iterator[Finding]:
    """Targets that are in the input, or a loss near 0 within few steps.

    An alarm where a watch finds the targets in a column of the input, or in the same places of a
    sequence; a note of a loss that is low too soon, as of an easy task.

    Args:
        view: of the run.
        share: of chance, or of the first loss where that is less, that is left at the end.
        classes: more than these make an easy task unlikely.
        fewest: steps without which nothing is said of a low loss.
        copied: share of the targets that are in the input; healthy are 0 to 0.9.
    """
    shares = view.judged.copied
    if len(shares) >= 10 and median(shares) >= copied:
        yield Finding(
            "too_good",
            ALARM,
            ".",
            view.span,
            f"{median(shares):.0%} of the targets stand in the input of the model as they are",
            {"copied": median(shares)},
            "Take the targets out of the input; those of a sequence are shifted by one.",
        )
        return
    values = view.loss.values
    if len(values) < fewest or not np.isfinite(values).all() or view.loss.num_classes <= classes:
        return
    at_chance = math.log(view.loss.num_classes)
    first, last = min(float(values[:2].mean()), at_chance), float(values[-5:].mean())
    if 0 < last < share * first:
        yield Finding(
            "too_good",
            NOTE,
            ".",
            view.span,
            f"the loss is {last:.2g} after {len(values)} steps; chance among "
            f"{view.loss.num_classes} classes is {at_chance:.2g}",
            {"first": first, "last": last, "chance": at_chance},
            "Look whether the targets are in the input, as without a causal mask.",
        )
