"""Handwritten digits by an MLP-mixer (OneCycle) and by a residual network (Nesterov, cosine)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.data import digits, kept_apart
from trainings.design import Design as D, adam, broken, healthy
from trainings.faults import filled, frozen, times, without
from trainings.parts import fit, flipped, on_inputs


class Mix(nn.Module):
    """Mixes tokens, then channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, tokens, width] to the same shape."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        done: Tensor = x + self.channels(self.norm2(x))
        return done


class Mixer(nn.Module):
    """Patches of 2x2, two blocks; ``scrambled`` reshapes where it should permute."""

    def __init__(self, *, scrambled: bool = False) -> None:
        super().__init__()
        self.scrambled = scrambled
        self.embed = nn.Linear(4, 24)
        self.blocks = nn.ModuleList([Mix(16, 24), Mix(16, 24)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to float32[B, 10]."""
        patches = nn.functional.unfold(x, 2, stride=2)
        if self.scrambled:
            # The samples go last, as in a network that takes them so, and come back by a reshape.
            x = patches.permute(2, 1, 0).reshape(len(x), 16, 4)
        else:
            x = patches.transpose(1, 2)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class Step(nn.Module):
    """A residual block; the scale of its last norm begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, width, H, W] to the same shape."""
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        done: Tensor = (x + inner).relu()
        return done


class Residual(nn.Module):
    """A stem, two blocks and a head; ``cut`` detaches between the blocks."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.block1, self.block2, self.head = Step(16), Step(16), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to float32[B, 10]."""
        x = self.block1(self.stem(x).relu())
        x = nn.functional.avg_pool2d(x.detach() if self.cut else x, 2)
        logits: Tensor = self.head(self.block2(x).flatten(1))
        return logits


def _batch(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 48, *digits())
    return (x - 0.3) / 0.37, y


def _cycle(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=81)


def _dies(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.ExponentialLR(optimizer, 0.5)


def _stops(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.MultiStepLR(optimizer, [6], gamma=0.0)


MIXER = D("mixer", Mixer, fit(_batch), adam(decay=0.05), steps=80, schedule=_cycle, seed=21)
RESIDUAL = D(
    "residual",
    Residual,
    fit(_batch, lambda out, y: nn.functional.cross_entropy(out, y, label_smoothing=0.1)),
    lambda params: torch.optim.SGD(params, lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4),
    steps=50,
    schedule=lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 50),
    seed=22,
)
ACCUMULATED = replace(RESIDUAL, name="residual_accumulated", micro_batches=3, steps=25, seed=23)


def _shifted(step: int, x: Tensor) -> Tensor:
    return x + 2000.0


CASES = [
    healthy(MIXER),
    healthy(RESIDUAL),
    healthy(ACCUMULATED),
    broken(
        MIXER,
        "embed_left_out",
        replace(MIXER, trained=without("embed", "blocks.0")),
        "not_in_optimizer",
        places=("embed", "blocks.0"),
    ),
    broken(MIXER, "decays", replace(MIXER, optimizer=adam(decay=60.0)), "decay_high"),
    broken(
        MIXER,
        "schedule_dies",
        replace(MIXER, schedule=_dies, optimizer=adam(3e-3)),
        "updates_stop",
        "steps_too_small",
    ),
    broken(
        MIXER,
        "schedule_ends",
        replace(MIXER, schedule=_stops, optimizer=adam(3e-3), logs=False),
        "updates_stop",
    ),
    broken(MIXER, "scrambled", replace(MIXER, model=lambda: Mixer(scrambled=True)), "labels"),
    broken(
        MIXER,
        "head_starts_huge",
        replace(MIXER, prepare=times("head", 300.0)),
        "large_init",
        places=("head",),
    ),
    broken(
        MIXER,
        "embed_all_alike",
        replace(MIXER, prepare=filled(0.0, "embed", "head")),
        "symmetric",
        "small_init",
        places=("embed", "head"),
    ),
    broken(
        RESIDUAL,
        "cut",
        replace(RESIDUAL, model=lambda: Residual(cut=True)),
        "detached",
        places=("block1", "stem"),
    ),
    broken(
        RESIDUAL,
        "flipped",
        replace(RESIDUAL, loss=flipped(RESIDUAL.loss)),
        "loss_rises",
        judge=RESIDUAL.loss,
    ),
    broken(
        RESIDUAL,
        "stem_frozen",
        replace(RESIDUAL, prepare=frozen("stem", "block1")),
        "frozen",
        places=("stem", "block1"),
    ),
    broken(
        RESIDUAL,
        "far_from_zero",
        replace(RESIDUAL, loss=fit(on_inputs(_batch, _shifted))),
        "data_scale",
        places=("stem", "."),
    ),
    broken(ACCUMULATED, "never_cleared", replace(ACCUMULATED, zeroes_grad=False), "no_zero_grad"),
]
