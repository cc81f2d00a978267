"""A small vision transformer that tells textures apart."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import patches
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import filled, frozen, shuffled, times, without

NAMES = ("brick", "grass", "gravel")


class Block(nn.Module):
    """Attention and a feed-forward part, normed before."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 4, dropout=drop, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.drop = nn.Dropout(drop)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.down(self.drop(self.act(self.up(self.norm2(x)))))


class ViT(nn.Module):
    """Patches of a picture and a class token: float32[B, 1, 16, 16] to logits [B, 3]."""

    def __init__(self, drop: float = 0.1, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        self.blocks = nn.Sequential(*(Block(32, drop) for _ in range(depth)))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        """From the class token."""
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def _batch(step: int) -> tuple[Tensor, Tensor]:
    parts = [patches(step + 10 * i, name, 8, 32)[..., ::2, ::2] for i, name in enumerate(NAMES)]
    return (torch.cat(parts) - 0.45) * 5, torch.arange(3).repeat_interleave(8)


def _loss(model: nn.Module, step: int) -> Tensor:
    x, y = _batch(step)
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(x.to(dtype)).float(), y, label_smoothing=0.05)


def _lost(model: nn.Module, step: int) -> Tensor:
    x, y = _batch(step)
    return nn.functional.cross_entropy(model(x), shuffled(step, y), label_smoothing=0.05)


def _faint(model: nn.Module, step: int) -> Tensor:
    """Pictures divided by 255 once too often."""
    x, y = _batch(step)
    return nn.functional.cross_entropy(model(x / 255 / 5), y, label_smoothing=0.05)


def _steady() -> nn.Module:
    model = ViT(0.0)
    filled(0.0, "blocks.1.down")(model)
    return model


VIT = D("vit", ViT, _loss, adam(3e-3, decay=0.05), clip=1.0, steps=50)
VIT_WARM = replace(
    VIT,
    name="vit_warmed",
    seed=1,
    model=_steady,
    schedule=lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=51),
)
VIT_BF16 = replace(
    VIT, name="vit_autocast", seed=2, context=lambda: torch.autocast("cpu", torch.bfloat16)
)
VIT_SGD = replace(
    VIT,
    name="vit_sgd",
    seed=3,
    optimizer=sgd(0.1, momentum=0.9),
    micro_batches=2,
    logs=False,
    steps=40,
)

CASES = [
    healthy(VIT),
    healthy(VIT_WARM),
    healthy(VIT_BF16),
    healthy(VIT_SGD),
    broken(VIT, "labels_lost", replace(VIT, loss=_lost), "labels"),
    broken(VIT_WARM, "faint", replace(VIT_WARM, loss=_faint), "data_scale", judge=_faint),
    broken(
        VIT_SGD,
        "drops",
        replace(VIT_SGD, model=lambda: ViT(0.96)),
        "dropout_high",
        places=("blocks.0.drop", "blocks.1.drop", "blocks.0.attn"),
    ),
    broken(
        VIT_BF16,
        "weights_in_bfloat16",
        replace(VIT_BF16, model=lambda: ViT().bfloat16(), optimizer=adam(3e-6)),
        "stale_low_precision",
        "steps_too_small",
    ),
    broken(
        VIT_WARM,
        "block_not_given",
        replace(VIT_WARM, trained=without("blocks.1", "head")),
        "not_in_optimizer",
        places=("blocks.1", "head", "blocks.1.norm1", "blocks.1.attn"),
    ),
    broken(
        VIT,
        "up_frozen",
        replace(VIT, prepare=frozen("blocks.0.up", "blocks.1.up")),
        "frozen",
        places=("blocks.0.up", "blocks.1.up"),
    ),
    broken(VIT, "hot", replace(VIT, optimizer=adam(0.5), clip=None), "lr_high"),
    broken(
        VIT_WARM,
        "head_large",
        replace(VIT_WARM, prepare=times("head", 300.0)),
        "large_init",
        places=("head",),
    ),
]
