"""A copy of a model with random weights; the model itself is not touched."""

from __future__ import annotations

import copy

import torch
from torch import nn

from torchtap.core.errors import InputError


def randomised(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy with normal random parameters, each with the mean and deviation it had.

    Parameters of one element get a deviation of their magnitude. Buffers stay.

    Args:
        model: is copied.
        generator: of random numbers, on the CPU.

    Raises:
        InputError: the model cannot be copied.
    """
    try:
        twin = copy.deepcopy(model)
    except (RuntimeError, TypeError, NotImplementedError, copy.Error) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"the model cannot be copied ({type(error).__name__}: {reason})"
        ) from error
    with torch.no_grad():
        for param in twin.parameters():
            if not param.is_floating_point() or not param.numel():
                continue
            values = param.detach().double()
            mean = values.mean() if values.numel() > 1 else torch.zeros_like(values.mean())
            deviation = values.std() if values.numel() > 1 else values.abs().mean()
            drawn = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            param.copy_(mean + deviation * drawn.to(values.device))
    return twin
