"""Set rows of an attribution to 0 that are no more than the rounding of the score."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.core.text import number

_OF_DIFFERENCES = frozenset({"occlusion", "feature_permutation", "shapley"})
_OF_SHARES = frozenset({"integrated_gradients", "input_x_gradient", "lrp", "deeplift"})
_TIMES = 2
"""Rounding of a difference of two scores, in units of theirs."""


def slack_of(scores: Tensor) -> Tensor:
    """Differences of scores that are rounding, ``float64``, in the shape of the scores."""
    return _TIMES * torch.finfo(scores.dtype).eps * scores.detach().double().abs()


def without_rounding(values: Tensor, scores: Tensor, method: str) -> tuple[Tensor, tuple[str, ...]]:
    """The map, with 0 in rows in which no difference of scores was more than rounding.

    Gradients are not differences, and may be right where they are small: of those methods it is
    said alone.

    Args:
        values: of the map, rows first.
        scores: at the value, as the model computed them.
        method: its name.
    """
    if not values.numel() or not values.dim():
        return values, ()
    slack = slack_of(scores).to(values.device)
    slack = slack if len(slack) == len(values) else slack.sum().expand(len(values))
    rows = values.detach().double().reshape(len(values), -1).abs()
    if method in _OF_DIFFERENCES:
        largest = rows.amax(1)
        chosen = (largest > 0) & (largest <= slack)
        if not bool(chosen.any()):
            return values, ()
        return values.masked_fill(chosen.reshape(-1, *[1] * (values.dim() - 1)), 0), (
            f"the map of row {_rows(chosen)} was set to 0: the score changed by no more than its "
            f"rounding ({number(float(largest[chosen].max()))}), whatever was taken away",
        )
    if method in _OF_SHARES:
        total = rows.sum(1)
        chosen = (total > 0) & (total <= slack)
        if bool(chosen.any()):
            return values, (
                f"all magnitudes of the map of row {_rows(chosen)} add up to "
                f"{number(float(total[chosen].max()))}, no more than the rounding of the score: "
                f"they may be rounding alone",
            )
    return values, ()


def _rows(chosen: Tensor) -> str:
    rows = chosen.nonzero()[:, 0].tolist()
    return ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")
