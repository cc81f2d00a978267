"""Score-CAM and Ablation-CAM: what each channel of a layer is worth, by one forward for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.progress import Progress
from torchtap.core.site import Site
from torchtap.explain.chosen_rows import row_numbers, zeroed
from torchtap.explain.extents import Extent
from torchtap.explain.maps.map_values import resized
from torchtap.explain.same_scores import are_same, refuse_unsteady
from torchtap.explain.shared_read_probe import refuse_shared_reads
from torchtap.explain.site_probe import SiteProbe, Visit, plan_of
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

Channels = Sequence[int | None]
"""One copy of the rows for each: the channel that it is about, ``None`` for one left alone."""
Run = Callable[[Channels], Tensor]


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of forwards, and how wide they are.

    Attributes:
        batch_size: most rows of one forward.
        max_evals: most channels that are tried; ``None`` for all.
        progress: whether to show it; ``None`` if stderr is a terminal.
    """

    batch_size: int = 32
    max_evals: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_evals"):
            given = getattr(self, name)
            is_none = given is None and name == "max_evals"
            if not is_none and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
                raise InputError(f"{name} is {given!r}; expected a whole number from 1.")


@dataclass(frozen=True, slots=True)
class Tried:
    """The scores with each channel.

    Attributes:
        scores: ``float[B, C]``, the score with each channel; NaN of those that were not tried.
        notes: why not all were tried, or not together.
    """

    scores: Tensor
    notes: tuple[str, ...]


# ---------------------------------------------------------------------- the two methods


def scorecam(
    subject: Subject, target: Target, value: Tensor, over: Extent, budget: Budget
) -> tuple[Tensor, tuple[str, ...]]:
    """Weights of Score-CAM (Wang et al. 2020, equations 4 to 8, algorithm 1).

    ``softmax_k(f(X * M_k) - f(X_b))`` with ``M_k`` the channel, resized to the input (bilinear,
    ``align_corners=False``) and stretched to 0 and 1; the score of the baseline ``X_b`` is the same
    for all and goes out. Constant channels make no mask and have weight 0.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        value: ``float[B, C, *grid]`` of the layer.
        over: what is masked.
        budget: how many forwards.

    Returns:
        ``float[B, C]``, and notes.
    """
    if over.channel_dim is None:
        raise InputError(
            "scorecam multiplies the input with masks, which token numbers do not bear. Methods "
            "for tokens: ablationcam, gradcam."
        )
    source = subject.inputs[over.name].detach()

    def run(channels: Channels) -> Tensor:
        masked = torch.cat([_masked(source, value, over, channel) for channel in channels])
        return subject.scores(target, {over.name: masked}, times=len(channels))

    flat = value.flatten(2)
    is_constant = flat.amax(-1) == flat.amin(-1)
    tried = _tried("scorecam", subject, value, run, budget)
    scores = tried.scores.masked_fill(is_constant | tried.scores.isnan(), -torch.inf)
    weights = scores.softmax(1).nan_to_num(0.0)  # Rows without any mask have no weight.
    return weights.to(value), tried.notes


def ablationcam(
    subject: Subject,
    target: Target,
    value: Tensor,
    site: Site,
    call: int,
    channel_dim: int,
    budget: Budget,
) -> tuple[Tensor, tuple[str, ...]]:
    """Weights of Ablation-CAM (Desai and Ramaswamy 2020, equation 4): ``(y - y_k) / y``.

    ``y_k`` is the score with all of channel k set to 0. Where ``y`` is negative, the sign of all
    weights turns, which is said.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        value: ``float[B, C, *grid]`` of the layer.
        site: of the layer.
        call: which call of it.
        channel_dim: which dimension of what it returns counts channels.
        budget: how many forwards.

    Returns:
        ``float[B, C]``, and notes.
    """
    ablation = _Ablation(site, channel_dim)
    plan = plan_of(subject.modules, [site.path])
    with SiteProbe(subject.modules, plan, ablation, call=call) as probe:

        def run(channels: Channels) -> Tensor:
            probe.begin()
            return ablation.run(subject, target, channels)

        def plain() -> Tensor:
            return subject.scores(target)

        alone = run([None])
        refuse_shared_reads(subject, probe, site, call, run=plain, expected=alone)
        whole = _of_rows(alone, value.shape[0])
        tried = _tried("ablationcam", subject, value, run, budget)
    weights = (whole[:, None] - tried.scores) / whole[:, None]
    notes = tried.notes
    slack = 2 * torch.finfo(alone.dtype).eps
    is_rounding = (weights.abs().nan_to_num(0.0) <= slack).all(1) & (weights != 0).any(1)
    if bool(is_rounding.any()):
        weights = zeroed(weights, is_rounding)
        rows = row_numbers(is_rounding)
        notes += (
            f"without a channel the score of row {rows} changes by no more than its rounding: its "
            f"weights were set to 0",
        )
    if bool((whole < 0).any()):
        rows = row_numbers(whole < 0)
        notes += (f"the score of row {rows} is negative, which turns the sign of its weights",)
    return torch.where(tried.scores.isnan(), 0, weights).to(value), notes


# ---------------------------------------------------------------------- one channel


