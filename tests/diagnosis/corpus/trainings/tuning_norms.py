"""Weight norm, spectral norm, RMS norm and batch renewals on synthetic regressions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import everywhere, filled


class Residual(nn.Module):
    """x + gate * f(norm(x)); the gate begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add what is found."""
        return x + self.down(self.act(self.up(self.norm(x))))


def _zero_init() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 24), Residual(24), Residual(24), nn.RMSNorm(24), nn.Linear(24, 1)
    )


def _weight_normed() -> nn.Module:
    return nn.Sequential(
        weight_norm(nn.Linear(6, 32)),
        nn.LeakyReLU(),
        weight_norm(nn.Linear(32, 32)),
        nn.LeakyReLU(),
        nn.Linear(32, 1),
    )


def _plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 32), nn.LeakyReLU(), nn.Linear(32, 32), nn.LeakyReLU(), nn.Linear(32, 1)
    )


def _spectral() -> nn.Module:
    return nn.Sequential(
        spectral_norm(nn.Linear(6, 32)),
        nn.SiLU(),
        spectral_norm(nn.Linear(32, 32)),
        nn.SiLU(),
        nn.Linear(32, 1),
    )


def _batch_normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 32, bias=False),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 32, bias=False),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )


def _friedman(model: nn.Module, step: int) -> Tensor:
    x = torch.rand(48, 6, generator=torch.Generator().manual_seed(step))
    y = 2 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 4 * (x[:, 2] - 0.5) ** 2 + 2 * x[:, 3] - x[:, 4]
    y = (y + 0.1 * draw(step, 48))[:, None]
    dtype = next(model.parameters()).dtype
    return nn.functional.mse_loss(model(((x - 0.5) * 3).to(dtype)).float(), y)


ZERO = D("zero_init", _zero_init, _friedman, adam(3e-3))
WEIGHT = D("weight_norm", _weight_normed, _friedman, sgd(0.05), seed=1)
SPECTRAL = D("spectral_norm", _spectral, _friedman, adam(5e-3), seed=2, logs=False)
BATCH = D("batch_norm", _batch_normed, _friedman, adam(5e-3), seed=3)

CASES = [
    healthy(ZERO),
    healthy(WEIGHT),
    healthy(SPECTRAL),
    healthy(BATCH),
    broken(
        ZERO,
        "bfloat16",
        replace(ZERO, model=lambda: _zero_init().bfloat16(), optimizer=sgd(1e-4)),
        "stale_low_precision",
        "steps_too_small",
    ),
    broken(
        BATCH,
        "statistics_fixed",
        replace(BATCH, late=everywhere(nn.BatchNorm1d, lambda m: m.eval()), logs=False),
        "bn_eval",
        places=("1", "4"),
    ),
    broken(
        WEIGHT,
        "alike",
        replace(WEIGHT, model=_plain, prepare=filled(0.1, "0", "2", "4")),
        "symmetric",
        places=("0", "2", "4"),
    ),
    broken(WEIGHT, "hot", replace(WEIGHT, optimizer=sgd(8.0)), "lr_high", "nonfinite", "exploding"),
    broken(
        SPECTRAL,
        "stops",
        replace(
            SPECTRAL,
            schedule=lambda opt: torch.optim.lr_scheduler.LambdaLR(
                opt, lambda step: float(step < 10)
            ),
        ),
        "updates_stop",
    ),
]
