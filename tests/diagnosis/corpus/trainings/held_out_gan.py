"""A generative adversarial network on a ring of eight dots, with an optimizer for each half."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from trainings.case import Case, Watching
from trainings.design import draw, pick

softplus = nn.functional.softplus


class Pair(nn.Module):
    """A generator of points and a critic."""

    def __init__(self, act: type[nn.Module] = nn.LeakyReLU) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2)
        )
        self.judge = nn.Sequential(
            nn.Linear(2, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, 1)
        )

    def forward(self, noise: Tensor, cut: bool) -> Tensor:
        """Scores of the critic for new points; ``cut`` keeps the generator out."""
        points = self.make(noise)
        return self.judge(points.detach() if cut else points)


def _ring(step: int, num: int = 64) -> Tensor:
    angle = pick(step, 8, num, 1) * math.tau / 8
    return torch.cat([angle.cos(), angle.sin()], -1) + 0.05 * draw(step, num, 2)


@dataclass(frozen=True, slots=True)
class Adversaries:
    """One training; the fields are what can be wrong with it."""

    model: Callable[[], nn.Module] = Pair
    prepare: Callable[[nn.Module], object] = lambda model: None
    cuts_always: bool = False
    lr: float = 4e-3
    judge_lr: float = 4e-3
    zeroes_judge: bool = True
    real: Callable[[int], Tensor] = _ring
    steps: int = 120
    seed: int = 0

    def train(self, watching: Watching) -> float:
        """Alternate; how far the new points are from the ring."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model()
            self.prepare(model)
            make, judge = (
                torch.optim.Adam(model.get_submodule(name).parameters(), lr=lr, betas=(0.5, 0.99))
                for name, lr in (("make", self.lr), ("judge", self.judge_lr))
            )
            watched = watching(model)
            for step in range(self.steps):
                if self.zeroes_judge:
                    judge.zero_grad()
                real = model.get_submodule("judge")(self.real(step))
                fake = model(draw(step + 5, 64, 4), True)
                loss = softplus(-real).mean() + softplus(fake).mean()
                loss.backward()
                judge.step()
                make.zero_grad()
                fooled = softplus(-model(draw(step + 9, 64, 4), self.cuts_always)).mean()
                fooled.backward()
                make.step()
                watched.log(loss=float(loss.detach() + fooled.detach()))
                watched.step()
            watched.close()
            points = model.get_submodule("make")(draw(99_999, 256, 4)).detach()
        away = (points[:, None] - _ring(77_777, 256)[None]).norm(dim=-1)
        away = away.amin(0).mean() + away.amin(1).mean()
        return float(away) if away.isfinite() else math.inf


def _far(step: int) -> Tensor:
    return _ring(step) * 200


def _bad(step: int) -> Tensor:
    return _ring(step) * (1e5 if step == 33 else 1)


CASES = [
    Case("gan", Adversaries().train),
    Case("gan_elu", Adversaries(model=lambda: Pair(nn.ELU), seed=1, lr=2e-3).train),
    Case(
        "gan_generator_cut",
        Adversaries(cuts_always=True).train,
        ("detached",),
        ("make", "make.0"),
        "gan",
    ),
    Case("gan_pixels", Adversaries(real=_far).train, ("data_scale",), ("judge", "."), "gan"),
    Case("gan_one_bad_batch", Adversaries(real=_bad).train, ("bad_batch", "nonfinite"), (), "gan"),
    Case("gan_hot", Adversaries(lr=1.0, judge_lr=1.0).train, ("lr_high", "exploding"), (), "gan"),
]
