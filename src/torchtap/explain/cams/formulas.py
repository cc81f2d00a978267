"""Class activation maps as formulas of a layer's value and gradient.

Each takes the value ``A`` and the gradient ``G = dS/dA`` of the score S as ``float[B, C, *grid]``
and returns the map ``float[B, *grid]`` before its final ReLU. ``RECTIFIED`` says which papers end
with one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ULPS = 8
"""Rounding of a sum that is 0, in units of its terms."""

Formula = Callable[[Tensor, Tensor], Tensor]


def gradcam(value: Tensor, gradient: Tensor) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017, equations 1 and 2).

    ``ReLU(sum_k w_k A_k)`` with ``w_k`` the mean of ``G_k`` over the grid.
    """
    return _weighed(value, _spatial(gradient).mean(-1))


def gradcam_plus_plus(value: Tensor, gradient: Tensor) -> Tensor:
    """Grad-CAM++ (Chattopadhyay et al. 2018, equations 10, 15 and 19), of the score ``exp(S)``.

    ``ReLU(sum_k w_k A_k)`` with ``w_k = sum_ij a_kij ReLU(G_kij)`` and ``a_kij = G_kij^2 /
    (2 G_kij^2 + G_kij^3 sum_ab A_kab)``, 0 where ``G_kij`` is 0. The factor ``exp(S)`` of all
    weights of a row is left away.
    """
    total = _as_weights(_spatial(value).sum(-1), gradient)
    below = 2 + gradient * total  # Both sides divided by the square of the gradient.
    shares = torch.where(gradient == 0, 0, 1 / below)
    return _weighed(value, _spatial(shares * gradient.relu()).sum(-1))


def hirescam(value: Tensor, gradient: Tensor) -> Tensor:
    """HiResCAM (Draelos and Carin 2020, equation 4): ``sum_k G_k A_k``, signed."""
    return (value * gradient).sum(1)


def xgradcam(value: Tensor, gradient: Tensor, *, eps: float = 0.0) -> Tensor:
    """XGrad-CAM (Fu et al. 2020, equations 2 and 8).

    ``sum_k w_k A_k`` with ``w_k = sum_ij A_kij G_kij / sum_ij A_kij``, 0 where the channel sums
    to 0, up to rounding (as behind a normalisation over the grid); signed. ``eps`` is the rounding
    of the values, where they were of another dtype.
    """
    spatial = _spatial(value)
    total, size = spatial.sum(-1), spatial.abs().sum(-1)
    weights = _spatial(value * gradient).sum(-1) / total
    is_zero = total.abs() <= _ULPS * torch.finfo(value.dtype).eps * size
    is_zero |= total.abs() <= 2 * eps * torch.linalg.vector_norm(spatial, dim=-1)
    return _weighed(value, torch.where(is_zero, 0, weights))


def layercam(value: Tensor, gradient: Tensor) -> Tensor:
    """LayerCAM (Jiang et al. 2021, equations 4 to 6): ``ReLU(sum_k ReLU(G_k) A_k)``."""
    return (value * gradient.relu()).sum(1)


def eigencam(value: Tensor) -> Tensor:
    """Eigen-CAM (Muhammad and Yeasin 2020, section III): ``A v``, for no class.

    ``v`` is the first right singular vector of ``A`` as a matrix of places and channels, which is
    not centred. Its sign is free: the map's sum is made positive, and where that is 0, up to
    rounding, the largest magnitude. NaN where the value of a row is not finite. The largest
    singular value must be single, or the map is one of many.
    """
    components = [_first_component(row) for row in _spatial(value)]
    return torch.stack(components).reshape(-1, *value.shape[2:])


def weighed(value: Tensor, weights: Tensor) -> Tensor:
    """CAM (Zhou et al. 2016, equation 2), Score-CAM and Ablation-CAM: ``sum_k w_k A_k``.

    Args:
        value: ``float[B, C, *grid]``.
        weights: ``float[B, C]``.
    """
    return _weighed(value, weights)


GRADIENT_METHODS: dict[str, Formula] = {
    "gradcam": gradcam,
    "gradcam++": gradcam_plus_plus,
    "hirescam": hirescam,
    "xgradcam": xgradcam,
    "layercam": layercam,
}
CAMS = ("cam", *GRADIENT_METHODS, "eigencam", "scorecam", "ablationcam")
"""All methods of ``tt.cam``."""

RECTIFIED = frozenset({"gradcam", "gradcam++", "layercam", "scorecam", "ablationcam"})
"""Methods that end with a ReLU by definition."""


def _first_component(row: Tensor) -> Tensor:
    """Return ``s u`` of the largest singular value s of one row, ``float[C, places]``."""
    matrix = row.mT.double()
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(row[0], torch.nan)
    num_places, num_channels = matrix.shape
    if num_places <= num_channels:
        values, vectors = torch.linalg.eigh(matrix @ matrix.mT)
        component = vectors[:, -1] * values[-1].clamp(min=0).sqrt()
    else:
        component = matrix @ torch.linalg.eigh(matrix.mT @ matrix)[1][:, -1]
    first: Tensor = component if _sense(component, row.dtype) >= 0 else -component
    return first.to(row.dtype)


def _sense(found: Tensor, dtype: torch.dtype) -> Tensor:
    total = found.sum()
    if total.abs() > _ULPS * torch.finfo(dtype).eps * found.abs().sum():
        return total
    return found[found.abs().argmax()]


def _spatial(maps: Tensor) -> Tensor:
    """Return ``[B, C, *grid]`` as ``[B, C, places]``."""
    return maps.flatten(2)


def _as_weights(weights: Tensor, maps: Tensor) -> Tensor:
    """Return ``[B, C]``, to be multiplied with ``[B, C, *grid]``."""
    return weights.reshape(*weights.shape, *[1] * (maps.dim() - 2))


def _weighed(value: Tensor, weights: Tensor) -> Tensor:
    return (value * _as_weights(weights, value)).sum(1)
