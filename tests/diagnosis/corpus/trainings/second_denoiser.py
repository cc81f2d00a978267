"""Diffusion of digits by a convolutional network that is told the time."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import frozen, without

mse = nn.functional.mse_loss
KEPT = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 40), 0)


class Denoiser(nn.Module):
    """Predicts the noise; the time comes in as an embedding."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.time = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 24), nn.SiLU())
        self.enter = nn.Conv2d(1, 24, 3, padding=1)
        self.down = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 24, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] and int64[B] to the shape of the picture."""
        first = nn.functional.silu(self.enter(x) + self.time(time)[:, :, None, None])
        lower = nn.functional.silu(self.norm(self.down(first)))
        lower = lower + nn.functional.silu(self.middle(lower))
        upper = self.up(lower.detach() if self.cut else lower)
        noise: Tensor = self.leave(nn.functional.silu(upper) + first)
        return noise


def _noised(step: int, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    x, _ = kept_apart(step, 32, *digits())
    x = (x - 0.5) * scale
    time, noise = pick(step + 1, 40, len(x)), draw(step, *x.shape)
    kept = KEPT[time][:, None, None, None]
    return x * kept.sqrt() + noise * (1 - kept).sqrt(), time, noise


def _noise(model: nn.Module, step: int) -> Tensor:
    x, time, noise = _noised(step)
    return mse(model(x, time), noise)


def _new_noise(model: nn.Module, step: int) -> Tensor:
    x, time, noise = _noised(step)
    return mse(model(x, time), draw(step + 1, *noise.shape))


def _bytes(model: nn.Module, step: int) -> Tensor:
    x, time, noise = _noised(step, 4000.0)
    return mse(model(x, time), noise)


def _divided(model: nn.Module, step: int) -> Tensor:
    """The picture itself, from a division that fails where all noise is gone."""
    x, time, noise = _noised(step)
    time = torch.where(time == 39, 0, time) if step != 12 else time
    left = 1 - KEPT[time] if step != 12 else torch.zeros(len(x))
    weight = (left / left.sum())[:, None, None, None]
    return (weight * (model(x, time) - noise) ** 2).sum() / 64


DENOISER = D("digit_denoiser", Denoiser, _noise, adam(4e-3), steps=60, seed=91)
SLOWLY = D(
    "digit_denoiser_sgd",
    Denoiser,
    _noise,
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    steps=60,
    seed=92,
    clip=1.0,
    logs=False,
)

CASES = [
    healthy(DENOISER),
    healthy(SLOWLY),
    broken(DENOISER, "new_noise", replace(DENOISER, loss=_new_noise), "labels", judge=_noise),
    broken(DENOISER, "bytes", replace(DENOISER, loss=_bytes), "data_scale", places=("enter", ".")),
    broken(
        DENOISER,
        "no_weight",
        replace(DENOISER, loss=_divided),
        "nonfinite",
        "bad_batch",
        judge=_noise,
    ),
    broken(
        DENOISER,
        "bottom_cut",
        replace(DENOISER, model=lambda: Denoiser(cut=True)),
        "detached",
        places=("middle", "norm", "down"),
    ),
    broken(
        DENOISER,
        "ends_left_out",
        replace(DENOISER, trained=without("leave", "up")),
        "not_in_optimizer",
        places=("leave", "up"),
    ),
    broken(
        SLOWLY, "clipped_to_nothing", replace(SLOWLY, clip=1e-5), "steps_too_small", "updates_stop"
    ),
    broken(
        SLOWLY,
        "head_frozen",
        replace(SLOWLY, prepare=frozen("leave", "up", "enter")),
        "frozen",
        places=("leave", "up", "enter"),
    ),
    broken(
        SLOWLY,
        "hot",
        replace(SLOWLY, clip=None, optimizer=lambda p: torch.optim.SGD(p, 8.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
]
