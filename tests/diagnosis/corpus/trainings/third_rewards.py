"""Rewards: values of a grid from stored moves, a bandit with a context, and a cloned driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.case import Case
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import everywhere, filled, frozen, shuffled, times
from trainings.parts import fit, mse, on_inputs, on_targets, perceptron

SIDE, DISCOUNT = 4, 0.9
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Values(nn.Module):
    """A network of values, and a slower copy of it that is not trained."""

    def __init__(self, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.now = perceptron(2 * SIDE, 48, 4, act=act)
        self.slow = perceptron(2 * SIDE, 48, 4, act=act).requires_grad_(False)
        self.slow.load_state_dict(self.now.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 2 * SIDE] to values of four moves."""
        values: Tensor = self.now(x)
        return values


def _coded(place: Tensor) -> Tensor:
    return nn.functional.one_hot(place, SIDE).float().flatten(-2)


def _moved(place: Tensor, move: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The place after a move, what it earns (1 in the corner), and whether it is the end."""
    after = (place + MOVES[move]).clamp(0, SIDE - 1)
    ends = (after == SIDE - 1).all(-1)
    return after, ends.float(), ends


def _learns(*, pay: float = 1.0, slow: bool = True, sign: float = 1.0, mixes: bool = False) -> Loss:
    """The error of values against what was earned and the value after."""

    def loss(model: nn.Module, step: int) -> Tensor:
        place, move = pick(step, SIDE, 64, 2), pick(step + 1, 4, 64)
        after, earned, ends = _moved(place, move)
        other = model.get_submodule("slow" if slow else "now")
        ahead = other(_coded(after)).amax(1)
        aim = pay * earned + DISCOUNT * ahead * (~ends)
        aim = aim.detach() if slow else aim
        aim = shuffled(step, aim) if mixes else aim
        value = model(_coded(place)).gather(1, move[:, None])[:, 0]
        return sign * mse(value, aim)

    return loss


@torch.no_grad()
def _follow(step: int, model: nn.Module) -> None:
    """The slower copy follows."""
    slow, now = model.get_submodule("slow"), model.get_submodule("now")
    for old, new in zip(slow.parameters(), now.parameters(), strict=True):
        old.lerp_(new, 0.2)


@cache
def _true_values() -> Tensor:
    """The right values of all places and moves, by iteration: float32[SIDE * SIDE, 4]."""
    place = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
    value = torch.zeros(SIDE * SIDE, 4)
    for _ in range(40):
        moves = [_moved(place, torch.full((len(place),), each)) for each in range(4)]
        ahead = [value.amax(1)[a[:, 0] * SIDE + a[:, 1]] for a, _, _ in moves]
        value = torch.stack(
            [e + DISCOUNT * v * (~d) for (_, e, d), v in zip(moves, ahead, strict=True)], 1
        )
    return value


def _wrong_values(model: nn.Module, step: int) -> Tensor:
    """How far the values are from the right ones."""
    place = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
    return mse(model(_coded(place)), _true_values())


def _context(step: int, num: int = 64) -> tuple[Tensor, Tensor]:
    """Return what is seen, and how well each of five arms pays then."""
    x = draw(step, num, 6)
    return x, torch.tanh(x @ draw(55, 6, 5)) + 0.3 * x[:, :1] * draw(56, 5)


def _pulls(*, baseline: bool = True, sign: float = 1.0, mixes: bool = False) -> Loss:
    """The policy gradient of arms that are drawn, with a bonus for their entropy."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x, pays = _context(step)
        logits = model(x)
        logs = logits.log_softmax(1)
        arm = torch.multinomial(logs.detach().exp(), 1)
        earned = pays.gather(1, arm)[:, 0] + 0.5 * draw(step + 2, len(x))
        earned = shuffled(step, earned) if mixes else earned
        gained = earned - earned.mean() if baseline else earned
        chosen = logs.gather(1, arm)[:, 0]
        entropy = -(logs.exp() * logs).sum(1).mean()
        return sign * -(chosen * gained).mean() - 0.01 * entropy

    return loss


def _regret(model: nn.Module, step: int) -> Tensor:
    """How much less is earned than with the best arm."""
    x, pays = _context(step, 256)
    return (pays.amax(1) - (model(x).softmax(1) * pays).sum(1)).mean()


def _road(step: int) -> tuple[Tensor, Tensor]:
    """Place, heading and bend of a car, and how its driver steers; the hand shakes."""
    x = draw(step, 96, 3)
    y = -0.8 * torch.tanh(1.5 * x[:, :1]) - 0.6 * x[:, 1:2] + 0.4 * x[:, 2:3] * x[:, :1].abs()
    return x, y + 0.2 * draw(step + 3, 96, 1)


VALUES = D(
    "grid_values",
    Values,
    _learns(),
    adam(1e-2),
    steps=120,
    seed=201,
    after_step=_follow,
    trained=lambda model: model.get_submodule("now").parameters(),
)
ARMS = D(
    "arms", lambda: perceptron(6, 32, 5, act=nn.Tanh), _pulls(), adam(2e-2), steps=120, seed=202
)
CLONED = D(
    "cloned_driver",
    lambda: perceptron(3, 32, 32, 1, act=nn.Mish),
    fit(_road, nn.functional.l1_loss),
    sgd(0.1, momentum=0.9),
    steps=80,
    seed=203,
)
BARE = D(
    "arms_without_baseline",
    lambda: nn.Linear(6, 5),
    _pulls(baseline=False),
    lambda params: torch.optim.RMSprop(params, lr=2e-2),
    steps=120,
    seed=204,
)


def _judged(design: D, judge: Loss) -> Case:
    return Case(design.name, lambda watching: design.train(watching, judge))


CASES = [
    _judged(VALUES, _wrong_values),
    _judged(ARMS, _regret),
    _judged(BARE, _regret),
    healthy(CLONED),
    broken(
        VALUES,
        "aims_of_others",
        replace(VALUES, loss=_learns(mixes=True)),
        "labels",
        judge=_wrong_values,
    ),
    broken(
        VALUES,
        "paid_in_cents",
        replace(VALUES, loss=_learns(pay=1e5)),
        "data_scale",
        judge=lambda model, step: mse(
            model(_coded(torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)))) / 1e5,
            _true_values(),
        ),
    ),
    broken(
        VALUES,
        "climbs",
        replace(VALUES, loss=_learns(sign=-1.0)),
        "loss_rises",
        "exploding",
        judge=_wrong_values,
    ),
    broken(
        VALUES,
        "now_frozen",
        replace(VALUES, prepare=frozen("now.0")),
        "frozen",
        places=("now.0",),
        judge=_wrong_values,
    ),
    broken(
        VALUES,
        "slow_is_given",
        replace(VALUES, trained=lambda model: model.get_submodule("slow").parameters()),
        "not_in_optimizer",
        places=("now", "now.0", "now.2"),
        judge=_wrong_values,
    ),
    broken(
        VALUES,
        "hot",
        replace(VALUES, optimizer=adam(5.0)),
        "lr_high",
        "exploding",
        judge=_wrong_values,
    ),
    broken(ARMS, "pay_of_others", replace(ARMS, loss=_pulls(mixes=True)), "labels", judge=_regret),
    broken(ARMS, "worst_arm", replace(ARMS, loss=_pulls(sign=-1.0)), "loss_rises", judge=_regret),
    broken(
        ARMS,
        "all_alike",
        replace(
            ARMS,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.2)
            ),
        ),
        "symmetric",
        places=("0", "2"),
        judge=_regret,
    ),
    broken(ARMS, "slow", replace(ARMS, optimizer=adam(2e-8)), "steps_too_small", judge=_regret),
    broken(
        ARMS,
        "probabilities_twice",
        replace(ARMS, model=lambda: perceptron(6, 32, 5, act=nn.Tanh, end=(nn.Softmax(1),))),
        "double_softmax",
        places=("3",),
        judge=_regret,
    ),
    broken(
        ARMS,
        "saturated",
        replace(ARMS, prepare=times("0", 100.0)),
        "saturated",
        "large_init",
        places=("0", "1"),
        judge=_regret,
    ),
    broken(
        CLONED,
        "one_turn_late",
        replace(
            CLONED, loss=fit(on_targets(_road, lambda _, y: y.roll(1, 0)), nn.functional.l1_loss)
        ),
        "labels",
        judge=CLONED.loss,
    ),
    broken(
        CLONED,
        "camera_in_nanometres",
        replace(CLONED, loss=fit(on_inputs(_road, lambda _, x: 1e9 * x), nn.functional.l1_loss)),
        "data_scale",
        places=("0", "."),
        judge=fit(on_inputs(_road, lambda _, x: 1e9 * x), nn.functional.l1_loss),
    ),
    broken(
        CLONED,
        "first_layers_nought",
        replace(CLONED, prepare=filled(0.0, "0", "2", "4")),
        "symmetric",
        "small_init",
        "vanishing",
        places=("0", "2", "4"),
    ),
]
