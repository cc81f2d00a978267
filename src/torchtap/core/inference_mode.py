"""Makes tensors that outlive the call of a hook, also where the model runs in inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


def outside_inference_mode() -> AbstractContextManager[None]:
    """Leave ``torch.inference_mode()`` for a while, with grad mode still off; else do nothing.

    A tensor that is made in inference mode stays an inference tensor for ever: writing into it
    outside of that mode raises, and autograd cannot save it. So whatever torchtap keeps beyond one
    call of a hook (rows, running sums, copies, caches) is made in here.
    """
    return _outside() if torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _outside() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():  # Leaving the one enables the other.
        yield


def normal_copy(tensor: Tensor) -> Tensor:
    """Return a detached copy that can be written into, and saved by autograd, later."""
    if not torch.is_inference_mode_enabled():  # The quick way, in hooks.
        return tensor.detach().clone()
    with outside_inference_mode():
        return tensor.detach().clone()
