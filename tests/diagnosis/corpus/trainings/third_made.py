"""Things made or embedded: bits in order, noise told apart, straight flows, and codes alike."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, everywhere, frozen, shuffled, times, without
from trainings.parts import fit, flipped, mse, on_inputs, perceptron

normalize = nn.functional.normalize
cross_entropy = nn.functional.cross_entropy


class Ordered(nn.Linear):
    """A linear layer that sees only what comes before."""

    def __init__(self, inputs: Tensor, outputs: Tensor, *, strict: bool) -> None:
        super().__init__(len(inputs), len(outputs))
        ahead = inputs[None] < outputs[:, None] if strict else inputs[None] <= outputs[:, None]
        self.register_buffer("ahead", ahead.float())

    def forward(self, x: Tensor) -> Tensor:
        """Weights to what comes later are masked."""
        ahead: Tensor = self.ahead  # type: ignore[assignment]
        return nn.functional.linear(x, self.weight * ahead, self.bias)


def _made(*end: nn.Module) -> nn.Module:
    places, hidden = torch.arange(64), torch.arange(96) % 63
    return nn.Sequential(
        nn.Flatten(),
        Ordered(places, hidden, strict=False),
        nn.ReLU(),
        Ordered(hidden, places, strict=True),
        *end,
    )


def _bits(step: int) -> tuple[Tensor, Tensor]:
    """Pictures of black and white, to be predicted pixel by pixel."""
    (x,) = kept_apart(step, 48, (digits()[0] > 0.4).float())
    return x, x.flatten(1)


def _with_logits(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(out, y)


def _moons(step: int, num: int = 128) -> Tensor:
    angle = 3.14159 * torch.rand(num, generator=torch.Generator().manual_seed(step))
    half = pick(step, 2, num).float()
    x = torch.stack([angle.cos() + half - 0.5, angle.sin() * (1 - 2 * half) + 0.5 * half - 0.2], 1)
    return 1.3 * x + 0.08 * draw(step + 1, num, 2)


def _told_apart(*, turns: bool = False) -> Loss:
    """Noise contrast: an energy is learnt by telling the data from noise of a known density."""

    def loss(model: nn.Module, step: int) -> Tensor:
        data, noise = _moons(step), 1.5 * draw(step + 3, 128, 2)
        x = torch.cat([data, noise])
        density = -x.square().sum(1) / (2 * 1.5**2) - 2.65
        gap = -model(x)[:, 0] - density
        y = torch.cat([torch.ones(128), torch.zeros(128)])
        return _with_logits(gap, shuffled(step, y) if turns else y)

    return loss


def _straight(*, aim: int = 1) -> Loss:
    """The way from noise to data, by where one is and when; ``aim`` -1 asks for the way back."""

    def loss(model: nn.Module, step: int) -> Tensor:
        data, noise = _moons(step), draw(step + 3, 128, 2)
        time = torch.rand(128, 1, generator=torch.Generator().manual_seed(step))
        x = time * data + (1 - time) * noise
        return mse(model(torch.cat([x, time], 1)), aim * (data - noise))

    return loss


def _other_noise(model: nn.Module, step: int) -> Tensor:
    """The noise of the aim is drawn again."""
    data, noise, other = _moons(step), draw(step + 3, 128, 2), draw(step + 4, 128, 2)
    time = torch.rand(128, 1, generator=torch.Generator().manual_seed(step))
    x = time * data + (1 - time) * noise
    return mse(model(torch.cat([x, time], 1)), shuffled(step, data) - other)


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    square = torch.cdist(a, b).square()
    return sum(
        ((-square / (2 * width**2)).exp().mean() for width in (0.2, 0.5, 1.0)), torch.zeros(())
    )


def _moments(model: nn.Module, step: int) -> Tensor:
    """A generator without an adversary: the distance of two clouds by kernels."""
    data, made = _moons(step), model(draw(step + 5, 128, 3))
    return _kernel(made, made) + _kernel(data, data) - 2 * _kernel(made, data)


class Views(nn.Module):
    """An encoder and a projector; two views of one digit."""

    def __init__(self, *, norm: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 48),
        )
        self.project = nn.Sequential(nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to codes."""
        codes: Tensor = self.project(self.encoder(x))
        return codes


def _seen(step: int) -> tuple[Tensor, Tensor]:
    (x,) = kept_apart(step, 64, digits()[0])
    return x + 0.2 * draw(step, *x.shape), x.roll(1, 3) * 0.9 + 0.2 * draw(step + 1, *x.shape)


def _twins(*, spread: float = 1.0, mixes: bool = False) -> Loss:
    """Barlow's twins: codes of both views correlate, and different numbers of a code do not."""

    def loss(model: nn.Module, step: int) -> Tensor:
        one, other = _seen(step)
        other = shuffled(step, other) if mixes else other
        a, b = (model(view) for view in (one, other))
        a, b = ((each - each.mean(0)) / (each.std(0) + 1e-4) for each in (a, b))
        alike = a.t() @ b / len(a)
        same = (alike.diagonal() - 1).square().sum()
        return same + spread * 0.05 * (alike - alike.diagonal().diag()).square().sum()

    return loss


def _only_alike(model: nn.Module, step: int) -> Tensor:
    """The distance of two views, and nothing that keeps the codes apart."""
    one, other = _seen(step)
    return mse(model(one), model(other))


def _bottleneck(*end: nn.Module, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 48),
        act(),
        nn.Linear(48, 6),
        nn.Linear(6, 48),
        act(),
        nn.Linear(48, 64),
        *end,
    )


