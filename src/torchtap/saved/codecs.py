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

from torchtap.core.errors import InputError

__all__ = ["Codec", "bf16", "bits", "fp16", "int8"]


class Codec(Protocol):
    """A smaller form. One of your own needs these three.

    Attributes:
        name: for reports.

    Example:
        >>> import torchtap as tt
        >>> tt.codecs.bf16().name
        'bf16'
    """

    name: str

    def accepts(self, dtype: torch.dtype) -> bool:
        """Return whether the codec can take tensors of this dtype."""

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
        # Padded with zeros, which change the largest of no block.
        short = -elements.numel() % self._block
        rows = torch.nn.functional.pad(elements, (0, short)).view(-1, self._block)
        rows = rows if rows.dtype is torch.float64 else rows.float()
        # Below the smallest normal number a scale would lose its digits, and steps their range.
        least = torch.finfo(rows.dtype).tiny
        scale = (rows.abs().amax(1, keepdim=True) / 127).clamp_min(least)
        # A block with NaN or Inf becomes NaN as a whole.
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
        # Eight lanes multiplied and summed: PyTorch has no packing of bits, and a sum of distinct
        # powers of two is their union.
        weights = 1 << torch.arange(8, dtype=torch.uint8, device=elements.device)
        return ((rows.view(-1, 8) * weights).sum(1, dtype=torch.uint8),)

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        places = torch.arange(8, dtype=torch.uint8, device=parts[0].device)
        return (parts[0][:, None] >> places & 1).to(torch.bool).view(-1)[:length]


def bf16() -> Codec:
    """float32 and float64 as bfloat16: half the bytes or less, relative error up to 2^-8.

    That is the unit roundoff of its 8 bits of precision. It reaches as far as float32: float64
    beyond 3.4e38 becomes infinite, and below 1.2e-38 digits are lost, down to 0 below 4.6e-41.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.linspace(0, 1, 100_000, requires_grad=True)
        >>> with tt.offload(tt.codecs.bf16()):
        ...     loss = x.square().sum()
        >>> loss.backward()
        >>> bool(((x.grad - 2 * x).abs() <= 2 * x * 2**-8).all())
        True
    """
    return _Cast("bf16", torch.bfloat16)


def fp16() -> Codec:
    """float32 and float64 as float16: relative error up to 2^-11, from 6.1e-5 to 65,504.

    Beyond 65,504 values become infinite. Below 6.1e-5 (2^-14) the error is up to 3.0e-8 (2^-25),
    however small the value: 1 % or more of 1e-6, and what is smaller than 3.0e-8 becomes 0. Where
    that may happen, as in losses that are scaled or normalised far down, use :func:`bf16`.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.linspace(1, 2, 100_000, requires_grad=True)
        >>> with tt.offload(tt.codecs.fp16()):
        ...     loss = x.square().sum()
        >>> loss.backward()
        >>> bool(((x.grad - 2 * x).abs() <= 2 * x * 2**-11).all())
        True
    """
    return _Cast("fp16", torch.float16)


def int8(*, block: int = 128) -> Codec:
    """Floats as 8 bits with a scale per block: the error is up to 1/254 of the block's largest.

    And what the dtype rounds itself; where the largest is below 1.5e-36 (float64: 2.8e-306), up to
    6e-39 (1.1e-308). A block that holds NaN or an infinity becomes NaN as a whole.

    Args:
        block: elements that share a scale: 4 bytes each, 8 for float64.

    Raises:
        InputError: ``block`` is no number from 1.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.linspace(-1, 1, 100_000, requires_grad=True)
        >>> with tt.offload(tt.codecs.int8()):
        ...     loss = x.square().sum()
        >>> loss.backward()
        >>> bool(((x.grad - 2 * x).abs() <= 2 * 1.001 / 254).all())
        True
    """
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise InputError(f"tt.codecs.int8 got block={block!r}; expected a whole number from 1.")
    return _Int8(block)


def bits() -> Codec:
    """Masks (bool) as one bit an element in place of eight; exact.

    Example:
        >>> import torch, torchtap as tt
        >>> x, keep = torch.ones(100_000, requires_grad=True), torch.arange(100_000) % 2 == 0
        >>> with tt.offload(tt.codecs.bits()):
        ...     loss = x.masked_fill(keep, 0.0).sum()
        >>> loss.backward()
        >>> torch.equal(x.grad, (~keep).float())
        True
    """
    return _Bits()
