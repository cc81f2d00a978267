"""Set rows of an attribution to 0 that are no more than the rounding of the score."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.core.text import number
from torchtap.explain.chosen_rows import row_numbers, zeroed

DIFFERENCES, SHARES, GRADIENTS = "differences", "shares", "gradients"
"""How the values of a map come about: as differences of scores, as shares of one, or otherwise."""

_TIMES = 2
"""Rounding of a difference of two scores, in units of theirs."""


def slack_of(scores: Tensor) -> Tensor:
    """Differences of scores that are rounding, ``float64``, in the shape of the scores."""
    return _TIMES * torch.finfo(scores.dtype).eps * scores.detach().double().abs()


def without_rounding(values: Tensor, scores: Tensor, kind: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the map, with 0 in rows in which no difference of scores was more than rounding.

    Gradients are not differences, and may be right where they are small: of those methods it is
    said alone.

    Args:
        values: of the map, rows first.
        scores: at the value, as the model computed them.
        kind: how its values come about.
    """
    if not values.numel() or not values.dim():
        return values, ()
    slack = slack_of(scores).to(values.device)
    slack = slack if len(slack) == len(values) else slack.sum().expand(len(values))
    rows = values.detach().double().reshape(len(values), -1).abs()
    if kind == DIFFERENCES:
        largest = rows.amax(1)
        chosen = (largest > 0) & (largest <= slack)
        if not bool(chosen.any()):
            return values, ()
        return zeroed(values, chosen), (
            f"the map of row {row_numbers(chosen)} was set to 0: the score changed by no more "
            f"than its rounding ({number(float(largest[chosen].max()))}), whatever was taken away",
        )
    if kind == SHARES:
        total = rows.sum(1)
        chosen = (total > 0) & (total <= slack)
        if bool(chosen.any()):
            return values, (
                f"all magnitudes of the map of row {row_numbers(chosen)} add up to "
                f"{number(float(total[chosen].max()))}, no more than the rounding of the score: "
                f"they may be rounding alone",
            )
    return values, ()
