"""Depth: Euler steps of a field, a fixed point, gates, plain layers, and routing by agreement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.data import digits, kept_apart
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import everywhere, shuffled, times, without
from trainings.parts import fit, mse, on_inputs, on_targets, perceptron

Act = Callable[[], nn.Module]


class Field(nn.Module):
    """Points move along a learnt field, in 12 steps of Euler; a linear layer tells them apart."""

    def __init__(self, pace: float = 0.15) -> None:
        super().__init__()
        self.pace = pace
        self.field = perceptron(4, 24, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 2] to logits [B, 2]."""
        x = torch.cat([x, torch.zeros(len(x), 1)], 1)
        for step in range(12):
            time = torch.full((len(x), 1), step / 12)
            x = x + self.pace * self.field(torch.cat([x, time], 1))
        logits: Tensor = self.head(x)
        return logits


class Balanced(nn.Module):
    """The fixed point of a layer, after 15 rounds."""

    def __init__(self, *, bounded: bool = True) -> None:
        super().__init__()
        self.bounded = bounded
        self.into, self.again = nn.Linear(6, 32), nn.Linear(32, 32, bias=False)
        self.out = nn.Linear(32, 1)
        nn.init.normal_(self.again.weight, std=0.5 / 32**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 6] to float32[B, 1]."""
        given = self.into(x)
        state = torch.zeros_like(given)
        for _ in range(15):
            state = given + self.again(state)
            state = state.tanh() if self.bounded else state
        done: Tensor = self.out(state)
        return done


class Gated(nn.Module):
    """A layer, and a gate that lets its input pass."""

    def __init__(self, width: int, carry: float = 2.0) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -carry)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, width] to the same shape."""
        gate = self.gate(x).sigmoid()
        return gate * torch.tanh(self.change(x)) + (1 - gate) * x


class Capsules(nn.Module):
    """Small vectors vote for classes; who agrees is listened to."""

    def __init__(self, *, safe: bool = True, rounds: int = 3) -> None:
        super().__init__()
        self.safe, self.rounds = safe, rounds
        self.conv = nn.Conv2d(1, 32, 3, stride=2)
        self.votes = nn.Parameter(0.1 * torch.randn(36, 10, 8, 8))

    def squash(self, x: Tensor) -> Tensor:
        """Keep the direction, with a length below 1."""
        square = x.square().sum(-1, keepdim=True)
        return x * square / (1 + square) / (square + 1e-8 if self.safe else square).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to the lengths of the classes' vectors: float32[B, 10]."""
        parts = self.conv(x).relu().flatten(2).transpose(1, 2).reshape(len(x), 36, 8)
        votes = torch.einsum("bni,ncio->bnco", self.squash(parts), self.votes)
        heard = torch.zeros(len(x), 36, 10)
        for _ in range(self.rounds):
            agreed = self.squash((heard.softmax(2)[..., None] * votes).sum(1))
            heard = heard + (votes.detach() * agreed.detach()[:, None]).sum(-1)
        return (agreed.square().sum(-1) + 1e-8).sqrt()


def _rings(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 64, 2)
    x = x / x.norm(dim=1, keepdim=True)
    y = draw(step + 1, 64) > 0
    size = torch.where(y, 1.0, 0.4) + 0.1 * draw(step + 2, 64)
    return x * size[:, None] * 1.5, y.long()


def _sums(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 64, 6)
    return x, (x[:, :2].prod(1) + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3])[:, None]


def _digits(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 40, *digits())
    return x, y


def _margins(lengths: Tensor, y: Tensor) -> Tensor:
    right = nn.functional.one_hot(y, 10).float()
    short, long = (0.9 - lengths).clamp(min=0), (lengths - 0.1).clamp(min=0)
    return (right * short.square() + 0.5 * (1 - right) * long.square()).sum(1).mean()


def _gates() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 24), *(Gated(24) for _ in range(10)), nn.Linear(24, 1))


def _deep(act: Act = nn.ReLU, depth: int = 10) -> nn.Sequential:
    layers = perceptron(6, *[32] * depth, 1, act=act)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return layers


def _all_times(factor: float) -> Callable[[nn.Module], None]:
    return everywhere(nn.Linear, lambda layer: layer.weight.data.mul_(factor))


