"""Friedman's regression, a line, and flowers: residual, deep, plain and linear models."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.data import iris, kept_apart, scaled
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import Call, Prepare, everywhere, times
from trainings.parts import fit, flipped, mse, on_inputs, on_targets


class Inner(nn.Module):
    """A residual layer with a norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, width] to the same shape."""
        done: Tensor = x + self.down(nn.functional.silu(self.up(self.norm(x))))
        return done


def _residual() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), Inner(32), Inner(32), nn.Linear(32, 1))


def _plain(act: type[nn.Module] = nn.Tanh, depth: int = 3, *end: nn.Module) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(10, 32), act()]
    for _ in range(depth - 1):
        layers += [nn.Linear(32, 32), act()]
    return nn.Sequential(*layers, nn.Linear(32, 1), *end)


def _friedman(step: int) -> tuple[Tensor, Tensor]:
    """10 inputs, half of them noise; the targets have a mean of 14 and a deviation of 5."""
    x = draw(step, 64, 10).mul(2.0).sigmoid()
    wave = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1])
    y = wave + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return (x - 0.5) * 6, y[:, None]


def _unit(step: int, y: Tensor) -> Tensor:
    return (y - 12) / 4


def _flowers(step: int) -> tuple[Tensor, Tensor]:
    x, y = iris()
    x, y = kept_apart(step, 24, scaled(x), y)
    return x, y


def _raw_flowers(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 24, *iris())
    return x, y


def _sorted(step: int) -> tuple[Tensor, Tensor]:
    x, y = iris()
    rows = torch.arange(step * 5, step * 5 + 12) % 150
    return scaled(x)[rows], y[rows]


def _line(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 32, 6)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, -1.0])[:, None] + 0.7
    return x, y + 0.1 * draw(step + 31, 32, 1)


def _forgets_column(out: Tensor, y: Tensor) -> Tensor:
    """Each prediction is compared with each target."""
    return (out - y.squeeze(1)).square().mean()


def _set_all(value: float) -> Prepare:
    """All weights and biases of all linear layers are one number."""

    def fill(module: nn.Module) -> None:
        for param in module.parameters():
            nn.init.constant_(param, value)

    return everywhere(nn.Linear, fill)


@torch.no_grad()
def _scale(layer: nn.Module, factor: float) -> None:
    for param in layer.parameters():
        param.mul_(factor)


UNIT = on_targets(_friedman, _unit)
RESIDUAL = D("friedman", _residual, fit(UNIT, mse), adam(3e-3), steps=70, seed=31)
PLAIN = D(
    "friedman_tanh",
    _plain,
    fit(UNIT, nn.functional.huber_loss),
    lambda params: torch.optim.RMSprop(params, lr=2e-3),
    steps=80,
    seed=32,
)
RAW = D(
    "friedman_raw",
    lambda: _plain(nn.ELU, 2),
    fit(_friedman, nn.functional.l1_loss),
    adam(1e-2),
    steps=80,
    seed=33,
)
MOMENTUM = D(
    "friedman_leaky",
    lambda: _plain(nn.LeakyReLU, 3),
    fit(UNIT, mse),
    sgd(0.03, momentum=0.9),
    steps=70,
    seed=34,
    clip=1.0,
)
LINE = D("straight_line", lambda: nn.Linear(6, 1), fit(_line, mse), sgd(0.1), steps=60, seed=35)
FLOWERS = D("flowers_logistic", lambda: nn.Linear(4, 3), fit(_flowers), sgd(0.5), steps=60, seed=36)
RAW_FLOWERS = D(
    "flowers_raw",
    lambda: nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3)),
    fit(_raw_flowers),
    lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True),
    steps=60,
    seed=37,
)


def _fades(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1e-5)


CASES = [
    *(healthy(each) for each in (RESIDUAL, PLAIN, RAW, MOMENTUM, LINE, FLOWERS, RAW_FLOWERS)),
    broken(
        RESIDUAL,
        "broadcast",
        replace(RESIDUAL, loss=fit(UNIT, _forgets_column)),
        "labels",
        "collapsed",
    ),
    broken(
        RESIDUAL,
        "climbs",
        replace(RESIDUAL, loss=flipped(RESIDUAL.loss)),
        "loss_rises",
        judge=RESIDUAL.loss,
    ),
    broken(
        RESIDUAL,
        "target_in_grams",
        replace(RESIDUAL, loss=fit(on_targets(UNIT, lambda step, y: y * 1e4 + 3e4), mse)),
        "data_scale",
        "steps_too_small",
        judge=fit(UNIT, lambda out, y: mse((out - 3e4) / 1e4, y)),
    ),
    broken(
        PLAIN,
        "many_sigmoids",
        replace(PLAIN, model=lambda: _plain(nn.Sigmoid, 9)),
        "vanishing",
        "collapsed",
        places=("0", "2", "4", "6", "1", "3", "5", "7"),
    ),
    broken(
        PLAIN,
        "starts_saturated",
        replace(PLAIN, prepare=everywhere(nn.Linear, lambda layer: _scale(layer, 25.0))),
        "large_init",
        "saturated",
        places=("0", "2", "4", "1", "3", "5"),
    ),
    broken(
        PLAIN,
        "all_weights_zero",
        replace(PLAIN, prepare=_set_all(0.0)),
        "symmetric",
        "small_init",
        places=("0", "2", "4", "6"),
    ),
    broken(
        PLAIN,
        "all_weights_alike",
        replace(PLAIN, prepare=_set_all(0.1), logs=False),
        "symmetric",
        places=("0", "2", "4", "6"),
    ),
    broken(
        PLAIN,
        "crawls",
        replace(PLAIN, optimizer=lambda params: torch.optim.RMSprop(params, lr=1e-7)),
        "steps_too_small",
    ),
    broken(
        RAW,
        "bounded_end",
        replace(RAW, model=lambda: _plain(nn.ELU, 2, nn.Tanh())),
        "final_activation",
        "saturated",
        places=("5",),
    ),
    broken(
        RAW,
        "no_activations",
        replace(RAW, model=lambda: _plain(nn.Identity, 2)),
        "no_activation",
        places=("0", "2", "1", "3"),
    ),
    broken(
        MOMENTUM,
        "clipped_to_nothing",
        replace(MOMENTUM, clip=1e-6),
        "steps_too_small",
        "updates_stop",
    ),
    broken(
        MOMENTUM,
        "raw_targets_unclipped",
        replace(
            MOMENTUM,
            clip=None,
            loss=fit(on_targets(_friedman, lambda step, y: y * 100), mse),
        ),
        "lr_high",
        "exploding",
        "nonfinite",
        judge=fit(UNIT, lambda out, y: mse((out / 100 - 12) / 4, y)),
    ),
    broken(MOMENTUM, "hot", replace(MOMENTUM, optimizer=sgd(20.0, momentum=0.9)), "lr_high"),
    broken(
        MOMENTUM,
        "rectified_end",
        replace(MOMENTUM, model=lambda: _plain(nn.LeakyReLU, 3, nn.ReLU())),
        "final_activation",
        "dead",
        places=("7",),
    ),
    broken(LINE, "just_too_fast", replace(LINE, optimizer=sgd(1.3)), "lr_high", "exploding"),
    broken(
        LINE,
        "one_column_in_metres",
        replace(
            LINE,
            loss=fit(on_inputs(_line, lambda step, x: x * torch.tensor([1, 1, 1e3, 1, 1, 1])), mse),
            optimizer=sgd(1e-7),
        ),
        "data_scale",
        "steps_too_small",
        places=(".",),
        judge=fit(on_inputs(_line, lambda step, x: x * torch.tensor([1, 1, 1e3, 1, 1, 1])), mse),
    ),
    broken(FLOWERS, "slow", replace(FLOWERS, schedule=_fades), "steps_too_small"),
    broken(FLOWERS, "never_shuffled", replace(FLOWERS, loss=fit(_sorted)), "labels", "bad_batch"),
    broken(
        RAW_FLOWERS,
        "decays",
        replace(
            RAW_FLOWERS, optimizer=lambda params: torch.optim.Adam(params, 1e-2, weight_decay=3.0)
        ),
        "decay_high",
    ),
    broken(
        RAW_FLOWERS,
        "log_softmax_missing",
        replace(RAW_FLOWERS, loss=fit(_raw_flowers, nn.functional.nll_loss)),
        "loss_rises",
        "too_good",
        "exploding",
        "lr_high",
    ),
    broken(
        RAW_FLOWERS,
        "log_of_probabilities",
        replace(
            RAW_FLOWERS,
            model=lambda: nn.Sequential(
                nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3), nn.Softmax(1), Call(torch.log)
            ),
            prepare=times("2", 600.0),
            loss=fit(_raw_flowers, nn.functional.nll_loss),
        ),
        "nonfinite",
        "large_init",
        places=("4", "2", "3"),
    ),
]
