"""Reinforcement: an actor, with or without a critic, keeps a drifting ball in the middle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from trainings.case import Case, Watching
from trainings.faults import shuffled, without

BALLS, TIMES = 24, 12


class Actor(nn.Module):
    """Scores of the three pushes, and a value; ``cut`` keeps the trunk out of both."""

    def __init__(self, act: type[nn.Module] = nn.Tanh, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.trunk = nn.Sequential(nn.Linear(2, 32), act(), nn.Linear(32, 32), act())
        self.push, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """float32[B, 2] to float32[B, 3] and float32[B]."""
        inner = self.trunk(seen)
        inner = inner.detach() if self.cut else inner
        return self.push(inner), self.value(inner)[:, 0]


def _play(model: nn.Module, *, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return what was seen, pushed and earned: [TIMES, BALLS, ...]."""
    place, speed = torch.randn(BALLS) * 1.5, torch.randn(BALLS) * 0.5
    seen, pushed, earned = [], [], []
    with torch.no_grad():
        for _ in range(TIMES):
            seen.append(torch.stack([place, speed], 1) * scale)
            logits, _ = model(seen[-1])
            push = torch.multinomial(logits.softmax(1), 1)[:, 0]
            speed = 0.9 * speed + 0.4 * (push - 1)
            place = place + 0.4 * speed
            pushed.append(push)
            earned.append(-place.abs())
    return torch.stack(seen), torch.stack(pushed), torch.stack(earned)


def _returns(earned: Tensor, discount: float = 0.8) -> Tensor:
    total, found = torch.zeros(BALLS), []
    for each in earned.flip(0):
        total = each + discount * total
        found.append(total)
    return torch.stack(found).flip(0)


@dataclass(frozen=True, slots=True)
class Play:
    """One training; the fields are what can be wrong with it."""

    model: Callable[[], nn.Module] = Actor
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = lambda params: torch.optim.Adam(
        params, lr=1e-2
    )
    trained: Callable[[nn.Module], Iterable[nn.Parameter]] = lambda model: model.parameters()
    critic: bool = True
    pay: float = 1.0
    sees: float = 1.0
    pushes_of_others: bool = False
    masked: bool = False
    entropy: float = 0.01
    zeroes_grad: bool = True
    steps: int = 60
    seed: int = 0

    def loss(self, model: nn.Module) -> Tensor:
        """The policy gradient, the error of the critic, and a little entropy."""
        seen, pushed, earned = (each.detach() for each in _play(model, scale=self.sees))
        returns = _returns(earned * self.pay).flatten()
        logits, value = model(seen.flatten(0, 1))
        logs = logits.log_softmax(1)
        if self.masked:
            # No push is allowed to a ball that is far away.
            allowed = logs.exp() * (seen[..., 0].reshape(-1, 1) < 9)
            logs = (allowed / allowed.sum(1, keepdim=True)).log()
        gained = returns - (value.detach() if self.critic else returns.mean())
        gained = (gained - gained.mean()) / gained.std() if self.pay == 1.0 else gained
        chosen = pushed.flatten()
        chosen = shuffled(3, chosen) if self.pushes_of_others else chosen
        loss = -(logs.gather(1, chosen[:, None])[:, 0] * gained).mean()
        loss = loss + self.entropy * (logs.exp() * logs).sum(1).mean()
        return loss + 0.1 * nn.functional.mse_loss(value, returns) if self.critic else loss

    def train(self, watching: Watching) -> float:
        """Play and learn; how far the balls are from the middle in the end."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model()
            optimizer = self.optimizer(self.trained(model))
            watched = watching(model)
            try:
                for _ in range(self.steps):
                    if self.zeroes_grad:
                        optimizer.zero_grad()
                    loss = self.loss(model)
                    loss.backward()
                    optimizer.step()
                    watched.log(loss=float(loss.detach()))
                    watched.step()
            except RuntimeError:
                # The probabilities of a network that is not finite cannot be drawn from.
                return math.inf
            finally:
                watched.close()
            torch.manual_seed(1)
            try:
                away = -float(_play(model, scale=self.sees)[2].mean())
            except RuntimeError:
                return math.inf
        return away if math.isfinite(away) else math.inf


CRITIC = Play(seed=101, steps=80)
ALONE = Play(critic=False, seed=102, optimizer=lambda params: torch.optim.RMSprop(params, lr=5e-3))
WIDE = Play(lambda: Actor(nn.ReLU), seed=103)

CASES = [
    Case("ball_critic", CRITIC.train),
    Case("ball_alone", ALONE.train),
    Case("ball_relu", WIDE.train),
    Case(
        "ball_critic_hot",
        Play(seed=101, steps=80, optimizer=lambda params: torch.optim.Adam(params, lr=3.0)).train,
        ("lr_high", "exploding"),
        (),
        "ball_critic",
    ),
    Case(
        "ball_critic_push_left_out",
        Play(seed=101, steps=80, trained=without("push")).train,
        ("not_in_optimizer",),
        ("push",),
        "ball_critic",
    ),
    Case(
        "ball_critic_cut",
        Play(lambda: Actor(cut=True), seed=101, steps=80).train,
        ("detached",),
        ("trunk",),
        "ball_critic",
    ),
    Case(
        "ball_critic_pushes_of_others",
        Play(seed=101, steps=80, pushes_of_others=True).train,
        ("labels",),
        (),
        "ball_critic",
    ),
    Case(
        "ball_relu_sees_micrometres",
        Play(lambda: Actor(nn.ReLU), seed=103, sees=1e6).train,
        ("data_scale",),
        ("trunk.0", "trunk", "."),
        "ball_relu",
    ),
    Case(
        "ball_alone_masks_all",
        Play(critic=False, seed=102, masked=True, sees=4.0).train,
        ("nonfinite",),
        (),
        "ball_alone",
    ),
    Case(
        "ball_relu_paid_in_cents",
        Play(
            lambda: Actor(nn.ReLU),
            seed=103,
            pay=1e3,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.05),
        ).train,
        ("lr_high", "exploding", "dead", "nonfinite"),
        (),
        "ball_relu",
    ),
    Case(
        "ball_relu_slow",
        Play(
            lambda: Actor(nn.ReLU),
            seed=103,
            optimizer=lambda params: torch.optim.Adam(params, lr=1e-7),
        ).train,
        ("steps_too_small",),
        (),
        "ball_relu",
    ),
]
