"""Ranks of numbers, and how far two orders agree."""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each of ``float[N]`` from 0, ties sharing their mean, ``float64[N]``.

    Example:
        >>> ranks(torch.tensor([3.0, 1.0, 3.0]))
        tensor([1.5000, 0.0000, 1.5000], dtype=torch.float64)
    """
    _, places, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    means: Tensor = ends - (counts.double() + 1) / 2
    return means[places]


def spearman(one: Tensor, two: Tensor) -> float:
    """Spearman's rank correlation of two sets of numbers, from -1 to 1.

    NaN where one of them is constant, has fewer than two elements, or is not finite everywhere.

    Args:
        one: of any shape.
        two: as many.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0]))
        1.0
    """
    first, second = one.detach().double().flatten(), two.detach().double().flatten()
    if first.numel() < 2 or not (first.isfinite().all() and second.isfinite().all()):
        return float("nan")
    first, second = ranks(first), ranks(second)
    first, second = first - first.mean(), second - second.mean()
    length = (first.square().sum() * second.square().sum()).sqrt()
    return float((first @ second / length).clamp(-1, 1)) if length > 0 else float("nan")


def importance_order(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rank of each place of ``float[B, N]``, 0 for the largest; ties are drawn.

    NaN comes last.
    """
    values = values.double().nan_to_num(float("-inf"), float("inf"), float("-inf"))
    shuffled = torch.rand(values.shape, generator=generator).argsort(1)
    order = values.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(values.shape[1]).expand_as(values)
    return torch.empty_like(places).scatter_(1, shuffled.gather(1, order), places)
