"""The layout of a tensor, and how the tensor is restored from its elements, bit for bit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtap.core.torch_private import is_of_transform, negated_view

Bytes = ctypes.Array[ctypes.c_char]
SMALL = 256 << 10
"""Most bytes that are written and read in the calling thread: waking a worker takes longer."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLayout:
    """Everything about a strided tensor except its elements.

    Attributes:
        kind: dtype and device, by which tiers choose.
        length: elements that are moved.
        nbytes: bytes that are moved.
        is_dense: the elements fill a contiguous range of memory, which is moved as it is. If not,
            the elements are moved in order, each once, and ``restored`` applies the strides.
        is_plain: contiguous, without the lazy conjugate and negative bits, so the moved elements
            are the tensor itself.
        is_small: on the CPU, with at most :data:`SMALL` bytes.
        heap_nbytes: bytes of it that lie in the heap of the C library: all of them, or 0 on a
            device.
        marks: equal for two tensors that read the same numbers from the same storage offset.
        nothing: a tensor without memory, to be the ``data`` of an evicted tensor.
        new: makes uninitialised memory for what ``flat`` returns.
        buffer: ctypes array of the bytes that are moved.
    """

    dtype: torch.dtype
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    is_conj: bool
    is_neg: bool
    kind: tuple[torch.dtype, torch.device]
    length: int
    nbytes: int
    is_dense: bool
    is_plain: bool
    is_small: bool
    heap_nbytes: int
    marks: tuple[Any, ...]
    nothing: Tensor
    new: Callable[..., Tensor]
    buffer: type[Bytes]

    @property
    def core(self) -> tuple[int, ...]:
        """Return the size, with 1 for dimensions that ``expand`` repeats."""
        return _core(self.size, self.stride)


def layout_of(tensor: Tensor) -> TensorLayout | str:
    """Return the layout of a tensor, or why it must stay where it is."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        return "another class of tensor"
    if is_of_transform(tensor):
        return "inside a torch.func transform"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "sparse, nested or quantised"
    if tensor._is_zerotensor():
        return "zeros without memory"  # Of a forward-mode derivative.
    return _layout(
        tensor.dtype,
        tensor.device,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


@functools.lru_cache(maxsize=4096)
def _layout(
    dtype: torch.dtype,
    device: torch.device,
    size: torch.Size,
    stride: tuple[int, ...],
    is_conj: bool,
    is_neg: bool,
) -> TensorLayout | str:
    """Cached, since every step of a training saves the same layouts."""
    if device.type not in ("cpu", "cuda"):
        return f"on {device.type}"
    # Too small to be worth a move, and an empty tensor has no address to move from.
    if not size or not math.prod(size):
        return "a single number, or empty"
    numel = math.prod(_core(size, stride))
    reach = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    is_dense = reach <= numel  # Also where elements overlap, as windows of ``unfold`` do.
    length = reach if is_dense else numel
    nbytes = length * dtype.itemsize
    is_plain = stride == _steps(size) and not (is_conj or is_neg)
    shape = (size, stride) if is_plain else ((length,), (1,))
    return TensorLayout(
        dtype,
        device,
        size,
        stride,
        is_conj,
        is_neg,
        kind=(dtype, device),
        length=length,
        nbytes=nbytes,
        is_dense=is_dense,
        is_plain=is_plain,
        is_small=nbytes <= SMALL and device.type == "cpu",
        heap_nbytes=nbytes if device.type == "cpu" else 0,
        marks=(length, None if is_dense else (size, stride), is_conj, is_neg, dtype),
        nothing=torch.empty(0, dtype=dtype, device=device),
        # It takes half the time of torch.empty, which looks for a memory format.
        new=functools.partial(torch.empty_strided, *shape, dtype=dtype, device=device),
        buffer=ctypes.c_char * nbytes,
    )


def _core(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(length if step else 1 for length, step in zip(size, stride, strict=True))


def _steps(size: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor."""
    inner = itertools.accumulate(reversed(size[1:]), operator.mul, initial=1)
    return tuple(inner)[::-1]


def flat(tensor: Tensor, layout: TensorLayout) -> Tensor:
    """Return the elements that are moved, contiguous, sharing memory where they can.

    Args:
        tensor: without a graph.
        layout: its layout.

    Returns:
        the tensor itself if it is plain, else one dimension.
    """
    if layout.is_plain:
        return tensor
    # Takes the flag off again: the bytes are moved as they lie.
    if layout.is_conj:
        tensor = tensor.conj()
    if layout.is_neg:
        tensor = negated_view(tensor)
    if layout.is_dense:
        return tensor.as_strided((layout.length,), (1,), tensor.storage_offset())
    # Dimensions of stride 0 have one element that is read many times: it is moved once.
    once = tensor.as_strided(layout.core, layout.stride, tensor.storage_offset())
    return once.contiguous().view(-1)


def bytes_of(elements: Tensor, layout: TensorLayout) -> Bytes:
    """Return the memory of what ``flat`` returned, on the CPU; the elements must outlive it.

    Made from the address, since NumPy lacks some dtypes and takes five times as long.
    """
    return layout.buffer.from_address(elements.data_ptr())


def space_for(layout: TensorLayout, device: torch.device) -> Tensor:
    """Uninitialised memory for what ``flat`` returned, on a device."""
    return layout.new() if device == layout.device else layout.new(device=device)


def restored(elements: Tensor, layout: TensorLayout) -> Tensor:
    """Return the tensor again, from elements that no other tensor uses."""
    if layout.is_plain and elements.shape == layout.size:
        return elements
    if layout.is_dense:
        tensor = elements.as_strided(layout.size, layout.stride)
    else:
        once = torch.empty_strided(
            layout.core, layout.stride, dtype=layout.dtype, device=elements.device
        )
        tensor = once.copy_(elements.view(layout.core)).as_strided(layout.size, layout.stride)
    if layout.is_neg:
        tensor = negated_view(tensor)
    return tensor.conj() if layout.is_conj else tensor