def _masked(source: Tensor, value: Tensor, over: Extent, channel: int | None) -> Tensor:
    if channel is None:
        return source
    mask = resized(value[:, channel : channel + 1], over.size)
    flat = mask.flatten(1)
    low, high = (_like(one, mask) for one in (flat.amin(1), flat.amax(1)))
    mask = torch.where(high > low, (mask - low) / (high - low), 0)
    if over.channel_dim != 1:
        mask = mask.movedim(1, -1)
    if not source.is_floating_point():  # A picture of bytes, which the model itself scales.
        return (source * mask).round().to(source.dtype)
    return source * mask.to(source)


def _like(rows: Tensor, maps: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (maps.dim() - 1))


class _Ablation:
    """A visitor that sets one channel to 0 in each copy of the rows."""

    def __init__(self, site: Site, channel_dim: int) -> None:
        self._site = site
        self._channel_dim = channel_dim
        self._channels: Channels = ()
        self._has_worked = False

    def run(self, subject: Subject, target: Target, channels: Channels) -> Tensor:
        """Return the scores of so many copies."""
        self._channels, self._has_worked = channels, False
        scores = subject.scores(target, times=len(channels))
        if not self._has_worked:
            raise InputError(
                f"Layer {self._site.path or '.'!r} was not called under torch.no_grad, so none of "
                f"its channels could be ablated. Use a method with gradients, as gradcam."
            )
        return scores

    def __call__(self, tensor: Tensor, visit: Visit) -> Tensor | None:
        if visit.site != self._site or not self._channels:
            return None
        self._has_worked = True
        new = tensor.clone()
        for part, channel in zip(new.chunk(len(self._channels)), self._channels, strict=True):
            if channel is not None:
                part.select(self._channel_dim, channel).zero_()
        return new


# ---------------------------------------------------------------------- all channels


def _tried(method: str, subject: Subject, value: Tensor, run: Run, budget: Budget) -> Tried:
    """Try the channels, those with the largest activation first, several in one forward."""
    rows, total = value.shape[:2]
    energy = value.double().square().flatten(2).sum((0, 2)).nan_to_num(0.0)
    order: list[int] = energy.argsort(descending=True, stable=True).tolist()[: budget.max_evals]
    scores = torch.full((rows, total), torch.nan, dtype=torch.float64, device=value.device)
    trial = _try_several(subject, run, rows, order, budget)
    if trial.width == 1:
        refuse_unsteady(run([None]), run([None]))
    num, notes = len(trial.scores), [trial.why] if trial.why else []
    if num:
        scores[:, order[:num]] = _per_channel(trial.scores, rows)
    with Progress(f"{method}: channels", len(order) - num, wanted=budget.progress) as shown:
        try:
            for first in range(num, len(order), trial.width):
                chosen = order[first : first + trial.width]
                outcome = run(chosen)
                scores[:, chosen] = _per_channel(outcome.reshape(len(chosen), -1), rows)
                num += len(chosen)
                for _ in chosen:
                    shown.advance(f"{method}: channels")
        except KeyboardInterrupt:
            if not num:
                raise
            notes.append(f"interrupted after {num} of {total} channels, {_FIRST}")
    if num == len(order) < total:
        notes.append(f"stopped after {num} of {total} channels (max_evals), {_FIRST}")
    return Tried(scores, tuple(notes))


_FIRST = "those with the largest activation; the others have weight 0"


class _Trial(NamedTuple):
    """The findings of the first forward of several channels.

    Attributes:
        width: how many channels fit in one forward.
        scores: those of the first channels in the order; empty if they do not count.
        why: one channel in a forward; empty if there are more.
    """

    width: int
    scores: Tensor
    why: str = ""


def _try_several(
    subject: Subject, run: Run, rows: int, order: Sequence[int], budget: Budget
) -> _Trial:
    """Try several channels in one forward.

    One copy that is left alone and one without a channel are scored beside others: their scores
    must stay. The second tells where so many similar copies change the first but little.
    """
    none = torch.empty(0)
    width = min(budget.batch_size // max(rows, 1), len(order))
    if width < 2:
        return _Trial(1, none)
    if subject.num_rows is None:
        why = "one channel in a forward, since the inputs do not share their dimension 0"
        return _Trial(1, none, why)
    alone, ablated = run([None]), run([order[0]])
    beside = run([None, *order[: width - 1]])
    if len(beside) != width * len(alone):
        why = "one channel in a forward, since the target gives one number for a whole batch"
        return _Trial(1, none, why)
    first, second, *_ = changed = beside.view(width, -1)
    if not (are_same(first, alone, changed) and are_same(second, ablated, changed)):
        wrong = torch.maximum((first - alone).abs(), (second - ablated).abs())
        row = int(wrong.argmax())
        why = (
            f"one channel in a forward, since the model mixes the rows of a batch: the score of "
            f"row {row} changes by {float(wrong[row]):.2g} beside others"
        )
        return _Trial(1, none, why)
    return _Trial(width, changed[1:].detach().clone())


def _per_channel(found: Tensor, rows: int) -> Tensor:
    """Return ``float64[rows, channels]`` of ``[channels, rows]``, or of one score for all rows."""
    return found.double().mT.expand(rows, -1)


def _of_rows(scores: Tensor, rows: int) -> Tensor:
    return scores.double().expand(rows) if len(scores) == 1 else scores.double()
