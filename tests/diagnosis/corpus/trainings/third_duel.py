"""Two that learn at once: a generator and its critic, and experts with a gate between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from trainings.case import Case, Watching
from trainings.design import UNSEEN, Design as D, Loss, adam, broken, draw
from trainings.faults import everywhere, frozen, shuffled, times, without
from trainings.parts import mse, perceptron

with_logits = nn.functional.binary_cross_entropy_with_logits


def _ring(step: int, num: int = 128) -> Tensor:
    """Points on a ring."""
    x = draw(step, num, 2)
    return 1.5 * x / x.norm(dim=1, keepdim=True) + 0.1 * draw(step + 1, num, 2)


class Duel(nn.Module):
    """A generator and a critic."""

    def __init__(self, *end: nn.Module) -> None:
        super().__init__()
        self.maker = perceptron(4, 32, 32, 2)
        self.critic = perceptron(2, 32, 32, 1, act=lambda: nn.LeakyReLU(0.2), end=end)


@dataclass(frozen=True, slots=True)
class Rounds:
    """One training; the fields are what can be wrong with it."""

    model: Callable[[], Duel] = Duel
    prepare: Callable[[nn.Module], object] = lambda model: None
    lr: float = 4e-3
    ahead: float = 4.0
    least_squares: bool = False
    given: str = "maker"
    cut: bool = False
    fooled: bool = False
    steps: int = 110
    seed: int = 241

    def says(self, out: Tensor, real: bool) -> Tensor:
        """How wrong the critic is."""
        aim = torch.full_like(out, float(real))
        return mse(out, aim) if self.least_squares else with_logits(out, aim)

    def train(self, watching: Watching) -> float:
        """Take turns; how far the made cloud is from the ring."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model()
            self.prepare(model)
            given = model.get_submodule(self.given).parameters()
            makes = torch.optim.Adam(given, lr=self.lr, betas=(0.5, 0.9))
            judges = torch.optim.Adam(
                model.critic.parameters(), lr=self.ahead * self.lr, betas=(0.5, 0.9)
            )
            watched = watching(model)
            for step in range(self.steps):
                made = model.maker(torch.randn(128, 4))
                judges.zero_grad()
                real = self.says(model.critic(_ring(step)), True)
                error = real + self.says(model.critic(made.detach()), self.fooled)
                error.backward()
                judges.step()
                makes.zero_grad()
                loss = self.says(model.critic(made.detach() if self.cut else made), True)
                loss.backward()
                makes.step()
                watched.log(loss=float(loss.detach()))
                watched.step()
            watched.close()
            return self.distance(model)

    @torch.no_grad()
    def distance(self, model: Duel) -> float:
        """The mean energy distance of made points and those of the ring."""
        total = 0.0
        for step in UNSEEN:
            made, ring = model.maker(draw(step + 9, 256, 4)), _ring(step, 256)
            inner = torch.cdist(made, made).mean() + torch.cdist(ring, ring).mean()
            total += float(2 * torch.cdist(made, ring).mean() - inner) / len(UNSEEN)
        return total if math.isfinite(total) else math.inf


class Chosen(nn.Module):
    """Each row goes to the one expert that its gate chooses."""

    def __init__(self, *, soft: bool = False, cut: bool = False) -> None:
        super().__init__()
        self.soft, self.cut = soft, cut
        self.gate = nn.Linear(3, 4)
        self.experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """float32[B, 3] to float32[B, 1], and the shares of the experts."""
        shares = (4 * self.gate(x)).softmax(1)
        shares = shares.detach() if self.cut else shares
        answers = torch.cat([expert(x) for expert in self.experts], 1)
        if self.soft:
            return (shares * answers).sum(1, keepdim=True), shares
        best = shares.argmax(1, keepdim=True)
        share = shares.gather(1, best)
        return answers.gather(1, best) * share / share.detach().clamp(min=0.3), shares


def _pieces(step: int) -> tuple[Tensor, Tensor]:
    """A law for each of four corners."""
    x = draw(step, 128, 3)
    corner = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    slopes = torch.tensor([[2.0, 0, 1], [-2, 1, 0], [0, -1, -2], [1, 2, 1]])
    return x, (x * slopes[corner]).sum(1, keepdim=True)


