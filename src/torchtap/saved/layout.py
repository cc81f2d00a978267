"""How a tensor lies in memory, and how it is put there again, to the last stride and bit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtap.core.torch_private import is_of_transform, negated_view

Bytes = ctypes.Array[ctypes.c_char]
SMALL = 256 << 10
"""Bytes that are written and read where it is asked for: to wake a thread takes longer."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLayout:
    """Everything about a tensor but its numbers.

    Attributes:
        kind: dtype and device, by which tiers choose.
        length: elements that are moved.
        nbytes: bytes that are moved.
        is_dense: the moved elements are a stretch of memory, with the tensor's strides; if not,
            they are its elements in order, each once, and the strides are given back.
        is_plain: it lies as a new tensor does, without lazy bits: its elements are what it is.
        is_small: it is on the CPU, and to wake a thread takes longer than to hand it to the system.
        marks: what two tensors share if the same stretch of memory has the same numbers to them.
        nothing: a tensor without memory, to be the data of what has left.
        buffer: type of the bytes that are moved.
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
    marks: tuple[Any, ...]
    nothing: Tensor
    buffer: type[Bytes]

    @property
    def core(self) -> tuple[int, ...]:
        """The size without what ``expand`` repeats."""
        return _core(self.size, self.stride)


def form_of(tensor: Tensor) -> TensorLayout | str:
    """The form of a tensor, or why it must stay where it is."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        return "another class of tensor"
    if is_of_transform(tensor):
        return "inside a torch.func transform"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "sparse, nested or quantised"
    if tensor._is_zerotensor():
        return "zeros without memory"  # Of a forward-mode derivative.
    return _form(
        tensor.dtype,
        tensor.device,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


@functools.lru_cache(maxsize=4096)
def _form(
    dtype: torch.dtype,
    device: torch.device,
    size: torch.Size,
    stride: tuple[int, ...],
    is_conj: bool,
    is_neg: bool,
) -> TensorLayout | str:
    """Training saves the same forms over and over."""
    if device.type not in ("cpu", "cuda"):
        return f"on {device.type}"
    if not size or not math.prod(size):
        return "a single number, or empty"
    numel = math.prod(_core(size, stride))
    reach = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    is_dense = reach <= numel  # Also where elements overlap, as windows of ``unfold`` do.
    length = reach if is_dense else numel
    nbytes = length * dtype.itemsize
    shape = None if is_dense else (size, stride)
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
        is_plain=stride == _steps(size) and not (is_conj or is_neg),
        is_small=nbytes <= SMALL and device.type == "cpu",
        marks=(length, shape, is_conj, is_neg, dtype),
        nothing=torch.empty(0, dtype=dtype, device=device),
        buffer=ctypes.c_char * nbytes,
    )


def _core(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(length if step else 1 for length, step in zip(size, stride, strict=True))


def _steps(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor."""
    inner = itertools.accumulate(reversed(size[1:]), operator.mul, initial=1)
    return tuple(inner)[::-1]


def flat(tensor: Tensor, form: TensorLayout) -> Tensor:
    """The elements that are moved, contiguous, sharing memory where they can.

    Args:
        tensor: without a graph.
        form: its form.

    Returns:
        the tensor itself if it is plain, else one dimension.
    """
    if form.is_plain:
        return tensor
    if form.is_conj:
        tensor = tensor.conj()
    if form.is_neg:
        tensor = negated_view(tensor)
    if form.is_dense:
        return tensor.as_strided((form.length,), (1,), tensor.storage_offset())
    once = tensor.as_strided(form.core, form.stride, tensor.storage_offset())
    return once.contiguous().view(-1)


def bytes_of(elements: Tensor, form: TensorLayout) -> Bytes:
    """The memory of what ``flat`` gave, on the CPU; the elements must live longer.

    By its address: numpy knows fewer dtypes, and takes five times as long.
    """
    return form.buffer.from_address(elements.data_ptr())


def space_for(form: TensorLayout, device: torch.device) -> Tensor:
    """Memory for what ``flat`` gave, on a device."""
    # Twice as fast as torch.empty, which looks for a memory format.
    if form.is_plain:
        return torch.empty_strided(form.size, form.stride, dtype=form.dtype, device=device)
    return torch.empty_strided((form.length,), (1,), dtype=form.dtype, device=device)


def restored(elements: Tensor, form: TensorLayout) -> Tensor:
    """The tensor again, from elements that nobody else uses."""
    if form.is_plain and elements.shape == form.size:
        return elements
    if form.is_dense:
        tensor = elements.as_strided(form.size, form.stride)
    else:
        once = torch.empty_strided(form.core, form.stride, dtype=form.dtype, device=elements.device)
        tensor = once.copy_(elements.view(form.core)).as_strided(form.size, form.stride)
    if form.is_neg:
        tensor = negated_view(tensor)
    return tensor.conj() if form.is_conj else tensor
