"""Ratings of films from embeddings, and counts, quantiles and lifetimes from features."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick, sgd
from trainings.faults import Call, filled, frozen, shuffled
from trainings.parts import fit, flipped, mse, on_targets

USERS, FILMS = 60, 40


class Factors(nn.Module):
    """The product of two embeddings, and two offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(USERS, 8), nn.Embedding(FILMS, 8)
        self.user_offset, self.film_offset = nn.Embedding(USERS, 1), nn.Embedding(FILMS, 1)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_offset, self.film_offset):
            nn.init.zeros_(table.weight)

    def forward(self, pairs: Tensor) -> Tensor:
        """int64[B, 2] to float32[B]."""
        user, film = pairs.unbind(1)
        product = (self.users(user) * self.films(film)).sum(1)
        rating: Tensor = product + self.user_offset(user)[:, 0] + self.film_offset(film)[:, 0]
        return rating


def _ratings(step: int) -> tuple[Tensor, Tensor]:
    user, film = pick(step, USERS, 256), pick(step + 1, FILMS, 256)
    taste, kind = draw(3, USERS, 3), draw(4, FILMS, 3)
    rating = (taste[user] * kind[film]).sum(1) + 0.5 * draw(5, FILMS)[film]
    return torch.stack([user, film], 1), rating + 0.1 * draw(step + 2, 256)


def _liked(step: int) -> tuple[Tensor, Tensor]:
    pairs, rating = _ratings(step)
    return pairs, (rating > 0).float()


def _stars(step: int) -> tuple[Tensor, Tensor]:
    pairs, rating = _ratings(step)
    return pairs, (rating + 3).round().clamp(1, 5)


def _counts(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 48, 5)
    rate = (0.6 * x[:, 0] - 0.8 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3] + 0.7).clamp(max=4).exp()
    return x, torch.poisson(rate, generator=torch.Generator().manual_seed(step))[:, None]


def _skewed(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 48, 5)
    noise = -draw(step + 7, 48, 1).sigmoid().log()
    return x, x[:, :1] * 2 - x[:, 1:2] + noise * (1 + x[:, 2:3].abs())


def _pinball(out: Tensor, y: Tensor) -> Tensor:
    """The 90 % quantile."""
    away = y - out
    return torch.maximum(0.9 * away, -0.1 * away).mean()


def _lifetimes(step: int) -> tuple[Tensor, Tensor]:
    """Sorted from the longest, so that all before one outlive it."""
    x = draw(step, 48, 5)
    risk = 1.2 * x[:, 0] - x[:, 1] * x[:, 2]
    time = -draw(step + 3, 48).mul(1.7).sigmoid().log() / risk.exp()
    order = time.argsort(descending=True)
    return x[order], (draw(step + 4, 48) > -0.5).float()[:, None]


def _partial(out: Tensor, seen: Tensor) -> Tensor:
    """The partial likelihood of Cox."""
    return ((out.logcumsumexp(0) - out) * seen).sum() / seen.sum()


def _partial_naive(out: Tensor, seen: Tensor) -> Tensor:
    return ((out.exp().cumsum(0).log() - out) * seen).sum() / seen.sum()


def _head(act: type[nn.Module] = nn.ReLU, *end: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 1), *end)


poisson = nn.functional.poisson_nll_loss


def _poisson(out: Tensor, y: Tensor) -> Tensor:
    return poisson(out, y)


def _poisson_of_rates(out: Tensor, y: Tensor) -> Tensor:
    return poisson(out, y, log_input=False, eps=0.0)


FACTORS = D(
    "films",
    Factors,
    fit(_ratings, mse),
    lambda params: torch.optim.Adagrad(params, lr=0.3),
    steps=80,
    seed=111,
)
LIKED = D(
    "films_liked",
    Factors,
    fit(_liked, nn.functional.binary_cross_entropy_with_logits),
    adam(3e-2),
    steps=80,
    seed=112,
)
COUNTS = D("counts", _head, fit(_counts, _poisson), adam(5e-3), steps=70, seed=113)
SKEWED = D(
    "quantile",
    lambda: _head(nn.SiLU),
    fit(_skewed, _pinball),
    sgd(0.1, momentum=0.9),
    steps=70,
    seed=114,
)
LIFETIMES = D(
    "lifetimes",
    lambda: _head(nn.Softplus),
    fit(_lifetimes, _partial),
    adam(1e-2),
    steps=60,
    seed=115,
)

CASES = [
    *(healthy(each) for each in (FACTORS, LIKED, COUNTS, SKEWED, LIFETIMES)),
    broken(
        FACTORS,
        "both_zero",
        replace(FACTORS, prepare=filled(0.0, "users", "films")),
        "symmetric",
        "small_init",
        "updates_stop",
        places=("users", "films"),
    ),
    broken(
        FACTORS,
        "of_other_films",
        replace(FACTORS, loss=fit(on_targets(_ratings, shuffled), mse)),
        "labels",
        judge=FACTORS.loss,
    ),
    broken(
        FACTORS,
        "decays",
        replace(FACTORS, optimizer=lambda params: torch.optim.SGD(params, 0.5, weight_decay=1.0)),
        "decay_high",
    ),
    broken(
        LIKED,
        "stars_as_probabilities",
        replace(LIKED, loss=fit(_stars, nn.functional.binary_cross_entropy_with_logits)),
        "labels",
        "too_good",
        "loss_rises",
        judge=LIKED.loss,
    ),
    broken(LIKED, "hot", replace(LIKED, optimizer=sgd(3e5)), "lr_high", "exploding"),
    broken(
        LIKED,
        "films_frozen",
        replace(LIKED, prepare=frozen("films", "film_offset", "user_offset")),
        "frozen",
        places=("films", "film_offset", "user_offset"),
    ),
    broken(
        COUNTS,
        "log_of_negative",
        replace(COUNTS, loss=fit(_counts, _poisson_of_rates)),
        "nonfinite",
        judge=COUNTS.loss,
    ),
    broken(
        COUNTS,
        "rate_overflows",
        replace(COUNTS, model=lambda: _head(nn.ReLU, Call(lambda x: x * 40)), optimizer=sgd(0.05)),
        "nonfinite",
        "exploding",
        "lr_high",
        "large_init",
    ),
    broken(
        COUNTS,
        "bounded_logs",
        replace(COUNTS, model=lambda: _head(nn.ReLU, nn.Sigmoid())),
        "final_activation",
        places=("5",),
    ),
    broken(
        SKEWED,
        "upside_down",
        replace(SKEWED, loss=flipped(SKEWED.loss)),
        "loss_rises",
        judge=SKEWED.loss,
    ),
    broken(
        SKEWED,
        "dies_at_once",
        replace(SKEWED, model=lambda: _head(nn.ReLU), optimizer=sgd(60.0)),
        "lr_high",
        "exploding",
    ),
    broken(
        LIFETIMES,
        "exp_overflows",
        replace(LIFETIMES, loss=fit(_lifetimes, _partial_naive), optimizer=sgd(50.0)),
        "lr_high",
        "nonfinite",
        "exploding",
        judge=LIFETIMES.loss,
    ),
    broken(
        LIFETIMES,
        "order_lost",
        replace(
            LIFETIMES,
            loss=fit(
                lambda step: (shuffled(step, _lifetimes(step)[0]), _lifetimes(step)[1]), _partial
            ),
        ),
        "labels",
        judge=LIFETIMES.loss,
    ),
]
