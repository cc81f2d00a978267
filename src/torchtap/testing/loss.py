"""A loss for any output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtap.core.tree import leaves


def default_loss(output: Any) -> Tensor | None:
    """A scalar in which every element of every differentiable tensor of ``output`` counts.

    The sum over the leaves of ``leaf * cos(0, 1, 2, ...)`` in float64, so that the gradients are
    fixed, finite, and differ from element to element and from leaf to leaf. Complex leaves count
    by their absolute value. An empty leaf adds 0; nan and inf go through.

    Args:
        output: any nesting of tensors that :mod:`torchtap.core.tree` can walk.

    Returns:
        A float64 scalar, or ``None`` when no leaf requires grad.

    Example:
        >>> loss = default_loss({"a": torch.ones(2, requires_grad=True), "b": None})
        >>> round(loss.item(), 4)  # cos 0 + cos 1
        1.5403
        >>> default_loss(torch.ones(2)) is None
        True
    """
    total: Tensor | None = None
    start = 0
    for _, leaf in leaves(output):
        if not leaf.requires_grad:
            continue
        real = leaf.abs() if leaf.is_complex() else leaf
        places = torch.arange(start, start + real.numel(), device=real.device)
        term = (real.double() * places.double().cos().view(real.shape)).sum()
        total = term if total is None else total + term
        start += real.numel() + 1
    return total
