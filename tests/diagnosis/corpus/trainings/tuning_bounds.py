"""Likelihoods with a free variance, codes with a prior, counts: losses that go below 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.case import Case
from trainings.data import diabetes, digits, kept_apart, scaled
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, sgd
from trainings.faults import biased, shuffled
from trainings.parts import Data, fit, flipped, mse, on_inputs, on_targets

functional = nn.functional


class Code(nn.Module):
    """A variational code of digits; ``read`` is False where the decoder looks away."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(64, 48), nn.Tanh())
        self.mean, self.spread = nn.Linear(48, width), nn.Linear(48, width)
        self.leave = nn.Sequential(nn.Linear(width, 48), nn.Tanh(), nn.Linear(48, 64))
        self.noise = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture again, and the mean and log variance of the code."""
        inner = self.enter(x)
        mean, spread = self.mean(inner), self.spread(inner)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.leave(code), mean, spread


class Both(nn.Module):
    """A mean and a log variance for each sample."""

    def __init__(self, inputs: int, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 32), act(), nn.Linear(32, 32), act())
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, inputs] to float32[B, 2]."""
        found: Tensor = self.head(self.body(x))
        return found


def _pixels(step: int) -> Tensor:
    x, _ = kept_apart(step, 48, *digits())
    return x.flatten(1)


def _bound(prior: float = 1.0) -> Loss:
    """Minus the evidence, in nats of a pixel, with a learnt noise: goes below 0."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x = _pixels(step)
        again, mean, spread = model(x)
        noise = model.noise
        error = ((x - again).square() * (-2 * noise).exp() / 2 + noise).sum(1)
        away = (mean.square() + spread.exp() - 1 - spread).sum(1) / 2
        return ((error + prior * away) / 64).mean()

    return loss


def _noisy(step: int) -> tuple[Tensor, Tensor]:
    """Noise that grows with the first input, around a wave of it."""
    x = draw(step, 64, 3)
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.05 * x[:, 0].exp() * draw(step + 1, 64)
    return x, y


def _persons(step: int) -> tuple[Tensor, Tensor]:
    x, y = diabetes()
    found = kept_apart(step, 32, scaled(x), (y - y.mean()) / y.std())
    return found[0], found[1]


def _counts(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 64, 5)
    rate = (0.6 * x[:, 0] - 0.4 * x[:, 1] * x[:, 2] + 1.5).exp()
    return x, torch.poisson(rate, generator=torch.Generator().manual_seed(step))


def _likelihood(found: Tensor, y: Tensor) -> Tensor:
    mean, spread = found.unbind(1)
    return functional.gaussian_nll_loss(mean, y, spread.exp())


def _pinball(found: Tensor, y: Tensor) -> Tensor:
    away = y - found[:, 0]
    return torch.maximum(0.9 * away, -0.1 * away).mean()


def _poisson(found: Tensor, y: Tensor) -> Tensor:
    return functional.poisson_nll_loss(found[:, 0], y)


def _one_column(found: Tensor, y: Tensor) -> Tensor:
    return mse(found, y[:, None])


def _broadcast(found: Tensor, y: Tensor) -> Tensor:
    return (found - y).square().mean()


def _broadcast_absolute(found: Tensor, y: Tensor) -> Tensor:
    return functional.smooth_l1_loss(found, y)


def _person_scorer() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 24), nn.LeakyReLU(), nn.Linear(24, 1))


def _clear(step: int) -> tuple[Tensor, Tensor]:
    x, y = _noisy(step)
    return x, y + 3


def _scorer() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 32), nn.Softplus(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1)
    )


CODE = D("bound_code", Code, _bound(), adam(4e-3), steps=100, seed=631)
NOISY = D("bound_noisy", lambda: Both(3), fit(_noisy, _likelihood), adam(5e-3), steps=90, seed=632)
QUANTILE = D(
    "bound_quantile",
    lambda: Both(10, nn.ReLU),
    fit(_persons, _pinball),
    sgd(0.1),
    steps=60,
    seed=633,
)
COUNTS = D("bound_counts", lambda: Both(5), fit(_counts, _poisson), adam(3e-3), steps=80, seed=634)
PERSONS = D(
    "bound_persons", _person_scorer, fit(_persons, _one_column), adam(5e-3), steps=60, seed=635
)
CLEAR = D("bound_clear", _scorer, fit(_clear, _one_column), adam(1e-2), steps=80, seed=636)


def _planted(base: D, name: str, data: Data, by: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return broken(
        base,
        name,
        replace(base, loss=fit(on_targets(data, shuffled), by)),
        "labels",
        judge=base.loss,
    )


CASES = [
    *(healthy(each) for each in (CODE, NOISY, QUANTILE, COUNTS, PERSONS, CLEAR)),
    _planted(NOISY, "of_others", _noisy, _likelihood),
    _planted(COUNTS, "of_others", _counts, _poisson),
    _planted(PERSONS, "of_others", _persons, _one_column),
    _planted(CLEAR, "of_others", _clear, _one_column),
    broken(CODE, "climbs", replace(CODE, loss=flipped(CODE.loss)), "loss_rises", judge=CODE.loss),
    broken(
        CLEAR,
        "broadcast",
        replace(CLEAR, loss=fit(_clear, _broadcast)),
        "labels",
        "collapsed",
        judge=CLEAR.loss,
    ),
    broken(
        PERSONS,
        "broadcast",
        replace(PERSONS, loss=fit(_persons, _broadcast_absolute)),
        "labels",
        "collapsed",
        judge=PERSONS.loss,
    ),
    broken(
        QUANTILE,
        "climbs",
        replace(QUANTILE, loss=flipped(QUANTILE.loss)),
        "loss_rises",
        judge=QUANTILE.loss,
    ),
    broken(
        COUNTS,
        "dead",
        replace(
            COUNTS,
            model=lambda: Both(5, nn.ReLU),
            prepare=lambda model: (biased("body.0", -30.0)(model), biased("body.2", -3.0)(model)),
        ),
        "dead",
        places=("body.1", "body.3"),
    ),
    broken(
        CLEAR,
        "one_row_in_other_units",
        replace(
            CLEAR,
            loss=fit(
                on_inputs(_clear, lambda step, x: x * (1e4 if step == 40 else 1)), _one_column
            ),
        ),
        "bad_batch",
        judge=CLEAR.loss,
    ),
    broken(NOISY, "too_hot", replace(NOISY, optimizer=adam(1.0)), "lr_high", "exploding"),
    broken(
        PERSONS,
        "in_grams",
        replace(
            PERSONS, loss=fit(on_targets(_persons, lambda step, y: y * 30000 + 50000), _one_column)
        ),
        "data_scale",
        "steps_too_small",
        judge=PERSONS.loss,
    ),
]
