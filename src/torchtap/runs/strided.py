"""Tensors of every kind as such that files hold, and what is to be said of that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtap.core.distributed import readable
from torchtap.core.errors import RunError
from torchtap.runs.store.dtypes import SPARSE, STORED

_COMPLEX_OF_HALVES = tuple(
    getattr(torch, name) for name in ("complex32", "bcomplex32") if hasattr(torch, name)
)
"""``bcomplex32``, two numbers of ``bfloat16``, came with torch 2.15."""
COMPLEX_WITHOUT_NAME = (*_COMPLEX_OF_HALVES, torch.complex128)
"""Complex dtypes that safetensors lacks."""
_SPARSE = frozenset(getattr(torch, name) for name in SPARSE)
_OF_BITS = {
    getattr(torch, name): plain
    for names, plain in (
        ([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)], torch.uint8),
        (["bits8", "bits1x8", "bits2x4", "bits4x2"], torch.uint8),
        (["float4_e2m1fn_x2"], torch.uint8),  # Of which safetensors takes even numbers alone.
        (["bits16"], torch.uint16),
    )
    for name in names
    if hasattr(torch, name)
}
"""Dtypes of less than a byte, which PyTorch or safetensors cannot copy, and of each one of the
same size that they can."""


def storable(
    tensor: Tensor, labels: Sequence[str], *, dense: bool = False
) -> tuple[Tensor, list[str]]:
    """The numbers of a tensor as a strided or sparse one, detached; without a copy where it is one.

    Args:
        tensor: of any kind; of a distributed one what this rank holds of it is taken.
        labels: what is known of it.
        dense: whether a sparse one is made dense, too.

    Returns:
        the tensor, and the labels with what was changed.

    Raises:
        RunError: PyTorch cannot read the values, such as those of a quantised tensor without scale,
            or no file can hold them.
    """
    tensor, more = readable(tensor)
    said = [*labels, *more]
    try:
        if tensor.is_quantized:
            tensor = tensor.dequantize()
            said.append("dequantized")
        elif tensor.is_nested:
            tensor = joined_parts(tensor)
            said.append("values of a nested tensor")
        elif tensor.layout is not torch.strided and (dense or tensor.layout not in _SPARSE):
            said.append(f"dense from {str(tensor.layout).removeprefix('torch.')}")
            tensor = tensor.to_dense()
    except RuntimeError as error:
        kind = str(tensor.dtype).removeprefix("torch.")
        first = str(error).partition("\n")[0]
        raise RunError(f"{kind} whose values PyTorch cannot read ({first})") from error
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in STORED:
        raise RunError(f"{kind} without a scale, which no file can hold")
    return tensor.detach(), said


def joined_parts(nested: Tensor) -> Tensor:
    """Return the values of a nested tensor, its parts one after the other.

    One that was cut out of another shares its memory, and has values between its parts.
    """
    if nested.layout is torch.strided:
        has_gaps = not nested.is_contiguous()
    else:
        # A jagged tensor with lengths has places between its parts that are none of its values
        # (torch/nested/_internal).
        has_gaps = nested.lengths() is not None  # type: ignore[attr-defined]
    return (nested.contiguous() if has_gaps else nested).values()


def copyable(tensor: Tensor) -> Tensor:
    """Return a strided tensor as one of the same bits, shape and strides that can be copied.

    It is the tensor itself but for dtypes of less than a byte, such as ``int4`` and ``bits8``, and
    for complex numbers of halves, at whose copies PyTorch warns.
    """
    plain = _OF_BITS.get(tensor.dtype)
    if tensor.dtype in _COMPLEX_OF_HALVES and not (tensor.is_conj() or tensor.is_neg()):
        plain = torch.int32
    return tensor if plain is None else tensor.view(plain)


def nameable(tensor: Tensor) -> Tensor:
    """Return a strided tensor as one for whose dtype safetensors has a name, of the same numbers.

    Complex ones become real ones with one more dim, where it lacks them; for others see
    :func:`copyable`.
    """
    if tensor.dtype in COMPLEX_WITHOUT_NAME:
        return torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return copyable(tensor)
