"""Tensors of every kind as flat ones that safetensors can hold, shared memory once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchtap.core.distributed import PLAIN
from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of

Described = tuple[str, dict[str, Any], list[Tensor]]
"""Kind, traits that JSON can hold, and the tensors that it is made of."""
_NAMED = frozenset(
    (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
) | frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
"""Dtypes that safetensors has; others are written as bytes."""
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class FlatTensors:
    """Collects stretches of memory; each is stored once, whatever views of it there are."""

    def __init__(self) -> None:
        self._stretches: dict[tuple[int, torch.dtype, str], tuple[str, int, int]] = {}
        self._tensors: dict[str, Tensor] = {}
        # Kept alive, so that no other memory gets the same address.
        self._held: list[Tensor] = []

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Tell of all tensors before one is described: views of one memory stay views of it."""
        for tensor in tensors:
            if _is_plain(tensor) and tensor.numel():
                self._held.append(tensor)
                key = _key(tensor)
                first, last = _span(tensor)
                known = self._stretches.get(key)
                if known is not None:
                    first, last = min(first, known[1]), max(last, known[2])
                name = known[0] if known is not None else f"m{len(self._stretches)}"
                self._stretches[key] = name, first, last

    def describe(self, tensor: Tensor) -> Described:
        """Describe a tensor and the memory that it is made of."""
        own = tensor.detach()
        layout = str(own.layout).removeprefix("torch.")
        if own.is_nested:
            return "nested", {"layout": layout}, list(own.unbind())
        if own.layout is torch.sparse_coo:
            parts = [own._indices(), own._values()]
            return "coo", {"shape": list(own.shape), "coalesced": own.is_coalesced()}, parts
        if own.layout in _COMPRESSED:
            parts = [getattr(own, name)() for name in _COMPRESSED[own.layout]]
            return (
                "compressed",
                {"shape": list(own.shape), "layout": layout},
                [*parts, own.values()],
            )
        if layout == "_mkldnn":
            return "mkldnn", {}, [own.to_dense()]
        if type(own) not in PLAIN or own.layout is not torch.strided:
            raise InputError(
                f"{kind_of(tensor)} of class {type(tensor).__name__} cannot be written. Hand in a "
                f"plain tensor."
            )
        if own.is_quantized:
            return _quantized(own)
        if own.is_conj():
            return "conjugate", {}, [own.conj()]
        if own.is_neg():
            return "negative", {}, [-own]
        return "strided", self._strided(own), []

    def tensors(self) -> dict[str, Tensor]:
        """Return the flat tensors by name."""
        return self._tensors

    def _strided(self, tensor: Tensor) -> dict[str, Any]:
        traits: dict[str, Any] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
        }
        if tensor.device.type != "cpu":
            traits["device"] = str(tensor.device)
        if tensor.is_meta:
            return traits
        if not tensor.numel():
            name = f"e{traits['dtype']}"
            self._tensors.setdefault(name, _storable(torch.empty(1, dtype=tensor.dtype)))
            return {**traits, "memory": name, "offset": 0}
        key = _key(tensor)
        known = self._stretches.get(key)
        first, last = _span(tensor)
        if known is None or first < known[1] or last > known[2]:
            self.note([tensor])
            known = self._stretches[key]
            if known[0] in self._tensors:  # It was not told of before; it gets its own.
                known = self._stretches[key] = f"m{len(self._tensors)}b", first, last
        name, first, last = known
        if name not in self._tensors:
            stretch = tensor.as_strided((last - first,), (1,), first)
            self._tensors[name] = _storable(stretch.cpu().clone())
        return {**traits, "memory": name, "offset": tensor.storage_offset() - first}


def _is_plain(tensor: Tensor) -> bool:
    is_odd = tensor.is_nested or tensor.is_meta or tensor.is_quantized
    is_lazy = tensor.layout is not torch.strided or type(tensor) not in PLAIN
    return not (is_lazy or is_odd or tensor.is_conj() or tensor.is_neg())


def _key(tensor: Tensor) -> tuple[int, torch.dtype, str]:
    return tensor.untyped_storage().data_ptr(), tensor.dtype, str(tensor.device)


def _span(tensor: Tensor) -> tuple[int, int]:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    first = int(tensor.storage_offset())
    return first, first + 1 + sum((dim - 1) * stride for dim, stride in steps)


def _storable(flat: Tensor) -> Tensor:
    """Return a flat tensor in a dtype that safetensors has."""
    if flat.is_complex():
        return _storable(torch.view_as_real(flat))
    return flat if flat.dtype in _NAMED else flat.view(torch.uint8)


def _quantized(tensor: Tensor) -> Described:
    """Return its numbers, and how they are rounded; quantised again they are the same."""
    traits: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "axis": None}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scales = torch.tensor([tensor.q_scale()], dtype=torch.float64)
        zeros = torch.tensor([tensor.q_zero_point()])
    else:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        traits["axis"] = tensor.q_per_channel_axis()
    return "quantized", traits, [tensor.dequantize(), scales, zeros]
