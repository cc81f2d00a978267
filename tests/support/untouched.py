"""All that a function which runs a model must leave as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def state_of(model: nn.Module, args: Any) -> list[Any]:
    """Copies of all that a recording might change."""
    tensors = [*model.parameters(), *model.buffers(), *(x for x in args if isinstance(x, Tensor))]
    return [
        [one.detach().clone() for one in tensors if one.layout is torch.strided],
        [one._version for one in model.parameters()],
        [one.grad for one in model.parameters()],
        [one.training for one in model.modules()],
        [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()],
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state(legacy=True),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
    ]


def are_same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(), two.nan_to_num())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(are_same, one, two))
    if isinstance(one, np.ndarray):
        return bool((one == two).all())
    return bool(one == two)
