"""``tt.codecs``: smaller forms of saved tensors, against formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bits import same
from offloads import facts, kept_through, noise
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import InputError


def coded(codec: Any, tensor: Tensor) -> tuple[Tensor, tt.Offload]:
    off = tt.offload(codec, min_bytes=0)
    (found,) = kept_through(off, tensor)
    return found, off


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_casts_by_hand(name: str, dtype: torch.dtype) -> None:
    tensor = noise(37, 5).to(dtype).t()
    found, off = coded(getattr(tt.codecs, name)(), tensor)
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    assert facts(found) == facts(tensor.to(narrow).to(dtype))
    assert off.report().small_nbytes == 2 * tensor.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block", [1, 7, 128])
def test_int8_by_hand(block: int, dtype: torch.dtype) -> None:
    tensor = noise(1000).to(dtype)
    tensor[256:384] = 0
    found, off = coded(tt.codecs.int8(block=block), tensor)
    for start in range(0, 1000, block):
        part = tensor[start : start + block].double()
        largest = float(part.abs().max())
        error = (found[start : start + block].double() - part).abs().max()
        slack = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(dtype, 1e-6)
        assert float(error) <= largest * (1 / 254 + slack)
    num_blocks = -(-1000 // block)
    scale = 8 if dtype is torch.float64 else 4
    assert off.report().small_nbytes == num_blocks * (block + scale)


@pytest.mark.parametrize(("name", "digits"), [("bf16", 8), ("fp16", 11)])
def test_casts_err_by_half_of_their_last_digit(name: str, digits: int) -> None:
    """All significands of two more digits: the worst is 2^-p, just above a power of two."""
    tensor = 1 + torch.arange(2 ** (digits + 1)).double() / 2 ** (digits + 1)
    found, _ = coded(getattr(tt.codecs, name)(), tensor.float())
    worst = float(((found.double() - tensor) / tensor).abs().max())
    assert 2**-digits * 0.98 < worst <= 2**-digits


def test_fp16_has_an_end_on_both_sides() -> None:
    codec = tt.codecs.fp16()
    tensor = torch.logspace(-12, math.log10(2**-14), 1000, dtype=torch.float64)
    error = (coded(codec, tensor)[0] - tensor).abs()
    assert 2**-25 * 0.9 < float(error.max()) <= 2**-25
    assert coded(codec, torch.tensor([2**-26, 65504.0, 65536.0]))[0].tolist() == [
        0,
        65504,
        math.inf,
    ]
    lost = (coded(codec, torch.full((4,), 1e-6))[0] - 1e-6).abs() / 1e-6
    assert float(lost.max()) > 0.01


def test_bf16_reaches_as_far_as_float32() -> None:
    numbers = torch.tensor([3.3e38, 1e-38, 1e39, 4.5e-41], dtype=torch.float64)
    large, small, beyond, below = coded(tt.codecs.bf16(), numbers)[0].tolist()
    assert large == pytest.approx(3.3e38, rel=2**-8) and small == pytest.approx(1e-38, rel=2**-7)
    assert (beyond, below) == (math.inf, 0)


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (torch.float32, [3.402823e38, 1.0, 1e-30, 1e-36, 1.9e-43, 1e-45]),
        (torch.float64, [1.7e308, 1e300, 1.0, 1e-60, 1e-305, 5e-324]),
    ],
)
def test_int8_over_the_whole_range(dtype: torch.dtype, scales: list[float]) -> None:
    least = torch.finfo(dtype).tiny / 2
    for scale in scales:
        tensor = torch.linspace(-1, 1, 128, dtype=torch.float64).mul(scale).to(dtype)
        found, _ = coded(tt.codecs.int8(), tensor)
        wide = 2.0**-600 if scale > 1e300 else 1.0  # So that the difference does not overflow.
        error = float((found.double() * wide - tensor.double() * wide).abs().max()) / wide
        assert error <= max(scale / 254 * (1 + 1e-5), least)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_int8_spoils_no_more_than_the_block(bad: float) -> None:
    tensor = noise(512)
    tensor[130] = bad
    found, _ = coded(tt.codecs.int8(), tensor)
    assert bool(found[128:256].isnan().all())
    assert not bool(found[:128].isnan().any()) and not bool(found[256:].isnan().any())


@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_bits_are_exact(length: int) -> None:
    mask = noise(length) > 0
    found, off = coded(tt.codecs.bits(), mask)
    assert facts(found) == facts(mask)
    assert off.report().small_nbytes == -(-length // 8)


def test_codecs_are_given_nothing_else() -> None:
    kept = [
        torch.arange(100), noise(100) > 0, nn.Parameter(noise(10, 10)),
        nn.Parameter(noise(10, 10)).t(), noise(50, dtype=torch.complex64),
        torch.arange(100).to(torch.uint8),
    ]  # fmt: skip
    for codec in (tt.codecs.bf16(), tt.codecs.fp16(), tt.codecs.int8()):
        for tensor in kept:
            found, off = coded(codec, tensor)
            assert same(found, tensor) and off.report().packed_nbytes == 0
    found, off = coded(tt.codecs.bits(), noise(100))
    assert same(found, noise(100)) and off.report().packed_nbytes == 0


@pytest.mark.parametrize("block", [0, -1, 1.5, "a", None, True])
def test_no_block_of_int8_is_refused(block: Any) -> None:
    with pytest.raises(InputError, match=f"block={block!r}"):
        tt.codecs.int8(block=block)


class Fails:
    name = "fails"

    def accepts(self, dtype: torch.dtype) -> bool:
        return True

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        raise ArithmeticError("of the codec")

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        raise AssertionError


def test_a_codec_that_raises_leaves_no_block_behind() -> None:
    x = noise(100).requires_grad_()
    off = tt.offload(Fails(), min_bytes=0)
    (tier,) = off._engine.chain.tiers
    with pytest.raises(ArithmeticError) as caught, off:
        y = x.sin()
    assert y.requires_grad  # Without its graph nothing would be moved.
    off.close()  # While the traceback still holds everything.
    assert caught.value is not None and tier.used == 0
