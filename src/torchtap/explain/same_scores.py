"""Whether scores that should be the same are, up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor

_ULPS = 8
_SHARE = 1e-3
"""Of what the scores change by where the input is another: an error that no map shows."""


def are_same(found: Tensor, expected: Tensor, changed: Tensor) -> bool:
    """Whether two forwards gave the same scores.

    A constant that is added to all scores widens the tolerance by its rounding only: what counts
    is by how much scores change.

    Args:
        found: ``float[rows]``.
        expected: likewise.
        changed: ``float[..., rows]``, scores of the rows with other values.

    Example:
        >>> one, two = torch.tensor([500.0]), torch.tensor([500.1])
        >>> are_same(two, one, torch.tensor([501.0])), are_same(two, one, torch.tensor([900.0]))
        (False, True)
    """
    if found.shape != expected.shape:
        return False
    wide = expected.double()
    effects = _largest(changed.double() - wide)
    rounding = _ULPS * torch.finfo(expected.dtype).eps * _largest(wide)
    slack = max(_SHARE * effects, rounding)
    return torch.allclose(found.double(), wide, rtol=0, atol=slack, equal_nan=True)


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
