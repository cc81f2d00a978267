"""Heart beats with several labels (batch norm, dropout), and a spot that is pointed at."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import filled, shuffled, times
from trainings.parts import fit, mse, on_inputs, on_targets

bce = nn.functional.binary_cross_entropy_with_logits


def _network(drop: float = 0.1, *end: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2),
        nn.BatchNorm1d(16),
        nn.Hardswish(),
        nn.Conv1d(16, 24, 5, stride=2),
        nn.BatchNorm1d(24),
        nn.Hardswish(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Dropout(drop),
        nn.Linear(96, 4),
        *end,
    )


def _beats(step: int) -> tuple[Tensor, Tensor]:
    """Waves of 64 values, of which each label adds one of its own."""
    time = torch.linspace(0, 1, 64)
    labels = pick(step, 2, 32, 4).float()
    phase = draw(step + 1, 32, 4, 1)
    waves = torch.stack([
        torch.sin(6.28 * time * 2 + phase[:, 0]), torch.exp(-(((time - 0.3) * 20) ** 2)) * 2.0
        + 0 * phase[:, 1], torch.sign(torch.sin(6.28 * time * 7 + phase[:, 2])) * 0.7,
        (time - 0.5) * 2 + 0 * phase[:, 3],
    ], 1)  # fmt: skip
    signal = (waves * labels[..., None]).sum(1) + 0.2 * draw(step + 2, 32, 64)
    return signal[:, None], labels


def _focal(out: Tensor, y: Tensor) -> Tensor:
    each = bce(out, y, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


class Pointer(nn.Module):
    """The place of a bright spot: the mean place under a softmax over pixels (or ``over``)."""

    def __init__(self, over: int = 2) -> None:
        super().__init__()
        self.over = over
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(12, 1, 1),
        )
        lines = torch.linspace(-1, 1, 12)
        self.register_buffer("places", torch.cartesian_prod(lines, lines))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 12, 12] to float32[B, 2]."""
        heat = self.body(x).flatten(2).softmax(self.over)[:, 0]
        return heat @ self.get_buffer("places")


def _spots(step: int) -> tuple[Tensor, Tensor]:
    lines = torch.linspace(-1, 1, 12)
    place = draw(step, 32, 2).mul(0.6).clamp(-0.9, 0.9)
    grid = torch.cartesian_prod(lines, lines)
    spot = torch.exp(-((grid[None] - place[:, None]) ** 2).sum(-1) * 12)
    return (spot + 0.15 * draw(step + 1, 32, 144)).view(-1, 1, 12, 12), place


BEATS = D("beats", _network, fit(_beats, bce), adam(4e-3, decay=0.02), steps=60, seed=121)
FOCAL = D(
    "beats_focal",
    _network,
    fit(_beats, _focal),
    lambda params: torch.optim.Adamax(params, lr=1e-2),
    steps=60,
    seed=122,
    logs=False,
)
PROBABLE = D(
    "beats_probable",
    lambda: _network(0.0, nn.Sigmoid()),
    fit(_beats, nn.functional.binary_cross_entropy),
    adam(4e-3),
    steps=60,
    seed=123,
)
POINTER = D("pointer", Pointer, fit(_spots, mse), adam(1e-2), steps=60, seed=124)


def _spike(step: int, x: Tensor) -> Tensor:
    return x + 1e5 * (x == x.amax()) if step == 37 else x


def _keeps_norms_still(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


CASES = [
    *(healthy(each) for each in (BEATS, FOCAL, PROBABLE, POINTER)),
    broken(
        BEATS,
        "norms_in_eval",
        replace(BEATS, late=_keeps_norms_still),
        "bn_eval",
        places=("1", "4"),
    ),
    broken(
        BEATS,
        "spike",
        replace(BEATS, loss=fit(on_inputs(_beats, _spike), bce)),
        "bad_batch",
        judge=BEATS.loss,
    ),
    broken(
        BEATS,
        "sigmoid_twice",
        replace(BEATS, model=lambda: _network(0.1, nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("10",),
    ),
    broken(
        BEATS,
        "of_other_hearts",
        replace(BEATS, loss=fit(on_targets(_beats, shuffled), bce)),
        "labels",
        judge=BEATS.loss,
    ),
    broken(
        FOCAL,
        "drops_all",
        replace(FOCAL, model=lambda: _network(0.98)),
        "dropout_high",
        places=("8",),
    ),
    broken(
        FOCAL,
        "in_microvolts",
        replace(
            FOCAL,
            model=lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(64, 48), nn.Hardswish(), nn.Linear(48, 4)
            ),
            loss=fit(on_inputs(_beats, lambda step, x: x * 1e5), _focal),
        ),
        "data_scale",
        places=("1", "0", "."),
    ),
    broken(
        FOCAL,
        "root_of_nothing",
        replace(
            FOCAL,
            loss=fit(_beats, lambda out, y: ((out - out).abs() + 0).sqrt().mean() + bce(out, y)),
        ),
        "nonfinite",
        judge=FOCAL.loss,
    ),
    broken(
        PROBABLE,
        "starts_certain",
        replace(PROBABLE, prepare=times("9", 2000.0)),
        "large_init",
        "saturated",
        places=("9", "10"),
    ),
    broken(
        POINTER,
        "softmax_over_batch",
        replace(POINTER, model=lambda: Pointer(0)),
        "labels",
        "collapsed",
        "double_softmax",
    ),
    broken(
        POINTER,
        "body_all_alike",
        replace(POINTER, prepare=filled(0.0, "body.0", "body.2", "body.4")),
        "symmetric",
        "small_init",
        places=("body.0", "body.2", "body.4"),
    ),
]
