"""Class activation maps written out by hand in numpy, element by element, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
from torch import Tensor

Array = Any


def by_hand(method: str, value: Tensor, gradient: Tensor) -> Array:
    """The map of one method of value and gradient, ``[B, C, H, W]`` -> ``[B, H, W]``."""
    maps, slopes = value.double().numpy(), gradient.double().numpy()
    return numpy.stack([_ONE[method](a, g) for a, g in zip(maps, slopes, strict=True)])


def _gradcam(a: Array, g: Array) -> Array:
    found = numpy.zeros(a.shape[1:])
    for k in range(len(a)):
        found += g[k].sum() / g[k].size * a[k]
    return numpy.maximum(found, 0)


def _gradcam_plus_plus(a: Array, g: Array) -> Array:
    """Equation 19 with Y = exp(S): its n-th derivative is exp(S) times the n-th power."""
    found = numpy.zeros(a.shape[1:])
    for k in range(len(a)):
        weight = 0.0
        for i, j in itertools.product(*map(range, a.shape[1:])):
            slope = g[k, i, j]
            if slope != 0:
                alpha = slope**2 / (2 * slope**2 + a[k].sum() * slope**3)
                weight += alpha * max(slope, 0.0)
        found += weight * a[k]
    return numpy.maximum(found, 0)


def _hirescam(a: Array, g: Array) -> Array:
    return sum(g[k] * a[k] for k in range(len(a)))


def _xgradcam(a: Array, g: Array) -> Array:
    found = numpy.zeros(a.shape[1:])
    for k in range(len(a)):
        if a[k].sum() != 0:
            found += (a[k] / a[k].sum() * g[k]).sum() * a[k]
    return found


def _layercam(a: Array, g: Array) -> Array:
    return numpy.maximum(sum(numpy.maximum(g[k], 0) * a[k] for k in range(len(a))), 0)


def _eigencam(a: Array, _: Array) -> Array:
    matrix = a.reshape(len(a), -1).T
    found = matrix @ numpy.linalg.svd(matrix)[2][0]
    return (found if found.sum() >= 0 else -found).reshape(a.shape[1:])


_ONE = {
    "gradcam": _gradcam,
    "gradcam++": _gradcam_plus_plus,
    "hirescam": _hirescam,
    "xgradcam": _xgradcam,
    "layercam": _layercam,
    "eigencam": _eigencam,
}
ONE_BACKWARD = tuple(_ONE)
