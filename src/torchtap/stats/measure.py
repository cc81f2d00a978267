"""Measures any tensor, by whichever kernel can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

import torch
from torch import Tensor

from torchtap.core.distributed import DEQUANTIZED, is_quantized, local, readable
from torchtap.core.errors import InputError
from torchtap.core.text import class_of
from torchtap.core.torch_private import MKLDNN, is_of_transform
from torchtap.stats.histogram import NUM_BINS, Histogram
from torchtap.stats.kernels import native
from torchtap.stats.plain_measure import PlainTensors, measure_plain
from torchtap.stats.statistics import (
    NUM_COUNTED,
    NUM_FINITE,
    SUBNORMAL,
    Statistics,
    empty_rows,
    from_row,
)

_NARROW = (
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz),
)
_OF_SPARSE = "of the stored values of a sparse tensor"
_OF_NESTED = "of the values of a nested tensor"
SAMPLE = 2048
"""Elements in a sampled histogram: the standard error of the rank of a median is 1.1 %."""


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


def measure_into(row: Tensor, tensor: Tensor) -> None:
    """Measure one more tensor into a row, without a histogram; of one without values nothing."""
    if no_values(tensor) is not None:
        return
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        try:
            values, _ = real_values(tensor)
        except RuntimeError:  # Of a kind that torch cannot read.
            return
        accumulate(values, row, None, 0)
        add_narrow_subnormals(row, tensor, values)


def accumulate(tensor: Tensor, row: Tensor, histogram: Tensor | None, sample: int) -> None:
    """Measure a real tensor into a row (and a histogram) of :func:`table_device`."""
    if tensor.device != row.device:
        tensor = tensor.to(row.device)
    # Stock operations do for every device and dtype; the kernels read the memory once in place of
    # ten times.
    if tensor.dtype in native.DTYPES and tensor.device.type == "cpu" and native.available():
        native.accumulate(tensor, row, histogram, sample)
        return
    from torchtap.stats.kernels import cuda, stock

    take = cuda.accumulate if cuda.available(tensor) else stock.accumulate
    take(tensor, row, histogram, sample)


def no_values(tensor: Tensor) -> str | None:
    """Say why a tensor has no values to measure, or ``None``."""
    if tensor.is_meta:
        return "a meta tensor, which has no values"
    if type(tensor).__name__ == "FakeTensor":
        return "a fake tensor, which has no values"
    if is_of_transform(tensor):
        return "a tensor of a torch.func transform, which means nothing outside of it"
    tensor, _ = local(tensor)
    if is_quantized(tensor) or has_memory(tensor):
        return None
    name = class_of(tensor)
    return f"{name} whose memory cannot be read: freed, or not its own"


def has_memory(tensor: Tensor) -> bool:
    """Return whether a strided tensor's elements all lie where it says; a kernel does not ask.

    FSDP frees storages under living tensors, and a subclass may keep its values in other tensors.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor._is_zerotensor():
        return True  # These hand out their values.
    numel = tensor.numel()
    if not numel:
        return True
    try:
        storage = tensor.untyped_storage()
        if tensor.is_contiguous():
            last = numel - 1
        else:
            # Strides are never negative in PyTorch, so the last element lies furthest behind.
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
        end = int(tensor.storage_offset()) + last + 1
        return storage.data_ptr() != 0 and storage.nbytes() >= end * tensor.element_size()
    except RuntimeError:
        return False


def why_unreadable(error: Exception) -> str:
    """Return why a tensor is unreadable, with the first line of torch's error."""
    return f"torch cannot read it ({str(error).splitlines()[0]})"


def real_values(tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return a strided real tensor of the same elements, and what is to be said of it."""
    tensor, labels = readable(tensor)
    notes = list(labels)
    tensor = tensor.detach()
    if tensor._is_zerotensor():
        tensor = tensor.clone()  # Autograd's zeros, which have no memory.
    if tensor.is_nested:
        parts = [part.reshape(-1) for part in tensor.unbind()]
        # torch.cat refuses an empty list, as of a nested tensor without parts.
        none = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        tensor = torch.cat([none, *parts])
        notes.append(_OF_NESTED)
    if tensor.is_quantized:
        tensor = tensor.dequantize()
        notes.append(DEQUANTIZED)
    if tensor.layout is MKLDNN:
        tensor = tensor.to_dense()
    if tensor.layout is not torch.strided:
        tensor = _stored_values(tensor)
        notes.append(_OF_SPARSE)
    if tensor.is_complex():
        tensor = tensor.abs()
        notes.append("by magnitude")
    tensor = tensor.resolve_neg()
    if tensor.dtype not in native.DTYPES:
        # Whatever else there is (float8, uint16, ...) fits into one of these without loss.
        tensor = tensor.to(torch.float32 if tensor.dtype.is_floating_point else torch.float64)
    return tensor, tuple(notes)


def without_places(notes: Iterable[str]) -> str | None:
    """Say why values with these notes of :func:`real_values` stand nowhere; ``None`` if not."""
    if _OF_SPARSE in notes:
        return "a sparse tensor is measured by its stored values"
    if _OF_NESTED in notes:
        return "a nested tensor is measured by the joined values of its parts"
    return None


def _stored_values(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor.values() if hasattr(tensor, "values") else tensor.to_dense()


def add_narrow_subnormals(row: Tensor, tensor: Tensor, values: Tensor) -> None:
    """Count subnormals of an 8-bit float: it is measured as float32, which has smaller ones."""
    if tensor.dtype in _NARROW:
        sizes = values.abs()
        row[SUBNORMAL] += ((sizes > 0) & (sizes < torch.finfo(tensor.dtype).tiny)).sum()


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the shape; ``None`` for a nested tensor, whose parts have each their own."""
    return None if tensor.is_nested else tuple(tensor.shape)


def table_device(device: torch.device) -> torch.device:
    """Return the device of the rows: the tensor's, or the CPU if that has no float64."""
    return torch.device("cpu") if device.type in ("mps", "meta") else device


def dtype_name(tensor: Tensor) -> str:
    """Return ``float32`` and so on."""
    dtype = tensor.dtype
    return native.NAMES.get(dtype) or str(dtype).removeprefix("torch.")
