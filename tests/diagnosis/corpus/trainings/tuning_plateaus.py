"""Trainings that wait: long plateaus, warm-ups from zero, and many small steps."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, healthy, pick, sgd
from trainings.faults import shuffled, times
from trainings.parts import fit, flipped, mse, on_inputs, on_targets

cross_entropy = nn.functional.cross_entropy
binary = nn.functional.binary_cross_entropy_with_logits
PRIME = 13


class Sums(nn.Module):
    """Two numbers to their sum, modulo a prime."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(PRIME, 24)
        self.body = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, PRIME))

    def forward(self, pairs: Tensor) -> Tensor:
        """int64[B, 2] to float32[B, 13]."""
        logits: Tensor = self.body(self.embed(pairs).flatten(1))
        return logits


class Adder(nn.Module):
    """An LSTM that adds the two marked numbers of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(2, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, T, 2] to float32[B, 1]."""
        found: Tensor = self.head(self.body(x)[0][:, -1])
        return found


class Finder(nn.Module):
    """Attention that has to find the one place which is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.places = nn.Parameter(0.02 * torch.randn(16, 24))
        self.mix = nn.MultiheadAttention(24, 4, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 10))

    def forward(self, words: Tensor) -> Tensor:
        """int64[B, 16] to float32[B, 10]."""
        x = self.embed(words) + self.places
        logits: Tensor = self.head(self.norm(x + self.mix(x, x, x)[0]).mean(1))
        return logits


def _sums(step: int) -> tuple[Tensor, Tensor]:
    pairs = pick(step, PRIME, 96, 2)
    return pairs, pairs.sum(1) % PRIME


def _parity(step: int) -> tuple[Tensor, Tensor]:
    bits = pick(step, 2, 64, 16).float() * 2 - 1
    return bits, (bits[:, :3].prod(1, keepdim=True) > 0).float()


def _marked(step: int) -> tuple[Tensor, Tensor]:
    numbers, marks = torch.rand(48, 14, generator=torch.Generator().manual_seed(step)), None
    marks = torch.zeros(48, 14)
    first, second = pick(step, 7, 48), pick(step + 3, 7, 48) + 7
    marks[torch.arange(48), first] = 1.0
    marks[torch.arange(48), second] = 1.0
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True)


def _needle(step: int) -> tuple[Tensor, Tensor]:
    words = pick(step, 10, 48, 16)
    place = pick(step + 1, 15, 48)
    rows = torch.arange(48)
    words[rows, place] = 10
    return words, words[rows, place + 1]


def _digits(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 32, *digits())
    return x.flatten(1), y


def _deep() -> nn.Module:
    parts: list[nn.Module] = [nn.Linear(64, 32), nn.Tanh()]
    for _ in range(4):
        parts += [nn.Linear(32, 32), nn.Tanh()]
    return nn.Sequential(*parts, nn.Linear(32, 10))


def _plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 10)
    )


def _bits() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))


def _warm(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: step / 60)


def _softmax_at_loss(dim: int) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = _digits(step)
        return cross_entropy(model(x).softmax(dim), y)

    return loss


SUMS = D("plateau_sums", Sums, fit(_sums), adam(1e-3), steps=60, seed=601)
PARITY = D("plateau_parity", _bits, fit(_parity, binary), adam(1e-3), steps=80, seed=602)
ADDER = D("plateau_adder", Adder, fit(_marked, mse), adam(5e-3), steps=60, seed=603)
FINDER = D("plateau_finder", Finder, fit(_needle), adam(2e-3), steps=80, seed=604)
WARM = D("plateau_warm", _plain, fit(_digits), adam(4e-3), steps=80, seed=605, schedule=_warm)
DEEP = D("plateau_deep", _deep, fit(_digits), sgd(0.1, momentum=0.9), steps=60, seed=606)
SLOW = D("plateau_slow", _plain, fit(_digits), sgd(0.02), steps=80, seed=607)

CASES = [
    *(healthy(each) for each in (SUMS, PARITY, ADDER, FINDER, WARM, DEEP, SLOW)),
    broken(
        WARM,
        "other_labels",
        replace(WARM, loss=fit(on_targets(_digits, shuffled))),
        "labels",
        judge=WARM.loss,
    ),
    broken(
        DEEP,
        "other_labels",
        replace(DEEP, loss=fit(on_targets(_digits, shuffled))),
        "labels",
        judge=DEEP.loss,
    ),
    broken(
        WARM,
        "softmax_at_loss",
        replace(WARM, loss=_softmax_at_loss(1), schedule=None),
        "double_softmax",
        judge=WARM.loss,
    ),
    broken(
        DEEP,
        "softmax_over_samples",
        replace(DEEP, loss=_softmax_at_loss(0)),
        "double_softmax",
        "final_activation",
        "labels",
        judge=DEEP.loss,
    ),
    broken(
        ADDER, "climbs", replace(ADDER, loss=flipped(ADDER.loss)), "loss_rises", judge=ADDER.loss
    ),
    broken(
        SLOW,
        "slower",
        replace(SLOW, optimizer=sgd(2e-6)),
        "steps_too_small",
    ),
    broken(
        SLOW,
        "in_hundreds",
        replace(SLOW, loss=fit(on_inputs(_digits, lambda step, x: x * 4000))),
        "data_scale",
        judge=SLOW.loss,
    ),
    broken(
        DEEP,
        "starts_huge",
        replace(DEEP, prepare=times("4", 60.0)),
        "large_init",
        "saturated",
        places=("4", "5"),
    ),
    broken(
        DEEP,
        "fades",
        replace(DEEP, prepare=lambda model: [times(str(at), 0.02)(model) for at in (2, 4, 6, 8)]),
        "small_init",
        "vanishing",
        "collapsed",
        places=("2", "4", "6", "8", "0"),
    ),
]
