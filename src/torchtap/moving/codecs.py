"""Smaller forms for saved tensors: ``tt.codecs``.

A codec changes what backward computes with, so gradients are no longer exact; ``Offload.verify``
says by how much. Integers, indices and parameters are never given to one.

    >>> import torch, torchtap as tt
    >>> x = torch.randn(64, 64, requires_grad=True)
    >>> with tt.offload(tt.codecs.bf16(), min_bytes=0) as off:
    ...     loss = x.sin().sum()
    >>> loss.backward()
    >>> off.report().packed_nbytes, off.report().small_nbytes
    (16384, 8192)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchtap.errors import InputError

__all__ = ["Codec", "bf16", "bits", "fp16", "int8"]


class Codec(Protocol):
    """A smaller form. One of your own needs these three.

    Attributes:
        name: for reports.
    """

    name: str

    def accepts(self, dtype: torch.dtype) -> bool:
        """Whether it can take such a tensor."""

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        """Make the smaller form of a one-dimensional tensor."""

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        """Make it again: one-dimensional, ``length`` elements of ``dtype``."""


_WIDE = (torch.float32, torch.float64)
_FLOATS = (*_WIDE, torch.float16, torch.bfloat16)


class _Cast:
    """In a narrower floating-point dtype."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def accepts(self, dtype: torch.dtype) -> bool:
        return dtype in _WIDE

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        return (elements.to(self._dtype),)

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        return parts[0].to(dtype)


class _Int8:
    """Eight bits an element, with one scale for each block."""

    def __init__(self, block: int) -> None:
        self.name = f"int8(block={block})"
        self._block = block

    def accepts(self, dtype: torch.dtype) -> bool:
        return dtype in _FLOATS

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        short = -elements.numel() % self._block
        rows = torch.nn.functional.pad(elements, (0, short)).view(-1, self._block).float()
        scale = rows.abs().amax(1, keepdim=True) / 127
        # A block of zeros has no scale; one with NaN or Inf becomes NaN as a whole.
        steps = (rows / scale).nan_to_num(0.0, 0.0, 0.0).round().to(torch.int8)
        return steps, torch.where(scale.isfinite(), scale, torch.nan)

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        steps, scale = parts
        return (steps * scale).to(dtype).view(-1)[:length]


class _Bits:
    """One bit for each element of a mask; exact."""

    name = "bits"

    def accepts(self, dtype: torch.dtype) -> bool:
        return dtype is torch.bool

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        rows = torch.nn.functional.pad(elements.to(torch.uint8), (0, -elements.numel() % 8))
        weights = 1 << torch.arange(8, dtype=torch.uint8, device=elements.device)
        return ((rows.view(-1, 8) * weights).sum(1, dtype=torch.uint8),)

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        places = torch.arange(8, dtype=torch.uint8, device=parts[0].device)
        return (parts[0][:, None] >> places & 1).to(torch.bool).view(-1)[:length]


def bf16() -> Codec:
    """float32 and float64 as bfloat16: half the bytes or less, relative error up to 2^-9."""
    return _Cast("bf16", torch.bfloat16)


def fp16() -> Codec:
    """float32 and float64 as float16: relative error up to 2^-12, infinite beyond 65,504."""
    return _Cast("fp16", torch.float16)


def int8(*, block: int = 128) -> Codec:
    """Floats as 8 bits with a scale per block: the error is up to 1/254 of the block's largest.

    A block that holds NaN or an infinity becomes NaN as a whole.

    Args:
        block: elements that share a scale; 4 bytes each.

    Raises:
        InputError: ``block`` is not positive.
    """
    if block < 1:
        raise InputError(f"tt.codecs.int8 got block={block!r}; expected a positive number.")
    return _Int8(block)


def bits() -> Codec:
    """Masks (bool) as one bit an element in place of eight; exact."""
    return _Bits()
