"""Formats of 16 bits, and designs that are healthy though they look odd."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from trainings.data import diabetes, digits, kept_apart, scaled
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import shuffled
from trainings.parts import fit, mse, on_inputs, on_targets


def _autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


def _batch(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 48, *digits())
    return x.flatten(1) - 0.3, y


def _few(step: int) -> tuple[Tensor, Tensor]:
    """Sixteen digits, the same in each step, to see whether a network can learn at all."""
    x, y = digits()
    return x[:16].flatten(1), y[:16]


def _persons(step: int) -> tuple[Tensor, Tensor]:
    x, y = diabetes()
    x, y = kept_apart(step, 64, scaled(x), (y - 150) / 77)
    return x, y[:, None]


def _sevens(step: int) -> tuple[Tensor, Tensor]:
    """Bags of six digits; is a seven among them?"""
    x, y = kept_apart(step, 32 * 6, *digits())
    return x.view(32, 6, 64), (y.view(32, 6) == 7).any(1).float()


class Bag(nn.Module):
    """Attention over the members of a bag."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.look, self.gate = nn.Linear(32, 16), nn.Linear(32, 16)
        self.weigh, self.head = nn.Linear(16, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 6, 64] to float32[B]."""
        each = self.body(x)
        weight = self.weigh(self.look(each).tanh() * self.gate(each).sigmoid()).softmax(1)
        logit: Tensor = self.head((weight * each).sum(1))[:, 0]
        return logit


class Blend(nn.Module):
    """Three experts whose probabilities are mixed by a softmax; the end is a log of them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(64, 10) for _ in range(3))
        self.gate = nn.Sequential(nn.Linear(64, 3), nn.Softmax(1))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 64] to logs of probabilities, float32[B, 10]."""
        votes = torch.stack([expert(x).softmax(1) for expert in self.experts], 1)
        return (self.gate(x)[..., None] * votes).sum(1).log()


def _layers(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


def _random_features() -> nn.Module:
    """A wide first layer that stays as it was drawn, on purpose."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model[0].requires_grad_(False)
    return model


def _wide(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.float(), y)


def _divided(step: int) -> tuple[Tensor, Tensor]:
    """Columns are standardised per batch, of which one column is sometimes constant."""
    x, y = _persons(step)
    x = x.clone()
    x[:, 1] = x[:, 1].sign() if step != 19 else 1.0
    return (x - x.mean(0)) / x.std(0), y


AUTOCAST = D(
    "digit_autocast",
    lambda: _layers(64, 64, 48, 10),
    fit(_batch, _wide),
    adam(4e-3),
    steps=60,
    seed=141,
    context=_autocast,
)
SCALED = D(
    "digit_scaled",
    lambda: _layers(64, 48, 10, act=nn.Mish),
    fit(_batch),
    sgd(0.3),
    steps=60,
    seed=142,
    scale=1024.0,
)
PERSONS = D(
    "persons",
    lambda: _layers(10, 32, 16, 1, act=nn.SELU),
    fit(_persons, mse),
    adam(5e-3, decay=0.1),
    steps=60,
    seed=143,
)
FEATURES = D(
    "random_features",
    _random_features,
    fit(_batch),
    adam(5e-3),
    steps=60,
    seed=144,
    trained=lambda model: [p for p in model.parameters() if p.requires_grad],
)
FEW = D("few_by_heart", lambda: _layers(64, 48, 10), fit(_few), adam(5e-3), steps=60, seed=145)
BAGS = D(
    "bags",
    Bag,
    fit(_sevens, nn.functional.binary_cross_entropy_with_logits),
    adam(5e-3),
    steps=80,
    seed=146,
)
BLEND = D(
    "blend", Blend, fit(_batch, nn.functional.nll_loss), sgd(0.8, momentum=0.5), steps=60, seed=147
)
HALF = D(
    "digit_bfloat16",
    lambda: _layers(64, 48, 10).to(torch.bfloat16),
    fit(on_inputs(_batch, lambda step, x: x.bfloat16()), _wide),
    sgd(0.3),
    steps=60,
    seed=148,
)


def _tiny(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.float(), y) * 2e-6


SINGLE = fit(_batch, _wide)

CASES = [
    *(healthy(each) for each in (AUTOCAST, SCALED, PERSONS, FEATURES, FEW, BAGS, BLEND, HALF)),
    broken(
        HALF,
        "steps_rounded_away",
        replace(HALF, optimizer=sgd(2e-5)),
        "stale_low_precision",
        "steps_too_small",
        "underflow",
    ),
    broken(
        HALF,
        "adam_rounded_away",
        replace(HALF, optimizer=adam(5e-6), logs=False),
        "stale_low_precision",
        "steps_too_small",
    ),
    broken(
        SCALED,
        "float16_vanishes",
        replace(
            SCALED,
            model=lambda: _layers(64, 48, 10, act=nn.Mish).half(),
            scale=1.0,
            loss=fit(on_inputs(_batch, lambda step, x: x.half()), _tiny),
            optimizer=sgd(6e4),
        ),
        "underflow",
        "steps_too_small",
        "updates_stop",
        "vanishing",
        judge=fit(on_inputs(_batch, lambda step, x: x.half()), _wide),
    ),
    broken(
        SCALED,
        "float16_overflows",
        replace(
            SCALED,
            model=lambda: _layers(64, 48, 10, act=nn.Mish).half(),
            loss=fit(on_inputs(_batch, lambda step, x: (x * 3e4).half()), _wide),
        ),
        "nonfinite",
        "data_scale",
        judge=fit(on_inputs(_batch, lambda step, x: (x * 3e4).half()), _wide),
    ),
    broken(AUTOCAST, "hot", replace(AUTOCAST, optimizer=adam(2.0)), "lr_high", "exploding"),
    broken(
        AUTOCAST,
        "other_labels",
        replace(AUTOCAST, loss=fit(on_targets(_batch, shuffled), _wide)),
        "labels",
        judge=SINGLE,
    ),
    broken(
        PERSONS,
        "constant_column",
        replace(PERSONS, loss=fit(_divided, mse)),
        "nonfinite",
        "bad_batch",
        places=(".", "0"),
        judge=PERSONS.loss,
    ),
    broken(
        PERSONS,
        "raw_target",
        replace(
            PERSONS,
            optimizer=sgd(0.02),
            loss=fit(on_targets(_persons, lambda step, y: y * 77 + 150), mse),
        ),
        "lr_high",
        "exploding",
        "nonfinite",
        judge=fit(_persons, lambda out, y: mse((out - 150) / 77, y)),
    ),
    broken(
        PERSONS,
        "climbs",
        replace(PERSONS, optimizer=adam(5e-3), loss=lambda model, step: -PERSONS.loss(model, step)),
        "loss_rises",
        judge=PERSONS.loss,
    ),
    broken(
        BAGS,
        "of_other_bags",
        replace(
            BAGS,
            loss=fit(on_targets(_sevens, shuffled), nn.functional.binary_cross_entropy_with_logits),
        ),
        "labels",
        judge=BAGS.loss,
    ),
    broken(
        BLEND,
        "applied_twice",
        replace(BLEND, loss=fit(_batch, lambda out, y: nn.functional.cross_entropy(out.exp(), y))),
        "double_softmax",
        places=(".",),
        judge=BLEND.loss,
    ),
    broken(BLEND, "slow", replace(BLEND, optimizer=sgd(1e-6)), "steps_too_small"),
]
