"""Random numbers that a seed fixes, without a trace in the global ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def fixed_seed(seed: int = 0) -> Iterator[None]:
    """Inside, PyTorch's random numbers start from ``seed``; afterwards they go on as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed numbers, the same every time."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def wide(*shape: int, seed: int = 0) -> Tensor:
    """``normal`` in float64."""
    return normal(*shape, seed=seed, dtype=torch.float64)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """``normal`` that requires grad."""
    return normal(*shape, seed=seed, dtype=dtype).requires_grad_()
