"""Facts of one tensor that may hold values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchtap.core.distributed import readable
from torchtap.core.tensors import kind_of, obstacle
from torchtap.core.tree import leaves

FINITE, INFINITE, NAN = 0, 1, 2
"""How bad a tensor is: its worst element."""
_NARROW = (torch.float16, torch.bfloat16)
Index = tuple[int, ...]


def holds_numbers(value: Any) -> bool:
    """Return whether a value is a tensor of floating-point or complex numbers."""
    if not isinstance(value, Tensor) or obstacle(value) is not None or value.is_meta:
        return False
    return value.is_floating_point() or value.is_complex()


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a nested value that hold such numbers."""
    if type(value) is Tensor:
        return [value] if holds_numbers(value) else []
    return [tensor for _, tensor in leaves(value) if holds_numbers(tensor)]


def strided(tensor: Tensor) -> list[Tensor]:
    """Return the numbers of a tensor as this rank holds them, in strided tensors of wide dtypes.

    A sparse tensor has those that it stores, a nested one those of its parts.
    """
    tensor = readable(tensor)[0].detach()
    if tensor.is_nested:
        return [part for one in tensor.unbind() for part in strided(one)]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        values = getattr(tensor, "values", None)
        if values is None or tensor.layout is getattr(torch, "_mkldnn", None):
            return [tensor.to_dense()]
        tensor = values()
    if tensor.is_complex():
        return [torch.view_as_real(tensor.resolve_conj())]
    return [tensor.float() if tensor.element_size() == 1 else tensor]


def badness(tensor: Tensor) -> int:
    """Return whether a tensor is finite, holds an Inf, or holds a NaN.

    The sum is read first: it is finite where all elements are, unless it overflows.
    """
    return max(map(_badness, strided(tensor)), default=FINITE)


def _badness(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return FINITE
    total = tensor.float().sum() if tensor.dtype in _NARROW else tensor.sum()
    if bool(torch.isfinite(total)):
        return FINITE
    if bool(torch.isnan(tensor).any()):
        return NAN
    return INFINITE if bool(torch.isinf(tensor).any()) else FINITE


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no element of any tensor is an Inf or a NaN."""
    return not any(map(badness, tensors))


def first_bad(tensor: Tensor) -> tuple[Index, complex]:
    """Return the index of the first element that is not finite, and its value.

    Of a sparse or nested tensor the index is that among the values that it stores.
    """
    tensor = readable(tensor)[0].detach()
    if tensor.is_nested or tensor.layout is not torch.strided:
        tensor = next((one for one in strided(tensor) if badness(one)), tensor)
    flat = (tensor.float() if tensor.element_size() == 1 else tensor).reshape(-1)
    place = int((~torch.isfinite(flat)).int().argmax())
    value = flat[place].item()
    index = torch.unravel_index(torch.tensor(place), tensor.shape) if tensor.ndim else ()
    return tuple(int(one) for one in index), value


def is_mask(tensor: Tensor) -> bool:
    """Return whether a tensor may be a mask: some -Inf, and else one value alone."""
    parts = strided(tensor)
    if len(parts) != 1 or tensor.is_complex():
        return False
    flat = parts[0].reshape(-1)
    usual = flat[flat != -torch.inf]
    if usual.numel() in (0, flat.numel()):
        return False
    return bool(usual.isfinite().all() & (usual == usual[0]).all())


def shown(tensor: Tensor, index: Index | None = None) -> str:
    """A tensor as ``float32[2, 3] -1.2..0.5``, and its element at an index, if there is one."""
    text = kind_of(tensor)
    parts = [one.reshape(-1) for one in strided(tensor) if one.numel()]
    if not parts:
        return text
    flat = torch.cat(parts) if len(parts) > 1 else parts[0]
    finite = flat[torch.isfinite(flat)]
    if not finite.numel():
        return f"{text} nothing finite"
    least, most = float(finite.min()) + 0.0, float(finite.max()) + 0.0  # No -0.
    text += f" {least:.4g}" if least == most else f" {least:.4g}..{most:.4g}"
    if finite.numel() < flat.numel():
        text += f" and {flat.numel() - finite.numel()} not finite"
    return text + _shown_there(tensor, index)


def _shown_there(tensor: Tensor, index: Index | None) -> str:
    """Return the element that a pointwise operation took for its element at an index."""
    if (
        not index
        or tensor.ndim > len(index)
        or tensor.layout is not torch.strided
        or not tensor.ndim
    ):
        return ""
    own = index[len(index) - tensor.ndim :]
    fits = all(at < size or size == 1 for at, size in zip(own, tensor.shape, strict=True))
    if not fits or type(tensor) not in (Tensor, torch.nn.Parameter):
        return ""
    at = tuple(0 if size == 1 else one for one, size in zip(own, tensor.shape, strict=True))
    return f" (there {tensor.detach()[at].item() + 0.0:.4g})"