def _smoothly(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=101)


EULER = D("euler_rings", Field, fit(_rings), adam(1e-2), steps=80, seed=41)
FIXED = D("fixed_point", Balanced, fit(_sums, mse), adam(5e-3), steps=90, seed=42, clip=2.0)
GATES = D(
    "gates",
    _gates,
    fit(_sums, nn.functional.smooth_l1_loss),
    adam(2e-3),
    steps=100,
    seed=43,
    schedule=_smoothly,
)
DEEP = D("ten_deep", _deep, fit(_sums, mse), adam(2e-3), steps=100, seed=44)
ROUTED = D("capsules", Capsules, fit(_digits, _margins), adam(1e-2), steps=50, seed=45)

CASES = [
    *(healthy(each) for each in (EULER, FIXED, GATES, DEEP, ROUTED)),
    broken(
        EULER,
        "strides",
        replace(EULER, model=lambda: Field(40.0)),
        "exploding",
        "large_init",
    ),
    broken(
        EULER,
        "never_cleared",
        replace(EULER, zeroes_grad=False, optimizer=adam(5e-2)),
        "no_zero_grad",
    ),
    broken(
        EULER,
        "points_in_micrometres",
        replace(EULER, loss=fit(on_inputs(_rings, lambda _, x: x * 1e6))),
        "data_scale",
        places=("field.0", "field", "."),
        judge=fit(on_inputs(_rings, lambda _, x: x * 1e6)),
    ),
    broken(
        EULER,
        "field_left_out",
        replace(EULER, trained=without("field")),
        "not_in_optimizer",
        places=("field.0", "field.2", "field"),
    ),
    broken(
        FIXED,
        "tanh_forgotten",
        replace(FIXED, model=lambda: Balanced(bounded=False)),
        "no_activation",
        places=("into", "again", "out", "."),
    ),
    broken(
        FIXED,
        "rounds_of_ones",
        replace(FIXED, prepare=times("again", 60.0)),
        "saturated",
        "large_init",
        places=("again", "."),
    ),
    broken(
        FIXED,
        "of_other_rows",
        replace(FIXED, loss=fit(on_targets(_sums, shuffled), mse)),
        "labels",
        judge=fit(_sums, mse),
    ),
    broken(
        GATES,
        "no_carry_of_sigmoids",
        replace(GATES, model=lambda: _deep(nn.Sigmoid, 11)),
        "vanishing",
        "collapsed",
        places=("0", "2", "4", "6", "8", "10", "1", "3", "5", "7", "9", "11"),
    ),
    broken(
        GATES,
        "schedule_ends_at_once",
        replace(GATES, schedule=lambda opt: lr_scheduler.StepLR(opt, 3, gamma=0.1)),
        "steps_too_small",
        "updates_stop",
    ),
    broken(
        GATES,
        "cleared_before_the_step",
        replace(GATES, before_step=lambda step, model: model.zero_grad(set_to_none=False)),
        "updates_stop",
        "steps_too_small",
        "not_in_optimizer",
    ),
    broken(
        DEEP,
        "all_tenfold_small",
        replace(DEEP, prepare=_all_times(0.1)),
        "small_init",
        "vanishing",
        "collapsed",
        places=tuple(str(i) for i in range(21)),
    ),
    broken(
        DEEP,
        "all_threefold",
        replace(DEEP, prepare=_all_times(4.0)),
        "large_init",
        "exploding",
        places=tuple(str(i) for i in range(21)),
    ),
    broken(
        DEEP,
        "no_activation",
        replace(DEEP, model=lambda: _deep(nn.Identity)),
        "no_activation",
        places=tuple(str(i) for i in range(21)),
    ),
    broken(DEEP, "square_root_lost", replace(DEEP, optimizer=sgd(0.5)), "lr_high", "exploding"),
    broken(
        ROUTED,
        "length_of_nothing",
        replace(ROUTED, model=lambda: Capsules(safe=False)),
        "nonfinite",
        places=(".",),
    ),
    broken(
        ROUTED,
        "of_the_next_batch",
        replace(ROUTED, loss=fit(lambda step: (_digits(step)[0], _digits(step + 1)[1]), _margins)),
        "labels",
        judge=ROUTED.loss,
    ),
]
