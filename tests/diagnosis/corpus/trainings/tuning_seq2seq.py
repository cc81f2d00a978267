"""Sequence to sequence: a GRU with attention reverses numbers, with teacher forcing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, healthy, pick, sgd
from trainings.faults import frozen, without

WORDS, LENGTH = 8, 6


class Reverser(nn.Module):
    """Reads a sequence, and writes it backwards: logits float32[B, T, WORDS]."""

    def __init__(self, width: int = 32, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.embed = nn.Embedding(WORDS + 1, width)
        self.places = nn.Embedding(LENGTH, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(2 * width, width)
        self.out = nn.Linear(2 * width, WORDS)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """``before``: what stands before each word that is to be written."""
        at = self.places(torch.arange(LENGTH))
        memory, state = self.encoder(self.embed(x) + at)
        memory = memory.detach() if self.cut else memory
        state = state.detach() if self.cut else state
        h, _ = self.decoder(self.embed(before), state)
        query = self.query(torch.cat([h, at.expand_as(h)], -1))
        weights = (query @ memory.mT / query.shape[-1] ** 0.5).softmax(-1)
        return self.out(torch.cat([h, weights @ memory], -1))


class Elman(nn.Module):
    """A plain recurrent network that sums signs: float32[B, T, 1] to [B, 1]."""

    def __init__(self, kind: str = "tanh") -> None:
        super().__init__()
        self.cell = nn.RNN(1, 24, batch_first=True, nonlinearity=kind)
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        """From the last state."""
        return self.out(self.cell(x)[0][:, -1])


def _reverse(model: nn.Module, step: int) -> Tensor:
    x = pick(step, WORDS, 24, LENGTH)
    y = x.flip(1)
    before = torch.cat([torch.full((24, 1), WORDS), y[:, :-1]], 1)
    return nn.functional.cross_entropy(model(x, before).flatten(0, 1), y.flatten())


def _leaks(model: nn.Module, step: int) -> Tensor:
    """The decoder reads the very words that it shall write."""
    x = pick(step, WORDS, 24, LENGTH)
    y = x.flip(1)
    return nn.functional.cross_entropy(model(x, y).flatten(0, 1), y.flatten())


def _wrong_way(model: nn.Module, step: int) -> Tensor:
    return -_reverse(model, step)


def _signs(model: nn.Module, step: int) -> Tensor:
    x = pick(step, 2, 24, 20).float()[..., None] * 2 - 1
    return nn.functional.mse_loss(model(x), x.mean(1) * 4)


@torch.no_grad()
def _expanding(model: nn.Module) -> None:
    model.get_parameter("cell.weight_hh_l0").copy_(2.5 * torch.eye(24))


REVERSE = D("reverse", Reverser, _reverse, adam(1e-2), steps=60, clip=1.0)
SIGNS = D("signs", Elman, _signs, adam(5e-3), steps=50, clip=1.0, seed=1)
FORCED = replace(REVERSE, name="reverse_unclipped", clip=None, seed=5, logs=False)

CASES = [
    healthy(REVERSE),
    healthy(SIGNS),
    healthy(FORCED),
    broken(
        SIGNS,
        "expands",
        replace(
            SIGNS, model=lambda: Elman("relu"), prepare=_expanding, clip=None, optimizer=sgd(1e-3)
        ),
        "exploding",
        "nonfinite",
        "large_init",
        places=("cell",),
    ),
    broken(
        REVERSE,
        "encoder_cut",
        replace(REVERSE, model=lambda: Reverser(cut=True)),
        "detached",
        places=("encoder",),
    ),
    broken(REVERSE, "leaks", replace(REVERSE, loss=_leaks), "too_good"),
    broken(FORCED, "climbs", replace(FORCED, loss=_wrong_way), "loss_rises"),
    broken(
        REVERSE,
        "decoder_frozen",
        replace(REVERSE, prepare=frozen("decoder")),
        "frozen",
        places=("decoder",),
    ),
    broken(
        FORCED,
        "query_not_given",
        replace(FORCED, trained=without("query")),
        "not_in_optimizer",
        places=("query",),
    ),
]
