"""Reinforcement: policy gradients on a contextual bandit, and Q-learning on a walk."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import times

ARMS = 5


class Policy(nn.Module):
    """Preferences and a baseline: float32[B, 8] to [B, ARMS] and [B]."""

    def __init__(self, act: type[nn.Module] = nn.Tanh, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.body = nn.Sequential(nn.Linear(8, 48), act(), nn.Linear(48, 48), act())
        self.arms = nn.Linear(48, ARMS)
        self.value = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads of one body."""
        h = self.body(x)
        value = self.value(h)[:, 0]
        return self.arms(h), value.detach() if self.cut else value


def _reward(x: Tensor, arm: Tensor) -> Tensor:
    return (x[:, :ARMS].argmax(-1) == arm).float()


def _act(model: nn.Module, step: int, unit: float = 1.0) -> tuple[Tensor, ...]:
    x = draw(step, 64, 8)
    preferences, value = model(x * unit)
    chance = preferences.log_softmax(-1)
    noise = torch.rand(64, ARMS, generator=torch.Generator().manual_seed(step))
    arm = (chance.detach() - torch.log(-torch.log(noise.clamp(1e-9, 1 - 1e-7)))).argmax(-1)
    return chance, value, arm, _reward(x, arm)


def _gradient(model: nn.Module, step: int, sign: float = 1.0, unit: float = 1.0) -> Tensor:
    chance, value, arm, reward = _act(model, step, unit)
    taken = chance.gather(1, arm[:, None])[:, 0]
    policy = -sign * ((reward - value.detach()) * taken).mean()
    entropy = -(chance.exp() * chance).sum(-1).mean()
    return 2 * policy + 0.5 * (value - reward).square().mean() - 0.01 * entropy


def _regret(model: nn.Module, step: int) -> Tensor:
    """How often the best arm is not the preferred one."""
    x = draw(step, 256, 8)
    return 1 - _reward(x, model(x)[0].argmax(-1)).mean()


def _regret_in_units(model: nn.Module, step: int) -> Tensor:
    x = draw(step, 256, 8)
    return 1 - _reward(x, model(x * 300)[0].argmax(-1)).mean()


def _unscaled(model: nn.Module, step: int) -> Tensor:
    return _gradient(model, step, unit=300.0)


def _walk(model: nn.Module, step: int) -> Tensor:
    place, move = pick(step, 10, 64), pick(step + 1, 2, 64)
    after = (place + 2 * move - 1).clamp(0, 9)
    reward = (after == 9).float()
    one_hot = nn.functional.one_hot
    with torch.no_grad():
        aim = reward + 0.8 * model(one_hot(after, 10).float()).amax(-1) * (1 - reward)
    found = model(one_hot(place, 10).float()).gather(1, move[:, None])[:, 0]
    return nn.functional.smooth_l1_loss(found, aim)


def _values(model: nn.Module, step: int) -> Tensor:
    """Against the values that are known: 0.8 to the number of steps that are left."""
    place = torch.arange(9)
    best = 0.8 ** (8 - place).float()
    return (model(nn.functional.one_hot(place, 10).float()).amax(-1) - best).square().mean()


def _q() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2))


BANDIT = D("bandit", Policy, _gradient, adam(1e-2), steps=100)
BANDIT_RELU = D(
    "bandit_relu", lambda: Policy(nn.ReLU), _gradient, adam(1e-2), seed=1, clip=0.5, steps=100
)
WALK = D("walk", _q, _walk, adam(1e-2), seed=2, steps=100)

CASES = [
    replace(healthy(BANDIT), train=lambda watching: BANDIT.train(watching, _regret)),
    replace(healthy(BANDIT_RELU), train=lambda watching: BANDIT_RELU.train(watching, _regret)),
    replace(healthy(WALK), train=lambda watching: WALK.train(watching, _values)),
    broken(
        BANDIT,
        "value_cut",
        replace(BANDIT, model=lambda: Policy(cut=True)),
        "detached",
        places=("value",),
        judge=_regret,
    ),
    broken(
        BANDIT,
        "unscaled",
        replace(BANDIT, loss=_unscaled),
        "data_scale",
        "saturated",
        judge=_regret_in_units,
    ),
    broken(
        BANDIT,
        "saturates",
        replace(BANDIT, prepare=times("body.2", 150.0)),
        "saturated",
        "large_init",
        places=("body.3", "body.2"),
        judge=_regret,
    ),
    broken(
        BANDIT_RELU,
        "arms_large",
        replace(BANDIT_RELU, prepare=times("arms", 500.0)),
        "large_init",
        places=("arms",),
        judge=_regret,
    ),
    broken(
        WALK,
        "stops",
        replace(
            WALK,
            schedule=lambda opt: torch.optim.lr_scheduler.LambdaLR(
                opt, lambda step: max(0.0, 1 - step / 8)
            ),
        ),
        "updates_stop",
        judge=_values,
    ),
    broken(WALK, "hot", replace(WALK, optimizer=adam(3.0)), "lr_high", judge=_values),
]
