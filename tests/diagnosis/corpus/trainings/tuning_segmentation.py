"""A U-Net with group norm that finds discs, with a Dice loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import times


class UNet(nn.Module):
    """One level down and up: float32[B, 1, H, W] to logits of the same size."""

    def __init__(self, normed: bool = True, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            norm = nn.GroupNorm(4, outputs) if normed else nn.Identity()
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm, act())

        self.down = block(1, 12)
        self.pool = nn.MaxPool2d(2)
        self.middle = block(12, 24)
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.merge = block(24, 12)
        self.head = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Down, up, and both beside each other."""
        skip = self.down(x)
        up = self.up(self.middle(self.pool(skip)))
        return self.head(self.merge(torch.cat([skip, up], 1)))


def _discs(step: int, num: int = 6, size: int = 20) -> tuple[Tensor, Tensor]:
    axis = torch.linspace(-1, 1, size)
    at = 0.5 * draw(step, num, 2).clamp(-1.5, 1.5)
    distance = (axis[:, None] - at[:, :1, None]) ** 2 + (axis - at[:, 1:, None]) ** 2
    mask = (distance < 0.15).float()[:, None]
    return mask + 0.5 * draw(step + 1, num, 1, size, size), mask


def _dice(step: int, logits: Tensor, mask: Tensor, eps: float = 1.0) -> Tensor:
    p = logits.sigmoid()
    overlap = 2 * (p * mask).sum((1, 2, 3)) + eps
    return (1 - overlap / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + eps)).mean()


def _loss(model: nn.Module, step: int) -> Tensor:
    x, mask = _discs(step)
    logits = model(x)
    both = nn.functional.binary_cross_entropy_with_logits(logits, mask)
    return both + _dice(step, logits, mask)


def _empty(model: nn.Module, step: int) -> Tensor:
    """The ratio of areas, of a mask that is empty in step 25: 0 / 0."""
    x, mask = _discs(step)
    logits = model(x)
    mask = mask * float(step != 25)
    both = nn.functional.binary_cross_entropy_with_logits(logits, mask)
    return both + 0 * (mask.sum() / mask.sum()) * logits.mean()


UNET = D("unet", UNet, _loss, adam(3e-3), steps=40)
UNET_SGD = D("unet_sgd", UNet, _loss, sgd(0.1, momentum=0.9), steps=40, seed=1, logs=False)
UNET_MISH = D("unet_mish", lambda: UNet(False, nn.Mish), _loss, adam(2e-3), steps=40, seed=2)

CASES = [
    healthy(UNET),
    healthy(UNET_SGD),
    healthy(UNET_MISH),
    broken(UNET, "empty_mask", replace(UNET, loss=_empty), "nonfinite"),
    broken(
        UNET_MISH,
        "large_middle",
        replace(UNET_MISH, prepare=times("middle.0", 3000.0)),
        "large_init",
        "exploding",
        places=("middle.0",),
    ),
    broken(
        UNET_SGD,
        "hot",
        replace(UNET_SGD, optimizer=sgd(30.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
    broken(UNET, "decays", replace(UNET, optimizer=adam(3e-3, decay=30.0)), "decay_high"),
]
