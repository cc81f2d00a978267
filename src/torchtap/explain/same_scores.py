"""Compare scores that should be the same, up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import number

REJECTIONS = (RuntimeError, ValueError, LookupError, AssertionError)
"""Errors by which a model rejects other values or rows than those it was given."""

_ULPS = 8
_SHARE = 1e-3
"""Share of the change of the scores under another input: no map shows such an error."""


def are_same(found: Tensor, expected: Tensor, changed: Tensor) -> bool:
    """Return whether two forwards gave the same scores.

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


def refuse_unsteady(first: Tensor, second: Tensor) -> None:
    """Refuse a model whose two forwards from the same state give other scores.

    Args:
        first: ``float[rows]``.
        second: likewise.

    Raises:
        InputError: the scores are others, so the model keeps something that is not put back.
    """
    if not are_same(second, first, torch.zeros_like(first)):
        raise InputError(
            f"The model gave other scores when it was run again on the same inputs "
            f"({_shown(first)}, then {_shown(second)}), so runs cannot be compared: it keeps a "
            f"state outside of its buffers, or draws random numbers from a generator that is no "
            f"attribute of a module. Keep the state in a buffer (register_buffer), or reset it in "
            f"forward."
        )


def _shown(scores: Tensor) -> str:
    return ", ".join(map(number, scores.tolist()[:3])) + (", ..." if len(scores) > 3 else "")


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