def _balanced(*, balance: float = 0.3, mixes: bool = False) -> Loss:
    """The error, and how uneven the experts are used."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = _pieces(step)
        out, shares = model(x)
        used = shares.mean(0)
        error = mse(out, shuffled(step, y) if mixes else y)
        return error + balance * (4 * used.square().sum() - 1)

    return loss


def _error(model: nn.Module, step: int) -> Tensor:
    x, y = _pieces(step)
    return mse(model(x)[0], y)


def _one_expert(model: nn.Module) -> None:
    """All experts are copies of the first, and the gate does not prefer any."""
    experts = model.get_submodule("experts")
    for expert in experts.children():
        expert.load_state_dict(experts.get_submodule("0").state_dict())
    nn.init.zeros_(model.get_submodule("gate").get_parameter("weight"))
    nn.init.zeros_(model.get_submodule("gate").get_parameter("bias"))


CHOSEN = D("one_expert_each", Chosen, _balanced(), adam(3e-2), steps=120, seed=242)
SHARED = D(
    "experts_together",
    lambda: Chosen(soft=True),
    _balanced(balance=0.0),
    adam(3e-2),
    steps=100,
    seed=243,
)

CASES = [
    Case("duel", Rounds().train),
    Case("duel_squares", Rounds(least_squares=True, lr=5e-3, ahead=1.0, seed=244).train),
    *(
        Case(each.name, lambda watching, each=each: each.train(watching, _error))  # type: ignore[misc]
        for each in (CHOSEN, SHARED)
    ),
    Case(
        "duel_maker_left_out",
        Rounds(given="critic").train,
        ("not_in_optimizer",),
        ("maker", "maker.0", "maker.2", "maker.4"),
        "duel",
    ),
    Case(
        "duel_made_detached",
        Rounds(cut=True).train,
        ("detached",),
        ("maker", "maker.0", "maker.2", "maker.4"),
        "duel",
    ),
    Case("duel_hot", Rounds(lr=3.0).train, ("lr_high", "exploding"), (), "duel"),
    Case(
        "duel_all_is_real",
        Rounds(fooled=True).train,
        ("labels", "too_good", "collapsed"),
        (),
        "duel",
    ),
    Case(
        "duel_maker_alike",
        Rounds(
            prepare=lambda model: everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.3)
            )(model.get_submodule("maker"))
        ).train,
        ("symmetric",),
        ("maker", "maker.0", "maker.2", "maker.4"),
        "duel",
    ),
    Case(
        "duel_squares_critic_huge",
        Rounds(
            least_squares=True, lr=5e-3, ahead=1.0, seed=244, prepare=times("critic.0", 300.0)
        ).train,
        ("large_init", "exploding"),
        ("critic.0", "critic"),
        "duel_squares",
    ),
    Case(
        "duel_squares_slow",
        Rounds(least_squares=True, lr=5e-8, ahead=1.0, seed=244).train,
        ("steps_too_small",),
        (),
        "duel_squares",
    ),
    broken(
        CHOSEN,
        "corners_of_others",
        replace(CHOSEN, loss=_balanced(mixes=True)),
        "labels",
        judge=_error,
    ),
    broken(
        CHOSEN,
        "two_left_out",
        replace(CHOSEN, trained=without("experts.1", "experts.2")),
        "not_in_optimizer",
        places=("experts.1", "experts.2"),
        judge=_error,
    ),
    broken(
        SHARED,
        "gate_detached",
        replace(SHARED, model=lambda: Chosen(soft=True, cut=True)),
        "detached",
        places=("gate",),
        judge=_error,
    ),
    broken(
        SHARED,
        "experts_frozen",
        replace(SHARED, prepare=frozen("experts")),
        "frozen",
        places=("experts", "experts.0", "experts.1", "experts.2", "experts.3"),
        judge=_error,
    ),
    broken(
        SHARED,
        "experts_alike",
        replace(SHARED, prepare=_one_expert),
        "symmetric",
        places=("experts", "experts.0", "experts.1", "experts.2", "experts.3", "gate", "."),
        judge=_error,
    ),
]