def _again(step: int) -> tuple[Tensor, Tensor]:
    (x,) = kept_apart(step, 48, digits()[0])
    return x, x.flatten(1)


class Tied(nn.Module):
    """One matrix there and back, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(64, 20)
        self.offset = nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to float32[B, 64]."""
        code = torch.tanh(self.there(x.flatten(1)))
        return nn.functional.linear(code, self.there.weight.t(), self.offset)


def _deep_sigmoids() -> nn.Module:
    widths = (64, 48, 48, 48, 6, 48, 48, 64)
    return nn.Sequential(nn.Flatten(), *perceptron(*widths, act=nn.Sigmoid))


MADE = D("bits_in_order", _made, fit(_bits, _with_logits), adam(5e-3), steps=80, seed=91)
APART = D(
    "told_from_noise",
    lambda: perceptron(2, 48, 48, 1, act=nn.SiLU),
    _told_apart(),
    adam(5e-3),
    steps=100,
    seed=92,
)
STRAIGHT = D(
    "straight_flow",
    lambda: perceptron(3, 48, 48, 2, act=nn.SiLU),
    _straight(),
    adam(4e-3),
    steps=100,
    seed=93,
)
MOMENTS = D(
    "moments",
    lambda: perceptron(3, 32, 32, 2),
    _moments,
    lambda params: torch.optim.RMSprop(params, lr=2e-3),
    steps=80,
    seed=94,
)
TWINS = D("twins", Views, _twins(), adam(3e-3), steps=60, seed=95)
NARROW = D("narrow", _bottleneck, fit(_again, mse), adam(5e-3), steps=100, seed=96)
TIED = D("tied", Tied, fit(_again, mse), sgd(1.0, momentum=0.9), steps=80, seed=97)

CASES = [
    *(healthy(each) for each in (MADE, APART, STRAIGHT, MOMENTS, TWINS, NARROW, TIED)),
    broken(
        MADE,
        "sigmoid_twice",
        replace(MADE, model=lambda: _made(nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("4",),
    ),
    broken(MADE, "born_dead", replace(MADE, prepare=biased("1", -20.0)), "dead", places=("2", "1")),
    broken(
        APART,
        "which_is_noise",
        replace(APART, loss=_told_apart(turns=True)),
        "labels",
        judge=APART.loss,
    ),
    broken(
        APART,
        "no_activations",
        replace(APART, model=lambda: perceptron(2, 48, 48, 1, act=nn.Identity)),
        "no_activation",
        places=("0", "2", "4", "1", "3"),
    ),
    broken(APART, "hot", replace(APART, optimizer=sgd(100.0)), "lr_high", "exploding"),
    broken(
        STRAIGHT,
        "noise_drawn_again",
        replace(STRAIGHT, loss=_other_noise),
        "labels",
        judge=STRAIGHT.loss,
    ),
    broken(
        STRAIGHT,
        "away",
        replace(STRAIGHT, loss=flipped(STRAIGHT.loss)),
        "loss_rises",
        "exploding",
        judge=STRAIGHT.loss,
    ),
    broken(
        STRAIGHT,
        "starts_huge",
        replace(STRAIGHT, prepare=everywhere(nn.Linear, lambda layer: layer.weight.data.mul_(15))),
        "large_init",
        "exploding",
        places=("0", "2", "4", "."),
    ),
    broken(
        STRAIGHT,
        "middle_not_given",
        replace(STRAIGHT, trained=without("2", "4")),
        "not_in_optimizer",
        places=("2", "4"),
    ),
    broken(
        MOMENTS,
        "all_alike",
        replace(
            MOMENTS,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.3)
            ),
        ),
        "symmetric",
        "collapsed",
        places=("0", "2", "4"),
    ),
    broken(
        TWINS,
        "of_other_digits",
        replace(TWINS, loss=_twins(mixes=True)),
        "labels",
        judge=TWINS.loss,
    ),
    broken(
        TWINS,
        "nothing_keeps_apart",
        replace(TWINS, loss=_only_alike, optimizer=adam(1e-2)),
        "collapsed",
        "too_good",
        judge=TWINS.loss,
    ),
    broken(
        TWINS,
        "encoder_frozen",
        replace(TWINS, prepare=frozen("encoder.4", "project.1")),
        "frozen",
        places=("encoder.4", "project.1"),
    ),
    broken(
        NARROW,
        "deep_sigmoids",
        replace(NARROW, model=lambda: _deep_sigmoids()),
        "vanishing",
        "collapsed",
        places=tuple(str(i) for i in range(14)),
    ),
    broken(
        NARROW, "tenth_of_a_millionth", replace(NARROW, optimizer=adam(1e-7)), "steps_too_small"
    ),
    broken(
        NARROW,
        "cleared_before_the_step",
        replace(NARROW, before_step=lambda step, model: model.zero_grad()),
        "updates_stop",
        "steps_too_small",
        "not_in_optimizer",
    ),
    broken(TIED, "hot", replace(TIED, optimizer=sgd(60.0, momentum=0.9)), "lr_high", "exploding"),
    broken(
        TIED,
        "spoilt_row",
        replace(
            TIED,
            loss=fit(
                on_inputs(
                    _again,
                    lambda step, x: (
                        x.index_fill(0, torch.tensor(3), torch.inf) if step == 44 else x
                    ),
                ),
                mse,
            ),
        ),
        "nonfinite",
        "bad_batch",
        places=("there", "."),
    ),
    broken(
        TIED,
        "in_thousands",
        replace(TIED, prepare=times("there", 50.0)),
        "saturated",
        "large_init",
        places=("there", "."),
    ),
]
