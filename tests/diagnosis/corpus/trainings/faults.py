"""Changes to a model that break it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Prepare = Callable[[nn.Module], None]


def times(path: str, factor: float) -> Prepare:
    """Multiply the weight of a module."""

    @torch.no_grad()
    def prepare(model: nn.Module) -> None:
        model.get_submodule(path).weight.mul_(factor)

    return prepare


def filled(value: float, *paths: str) -> Prepare:
    """Set every element of the weights of modules to one value."""

    @torch.no_grad()
    def prepare(model: nn.Module) -> None:
        for path in paths:
            model.get_submodule(path).weight.fill_(value)

    return prepare


def biased(path: str, value: float) -> Prepare:
    """Set the bias of a module."""

    @torch.no_grad()
    def prepare(model: nn.Module) -> None:
        model.get_submodule(path).bias.fill_(value)

    return prepare


def frozen(*paths: str) -> Prepare:
    """Turn off the gradients of modules."""

    def prepare(model: nn.Module) -> None:
        for path in paths:
            model.get_submodule(path).requires_grad_(False)

    return prepare


def without(*paths: str) -> Callable[[nn.Module], list[nn.Parameter]]:
    """All parameters but those of modules."""

    def trained(model: nn.Module) -> list[nn.Parameter]:
        left = {id(p) for path in paths for p in model.get_submodule(path).parameters()}
        return [param for param in model.parameters() if id(param) not in left]

    return trained


def everywhere(kind: type[nn.Module], change: Callable[[nn.Module], object]) -> Prepare:
    """Do something to each module of a class."""

    def prepare(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, kind):
                change(module)

    return prepare


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Call it."""
        return self.function(x)


def shuffled(step: int, y: Tensor) -> Tensor:
    """Targets in another order: what is learnt has nothing to do with the input."""
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(step + 9))]
