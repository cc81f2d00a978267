"""How a value is kept as it was at the moment of the tap.

The usual way is copy-on-write (``torch._lazy_clone``): half a microsecond at any size, and a real
copy only when somebody is about to overwrite the tensor. It works below everything that writes
through torch, in-place or ``.data`` or fused. It does not know of foreign pointers into the same
memory (a numpy alias, shared memory, a static buffer), and a write would move such a tensor away
from them; so only what was made inside the forward is kept that way, and what came from outside
(arguments of the outermost call, parameters, buffers) is copied.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor

from torchtap.record import UNVERSIONED

COPY_MODES = ("auto", "always", "never")

_lazy_clone = torch._lazy_clone  # type: ignore[attr-defined]


def storage_id(tensor: Tensor) -> int:
    """A number that two living strided tensors share exactly when they share memory, else 0."""
    if tensor.layout is not torch.strided or type(tensor) not in (Tensor, torch.nn.Parameter):
        return 0
    return int(tensor.untyped_storage()._cdata)


def obstacle(tensor: Tensor) -> str | None:
    """Why a tensor holds no value that could be kept, or ``None``."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return "a lazy parameter that has no value yet"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of a torch.func transform, which means nothing outside of it"
    if type(tensor).__name__ == "FakeTensor":
        return "a fake tensor, which has no values"
    return None


def keep(tensor: Tensor, *, copy: str, foreign: Container[int]) -> tuple[Tensor, int]:
    """Keep a tensor of any kind.

    Args:
        tensor: what flows.
        copy: one of :data:`COPY_MODES`.
        foreign: storages (see :func:`storage_id`) that others may point into.

    Returns:
        a detached tensor, and the version that it must still have when it is read
        (:data:`~torchtap.record.UNVERSIONED` if nothing can overwrite it).
    """
    if copy == "never":
        alias = tensor.detach()
        return alias, UNVERSIONED if alias.is_inference() else alias._version
    if copy == "auto" and _may_share(tensor, foreign):
        try:
            return _lazy_clone(tensor.data), UNVERSIONED
        except RuntimeError:
            pass  # Memory that torch does not own, such as from_numpy, cannot be copy-on-write.
    return tensor.detach().clone(), UNVERSIONED


def _may_share(tensor: Tensor, foreign: Container[int]) -> bool:
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_quantized or tensor.is_meta:
        return False
    if tensor.requires_grad and tensor.grad_fn is None:
        return False  # A leaf: somebody's own tensor.
    return tensor.untyped_storage()._cdata not in foreign
