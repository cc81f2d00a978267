"""Parts of several designs: tasks of inputs and targets, and small blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from trainings.design import Loss

Data = Callable[[int], tuple[Tensor, Tensor]]
Criterion = Callable[[Tensor, Tensor], Tensor]
cross_entropy: Criterion = nn.functional.cross_entropy
mse: Criterion = nn.functional.mse_loss


def fit(data: Data, criterion: Criterion = cross_entropy) -> Loss:
    """The loss of a model that is given inputs and compared with targets."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = data(step)
        return criterion(model(x), y)

    return loss


def flipped(loss: Loss) -> Loss:
    """The loss with its sign turned."""
    return lambda model, step: -loss(model, step)


def on_inputs(data: Data, change: Callable[[int, Tensor], Tensor]) -> Data:
    """Return the data with other inputs, by their step."""

    def changed(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return change(step, x), y

    return changed


def on_targets(data: Data, change: Callable[[int, Tensor], Tensor]) -> Data:
    """Return the data with other targets, by their step."""

    def changed(step: int) -> tuple[Tensor, Tensor]:
        x, y = data(step)
        return x, change(step, y)

    return changed


def perceptron(
    *widths: int, act: Callable[[], nn.Module] = nn.ReLU, end: tuple[nn.Module, ...] = ()
) -> nn.Sequential:
    """Linear layers with an activation between each two, and what follows the last."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), act()]
    return nn.Sequential(*layers[:-1], *end)


class Attend(nn.Module):
    """Attention written by hand; ``hidden`` is True where a key is not to be seen."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """float32[B, T, width] to the same shape."""
        batch, length, width = x.shape
        parts = self.mix(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        mixed = scores.softmax(-1) @ value
        done: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return done


class Block(nn.Module):
    """A pre-norm block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attend = nn.LayerNorm(width), Attend(width)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """float32[B, T, width] to the same shape."""
        x = x + self.attend(self.norm1(x), hidden)
        done: Tensor = x + self.feed(self.norm2(x))
        return done


def causal(length: int) -> Tensor:
    """True where a place would look ahead: bool[T, T]."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)
