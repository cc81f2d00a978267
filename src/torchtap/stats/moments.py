"""Counts, moments, norms and extremes of a tensor, exact enough to merge.

Everything but the counts is over the finite elements. Sums run in float64 over chunks that stay
in cache; moments are merged with Chan's formula (Chan, Golub & LeVeque 1979, eq. 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of one or several tensors together.

    Attributes:
        numel: elements.
        num_finite: elements that are neither NaN nor infinite.
        mean: of the finite elements; NaN if there are none.
        m2: sum of squared deviations from the mean.
        l1: sum of magnitudes.
        sum_squares: sum of squares.
        min: smallest finite element; NaN if there are none.
        max: largest finite element; NaN if there are none.
        zeros: elements equal to zero.
        nan: NaN elements.
        posinf: elements equal to +Inf.
        neginf: elements equal to -Inf.
    """

    numel: int = 0
    num_finite: int = 0
    mean: float = math.nan
    m2: float = 0.0
    l1: float = 0.0
    sum_squares: float = 0.0
    min: float = math.nan
    max: float = math.nan
    zeros: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0

    @property
    def std(self) -> float:
        """Population standard deviation of the finite elements (divided by their number)."""
        return math.sqrt(self.m2 / self.num_finite) if self.num_finite else math.nan

    @property
    def l2(self) -> float:
        """Euclidean norm of the finite elements."""
        return math.sqrt(self.sum_squares)

    @property
    def nonfinite(self) -> int:
        """NaN and infinite elements together."""
        return self.numel - self.num_finite

    def merge(self, other: Moments) -> Moments:
        """The statistics of both parts together; associative up to rounding."""
        if not other.num_finite or not self.num_finite:
            rich = self if self.num_finite else other
            mean, m2, low, high = rich.mean, rich.m2, rich.min, rich.max
        else:
            total = self.num_finite + other.num_finite
            delta = other.mean - self.mean
            mean = self.mean + delta * other.num_finite / total
            m2 = self.m2 + other.m2 + delta * delta * self.num_finite * other.num_finite / total
            low, high = min(self.min, other.min), max(self.max, other.max)
        return Moments(
            numel=self.numel + other.numel,
            num_finite=self.num_finite + other.num_finite,
            mean=mean,
            m2=m2,
            l1=self.l1 + other.l1,
            sum_squares=self.sum_squares + other.sum_squares,
            min=low,
            max=high,
            zeros=self.zeros + other.zeros,
            nan=self.nan + other.nan,
            posinf=self.posinf + other.posinf,
            neginf=self.neginf + other.neginf,
        )


def moments(tensors: Tensor | Iterable[Tensor]) -> Moments:
    """Measure one tensor, or several together.

    Complex tensors are measured by magnitude, sparse and quantised ones by their values; booleans
    count as 0 and 1. Works on any device, at the price of one read and one transfer of the result.

    Example:
        >>> import torch
        >>> moments(torch.tensor([3.0, -4.0, float("nan")])).l2
        5.0
    """
    parts = [tensors] if isinstance(tensors, Tensor) else tensors
    merged = Moments()
    with torch.no_grad():
        for tensor in parts:
            for chunk in _chunks(tensor.detach()):
                merged = merged.merge(_measure(chunk))
    return merged


def _chunks(tensor: Tensor) -> Iterable[Tensor]:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = tensor.abs()
    return torch.split(tensor.reshape(-1), _CHUNK) if tensor.numel() else ()


def _measure(chunk: Tensor) -> Moments:
    wide = chunk.to(torch.float64)
    finite = wide.isfinite()
    num_finite = int(finite.sum())
    counts = {"numel": chunk.numel(), "num_finite": num_finite, "zeros": int((wide == 0).sum())}
    if num_finite < chunk.numel():
        counts["nan"] = int(wide.isnan().sum())
        counts["posinf"] = int((wide == math.inf).sum())
        counts["neginf"] = int((wide == -math.inf).sum())
        wide = wide[finite]
    if not num_finite:
        return Moments(**counts)
    mean = wide.mean()
    low, high = torch.aminmax(wide)
    return Moments(
        **counts,
        mean=float(mean),
        m2=float((wide - mean).square().sum()),
        l1=float(wide.abs().sum()),
        sum_squares=float(wide.square().sum()),
        min=float(low),
        max=float(high),
    )
