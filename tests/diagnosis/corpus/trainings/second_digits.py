"""Handwritten digits by convolutions with batch norm, and by a perceptron (Adagrad)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, broken, healthy, sgd
from trainings.faults import Call, biased, shuffled
from trainings.parts import fit, on_inputs, on_targets


def _batch(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 48, *digits())
    return x, y


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 10),
    )


def _perceptron(drop: float = 0.2, *end: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(64, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
        *end,
    )


CONV = D("digit_conv", _conv, fit(_batch), sgd(0.05, momentum=0.9), steps=50, seed=3)
PLAIN = D(
    "digit_perceptron",
    _perceptron,
    fit(_batch),
    lambda params: torch.optim.Adagrad(params, lr=0.03),
    steps=70,
    seed=11,
)
TANH = D(
    "digit_tanh",
    lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 10)
    ),
    fit(_batch, lambda out, y: nn.functional.multi_margin_loss(out, y)),
    sgd(0.5, momentum=0.5),
    steps=70,
    seed=5,
)


def _pixels(step: int, x: Tensor) -> Tensor:
    return x * 4080


def _spoilt(step: int, x: Tensor) -> Tensor:
    return x.where(torch.rand(x.shape) > 0.01, torch.nan) if step == 17 else x


def _constant(step: int, x: Tensor) -> Tensor:
    return torch.zeros_like(x) + 0.5


CASES = [
    healthy(CONV),
    healthy(PLAIN),
    healthy(TANH),
    broken(
        CONV,
        "left_in_eval",
        replace(CONV, late=lambda model: model.eval()),
        "bn_eval",
        places=("1", "5"),
    ),
    broken(CONV, "hot", replace(CONV, optimizer=sgd(6.0, momentum=0.9)), "lr_high", "exploding"),
    broken(
        CONV,
        "heavy_ball",
        replace(CONV, optimizer=sgd(0.5, momentum=0.995)),
        "lr_high",
        "exploding",
    ),
    broken(CONV, "other_labels", replace(CONV, loss=fit(on_targets(_batch, shuffled))), "labels"),
    broken(
        CONV,
        "missing_pixels",
        replace(CONV, loss=fit(on_inputs(_batch, _spoilt))),
        "nonfinite",
        "bad_batch",
        places=(".", "0"),
    ),
    broken(
        CONV,
        "same_picture",
        replace(CONV, loss=fit(on_inputs(_batch, _constant))),
        "collapsed",
        "labels",
        "data_scale",
    ),
    broken(
        PLAIN,
        "born_dead",
        replace(PLAIN, prepare=biased("1", -6.0)),
        "dead",
        places=("2", "1"),
    ),
    broken(
        PLAIN,
        "raw_pixels",
        replace(PLAIN, loss=fit(on_inputs(_batch, _pixels))),
        "data_scale",
        places=("1", ".", "0"),
    ),
    broken(
        PLAIN,
        "drops_all",
        replace(PLAIN, model=lambda: _perceptron(0.97)),
        "dropout_high",
        places=("3",),
    ),
    broken(TANH, "no_zero", replace(TANH, zeroes_grad=False), "no_zero_grad"),
    broken(
        PLAIN,
        "softmax_twice",
        replace(PLAIN, model=lambda: _perceptron(0.2, nn.Softmax(1))),
        "double_softmax",
        places=("7",),
    ),
    broken(
        PLAIN,
        "softmax_over_batch",
        replace(PLAIN, model=lambda: _perceptron(0.2, nn.Softmax(0))),
        "double_softmax",
        "final_activation",
        places=("7",),
    ),
    broken(
        PLAIN,
        "relu_at_the_end",
        replace(PLAIN, model=lambda: _perceptron(0.2, nn.ReLU())),
        "final_activation",
        places=("7",),
    ),
    broken(
        PLAIN,
        "cut_in_the_middle",
        replace(
            PLAIN,
            model=lambda: nn.Sequential(
                nn.Flatten(),
                nn.Linear(64, 64),
                nn.ReLU(),
                Call(Tensor.detach),
                nn.Linear(64, 10),
            ),
        ),
        "detached",
        places=("1", "3", "2"),
    ),
]
