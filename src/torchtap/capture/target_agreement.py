"""How far outputs agree with the targets of a loss, of which the gradient at the outputs tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtap.stats.kernels import native

_EXACT = 1e-4


class Judged(NamedTuple):
    """How far outputs agree with targets, and the targets that inputs may hold.

    Attributes:
        agreement: see :func:`agreement`.
        labels: as of :class:`Told`.
        lowest: number among the targets.
        highest: likewise.
    """

    agreement: float | None
    labels: Tensor | None
    lowest: float
    highest: float


class Told(NamedTuple):
    """Outputs and targets of a batch.

    Attributes:
        outputs: as numbers of each sample, ``float32[N, K]``.
        targets: likewise; those of classes are one-hot.
        labels: the targets as inputs might hold them: classes, or the only number of each sample;
            ``None`` where they are several.
    """

    outputs: Tensor
    targets: Tensor
    labels: Tensor | None


def judge(output: Tensor, gradient: Tensor, factor: float | None = None) -> Judged | None:
    """Return how far an output agrees with the targets; arguments of :func:`told_targets`."""
    found = _judge_natively(output, gradient, factor)
    if found is not None:
        return found
    told = told_targets(output, gradient, factor)
    if told is None:
        return None
    lowest, highest = told.targets.aminmax()
    return Judged(agreement(told), told.labels, float(lowest), float(highest))


def _judge_natively(output: Tensor, gradient: Tensor, factor: float | None) -> Judged | None:
    """Judge classes of the last dim, or numbers, in one pass; ``None`` where it takes more care."""
    if output.shape != gradient.shape or not output.ndim or len(output) < 2:
        return None
    kept = output.shape[:-1] if factor is None else output.shape[:1]
    rows, columns = kept.numel(), output.shape[-1] if factor is None else output[0].numel()
    # The weights of two classes are looked at too.
    if factor is None and (output.ndim < 2 or columns < 3):
        return None
    classes = torch.empty(kept, dtype=torch.int64) if factor is None else None
    found = native.agreement(output, gradient, (rows, columns), factor, classes)
    if found is None:
        return None
    is_single = factor is not None and columns == 1
    numbers = (output - factor * gradient).reshape(-1) if is_single else None  # type: ignore[operator]
    return Judged(found[0], classes if factor is None else numbers, *found[1:])


def told_targets(output: Tensor, gradient: Tensor, factor: float | None = None) -> Told | None:
    """Return the targets of a loss, as its gradient at an output tells; ``None`` where it does not.

    The gradient of a cross-entropy is most negative at the true class, and that of a binary one is
    negative where the target is 1.

    Args:
        output: of a model, a batch, or the first samples of one.
        gradient: of the loss, finite.
        factor: by which the gradient is multiplied to give the error, of a squared one.

    Example:
        >>> x = torch.randn(8, 1, requires_grad=True)
        >>> (x - torch.arange(8.0)[:, None]).square().sum().backward()
        >>> told_targets(x.detach(), x.grad, 0.5).labels.round()
        tensor([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    if output.shape != gradient.shape or output.ndim == 0 or len(output) < 2:
        return None
    output, gradient = output.float(), gradient.float()
    if not math.isfinite(float(output.sum())):
        return None
    if factor is not None:
        return _of_numbers(output, output - factor * gradient)
    found = _of_classes(output, gradient)
    return _of_binary(output, gradient) if found is None else found


def agreement(told: Told) -> float | None:
    """Return the correlation of outputs and targets; ``None`` where all targets are one.

    Both are centred over the samples, so that what all targets have in common counts nothing.
    """
    outputs, targets = told.outputs - told.outputs.mean(0), told.targets - told.targets.mean(0)
    if not float(targets.abs().amax()) > 1e-6:
        return None
    size = float(outputs.norm() * targets.norm())
    return float((outputs * targets).sum()) / size if size > 0 else 0.0


def share_among(labels: Tensor | None, inputs: Sequence[Tensor]) -> float | None:
    """Return the share of the targets that stand in the inputs as they are; the largest of all.

    In a column of a table, or in the same places of a sequence of classes.

    Args:
        labels: as of :class:`Told`, not all one.
        inputs: small tensors that the model was called with.
    """
    if labels is None:
        return None
    found = []
    for one in inputs:
        rows = one[: len(labels)]
        if rows.shape == labels.shape and labels.ndim > 1 and not labels.is_floating_point():
            found.append(int(torch.count_nonzero(rows == labels)) / labels.numel())
        elif labels.ndim == 1 and rows.ndim == 2 and len(rows) == len(labels) > 2:
            away = (rows.float() - labels.float()[:, None]).abs()
            is_near = away <= _EXACT * labels.float().std()
            found.append(float(is_near.float().mean(0).amax()) if rows.shape[1] > 1 else 0.0)
    return max(found, default=None)


def _of_numbers(outputs: Tensor, targets: Tensor) -> Told:
    outputs, targets = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
    return Told(outputs, targets, targets[:, 0] if targets.shape[1] == 1 else None)


def _of_classes(output: Tensor, gradient: Tensor) -> Told | None:
    """Return logits and one-hot targets: the gradient sums to 0, half of each row at one class."""
    for dim in dict.fromkeys((output.ndim - 1, 1)):
        if output.ndim < 2 or output.shape[dim] < 2:
            continue
        places = gradient.movedim(dim, -1)
        rows = places.flatten(0, -2)
        logits = output.movedim(dim, -1).flatten(0, -2)
        size = float(rows.abs().sum())
        # In all, since that of rows and columns together, as of pairs, is in neither of them.
        if len(rows) < 2 or not abs(float(rows.sum())) < 0.02 * size:
            continue
        lowest, true = rows.min(1)
        if not float(-lowest.sum()) > 0.45 * size:
            continue
        is_used = lowest < 0
        if not (are_used := bool(is_used.all())):
            logits, lowest, true = logits[is_used], lowest[is_used], true[is_used]
        if logits.shape[1] == 2 and not _is_even(-lowest, logits, true):
            continue
        one_hot = torch.nn.functional.one_hot(true, logits.shape[1]).float()
        labels = true.reshape(places.shape[:-1]) if are_used else None
        return Told(logits, one_hot, labels)
    return None


def _is_even(pull: Tensor, logits: Tensor, true: Tensor) -> bool:
    """Return whether rows of two classes are pulled by ``1 - p``, all with one weight.

    Of two classes any gradient that sums to 0 has half of it at one, that of a policy too.
    """
    missing = 1 - logits.softmax(1).gather(1, true[:, None])[:, 0]
    return _is_one_factor(pull, missing)


def _of_binary(output: Tensor, gradient: Tensor) -> Told | None:
    """Return scores and targets 0 or 1, each with one weight; scores are logits or between 0 and 1.

    The gradient is ``sigmoid(y) - t``, and ``(y - t) / (y (1 - y))`` for what is a probability.
    """
    targets = (gradient < 0).float()
    kinds = [output.sigmoid() - targets]
    if bool((output >= 0).all()) and bool((output <= 1).all()):
        kinds.append((output - targets) / (output * (1 - output)).clamp_min(1e-12))
    for error in kinds:
        parts = [(targets == each) & (gradient != 0) & (error.abs() > 1e-4) for each in (0, 1)]
        if all(
            int(part.sum()) > 1 and _is_one_factor(gradient[part], error[part]) for part in parts
        ):
            return _of_numbers(output, targets)
    return None


def _is_one_factor(one: Tensor, other: Tensor, *, tolerance: float = 0.02) -> bool:
    """Return whether two tensors are multiples of each other, with a positive factor."""
    factors = one / other.abs().clamp_min(1e-12) * other.sign()
    middle = float(factors.median())
    return middle > 0 and float((factors - middle).abs().mean()) < tolerance * middle
