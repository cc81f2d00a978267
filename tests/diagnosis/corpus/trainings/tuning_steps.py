"""Steps of many kinds: other optimizers, batches of two, checkpoints, accumulation, by heart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.checkpoint import checkpoint
from trainings.data import digits, iris, kept_apart, scaled
from trainings.design import Design as D, MakeOptimizer, adam, broken, draw, healthy, sgd
from trainings.faults import everywhere, frozen, shuffled, times
from trainings.parts import fit, flipped, mse, on_inputs, on_targets

cross_entropy = nn.functional.cross_entropy


class Lion(Optimizer):
    """Steps of one size, by the sign of a mean gradient."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Move each element by ``lr``."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                param.sub_(group["lr"] * (0.9 * mean + 0.1 * param.grad).sign())
                mean.mul_(0.99).add_(param.grad, alpha=0.01)


class Stack(nn.Module):
    """Residual layers, each in a checkpoint."""

    def __init__(self, act: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.enter = nn.Linear(64, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), act(), nn.Linear(64, 32))
            for _ in range(3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 64] to float32[B, 10]."""
        inner = self.enter(x)
        for layer in self.layers:
            inner = inner + checkpoint(layer, inner, use_reentrant=False)
        logits: Tensor = self.head(inner)
        return logits


def _digits(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 32, *digits())
    return x.flatten(1), y


def _two(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 3, *digits())
    return x.flatten(1), y


def _same(step: int) -> tuple[Tensor, Tensor]:
    """Return the same few digits in each step, to be learnt by heart."""
    return _digits(3 if step < 10_000 else step)


def _flowers(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 16, scaled(iris()[0]), iris()[1])
    return x, y


def _curve(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 48, 4)
    return x, (x[:, :1] * x[:, 1:2]).tanh() + 0.3 * x[:, 2:3]


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 48),
        nn.BatchNorm1d(48),
        nn.LeakyReLU(),
        nn.Linear(48, 48),
        nn.BatchNorm1d(48),
        nn.LeakyReLU(),
        nn.Linear(48, 10),
    )


def _flower() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Hardswish(), nn.Linear(16, 3))


def _curves() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)
    )


def _sigmoids() -> nn.Module:
    parts: list[nn.Module] = [nn.Linear(64, 32), nn.Sigmoid()]
    for _ in range(7):
        parts += [nn.Linear(32, 32), nn.Sigmoid()]
    return nn.Sequential(*parts, nn.Linear(32, 10))


def _lion(lr: float) -> MakeOptimizer:
    return lambda params: Lion(params, lr)


def _cosine(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.CosineAnnealingLR(optimizer, 60)


def _ends_soon(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 8 else 0.0)


LION = D("steps_lion", _perceptron, fit(_digits), _lion(2e-3), steps=60, seed=651)
NESTEROV = D(
    "steps_nesterov",
    _normed,
    fit(_digits),
    lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=5e-4),
    steps=60,
    seed=652,
    schedule=_cosine,
)
TWO = D(
    "steps_of_three_samples", _perceptron, fit(_two), sgd(0.02, momentum=0.9), steps=120, seed=653
)
PARTS = D("steps_in_parts", Stack, fit(_digits), adam(2e-3), steps=40, seed=654, micro_batches=3)
HEART = D("steps_by_heart", _perceptron, fit(_same), adam(3e-3), steps=80, seed=655)
NADAM = D(
    "steps_nadam", _flower, fit(_flowers), lambda p: torch.optim.NAdam(p, 0.02), steps=60, seed=656
)
RADAM = D(
    "steps_radam",
    _curves,
    fit(_curve, mse),
    lambda p: torch.optim.RAdam(p, 0.01),
    steps=80,
    seed=657,
)
DELTA = D(
    "steps_adadelta",
    _curves,
    fit(_curve, mse),
    lambda p: torch.optim.Adadelta(p, 1.0),
    steps=80,
    seed=658,
)
AVERAGED = D(
    "steps_asgd",
    _curves,
    fit(_curve, nn.functional.huber_loss),
    lambda p: torch.optim.ASGD(p, 0.1),
    steps=80,
    seed=659,
)

CASES = [
    *(healthy(each) for each in (LION, NESTEROV, TWO, PARTS, HEART, NADAM, RADAM, DELTA, AVERAGED)),
    broken(LION, "hot", replace(LION, optimizer=_lion(0.3)), "lr_high", "exploding"),
    broken(
        LION,
        "other_labels",
        replace(LION, loss=fit(on_targets(_digits, shuffled))),
        "labels",
        judge=LION.loss,
    ),
    broken(NESTEROV, "ends_soon", replace(NESTEROV, schedule=_ends_soon), "updates_stop"),
    broken(
        NESTEROV,
        "decays",
        replace(
            NESTEROV,
            optimizer=lambda p: torch.optim.SGD(p, 0.1, 0.0, weight_decay=2.0),
            schedule=None,
        ),
        "decay_high",
    ),
    broken(
        NESTEROV,
        "other_labels",
        replace(NESTEROV, loss=fit(on_targets(_digits, shuffled))),
        "labels",
        judge=NESTEROV.loss,
    ),
    broken(
        TWO,
        "other_labels",
        replace(TWO, loss=fit(on_targets(_two, shuffled))),
        "labels",
        judge=TWO.loss,
    ),
    broken(PARTS, "never_cleared", replace(PARTS, zeroes_grad=False), "no_zero_grad"),
    broken(
        PARTS,
        "middle_held",
        replace(PARTS, prepare=frozen("layers.1", "layers.2")),
        "frozen",
        places=("layers.1", "layers.2"),
    ),
    broken(
        PARTS,
        "no_activation",
        replace(PARTS, model=lambda: Stack(nn.Identity)),
        "no_activation",
        places=("layers.0.1", "layers.1.1", "layers.2.1"),
    ),
    broken(NADAM, "never_cleared", replace(NADAM, zeroes_grad=False), "no_zero_grad"),
    broken(
        NADAM, "climbs", replace(NADAM, loss=flipped(NADAM.loss)), "loss_rises", judge=NADAM.loss
    ),
    broken(
        RADAM,
        "of_others",
        replace(RADAM, loss=fit(on_targets(_curve, shuffled), mse)),
        "labels",
        judge=RADAM.loss,
    ),
    broken(
        DELTA, "climbs", replace(DELTA, loss=flipped(DELTA.loss)), "loss_rises", judge=DELTA.loss
    ),
    broken(
        DELTA,
        "far_off",
        replace(DELTA, loss=fit(on_inputs(_curve, lambda step, x: x * 1e-5), mse)),
        "data_scale",
        judge=DELTA.loss,
    ),
    broken(
        AVERAGED,
        "saturates",
        replace(AVERAGED, prepare=times("0", 80.0)),
        "saturated",
        "large_init",
        places=("0", "1"),
    ),
    broken(
        LION,
        "through_sigmoids",
        replace(LION, model=_sigmoids, optimizer=sgd(0.05)),
        "vanishing",
        "collapsed",
        places=("0", "2", "4", "."),
    ),
    broken(
        NESTEROV,
        "norms_in_eval",
        replace(NESTEROV, prepare=everywhere(nn.BatchNorm1d, lambda one: one.eval())),
        "bn_eval",
        places=("1", "4"),
    ),
]
