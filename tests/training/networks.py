"""The models of the matrix: a convolutional net, an encoder and decoder, experts, tied weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class ConvNet(nn.Module):
    """Convolutions, BatchNorm, in-place ReLU that runs twice, a residual that is added in place."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(width * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.conv(x)))
        y = self.inner(x)
        y += x
        return self.head(self.drop(self.pool(self.act(y)).flatten(1)))


def pictures(step: int, num: int = 4) -> Tensor:
    """float32[num, 3, 8, 8]."""
    return torch.randn(num, 3, 8, 8, generator=torch.Generator().manual_seed(100 + step))


def classes(step: int, num: int = 4) -> Tensor:
    """int64[num], below 5."""
    return torch.randint(0, 5, (num,), generator=torch.Generator().manual_seed(200 + step))


class Encoder(nn.Module):
    """Returns a dict: the states, a summary, and lengths, which have no gradient."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.rnn = nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> dict[str, Any]:
        states, last = self.rnn(self.embedding(tokens))
        return {"states": states, "more": (last[-1], tokens.ne(0).sum(1))}


class Decoder(nn.Module):
    """Attends to the encoder's states by keyword."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 11)

    def forward(self, query: Tensor, *, memory: Tensor) -> tuple[Tensor, Tensor]:
        attended, weights = self.attend(query, memory, memory)
        return self.out(self.norm(query + attended)), weights


class Translator(nn.Module):
    """An encoder and a decoder; of what it returns the loss uses a part."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        encoded = self.encoder(source)
        query = self.encoder.embedding(target) + encoded["more"][0].unsqueeze(1)
        logits, weights = self.decoder(query, memory=encoded["states"])
        return {"logits": logits, "weights": weights, "lengths": encoded["more"][1]}


def tokens(step: int, num: int = 3, length: int = 6, most: int = 11) -> Tensor:
    """int64[num, length]."""
    generator = torch.Generator().manual_seed(300 + step)
    return torch.randint(0, most, (num, length), generator=generator)


class Experts(nn.Module):
    """A shared expert, two of which a router takes one for all rows, and one that never runs."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2)
        self.shared = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, chosen: int = 0) -> Tensor:
        weight = self.router(x).softmax(-1)[:, chosen : chosen + 1]
        return self.head(self.shared(x) + weight * self.experts[chosen](x))


def vectors(step: int, num: int = 5, width: int = 6) -> Tensor:
    """float32[num, width]."""
    return torch.randn(num, width, generator=torch.Generator().manual_seed(400 + step))


class TiedBlock(nn.Module):
    """A residual block, which may be checkpointed."""

    def __init__(self, width: int, how: dict[str, Any] | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(2 * width, width)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how is not None and self.training:
            return checkpoint(self.compute, x, **self.how)
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """The part that is checkpointed."""
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Tied(nn.Module):
    """A language model whose embedding is the weight of its head."""

    def __init__(self, width: int = 8, depth: int = 2, how: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(TiedBlock(width, how) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
