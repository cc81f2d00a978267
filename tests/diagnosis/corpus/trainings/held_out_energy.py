"""Energies of points, by noise contrast, and scores by denoising, with an optimizer of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy
from trainings.faults import biased, everywhere, times


class Lion(torch.optim.Optimizer):
    """Steps of one size, by the sign of an average."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of each parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                param.sub_(group["lr"] * torch.sign(0.9 * mean + 0.1 * param.grad))
                mean.lerp_(param.grad, 0.01)


def _energy(act: type[nn.Module] = nn.Softplus) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, 1))


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 1),
    )


def _crosses(step: int) -> Tensor:
    x = 1.5 * draw(step, 64, 2)
    lying = draw(step + 1, 64, 1) > 0
    return torch.where(torch.cat([lying, ~lying], 1), x, 0.1 * x)


def _contrast(model: nn.Module, step: int) -> Tensor:
    both = torch.cat([_crosses(step), 1.5 * draw(step + 3, 64, 2)])
    real = (torch.arange(128) < 64).float()
    return nn.functional.binary_cross_entropy_with_logits(-model(both)[:, 0], real)


def _confused(model: nn.Module, step: int) -> Tensor:
    """Every second point of each kind carries the wrong label."""
    both = torch.cat([_crosses(step), 1.5 * draw(step + 3, 64, 2)])
    real = (torch.arange(128) % 2).float()
    return nn.functional.binary_cross_entropy_with_logits(-model(both)[:, 0], real)


def _root_of_energy(model: nn.Module, step: int) -> Tensor:
    """The gradient of the root at 0: 0 / 0 behind a product."""
    both = torch.cat([_crosses(step), 1.5 * draw(step + 3, 64, 2)])
    out = model(both)[:, 0]
    gap = (out - out.detach()).square().sqrt().mean()
    real = (torch.arange(128) < 64).float()
    return nn.functional.binary_cross_entropy_with_logits(-out, real) + 0.01 * gap


def _score(model: nn.Module, step: int) -> Tensor:
    x, noise = _crosses(step), draw(step + 7, 64, 2)
    return nn.functional.mse_loss(model(x + 0.5 * noise), noise)


def _two(act: type[nn.Module] = nn.Softsign) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, 2))


def _lion(lr: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    return lambda params: Lion(params, lr)


ENERGY = D("energy", lambda: _energy(nn.SiLU), _contrast, adam(1e-2), steps=80)
LION = D("energy_lion", lambda: _energy(nn.CELU), _contrast, _lion(1e-2), seed=1, logs=False)
NORMED = D("energy_normed", _normed, _contrast, adam(5e-3), seed=2)
SCORE = D("score", _two, _score, adam(1e-2), seed=3)

CASES = [
    healthy(ENERGY),
    healthy(LION),
    healthy(NORMED),
    healthy(SCORE),
    broken(ENERGY, "root_at_zero", replace(ENERGY, loss=_root_of_energy), "nonfinite"),
    broken(ENERGY, "confused", replace(ENERGY, loss=_confused), "labels"),
    broken(
        NORMED,
        "norms_fixed",
        replace(NORMED, late=everywhere(nn.BatchNorm1d, lambda m: m.eval())),
        "bn_eval",
        places=("1", "4"),
    ),
    broken(NORMED, "dead", replace(NORMED, prepare=biased("1", -12.0)), "dead", places=("2", "1")),
    broken(LION, "hot", replace(LION, optimizer=_lion(1.0)), "lr_high", "exploding"),
    broken(
        SCORE,
        "relu_last",
        replace(SCORE, model=lambda: nn.Sequential(_two(), nn.ReLU())),
        "final_activation",
        places=("1",),
    ),
    broken(
        SCORE,
        "starts_tiny",
        replace(SCORE, prepare=times("0", 1e-5), optimizer=adam(3e-4)),
        "small_init",
        "vanishing",
        places=("0",),
    ),
]
