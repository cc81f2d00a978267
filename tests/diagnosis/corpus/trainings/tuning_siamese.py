"""Siamese networks on stripes that lie, stand, or are noise: contrastive and triplet losses."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import filled, shuffled, times


def _encoder(act: type[nn.Module] = nn.ELU) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        act(),
        nn.Conv2d(16, 24, 3, stride=2),
        act(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 16),
    )


def _linear_encoder() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(256, 300),
        nn.Linear(300, 320),
        nn.Linear(320, 320),
        nn.ELU(),
        nn.Linear(320, 16),
    )


def _batch(step: int, each: int = 6) -> tuple[Tensor, Tensor]:
    noise = draw(step, 3 * each, 1, 16, 16)
    lying, standing, plain = noise.split(each)
    stripes = [lying.mean(-1, True) * 4, standing.mean(-2, True) * 4, plain]
    x = torch.cat([stripe.expand(-1, 1, 16, 16) for stripe in stripes])
    return x + 0.3 * draw(step + 1, *x.shape), torch.arange(3).repeat_interleave(each)


def _pairs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = model(x)
    distance = (z[:, None] - z[None]).square().sum(-1)
    same = y[:, None] == y[None]
    apart = nn.functional.relu(2 - (distance + 1e-6).sqrt()).square()
    return torch.where(same, distance, apart).mean()


def _contrastive(model: nn.Module, step: int) -> Tensor:
    return _pairs(model, *_batch(step))


def _lost(model: nn.Module, step: int) -> Tensor:
    x, y = _batch(step)
    return _pairs(model, x, shuffled(step, y))


def _triplet(model: nn.Module, step: int) -> Tensor:
    x, _ = _batch(step)
    a, b, c = model(x).reshape(3, 6, -1)
    far = torch.cat([b, c, a])
    near = torch.cat([a.roll(1, 0), b.roll(1, 0), c.roll(1, 0)])
    return nn.functional.triplet_margin_loss(torch.cat([a, b, c]), near, far)


CONTRASTIVE = D("contrastive", _encoder, _contrastive, adam(1e-2), steps=60)
TRIPLET = D(
    "triplet", lambda: _encoder(nn.Tanh), _triplet, sgd(0.1, momentum=0.9), steps=60, seed=2
)

CASES = [
    healthy(CONTRASTIVE),
    healthy(TRIPLET),
    broken(CONTRASTIVE, "pairs_lost", replace(CONTRASTIVE, loss=_lost), "labels", "collapsed"),
    broken(
        TRIPLET,
        "all_alike",
        replace(TRIPLET, prepare=filled(0.02, "0", "2", "6")),
        "symmetric",
        places=("0", "2", "6"),
    ),
    broken(
        TRIPLET,
        "saturates",
        replace(TRIPLET, prepare=times("2", 500.0)),
        "saturated",
        "large_init",
        places=("3", "2"),
    ),
    broken(
        CONTRASTIVE,
        "linear",
        replace(CONTRASTIVE, model=_linear_encoder),
        "no_activation",
        places=("1", "2"),
    ),
]
