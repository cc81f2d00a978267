"""Measures any tensor, by whichever kernel can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.stats.histogram import NUM_BINS, Histogram
from torchtap.stats.plain_measure import PlainTensors, measure_plain
from torchtap.stats.readable import (
    SAMPLE,
    accumulate,
    add_narrow_subnormals,
    dtype_name,
    no_values,
    real_values,
    shape_of,
    table_device,
    why_unreadable,
)
from torchtap.stats.rows import NUM_COUNTED, NUM_FINITE, empty_rows
from torchtap.stats.statistics import Statistics, from_row


@overload
def measure(
    tensor: Tensor | Iterable[Tensor], *, histogram: bool = True, exact: bool = True
) -> Statistics: ...
@overload
def measure(
    tensor: Tensor | Iterable[Tensor], *, histogram: bool = True, exact: bool = True, dim: int
) -> list[Statistics]: ...
def measure(
    tensor: Tensor | Iterable[Tensor],
    *,
    histogram: bool = True,
    exact: bool = True,
    dim: int | None = None,
) -> Statistics | list[Statistics]:
    """Measure one tensor, or several together.

    Args:
        tensor: of any dtype, layout and device. Complex tensors are measured by magnitude;
            sparse, nested and quantised ones by their values. ``notes`` of the result says so.
        histogram: also count the histogram, which quantiles and shares need.
        exact: count all elements in it; else a sample of 2,048.
        dim: measure each slice along this dim apart (a channel, a token); returns a list.

    Raises:
        InputError: the tensor has no values (meta, fake, freed), or none that can be read, or no
            such ``dim``.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.measure(torch.tensor([3.0, -4.0, float("nan")])).l2
        5.0
        >>> [slice.max for slice in tt.measure(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)]
        [2.0, 4.0]
    """
    if dim is not None:
        if not isinstance(tensor, Tensor) or not -tensor.dim() <= dim < tensor.dim():
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else "several tensors"
            raise InputError(f"dim is {dim}; {shape} has no such dim.")
        try:
            slices = tensor.unbind(dim)
        except RuntimeError as error:  # Of a nested tensor, along a dim in which its parts differ.
            raise InputError(f"dim is {dim}; {why_unreadable(error)}.") from error
        return [_measure_one(part, histogram=histogram, exact=exact) for part in slices]
    if isinstance(tensor, Iterable) and not isinstance(tensor, Tensor | str):
        return measure_all(tensor, histogram=histogram, exact=exact)
    return _measure_one(tensor, histogram=histogram, exact=exact)


def measure_all(
    tensors: Iterable[Tensor], *, histogram: bool = True, exact: bool = True
) -> Statistics:
    """Measure several tensors together; see :func:`measure`."""
    if isinstance(tensors, list | tuple) and len(tensors) == 1:
        return _measure_one(tensors[0], histogram=histogram, exact=exact)
    merged = Statistics()
    plain = PlainTensors(histogram=histogram, sample=0 if exact else SAMPLE)
    for tensor in tensors:
        if not plain.take(_checked(tensor)):
            merged = merged.merge(_measure_any(tensor, histogram=histogram, exact=exact))
    return merged.merge(plain.statistics())


def _checked(tensor: object) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InputError(f"Only tensors can be measured, not {tensor!r}.")
    return tensor


def _measure_one(tensor: Tensor, *, histogram: bool, exact: bool) -> Statistics:
    plain = measure_plain(_checked(tensor), histogram=histogram, sample=0 if exact else SAMPLE)
    return _measure_any(tensor, histogram=histogram, exact=exact) if plain is None else plain


def _measure_any(tensor: Tensor, *, histogram: bool, exact: bool) -> Statistics:
    reason = no_values(tensor)
    if reason is not None:
        raise InputError(f"This tensor cannot be measured: it is {reason}.")
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        try:
            values, notes = real_values(tensor)
        except RuntimeError as error:
            raise InputError(f"This tensor cannot be measured: {why_unreadable(error)}.") from error
        row = empty_rows(1, table_device(values.device))[0]
        bins = torch.zeros(NUM_BINS, dtype=torch.int64, device=row.device) if histogram else None
        accumulate(values, row, bins, 0 if exact else SAMPLE)
        add_narrow_subnormals(row, tensor, values)
    is_sample = float(row[NUM_COUNTED]) < float(row[NUM_FINITE])
    return from_row(
        row,
        histogram=None if bins is None else Histogram.of(bins.cpu(), is_sample=is_sample),
        dtype=dtype_name(tensor),
        shape=shape_of(tensor),
        nbytes=tensor.nbytes if tensor.layout is torch.strided else values.nbytes,
        notes=notes,
    )
