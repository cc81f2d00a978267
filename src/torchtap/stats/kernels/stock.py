"""Measure by stock operations: any device and dtype, no native code, no waiting.

Nothing is read back: rows and histograms stay on the device. Slower than the kernels, by a factor
that ``benchmarks/kernel.md`` gives, and agreeing with them to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtap.stats.histogram import NUM_BINS, SHIFT
from torchtap.stats.rows import (
    LEAST_BIN,
    M2,
    MAX,
    MEAN,
    MIN,
    NUM_COUNTED,
    NUM_FINITE,
    NUM_TENSORS,
    ROW_WIDTH,
)

_CHUNK = 1 << 16
"""Elements that stay in a core's cache as float64, with what is made of them."""
_LARGEST_FLOAT32 = torch.finfo(torch.float32).max
_GOLDEN = 0.6180339887498949
"""The fraction of the golden ratio: its multiples are spread evenly, without a period (Weyl)."""


def accumulate(
    tensor: Tensor, row: Tensor, histogram: Tensor | None = None, sample: int = 0
) -> None:
    """Measure a real tensor and merge it into a row.

    Args:
        tensor: of any shape, strides and real dtype, on the device of the row.
        row: ``float64[16]``, see :mod:`torchtap.stats.statistics`.
        histogram: ``int64[8192]``, or ``None``.
        sample: how many elements to count in the histogram if there are more than twice as
            many; 0 for all.
    """
    tiny = torch.finfo(tensor.dtype).tiny if tensor.dtype.is_floating_point else 0.0
    flat = tensor.reshape(-1)
    for chunk in torch.split(flat, _CHUNK) if flat.numel() else ():
        merge(row, _measured(chunk.to(torch.float64), tiny))
    row[NUM_TENSORS] += 1
    if histogram is not None and flat.numel():
        counted = flat if not 0 < 2 * sample < flat.numel() else flat[_places(flat, sample)]
        row[LEAST_BIN] = 1  # Not kept account of here: any bin may be in use.
        for chunk in torch.split(counted, _CHUNK):
            row[NUM_COUNTED] += _count(chunk.to(torch.float64), histogram)


def merge(row: Tensor, other: Tensor) -> None:
    """Merge one row into another on their device (Chan, Golub & LeVeque 1979, eq. 2.1)."""
    own, more = row[NUM_FINITE], other[NUM_FINITE]
    total = own + more
    share = more / total.clamp(min=1)
    delta = torch.where((own > 0) & (more > 0), other[MEAN] - row[MEAN], 0.0)
    mean = torch.where(own > 0, row[MEAN] + delta * share, other[MEAN])
    m2 = row[M2] + other[M2] + delta * delta * own * share
    low, high = torch.minimum(row[MIN], other[MIN]), torch.maximum(row[MAX], other[MAX])
    row += other
    row[MEAN], row[M2], row[MIN], row[MAX] = mean, m2, low, high


def _measured(wide: Tensor, tiny: float) -> Tensor:
    finite = wide.isfinite()
    num_finite = finite.sum()
    values = torch.where(finite, wide, 0.0)
    magnitudes = values.abs()
    mean = values.sum() / num_finite.clamp(min=1)
    deviations = torch.where(finite, values - mean, 0.0)
    return torch.stack(
        [
            torch.full_like(mean, wide.numel()),
            num_finite.to(torch.float64),
            mean,
            deviations.square().sum(),
            magnitudes.sum(),
            magnitudes.square().sum(),
            torch.where(finite, wide, math.inf).amin(),
            torch.where(finite, wide, -math.inf).amax(),
            (wide == 0).sum().to(torch.float64),
            wide.isnan().sum().to(torch.float64),
            (wide == math.inf).sum().to(torch.float64),
            (wide == -math.inf).sum().to(torch.float64),
            ((magnitudes > 0) & (magnitudes < tiny)).sum().to(torch.float64),
            *torch.zeros(ROW_WIDTH - NUM_TENSORS, dtype=torch.float64, device=wide.device),
        ]
    )


def _count(wide: Tensor, histogram: Tensor) -> Tensor:
    finite = wide.isfinite()
    narrow = wide.clamp(-_LARGEST_FLOAT32, _LARGEST_FLOAT32).to(torch.float32)
    # Towards zero, as if the bits were cut off: rounding up would reach the next bin.
    above = narrow.abs().to(torch.float64) > wide.abs()
    narrow = torch.where(above, torch.nextafter(narrow, torch.zeros_like(narrow)), narrow)
    narrow = torch.where(narrow == 0, 0.0, narrow)  # -0 counts as 0.
    narrow = torch.where(finite, narrow, 0.0)
    bins = (narrow.view(torch.int32).to(torch.int64) >> SHIFT) & (NUM_BINS - 1)
    histogram.index_add_(0, bins, finite.to(torch.int64))
    return finite.sum()


def _places(flat: Tensor, sample: int) -> Tensor:
    """One place in each of ``sample`` equal strata, so that no row or channel is favoured."""
    numbers = torch.arange(sample, dtype=torch.float64, device=flat.device)
    within = (numbers * _GOLDEN) % 1.0
    return (
        ((numbers + within) * (flat.numel() / sample)).to(torch.int64).clamp(max=flat.numel() - 1)
    )
