"""Facts of one tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchtap.core.distributed import PLAIN, local
from torchtap.core.torch_private import is_of_transform, transform_running
from torchtap.core.user_functions import name_of


def storage_id(tensor: Tensor) -> int:
    """A number that two living strided tensors share exactly when they share memory, else 0."""
    if tensor.layout is not torch.strided or type(tensor) not in PLAIN:
        return 0
    # The address of the StorageImpl: data_ptr() is 0 for empty tensors and equal for views of
    # foreign memory that two storages wrap.
    return int(tensor.untyped_storage()._cdata)


def obstacle(tensor: Tensor) -> str | None:
    """Why a tensor holds no value that could be kept, or ``None``."""
    if is_lazy(tensor):
        return "a lazy parameter that has no value yet"
    if is_of_transform(tensor):
        return "a tensor of a torch.func transform, which means nothing outside of it"
    if type(tensor).__name__ == "FakeTensor":
        return "a fake tensor, which has no values"
    return None


def as_bytes(contiguous: Tensor) -> Tensor:
    """View the elements of a contiguous tensor as ``uint8[nbytes]``.

    ``reshape(-1)`` keeps the stride of a single element, which is 0 in the gradient of ``sum()``,
    and elements of another size can be viewed at stride 1 alone.
    """
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def kind_of(value: object) -> str:
    """Return ``float32[3, 8]``, or the class of what is no tensor."""
    if not isinstance(value, Tensor):
        is_function = callable(value) and not isinstance(value, torch.nn.Module | type)
        return f"the function {name_of(value)}" if is_function else type(value).__name__
    dtype = str(value.dtype).removeprefix("torch.")
    if value.is_nested:
        return f"nested {dtype} of {value.size(0)} parts"
    kind = f"{dtype}{list(value.shape)}"
    if value.layout is not torch.strided:
        kind = f"{str(value.layout).removeprefix('torch.')} {kind}"
    return kind if value.device.type == "cpu" else f"{kind} on {value.device}"


def short(value: object) -> str:
    """Return a value in a message: never longer than a few words."""
    if isinstance(value, Tensor):
        return kind_of(value)
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 40 else f"<{type(value).__name__}>"


def same_shape(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have one shape; of nested ones, all parts."""
    if left.is_nested and right.is_nested and left.layout is right.layout is torch.strided:
        return torch.equal(left._nested_tensor_size(), right._nested_tensor_size())
    return left.is_nested is right.is_nested and left.shape == right.shape


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether a copy of what this rank holds of a tensor still equals it."""
    right, _ = local(right)
    if left.layout is not torch.strided or left.is_nested or left.is_quantized:
        return True  # Not every kind can be compared; the version still tells.
    if left.is_meta or obstacle(left) is not None:
        return True  # It has no values.
    if transform_running() is not None:
        return True  # Under vmap there is no answer that holds for all rows.
    with torch.no_grad():
        right = right.detach()
        if left.dtype == torch.complex32:  # PyTorch compares halves, but no pairs of them.
            left, right = (torch.view_as_real(each.resolve_conj()) for each in (left, right))
        if torch.equal(left, right):
            return True
        # NaN is equal to NaN here: a copy of it must count as unchanged.
        same = (left == right) | ((left != left) & (right != right))
        return bool(same.all())
