"""Contrasts: two halves of a digit, noisy views, triplets, and sentences of two languages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, filled, frozen, times

functional = nn.functional


class Towers(nn.Module):
    """A tower for the upper half, and one for the lower; both on the unit sphere."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.upper = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, width))
        self.lower = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, width))
        self.heat = nn.Parameter(torch.tensor(2.0))

    def forward(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Similarities of all pairs: float32[B, B]."""
        one = functional.normalize(self.upper(upper), dim=1)
        two = functional.normalize(self.lower(lower), dim=1)
        return one @ two.T * self.heat.exp()


class Trunk(nn.Module):
    """Features of a digit, on the unit sphere."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to float32[B, 16]."""
        return functional.normalize(self.head(self.body(x)), dim=1)


def _halves(step: int, num: int = 48) -> tuple[Tensor, Tensor]:
    x, _ = kept_apart(step, num, *digits())
    return x.flatten(1)[:, :32], x.flatten(1)[:, 32:]


def _pairs(change: Callable[[Tensor], Tensor] = lambda x: x, heat: float = 1.0) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        upper, lower = _halves(step)
        logits = model(upper, change(lower)) * heat
        own = torch.arange(len(logits))
        return (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2

    return loss


def _others(lower: Tensor) -> Tensor:
    return lower[torch.randperm(len(lower))]


def _views(step: int) -> Tensor:
    x, _ = kept_apart(step, 32, *digits())
    one, two = x + 0.2 * draw(step, *x.shape), x.roll(1, 3) + 0.2 * draw(step + 1, *x.shape)
    return torch.cat([one, two])


def _simclr(model: nn.Module, step: int) -> Tensor:
    found = model(_views(step))
    alike = found @ found.T / 0.2
    alike = alike.masked_fill(torch.eye(64, dtype=torch.bool), -1e9)
    return functional.cross_entropy(alike, torch.arange(64).roll(32))


def _only_near(model: nn.Module, step: int) -> Tensor:
    one, two = model(_views(step)).chunk(2)
    return (1 - (one * two).sum(1)).mean()


def _away(model: nn.Module, step: int) -> Tensor:
    return -_simclr(model, step)


def _triplets(margin: float = 0.4, turned: bool = False) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = kept_apart(step, 96, *digits())
        same = torch.stack([pick(step + at, 96, 1)[0] for at in range(1)])
        found = model(x)
        near, far = [], []
        for at in range(48):
            mine = torch.nonzero((y == y[at]) & (torch.arange(96) != at))[:, 0]
            other = torch.nonzero(y != y[at])[:, 0]
            near.append(int(mine[(at + int(same)) % len(mine)]) if len(mine) else at)
            far.append(int(other[(at * 7 + step) % len(other)]))
        if turned:
            near, far = far, near
        anchor = found[:48]
        away = (anchor - found[far]).square().sum(1)
        return (margin + (anchor - found[near]).square().sum(1) - away).relu().mean()

    return loss


TOWERS = D("contrast_towers", Towers, _pairs(), adam(3e-3), steps=80, seed=611)
SIMCLR = D("contrast_views", Trunk, _simclr, adam(3e-3), steps=50, seed=612)
TRIPLETS = D("contrast_triplets", Trunk, _triplets(), sgd(0.1, momentum=0.9), steps=40, seed=613)


CASES = [
    *(healthy(each) for each in (TOWERS, SIMCLR, TRIPLETS)),
    broken(TOWERS, "of_others", replace(TOWERS, loss=_pairs(_others)), "labels", judge=TOWERS.loss),
    broken(
        TOWERS,
        "one_tower_given_nothing",
        replace(TOWERS, prepare=lambda m: (times("upper.2", 0.0)(m), biased("upper.2", 1.0)(m))),
        "symmetric",
        "collapsed",
        "small_init",
        places=("upper.2",),
    ),
    broken(
        TOWERS,
        "too_hot",
        replace(TOWERS, loss=_pairs(heat=40.0)),
        "large_init",
        "lr_high",
        "exploding",
        judge=TOWERS.loss,
    ),
    broken(SIMCLR, "climbs", replace(SIMCLR, loss=_away), "loss_rises", judge=SIMCLR.loss),
    broken(
        SIMCLR,
        "only_near",
        replace(SIMCLR, loss=_only_near, steps=90),
        "collapsed",
        "too_good",
        judge=SIMCLR.loss,
    ),
    broken(
        SIMCLR,
        "norm_in_eval",
        replace(SIMCLR, prepare=lambda model: model.body[1].eval()),
        "bn_eval",
        places=("body.1",),
    ),
    broken(
        SIMCLR,
        "head_alike",
        replace(SIMCLR, prepare=filled(0.02, "head")),
        "symmetric",
        places=("head",),
    ),
    broken(
        TRIPLETS,
        "hot",
        replace(TRIPLETS, optimizer=sgd(300.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
    broken(
        TRIPLETS, "head_held", replace(TRIPLETS, prepare=frozen("head")), "frozen", places=("head",)
    ),
]
