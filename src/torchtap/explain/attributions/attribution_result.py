"""The result of a method of attribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttributionResult:
    """The values of a map, before it is one.

    Attributes:
        values: in the shape of the variable; see :class:`torchtap.explain.maps.map.Map`.
        gap: completeness gap of each row, of methods that have one.
        notes: what the reader should know.
    """

    values: Tensor
    gap: Tensor | None = None
    notes: tuple[str, ...] = ()


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 at least: half precision cannot be added up in."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()
