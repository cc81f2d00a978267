"""Two towers for retrieval: users and items meet in one space (InfoNCE)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, times

ITEMS = 64


def _tower(act: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 48), act, nn.Linear(48, 16))


class Towers(nn.Module):
    """Cosine scores of all pairs: float32[B, 12], int64[B] to float32[B, B]."""

    def __init__(
        self, act: type[nn.Module] = nn.ReLU, cut: bool = False, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.cut = cut
        self.user = _tower(act())
        self.item = nn.Embedding(ITEMS, 12)
        self.item_tower = _tower(act())
        self.heat = nn.Parameter(torch.tensor(2.0))
        self.after = nn.Identity() if after is None else after

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Rows are users, columns are items."""
        a = nn.functional.normalize(self.user(user), dim=-1)
        b = nn.functional.normalize(self.item_tower(self.item(item)), dim=-1)
        b = b.detach() if self.cut else b
        return self.after(a @ b.T * self.heat.exp())


def _taste() -> Tensor:
    return draw(424_242, ITEMS, 12)


def _pairs(step: int) -> tuple[Tensor, Tensor]:
    item = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(step))[:24]
    return _taste()[item] + 0.7 * draw(step, 24, 12), item


def _info(model: nn.Module, step: int) -> Tensor:
    user, item = _pairs(step)
    scores, aim = model(user, item), torch.arange(24)
    cross = nn.functional.cross_entropy
    return (cross(scores, aim) + cross(scores.T, aim)) / 2


def _mixed(model: nn.Module, step: int) -> Tensor:
    """Items in another order than their users."""
    user, item = _pairs(step)
    other = item[torch.randperm(24, generator=torch.Generator().manual_seed(step + 1))]
    return nn.functional.cross_entropy(model(user, other), torch.arange(24))


def _one_way(model: nn.Module, step: int) -> Tensor:
    user, item = _pairs(step)
    return nn.functional.cross_entropy(model(user, item), torch.arange(24))


def _hours(model: nn.Module, step: int) -> Tensor:
    """One feature of the user is a time in seconds."""
    user, item = _pairs(step)
    user = torch.cat([user[:, :11], 3600.0 * pick(step, 24, 24, 1)], 1)
    return nn.functional.cross_entropy(model(user, item), torch.arange(24))


TOWERS = D("towers", Towers, _info, adam(1e-2))
TOWERS_ELU = D(
    "towers_elu", lambda: Towers(nn.ELU), _one_way, sgd(0.5, momentum=0.9), seed=1, clip=1.0
)
TOWERS_TANH = D("towers_tanh", lambda: Towers(nn.Tanh), _one_way, adam(1e-2), seed=2, logs=False)

CASES = [
    healthy(TOWERS),
    healthy(TOWERS_ELU),
    healthy(TOWERS_TANH),
    broken(TOWERS, "pairs_mixed", replace(TOWERS, loss=_mixed), "labels", "collapsed"),
    broken(
        TOWERS,
        "items_cut",
        replace(TOWERS, model=lambda: Towers(cut=True)),
        "detached",
        places=("item_tower", "item", "item_tower.0"),
    ),
    broken(TOWERS_ELU, "seconds", replace(TOWERS_ELU, loss=_hours), "data_scale", judge=_hours),
    broken(
        TOWERS,
        "user_dead",
        replace(TOWERS, prepare=biased("user.0", -15.0)),
        "dead",
        places=("user.1", "user.0"),
    ),
    broken(
        TOWERS_TANH,
        "user_saturates",
        replace(TOWERS_TANH, prepare=times("user.0", 80.0)),
        "saturated",
        "large_init",
        places=("user.1", "user.0"),
    ),
    broken(
        TOWERS_ELU,
        "softmax_of_scores",
        replace(TOWERS_ELU, model=lambda: Towers(nn.ELU, after=nn.Softmax(-1))),
        "double_softmax",
        places=("after",),
    ),
    broken(
        TOWERS_TANH, "decays", replace(TOWERS_TANH, optimizer=adam(1e-2, decay=15.0)), "decay_high"
    ),
]
