"""Find maps that are 0 by algebra, so that all that is left of their sums is rounding.

Before a layer norm ``sum_k G_k A_k`` is 0, since the score does not depend on the scale of the
value there, and before an instance norm the mean of ``G_k`` is, since it does not depend on a
constant. The sums are then as large as the rounding of their terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from torchtap.core.text import number
from torchtap.explain.chosen_rows import row_numbers, zeroed

_TIMES, _MOST = 64, 1 / 16
"""By how much rounding may exceed that of one operation for each term, and as which share of all
terms. Beside them, sums of terms that do not cancel are as large as the norm of the terms."""
_CANCELLED = 1e-3
"""Share of their size to which terms cancel by more than chance."""


def widest_eps(dtypes: Iterable[torch.dtype]) -> float:
    """Return the rounding of the coarsest of the dtypes that a map was computed in."""
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def without_cancelled(
    found: Tensor, size: Tensor, eps: float, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Return a signed map in which rows that are rounding alone are 0, and what is to be said.

    Args:
        found: ``float[B, *grid]``.
        size: ``float[B, *grid]``, the norm of the terms of each sum.
        eps: rounding of one term, as a share of it.
        name: of the layer.
    """
    largest, terms = found.flatten(1).abs().amax(1), size.flatten(1).amax(1)
    is_some = (largest > 0) & terms.isfinite()
    is_rounding = is_some & (largest <= min(_TIMES * eps, _MOST) * terms)
    is_cancelled = is_some & ~is_rounding & (largest <= _CANCELLED * terms)
    notes: list[str] = []
    if not bool((is_rounding | is_cancelled).any()):  # Asked once: a device is waited for.
        return found, ()
    if bool(is_rounding.any()):
        row = int(is_rounding.nonzero()[0])
        found = zeroed(found, is_rounding)
        notes.append(
            f"the map of row {row_numbers(is_rounding)} at {name!r} is 0 up to rounding, and was "
            f"set to 0: its largest value was {number(float(largest[row]))}, a sum of terms of "
            f"{number(float(terms[row]))} that cancel, as before a normalisation"
        )
    if bool(is_cancelled.any()):
        row = int(is_cancelled.nonzero()[0])
        notes.append(
            f"the terms of the map of row {row_numbers(is_cancelled)} at {name!r} cancel to "
            f"{number(float(largest[row] / terms[row]))} of their size, as before a normalisation: "
            f"the map shows what its eps leaves over"
        )
    return found, tuple(notes)


# ---------------------------------------------------------------------- the size of terms


def _of_weights(value: Tensor, weights: Tensor) -> Tensor:
    """Return the norm over channels of a value times their weights' sizes, ``float[B, *grid]``."""
    sizes = weights.reshape(*weights.shape, *[1] * (value.dim() - 2))
    norm: Tensor = torch.linalg.vector_norm(value * sizes, dim=1)
    return norm


def _of_means(value: Tensor, gradient: Tensor) -> Tensor:
    spatial = gradient.flatten(2)
    return _of_weights(value, torch.linalg.vector_norm(spatial, dim=-1) / spatial.shape[-1])


def _of_products(value: Tensor, gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(value * gradient, dim=1)
    return norm


def _of_shares(value: Tensor, gradient: Tensor) -> Tensor:
    total = value.flatten(2).sum(-1).abs()
    sizes = torch.linalg.vector_norm((value * gradient).flatten(2), dim=-1) / total
    return _of_weights(value, sizes.where(sizes.isfinite(), 0))


SIZES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam": _of_means,
    "hirescam": _of_products,
    "xgradcam": _of_shares,
}
"""Norm of the terms, of value and gradient, for each method whose sums may cancel."""
