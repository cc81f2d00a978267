"""Looks at the numbers of a step: the gradients, once, and the losses that were logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from torchtap.core.distributed import PLAIN
from torchtap.diagnosis.origins.values import are_finite, holds_numbers, strided
from torchtap.stats.kernels import native

_MOST_SCALE = 2.0**64
"""Scale of a ``GradScaler`` up to which a loss of float32 is finite, unless it was above 1e19."""


class OptimizedParams:
    """The parameters that optimizers hold, asked for at every step.

    Args:
        params: ids of those of the model.
        only: the optimizer that counts; ``None`` for any.
    """

    def __init__(self, params: frozenset[int], only: Optimizer | None = None) -> None:
        self._model = params
        self._only = only
        self._known: WeakKeyDictionary[Optimizer, tuple[int, list[Tensor], bool]]
        self._known = WeakKeyDictionary()

    def of(self, optimizer: Optimizer) -> list[Tensor]:
        """Return its parameters; none if it has no parameter of the model, or does not count."""
        if self._only is not None and optimizer is not self._only:
            return []
        groups = optimizer.param_groups
        # add_param_group() may be called at any time; nothing tells of it but the number.
        count = sum(len(group["params"]) for group in groups)
        known = self._known.get(optimizer)
        if known is None or known[0] != count:
            params = [one for group in groups for one in group["params"]]
            is_own = any(id(param) in self._model for param in params)
            known = self._known[optimizer] = count, params, is_own
        return known[1] if known[2] else []


def gradients_are_finite(params: Sequence[Tensor]) -> bool:
    """Return whether the gradients of parameters are finite. They are read once."""
    gradients = [own for param in params if (own := param.grad) is not None]
    others: list[Tensor] = []
    return native.are_finite(gradients, others) and _norm_is_finite(others)


def _norm_is_finite(gradients: Sequence[Tensor]) -> bool:
    """Return whether tensors are finite. One number is read; where it is not finite, all of them.

    The sum of squares may overflow where no gradient does: then they are looked at one by one.
    """
    gradients = [gradient for gradient in gradients if holds_numbers(gradient)]
    plain: list[Tensor] = []
    for one in gradients:
        is_wide = one.element_size() > 1  # Of a narrower one there is no norm.
        is_plain = is_wide and type(one) in PLAIN and one.layout is torch.strided
        plain += [one] if is_plain else strided(one)
    # One number for all: reading each gradient's own would wait for the device as often.
    if not plain or math.isfinite(float(get_total_norm(plain))):
        return True
    return are_finite(gradients)


def first_bad_loss(numbers: Mapping[str, Any], *, scale: float | None = None) -> str | None:
    """Return the name of the first logged loss that is not finite.

    Args:
        numbers: that were logged, by name.
        scale: by which a ``GradScaler`` may have multiplied it; an Inf that this may have made is
            left out.
    """
    for name, value in numbers.items():
        if "loss" not in name.lower():
            continue
        if value is None or (isinstance(value, Tensor) and not holds_numbers(value)):
            continue
        number = float(value.detach() if isinstance(value, Tensor) else value)
        is_narrow = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        by_scale = scale is not None and (is_narrow or scale > _MOST_SCALE)
        if math.isnan(number) or not (by_scale or math.isfinite(number)):
            return name
    return None
