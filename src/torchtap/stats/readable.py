"""Reads the values of tensors of any kind, and measures them into rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchtap.core.distributed import DEQUANTIZED, is_quantized, local, readable
from torchtap.core.text import class_of
from torchtap.core.torch_private import MKLDNN, is_of_transform
from torchtap.stats.kernels import native
from torchtap.stats.rows import SUBNORMAL

_NARROW = (
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz),
)
_OF_SPARSE = "of the stored values of a sparse tensor"
_OF_NESTED = "of the values of a nested tensor"
SAMPLE = 2048
"""Elements in a sampled histogram: the standard error of the rank of a median is 1.1 %."""


def measure_into(row: Tensor, tensor: Tensor) -> None:
    """Measure one more tensor into a row, without a histogram; of one without values nothing."""
    if no_values(tensor) is not None:
        return
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        try:
            values, _ = real_values(tensor)
        except RuntimeError:  # PyTorch cannot read tensors of this kind.
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
