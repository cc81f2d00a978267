"""Rare classes, many classes, soft targets: losses that stay high, or are low from the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.case import Case
from trainings.data import cancer, digits, kept_apart, scaled
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import everywhere, shuffled, times, without
from trainings.parts import Criterion, fit, flipped, on_inputs, on_targets

functional = nn.functional
binary = functional.binary_cross_entropy_with_logits
MANY = 500


def _focal(logits: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(logits, y, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def _rare(step: int) -> tuple[Tensor, Tensor]:
    """One in forty is of the rare class."""
    x = draw(step, 64, 10)
    hidden = x[:, 0] + 0.7 * x[:, 1] * x[:, 2] + 0.3 * draw(step + 1, 64)
    return x, (hidden > 2.2).float()[:, None]


def _cells(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 24, scaled(cancer()[0]), cancer()[1])
    return x, y.float()


def _many(step: int) -> tuple[Tensor, Tensor]:
    """The class is the nearest of 500 corners."""
    generator = torch.Generator().manual_seed(5)
    corners = torch.randn(MANY, 24, generator=generator)
    y = pick(step, MANY, 64)
    return corners[y] + 0.4 * draw(step, 64, 24), y


def _shown(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 32, *digits())
    return x, y


def _tagged(step: int) -> tuple[Tensor, Tensor]:
    """Six tags at once, each true for some digits."""
    x, y = kept_apart(step, 32, *digits())
    tags = torch.stack([y % 2 == 0, y > 4, y % 3 == 0, y < 2, y == 8, (y * 7) % 5 < 2], 1)
    return x.flatten(1), tags.float()


def _small() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, MANY))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def _tags() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 40), nn.BatchNorm1d(40), nn.Mish(), nn.Linear(40, 6))


class Cells(nn.Module):
    """A scorer of cells, without its last dim."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 24), nn.ELU(), nn.Dropout(0.2), nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 30] to float32[B]."""
        score: Tensor = self.body(x)[:, 0]
        return score


def _weighted(logits: Tensor, y: Tensor) -> Tensor:
    return binary(logits, y, pos_weight=torch.tensor([8.0]))


def _smoothed(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(logits, y, label_smoothing=0.2)


def _by_hand(logits: Tensor, y: Tensor) -> Tensor:
    return -logits.log_softmax(1).gather(1, y[:, None]).mean()


def _twice(criterion: Criterion, dim: int = 1) -> Criterion:
    return lambda logits, y: criterion(logits.softmax(dim), y)


def _in_sigmoid(criterion: Criterion) -> Criterion:
    return lambda logits, y: criterion(logits.sigmoid(), y)


def _mixed_up(alpha: float = 0.4) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = _shown(step)
        share = float(torch.distributions.Beta(alpha, alpha).sample())
        order = torch.randperm(len(x))
        logits = model(share * x + (1 - share) * x[order])
        one, two = functional.cross_entropy(logits, y), functional.cross_entropy(logits, y[order])
        return share * one + (1 - share) * two

    return loss


RARE = D("rare", _small, fit(_rare, _weighted), adam(5e-3), steps=80, seed=621)
FOCAL = D("rare_focal", _conv, fit(_shown, _focal), adam(5e-3), steps=60, seed=622)
MANY_CLASSES = D("rare_many", _wide, fit(_many), adam(2e-3), steps=60, seed=623)
SMOOTHED = D("rare_smoothed", _conv, fit(_shown, _smoothed), adam(3e-3), steps=60, seed=624)
BY_HAND = D(
    "rare_by_hand", _conv, fit(_shown, _by_hand), sgd(0.1, momentum=0.8), steps=60, seed=625
)
TAGS = D("rare_tags", _tags, fit(_tagged, binary), adam(5e-3), steps=60, seed=626)
CELLS = D("rare_cells", Cells, fit(_cells, binary), adam(5e-3), steps=60, seed=627)
MIXED = D("rare_mixed", _conv, _mixed_up(), adam(4e-3), steps=80, seed=628)


def _plant(base: D, name: str, data: Callable[[int], tuple[Tensor, Tensor]], by: Criterion) -> Case:
    return broken(
        base,
        name,
        replace(base, loss=fit(on_targets(data, shuffled), by)),
        "labels",
        judge=base.loss,
    )


CASES = [
    *(healthy(each) for each in (RARE, FOCAL, MANY_CLASSES, SMOOTHED, BY_HAND, TAGS, CELLS, MIXED)),
    _plant(RARE, "other_labels", _rare, _weighted),
    _plant(FOCAL, "other_labels", _shown, _focal),
    _plant(SMOOTHED, "other_labels", _shown, _smoothed),
    _plant(TAGS, "other_tags", _tagged, binary),
    _plant(CELLS, "other_cells", _cells, binary),
    _plant(MANY_CLASSES, "other_corners", _many, functional.cross_entropy),
    broken(
        BY_HAND,
        "softmax_too",
        replace(BY_HAND, loss=fit(_shown, _twice(_by_hand))),
        "double_softmax",
        judge=BY_HAND.loss,
    ),
    broken(
        SMOOTHED,
        "softmax_too",
        replace(SMOOTHED, loss=fit(_shown, _twice(_smoothed))),
        "double_softmax",
        judge=SMOOTHED.loss,
    ),
    broken(
        TAGS,
        "sigmoid_too",
        replace(TAGS, loss=fit(_tagged, _in_sigmoid(binary))),
        "double_softmax",
        "final_activation",
        judge=TAGS.loss,
    ),
    broken(
        CELLS, "climbs", replace(CELLS, loss=flipped(CELLS.loss)), "loss_rises", judge=CELLS.loss
    ),
    broken(
        FOCAL,
        "climbs",
        replace(FOCAL, loss=flipped(FOCAL.loss), clip=1.0),
        "loss_rises",
        judge=FOCAL.loss,
    ),
    broken(
        MANY_CLASSES,
        "head_left_out",
        replace(MANY_CLASSES, trained=without("3")),
        "not_in_optimizer",
        places=("3",),
    ),
    broken(
        MANY_CLASSES,
        "head_huge",
        replace(MANY_CLASSES, prepare=times("3", 120.0)),
        "large_init",
        places=("3",),
    ),
    broken(
        MIXED,
        "drops_all",
        replace(
            MIXED, model=lambda: nn.Sequential(_conv()[:7], nn.Dropout(0.97), nn.Linear(64, 10))
        ),
        "dropout_high",
        places=("1",),
    ),
    broken(
        CELLS,
        "raw",
        replace(CELLS, loss=fit(on_inputs(_cells, lambda step, x: x * 300 + 900), binary)),
        "data_scale",
        judge=CELLS.loss,
    ),
    broken(
        TAGS,
        "norm_in_eval",
        replace(TAGS, prepare=everywhere(nn.BatchNorm1d, lambda one: one.eval())),
        "bn_eval",
        places=("1",),
    ),
]
