"""Why there is no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.core.torch_private import is_legacy_batched, is_of_transform


def why_no_grad(tensor: Tensor) -> str:
    """Return why a tensor has no gradient."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"{str(tensor.dtype).removeprefix('torch.')} carries no gradient"
    if tensor.is_inference():
        return "it was made in inference mode"
    if not torch.is_grad_enabled():
        return "grad mode was off"
    return "it does not require grad"


BATCHED = (
    "it came as one of a whole batch of gradients (torch.vmap over a backward, or "
    "is_grads_batched=True), which has no values of its own"
)


def is_batched(gradient: Tensor) -> bool:
    """Return whether a gradient stands for many at once, so that nothing can be read from it."""
    return is_legacy_batched(gradient) or is_of_transform(gradient)
