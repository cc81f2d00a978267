"""Denoising (residual convolutions) and super resolution (pixel shuffle) of pictures."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import patches
from trainings.design import Design as D, adam, broken, draw, healthy
from trainings.faults import biased, frozen, without


class Denoiser(nn.Module):
    """Predicts the noise of a picture: float32[B, 1, H, W] to the same."""

    def __init__(self, detach: bool = False) -> None:
        super().__init__()
        self.detach = detach
        self.head = nn.Conv2d(1, 20, 3, padding=1)
        self.act1 = nn.ReLU()
        self.body = nn.Conv2d(20, 20, 3, padding=1)
        self.act2 = nn.ReLU()
        self.tail = nn.Conv2d(20, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the noise that is found."""
        h = self.act1(self.head(x))
        h = h.detach() if self.detach else h
        return x - self.tail(self.act2(self.body(h)))


class Upscaler(nn.Module):
    """Twice as large, by sub-pixel convolution: float32[B, 1, H, W] to [B, 1, 2H, 2W]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 5, padding=2)
        self.act = nn.PReLU()
        self.second = nn.Conv2d(16, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        """Four values a pixel, put side by side, on top of the nearest."""
        base = nn.functional.interpolate(x, scale_factor=2.0)
        return base + self.shuffle(self.second(self.act(self.first(x))))


def _denoise(model: nn.Module, step: int) -> Tensor:
    clean = patches(step, "camera", 8, 20) - 0.5
    return nn.functional.mse_loss(model(clean + 0.3 * draw(step, *clean.shape)), clean)


def _upscale(model: nn.Module, step: int) -> Tensor:
    large = patches(step, "coins", 8, 24) - 0.5
    return nn.functional.l1_loss(model(nn.functional.avg_pool2d(large, 2)), large)


def _upscale_bytes(model: nn.Module, step: int) -> Tensor:
    large = patches(step, "coins", 8, 24) - 0.5
    small = nn.functional.avg_pool2d(large + 0.5, 2) * 255
    return nn.functional.l1_loss(model(small), large)


def _one_bad(model: nn.Module, step: int) -> Tensor:
    clean = patches(step, "camera", 8, 20) - 0.5
    noisy = clean + 0.3 * draw(step, *clean.shape)
    return nn.functional.mse_loss(model(noisy * (3e4 if step == 31 else 1.0)), clean)


DENOISE = D("denoise", Denoiser, _denoise, adam(3e-3), steps=50)
UPSCALE = D("upscale", Upscaler, _upscale, adam(3e-3), steps=50, seed=1)
COSINE = replace(
    DENOISE,
    name="denoise_cosine",
    seed=2,
    schedule=lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50),
)
BF16 = replace(
    UPSCALE,
    name="upscale_autocast",
    seed=3,
    context=lambda: torch.autocast("cpu", torch.bfloat16),
)

CASES = [
    healthy(DENOISE),
    healthy(UPSCALE),
    healthy(COSINE),
    healthy(BF16),
    broken(
        DENOISE,
        "cut",
        replace(DENOISE, model=lambda: Denoiser(detach=True)),
        "detached",
        places=("head",),
    ),
    broken(
        DENOISE,
        "dead",
        replace(DENOISE, prepare=biased("body", -20.0)),
        "dead",
        places=("act2", "body"),
    ),
    broken(
        UPSCALE,
        "not_given",
        replace(UPSCALE, trained=without("second")),
        "not_in_optimizer",
        places=("second",),
    ),
    broken(
        UPSCALE, "bytes", replace(UPSCALE, loss=_upscale_bytes), "data_scale", judge=_upscale_bytes
    ),
    broken(
        DENOISE,
        "one_batch",
        replace(DENOISE, loss=_one_bad),
        "bad_batch",
    ),
    broken(
        DENOISE,
        "middle_frozen",
        replace(DENOISE, model=lambda: _wide(), prepare=frozen("body")),
        "frozen",
        places=("body",),
    ),
    broken(
        DENOISE,
        "schedule_ends",
        replace(DENOISE, schedule=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 12, gamma=0.0)),
        "updates_stop",
    ),
]


def _wide() -> nn.Module:
    model = Denoiser()
    model.head = nn.Conv2d(1, 20, 15, padding=7)
    return model
