"""Why there is no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.hooks.backwards import current_task
from torchtap.hooks.replay import NON_REENTRANT, what_runs


def why_no_grad(tensor: Tensor) -> str:
    """Why a tensor has no gradient."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"{str(tensor.dtype).removeprefix('torch.')} carries no gradient"
    if tensor.is_inference():
        return "it was made in inference mode"
    if not torch.is_grad_enabled():
        return "grad mode was off"
    return "it does not require grad"


def is_discarded_graph() -> bool:
    """Whether a non-reentrant checkpoint is computing again: only for its saved tensors."""
    if current_task() == -1:
        return False
    return what_runs(torch._C._current_autograd_node()) is NON_REENTRANT


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


BATCHED = (
    "it came as one of a whole batch of gradients (torch.vmap over a backward, or "
    "is_grads_batched=True), which has no values of its own"
)


def is_batched(gradient: Tensor) -> bool:
    """Whether a gradient stands for many at once, so that nothing can be read from it."""
    is_batch: bool = _is_legacy_batched(gradient) or _is_wrapped(gradient)
    return is_batch
