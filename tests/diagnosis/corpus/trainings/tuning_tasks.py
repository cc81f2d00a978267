"""Two tasks with one trunk, weighted by learnt uncertainties; and mixup with soft targets."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import cancer, rows_of, scaled
from trainings.design import Design as D, adam, broken, healthy, sgd


class TwoTasks(nn.Module):
    """A trunk, a class and a number: float32[B, 30] to [B, 2] and [B, 1]."""

    def __init__(self, cut: bool = False, drop: float = 0.2) -> None:
        super().__init__()
        self.cut = cut
        self.trunk = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.SiLU(), nn.Dropout(drop))
        self.classes = nn.Linear(40, 2)
        self.number = nn.Sequential(nn.Linear(40, 20), nn.SiLU(), nn.Linear(20, 1))
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads."""
        h = self.trunk(x)
        number = self.number(h)
        return self.classes(h), number.detach() if self.cut else number


def _both(model: nn.Module, step: int) -> Tensor:
    x, y = cancer()
    x, y = rows_of(step, 32, scaled(x), y)
    logits, number = model(x[:, :30] * (torch.arange(30) != 3))
    first = nn.functional.cross_entropy(logits, y)
    second = nn.functional.mse_loss(number, x[:, 3:4])
    log_var = model.log_var
    assert isinstance(log_var, Tensor)
    return first * torch.exp(-log_var[0]) + second * torch.exp(-log_var[1]) + log_var.sum()


def _mixup(model: nn.Module, step: int) -> Tensor:
    x, y = cancer()
    x, y = rows_of(step, 32, scaled(x), y)
    soft = nn.functional.one_hot(y, 2).float()
    share = torch.rand(1, generator=torch.Generator().manual_seed(step)).item() * 0.4
    x, soft = x * (1 - share) + x.flip(0) * share, soft * (1 - share) + soft.flip(0) * share
    return nn.functional.cross_entropy(model(x), soft)


def _mlp(act: nn.Module, drop: float = 0.1) -> nn.Module:
    return nn.Sequential(
        nn.Linear(30, 64), act, nn.Dropout(drop), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 2)
    )


TASKS = D("tasks", TwoTasks, _both, adam(5e-3))
MIXUP = D("mixup", lambda: _mlp(nn.Mish()), _mixup, adam(1e-3), seed=3)
WARM = replace(
    MIXUP,
    name="mixup_warmed",
    optimizer=sgd(0.1, momentum=0.9),
    seed=4,
    schedule=lambda opt: torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=20),
)
SMALL = replace(MIXUP, name="mixup_accumulated", micro_batches=3, seed=6, logs=False)

CASES = [
    healthy(TASKS),
    healthy(MIXUP),
    healthy(WARM),
    healthy(SMALL),
    broken(
        TASKS,
        "number_cut",
        replace(TASKS, model=lambda: TwoTasks(cut=True)),
        "detached",
        places=("number", "number.0", "number.2"),
    ),
    broken(
        MIXUP,
        "drops_nearly_all",
        replace(MIXUP, model=lambda: _mlp(nn.Mish(), 0.97)),
        "dropout_high",
        places=("2",),
    ),
    broken(
        TASKS,
        "drops_trunk",
        replace(TASKS, model=lambda: TwoTasks(drop=0.95), logs=False),
        "dropout_high",
        places=("trunk.3",),
    ),
    broken(
        WARM,
        "softmax_inside",
        replace(WARM, model=lambda: nn.Sequential(_mlp(nn.Mish()), nn.Softmax(1))),
        "double_softmax",
        places=("1",),
    ),
    broken(
        SMALL,
        "zeroes_never",
        replace(SMALL, zeroes_grad=False, optimizer=sgd(0.2)),
        "no_zero_grad",
    ),
    broken(
        MIXUP,
        "decays",
        replace(MIXUP, optimizer=adam(1e-3, decay=80.0)),
        "decay_high",
    ),
]
