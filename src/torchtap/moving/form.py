"""How a tensor lies in memory, and how it is put there again, to the last stride and bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Form(NamedTuple):
    """Everything about a tensor but its numbers.

    Attributes:
        length: elements that are moved.
        is_dense: the moved elements are a stretch of memory, with the tensor's strides; if not,
            they are its elements in order, each once, and the strides are given back.
    """

    dtype: torch.dtype
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    is_conj: bool
    is_neg: bool
    length: int
    is_dense: bool

    @property
    def nbytes(self) -> int:
        """Bytes that are moved."""
        return self.length * self.dtype.itemsize

    @property
    def core(self) -> tuple[int, ...]:
        """The size without what ``expand`` repeats."""
        return _core(self.size, self.stride)


def form_of(tensor: Tensor) -> Form:
    """The form of a plain strided tensor with at least one element."""
    if tensor.is_contiguous():
        reach = numel = tensor.numel()
    else:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        reach = 1 + sum((length - 1) * step for length, step in steps)
        numel = math.prod(_core(tensor.shape, tensor.stride()))
    is_dense = reach <= numel  # Also where elements overlap, as windows of ``unfold`` do.
    return Form(
        tensor.dtype,
        tensor.device,
        tensor.size(),
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
        reach if is_dense else numel,
        is_dense,
    )


def _core(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(length if step else 1 for length, step in zip(size, stride, strict=True))


def flat(tensor: Tensor, form: Form) -> Tensor:
    """The elements that are moved, one-dimensional, sharing memory where they can."""
    plain = tensor.detach()
    if form.is_conj:
        plain = plain.conj()
    if form.is_neg:
        plain = torch._neg_view(plain)
    if form.is_dense:
        return plain.as_strided((form.length,), (1,), plain.storage_offset())
    once = plain.as_strided(form.core, form.stride, plain.storage_offset())
    return once.contiguous().view(-1)


def restored(elements: Tensor, form: Form) -> Tensor:
    """The tensor again, from elements that nobody else uses."""
    if form.is_dense:
        tensor = elements.as_strided(form.size, form.stride)
    else:
        once = torch.empty_strided(form.core, form.stride, dtype=form.dtype, device=elements.device)
        tensor = once.copy_(elements.view(form.core)).as_strided(form.size, form.stride)
    if form.is_neg:
        tensor = torch._neg_view(tensor)
    return tensor.conj() if form.is_conj else tensor


class Identity(NamedTuple):
    """What two saved tensors share exactly if they are the same numbers in the same memory."""

    storage: int
    version: int
    offset: int
    length: int
    shape: Any
    dtype: torch.dtype


def identity_of(tensor: Tensor, form: Form) -> tuple[Identity, StorageWeakRef]:
    """The identity, and what must not have expired for it to hold: addresses are used again."""
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    shape = None if form.is_dense else (form.size, form.stride)
    offset = int(tensor.storage_offset())
    marks = (shape, form.is_conj, form.is_neg)
    identity = Identity(storage.cdata, tensor._version, offset, form.length, marks, form.dtype)
    return identity, storage


def why_not_movable(tensor: Tensor) -> str | None:
    """Why a saved tensor must stay where it is, or ``None``."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        return "another class of tensor"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "sparse, nested or quantised"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"on {tensor.device.type}"
    if tensor.dim() == 0 or not tensor.numel():
        return "a single number, or empty"
    return None


def is_of_parameter(tensor: Tensor) -> bool:
    """Whether it is a parameter, a view of one (``weight.t()``), or one cast by autocast."""
    if isinstance(tensor, torch.nn.Parameter):
        return True
    base = tensor._base if tensor._is_view() else None
    if isinstance(base, torch.nn.Parameter):
        return True
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _TURNS:
        node = node.next_functions[0][0]
    return (
        node is not None
        and node.name().endswith("AccumulateGrad")
        and isinstance(node.variable, torch.nn.Parameter)
    )


_TURNS = frozenset(
    {
        "ExpandBackward0",
        "PermuteBackward0",
        "ReshapeAliasBackward0",
        "SelectBackward0",
        "SliceBackward0",
        "SplitBackward0",
        "SplitWithSizesBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "TBackward0",
        "ToCopyBackward0",
        "TransposeBackward0",
        "UnbindBackward0",
        "UnsafeViewBackward0",
        "UnsqueezeBackward0",
        "ViewBackward0",
    }
)
