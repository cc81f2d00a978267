"""Digits by adversaries: a hinge loss, and Wasserstein's with a penalty."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from trainings.case import Case, Watching
from trainings.data import digits, kept_apart
from trainings.design import draw

relu = nn.functional.relu


class Pair(nn.Module):
    """A generator of digits and a critic; ``end`` comes after the critic."""

    def __init__(self, act: type[nn.Module] = nn.LeakyReLU, end: nn.Module | None = None) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid()
        )
        self.judge = nn.Sequential(
            nn.Linear(64, 48),
            act(),
            nn.Linear(48, 32),
            act(),
            nn.Linear(32, 1),
            end or nn.Identity(),
        )

    def forward(self, noise: Tensor, real: Tensor, cut: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of new and of real digits, and the new digits."""
        new = self.make(noise)
        new = new.detach() if cut else new
        return self.judge(new), self.judge(real), new


def _real(step: int) -> Tensor:
    x, _ = kept_apart(step, 32, *digits())
    return x.flatten(1)


@dataclass(frozen=True, slots=True)
class Adversaries:
    """One training; the fields are what can be wrong with it."""

    model: Callable[[], nn.Module] = Pair
    prepare: Callable[[nn.Module], object] = lambda model: None
    hinge: bool = True
    logs_of_scores: bool = False
    cuts_always: bool = False
    zeroes: bool = True
    lrs: tuple[float, float] = (3e-3, 3e-3)
    names: tuple[str, str] = ("make", "judge")
    steps: int = 90
    seed: int = 151

    def _losses(self, model: nn.Module, step: int) -> tuple[Tensor, Callable[[], Tensor]]:
        fake, true, new = model(draw(step + 5, 32, 8), _real(step), True)
        if self.logs_of_scores:
            critic = -(true.log().mean() + (1 - fake).log().mean())
        elif self.hinge:
            critic = relu(1 - true).mean() + relu(1 + fake).mean()
        else:
            critic = fake.mean() - true.mean() + self._penalty(model, new, _real(step))

        def fool() -> Tensor:
            again, _, _ = model(draw(step + 9, 32, 8), _real(step), self.cuts_always)
            return (1 - again).log().mean() if self.logs_of_scores else -again.mean()

        return critic, fool

    def _penalty(self, model: nn.Module, new: Tensor, real: Tensor) -> Tensor:
        between = (0.5 * new + 0.5 * real).detach().requires_grad_()
        score = model.get_submodule("judge")(between).sum()
        slope = torch.autograd.grad(score, between, create_graph=True)[0]
        return 10 * ((slope.square().sum(1) + 1e-12).sqrt() - 1).square().mean()

    def train(self, watching: Watching) -> float:
        """Alternate; how far the mean and spread of new digits are from those of real ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model()
            self.prepare(model)
            make, judge = (
                torch.optim.Adam(model.get_submodule(name).parameters(), lr=lr, betas=(0.5, 0.9))
                for name, lr in zip(self.names, self.lrs, strict=True)
            )
            watched = watching(model)
            for step in range(self.steps):
                if self.zeroes:
                    judge.zero_grad()
                critic, fool = self._losses(model, step)
                critic.backward()
                judge.step()
                if self.zeroes:
                    make.zero_grad()
                fooled = fool()
                if fooled.requires_grad:
                    fooled.backward()
                make.step()
                watched.log(loss=float(critic.detach() + fooled.detach()))
                watched.step()
            watched.close()
            new = model.get_submodule("make").eval()(draw(99_999, 256, 8)).detach()
        real = digits()[0].flatten(1)
        away = float((new.mean(0) - real.mean(0)).norm() + (new.std(0) - real.std(0)).norm())
        return away if math.isfinite(away) else math.inf


def _certain(model: nn.Module) -> None:
    for name in ("judge.0", "judge.2", "judge.4"):
        with torch.no_grad():
            model.get_submodule(name).get_parameter("weight").mul_(60)


CASES = [
    Case("adversaries_hinge", Adversaries().train),
    Case(
        "adversaries_penalty", Adversaries(hinge=False, model=lambda: Pair(nn.SiLU), seed=152).train
    ),
    Case(
        "adversaries_hinge_generator_cut",
        Adversaries(cuts_always=True).train,
        ("detached",),
        ("make",),
        "adversaries_hinge",
    ),
    Case(
        "adversaries_hinge_generator_left_out",
        Adversaries(names=("judge", "judge")).train,
        ("not_in_optimizer",),
        ("make",),
        "adversaries_hinge",
    ),
    Case(
        "adversaries_hinge_never_cleared",
        Adversaries(zeroes=False).train,
        ("no_zero_grad",),
        (),
        "adversaries_hinge",
    ),
    Case(
        "adversaries_hinge_hot",
        Adversaries(lrs=(2.0, 2.0)).train,
        ("lr_high", "exploding"),
        (),
        "adversaries_hinge",
    ),
    Case(
        "adversaries_hinge_certain_critic",
        Adversaries(
            model=lambda: Pair(end=nn.Sigmoid()), logs_of_scores=True, prepare=_certain
        ).train,
        ("nonfinite", "large_init", "saturated"),
        ("judge",),
        "adversaries_hinge",
    ),
]
