"""A mixture of experts: a gate sends each point to two of four."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy
from trainings.faults import biased, filled, without


class Experts(nn.Module):
    """Weighted by the gate: float32[B, 6] to [B, 1], and a loss of balance."""

    def __init__(self, hard: bool = False) -> None:
        super().__init__()
        self.hard = hard
        self.enter = nn.Linear(6, 32)
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(4)
        )
        self.norm = nn.LayerNorm(32)
        self.leave = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two experts each; ``hard`` takes the best alone, which no gradient passes."""
        h = torch.nn.functional.gelu(self.enter(x))
        share = self.gate(h).softmax(-1)
        best, index = share.topk(2, -1)
        weights = torch.zeros_like(share).scatter(-1, index, best / best.sum(-1, keepdim=True))
        if self.hard:
            weights = nn.functional.one_hot(share.argmax(-1), 4).float()
        each = torch.stack([expert(h) for expert in self.experts], 1)
        mixed = h + (weights[..., None] * each).sum(1)
        balance = (share.mean(0) * weights.detach().mean(0)).sum() * 4
        return self.leave(self.norm(mixed)), 0 * balance if self.hard else balance


def _fields(model: nn.Module, step: int) -> Tensor:
    x = draw(step, 64, 6)
    y = torch.where(
        x[:, :1] > 0, x[:, 1:2] * 2 + 1, torch.where(x[:, 1:2] > 0, -x[:, 2:3], x[:, 3:4])
    )
    found, balance = model(x)
    return nn.functional.smooth_l1_loss(found, y) + 0.01 * balance


EXPERTS = D("experts", Experts, _fields, adam(5e-3))
EXPERTS_RMS = D(
    "experts_rmsprop",
    Experts,
    _fields,
    lambda p: torch.optim.RMSprop(p, lr=2e-3),
    seed=1,
    clip=1.0,
    logs=False,
)

CASES = [
    healthy(EXPERTS),
    healthy(EXPERTS_RMS),
    broken(
        EXPERTS,
        "gate_cut",
        replace(EXPERTS, model=lambda: Experts(hard=True)),
        "detached",
        places=("gate",),
    ),
    broken(
        EXPERTS,
        "expert_dead",
        replace(EXPERTS, prepare=biased("experts.2.0", -40.0)),
        "dead",
        places=("experts.2.1", "experts.2.0"),
    ),
    broken(
        EXPERTS_RMS,
        "experts_alike",
        replace(
            EXPERTS_RMS,
            prepare=filled(0.1, "experts.0.0", "experts.1.0", "experts.2.0", "experts.3.0"),
        ),
        "symmetric",
        places=("experts.0.0", "experts.1.0", "experts.2.0", "experts.3.0"),
    ),
    broken(
        EXPERTS,
        "experts_not_given",
        replace(EXPERTS, trained=without("experts")),
        "not_in_optimizer",
        places=("experts", "experts.0.0", "experts.0.2", "experts.1.0"),
    ),
    broken(EXPERTS, "hot", replace(EXPERTS, optimizer=adam(1.0)), "lr_high"),
]
