"""Group the elements of a value into features, and give each feature's worth back to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of the rows of a value.

    Attributes:
        num: how many there are.
        of: number of the feature of each element, ``int64`` in the shape of the value; ``[1,
            ...]`` where it is the same in all rows.
        rows: how many rows the value has.
    """

    num: int
    of: Tensor
    rows: int

    def mask(self, *chosen: int) -> Tensor:
        """Return a mask of the elements that belong to the chosen features."""
        mask = torch.zeros(self.num, dtype=torch.bool, device=self.of.device)
        mask[list(chosen)] = True
        return mask[self.of]

    def nothing(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the sum of no losses, ``[rows, num]``, and their numbers, ``[num]``."""
        total = torch.zeros(self.rows, self.num, dtype=dtype, device=self.of.device)
        return total, torch.zeros(self.num, dtype=dtype, device=self.of.device)

    def added(
        self, total: Tensor, times: Tensor, chosen: Sequence[int], lost: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sums and numbers with those of some features, ``lost[len(chosen), rows or 1]``."""
        which = torch.tensor(chosen, device=total.device)
        lost = lost.to(total).expand(len(chosen), self.rows)
        ones = torch.ones_like(which, dtype=times.dtype)
        return total.index_add(1, which, lost.T), times.index_add(0, which, ones)

    def means(self, total: Tensor, times: Tensor) -> Tensor:
        """Return the mean of each feature, ``[rows, num]``; NaN where it was never tried."""
        return total / times

    def at_elements(self, each: Tensor) -> Tensor:
        """Return the worth of each feature, at all of its elements."""
        of = self.of.flatten(1).expand(self.rows, -1)
        return each.gather(1, of).view(self.rows, *self.of.shape[1:])


def features_of(value: Tensor, feature_mask: Tensor | None) -> Features:
    """Return the features that a mask tells apart; without one, each element is a feature.

    Raises:
        InputError: the mask does not fit.
    """
    rows = len(value)
    shape = value.shape[1:]
    if feature_mask is None:
        num = shape.numel()
        return Features(num, torch.arange(num, device=value.device).view(1, *shape), rows)
    fits = isinstance(feature_mask, Tensor) and not (
        feature_mask.is_floating_point() or feature_mask.is_complex()
    )
    if fits:
        try:
            single = feature_mask.dim() < value.dim() or feature_mask.shape[0] == 1
            wanted = torch.Size((1, *shape)) if single else value.shape
            wide = feature_mask.to(value.device).broadcast_to(wanted)
        except RuntimeError:
            fits = False
    if not fits:
        raise InputError(
            f"feature_mask is {kind_of(feature_mask)}, and the value that is explained "
            f"{kind_of(value)}; expected integers that broadcast to it."
        )
    numbers, of = torch.unique(wide, return_inverse=True)
    return Features(len(numbers), of, rows)
