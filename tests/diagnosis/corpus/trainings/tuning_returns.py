"""Rewards and rivals: losses that say little, as of a policy, of values, of two networks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, filled, without

functional = nn.functional
binary = functional.binary_cross_entropy_with_logits


class Policy(nn.Module):
    """Scores of four moves, and what a state is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.move, self.worth = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """float32[B, 6] to float32[B, 4] and float32[B]."""
        inner = self.trunk(state)
        return self.move(inner), self.worth(inner)[:, 0]


class Rivals(nn.Module):
    """A maker of points, and who tells them from true ones."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.tell = nn.Sequential(
            nn.Linear(2, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )

    def forward(self, noise: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of made points for the teller, for the maker, and of true ones."""
        made = self.make(noise)
        for param in self.tell.parameters():
            param.requires_grad_(False)
        fooled = self.tell(made)
        for param in self.tell.parameters():
            param.requires_grad_(True)
        return self.tell(made.detach()), fooled, self.tell(true)


def _states(step: int) -> Tensor:
    return draw(step, 64, 6)


def _pay(state: Tensor, move: Tensor) -> Tensor:
    """The right move is told by the signs of two numbers."""
    right = (state[:, 0] > 0).long() * 2 + (state[:, 1] > 0).long()
    return (move == right).float()


def _reinforce(sign: float = 1.0, lost: bool = False, critic: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        state = _states(step)
        scores, worth = model(state)
        move = torch.multinomial(scores.detach().softmax(1), 1)[:, 0]
        pay = _pay(state, move)
        if lost:
            pay = pay[torch.randperm(len(pay))]
        better = pay - worth.detach() if critic else pay - pay.mean()
        taken = scores.log_softmax(1).gather(1, move[:, None])[:, 0]
        total = -(taken * better).mean() * sign
        return total + 0.5 * (worth - pay).square().mean() if critic else total

    return loss


def _wrong_share(model: nn.Module, step: int) -> Tensor:
    state = _states(step)
    scores, _ = model(state)
    return 1 - _pay(state, scores.argmax(1)).mean()


def _clipped(model: nn.Module, step: int) -> Tensor:
    """The ratio of a proximal policy, against the scores of the same step."""
    state = _states(step)
    scores, worth = model(state)
    move = torch.multinomial(scores.detach().softmax(1), 1)[:, 0]
    pay = _pay(state, move)
    better = pay - worth.detach()
    better = (better - better.mean()) / (better.std() + 1e-6)
    taken = scores.log_softmax(1).gather(1, move[:, None])[:, 0]
    ratio = (taken - taken.detach()).exp()
    least = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better)
    likely = scores.softmax(1)
    entropy = -(likely * likely.clamp_min(1e-9).log()).sum(1).mean()
    return -least.mean() + 0.5 * (worth - pay).square().mean() - 0.01 * entropy


def _values(model: nn.Module, step: int) -> Tensor:
    """Q-learning from transitions at random: targets move with the network."""
    state, after = _states(step), _states(step) * 0.5 + 0.5 * draw(step + 7, 64, 6)
    move = pick(step, 4, 64)
    with torch.no_grad():
        best = model(after)[0].amax(1)
    own = model(state)[0].gather(1, move[:, None])[:, 0]
    return functional.smooth_l1_loss(own, _pay(state, move) + 0.8 * best)


def _points(step: int) -> Tensor:
    turn = draw(step, 64) * 1.5
    return torch.stack([turn.cos(), turn.sin()], 1) + 0.05 * draw(step + 2, 64, 2)


def _rivalry(units: float = 1.0) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        made, fooled, true = model(draw(step + 5, 64, 4), _points(step) * units)
        ones, zeros = torch.ones_like(true), torch.zeros_like(true)
        return (binary(made, zeros) + binary(true, ones)) / 2 + binary(fooled, ones)

    return loss


def _teacher(model: nn.Module, step: int) -> Tensor:
    """Distillation: divergence from a fixed teacher, with a heat of 2."""
    x, y = kept_apart(step, 48, *digits())
    soft = functional.one_hot(y, 10).float() * 4
    return functional.kl_div(
        (model(x.flatten(1)) / 2).log_softmax(1), (soft / 2).softmax(1), reduction="batchmean"
    )


def _dtype_of_half(model: nn.Module, step: int) -> Tensor:
    x, y = kept_apart(step, 48, *digits())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x.flatten(1))
    return functional.cross_entropy(logits.float(), y)


class _Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of the numbers that autograd does not follow."""
        return x.detach()


def _student() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


PLAY = D("returns_policy", Policy, _reinforce(), adam(1e-2), steps=90, seed=641)
CLIPPED = D("returns_clipped", Policy, _clipped, adam(1e-2), steps=90, seed=643, clip=0.5)
VALUES = D(
    "returns_values",
    Policy,
    _values,
    adam(5e-3),
    steps=80,
    seed=644,
    prepare=lambda m: m.worth.requires_grad_(False),
)
RIVALS = D(
    "returns_rivals",
    Rivals,
    _rivalry(),
    lambda p: torch.optim.Adam(p, 2e-3, (0.5, 0.99)),
    steps=90,
    seed=645,
)
TEACHER = D("returns_teacher", _student, _teacher, adam(5e-3), steps=60, seed=646)
HALF = D("returns_half", _student, _dtype_of_half, sgd(0.2), steps=60, seed=647)


CASES = [
    *(healthy(each) for each in (PLAY, CLIPPED, VALUES, RIVALS, TEACHER, HALF)),
    broken(
        TEACHER,
        "away",
        replace(TEACHER, loss=lambda m, s: -_teacher(m, s)),
        "loss_rises",
        "exploding",
        judge=TEACHER.loss,
    ),
    broken(
        PLAY,
        "trunk_left_out",
        replace(PLAY, trained=without("trunk")),
        "not_in_optimizer",
        places=("trunk",),
    ),
    broken(PLAY, "hot", replace(PLAY, optimizer=adam(3.0)), "lr_high", "exploding"),
    broken(
        CLIPPED, "never_cleared", replace(CLIPPED, zeroes_grad=False, clip=None), "no_zero_grad"
    ),
    broken(
        VALUES,
        "alike",
        replace(
            VALUES,
            prepare=lambda m: (m.worth.requires_grad_(False), filled(0.1, "trunk.0", "trunk.2")(m)),
        ),
        "symmetric",
        places=("trunk.0", "trunk.2"),
    ),
    broken(
        RIVALS,
        "maker_dead",
        replace(RIVALS, prepare=biased("make.0", -40.0)),
        "dead",
        places=("make.1",),
    ),
    broken(HALF, "stands", replace(HALF, optimizer=sgd(1e-7)), "steps_too_small"),
    broken(
        HALF,
        "hidden_cut",
        replace(
            HALF,
            model=lambda: nn.Sequential(nn.Linear(64, 48), nn.ReLU(), _Cut(), nn.Linear(48, 10)),
        ),
        "detached",
        places=("0",),
    ),
]
