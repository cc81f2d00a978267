"""A picture as a function of its places (SIREN, Fourier features), and an operator (DeepONet)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import picture
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import Call, frozen, times, without
from trainings.parts import fit, mse, on_inputs, on_targets


class Sine(nn.Module):
    """A layer of sines, with the initial weights of SIREN."""

    def __init__(self, inputs: int, outputs: int, omega: float, *, first: bool = False) -> None:
        super().__init__()
        self.layer, self.omega = nn.Linear(inputs, outputs), omega
        bound = 1 / inputs if first else (6 / inputs) ** 0.5 / omega
        nn.init.uniform_(self.layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """float32[..., inputs] to float32[..., outputs]."""
        return torch.sin(self.omega * self.layer(x))


class Fourier(nn.Module):
    """Sines and cosines of random directions, which are not learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(2, 24) * 2)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 2] to float32[B, 48]."""
        turned = 6.283 * x @ self.get_buffer("directions")
        return torch.cat([turned.sin(), turned.cos()], -1)


class Operator(nn.Module):
    """A branch for the function, a trunk for the place: the integral up to there."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 16))
        self.trunk = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 21] to float32[B]."""
        return (self.branch(x[:, :20]) * self.trunk(x[:, 20:])).sum(1) + self.offset


def _siren(omega: float = 8.0) -> nn.Module:
    return nn.Sequential(Sine(2, 40, omega, first=True), Sine(40, 40, omega), nn.Linear(40, 1))


def _fourier(act: type[nn.Module] = nn.ReLU, *end: nn.Module) -> nn.Module:
    return nn.Sequential(
        Fourier(), nn.Linear(48, 40), act(), nn.Linear(40, 40), act(), nn.Linear(40, 1), *end
    )


def _places(step: int) -> tuple[Tensor, Tensor]:
    """Places from -1 to 1 and how bright the picture is there, from -1 to 1."""
    whole = picture("camera")[::8, ::8]
    rows, columns = pick(step, 64, 128), pick(step + 7, 64, 128)
    return torch.stack([rows, columns], 1) / 31.5 - 1, whole[rows, columns][:, None] * 2 - 1


def _functions(step: int) -> tuple[Tensor, Tensor]:
    """Values of a function at 20 places and one place more; its integral up to there."""
    time = torch.linspace(0, 1, 20)
    waves = torch.sin(3.14 * torch.arange(1, 4)[None, :, None] * time) * draw(step, 64, 3, 1)
    values = waves.sum(1)
    place = pick(step + 3, 20, 64)
    integral = values.cumsum(1).gather(1, place[:, None])[:, 0] / 4
    return torch.cat([values, place[:, None] / 10 - 1], 1), integral


SIREN = D("picture_siren", _siren, fit(_places, mse), adam(2e-3), steps=70, seed=131)
FOURIER = D("picture_fourier", _fourier, fit(_places, mse), adam(5e-3), steps=70, seed=132)
BOUNDED = D(
    "picture_bounded",
    lambda: _fourier(nn.GELU, nn.Tanh()),
    fit(_places, nn.functional.l1_loss),
    lambda params: torch.optim.Adamax(params, lr=1e-2),
    steps=70,
    seed=133,
)
OPERATOR = D("operator", Operator, fit(_functions, mse), adam(5e-3), steps=80, seed=134)

CASES = [
    *(healthy(each) for each in (SIREN, FOURIER, BOUNDED, OPERATOR)),
    broken(
        SIREN,
        "far_too_fast_waves",
        replace(SIREN, prepare=times("0.layer", 400.0)),
        "large_init",
        "data_scale",
        places=("0.layer", "0"),
    ),
    broken(SIREN, "hot", replace(SIREN, optimizer=adam(1.0)), "lr_high", "exploding"),
    broken(
        SIREN,
        "no_sines",
        replace(
            SIREN,
            model=lambda: nn.Sequential(nn.Linear(2, 40), nn.Linear(40, 40), nn.Linear(40, 1)),
        ),
        "no_activation",
        places=("0", "1"),
    ),
    broken(
        FOURIER,
        "places_in_pixels",
        replace(
            FOURIER,
            model=lambda: nn.Sequential(
                nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)
            ),
            loss=fit(on_inputs(_places, lambda step, x: (x + 1) * 1e4), mse),
        ),
        "data_scale",
        "saturated",
        places=("0", "1", "."),
    ),
    broken(
        FOURIER,
        "brightness_twice_bounded",
        replace(FOURIER, model=lambda: _fourier(nn.ReLU, nn.ReLU())),
        "final_activation",
        "dead",
        places=("6",),
    ),
    broken(
        BOUNDED,
        "out_of_bounds",
        replace(
            BOUNDED,
            loss=fit(on_targets(_places, lambda step, y: y * 127 + 128), nn.functional.l1_loss),
        ),
        "final_activation",
        "saturated",
        places=("6",),
        judge=fit(_places, lambda out, y: nn.functional.l1_loss((out - 128) / 127, y)),
    ),
    broken(
        OPERATOR,
        "trunk_frozen",
        replace(OPERATOR, prepare=frozen("trunk")),
        "frozen",
        places=("trunk",),
    ),
    broken(
        OPERATOR,
        "branch_left_out",
        replace(OPERATOR, trained=without("branch")),
        "not_in_optimizer",
        places=("branch",),
    ),
    broken(
        OPERATOR,
        "of_other_functions",
        replace(OPERATOR, loss=fit(on_targets(_functions, lambda step, y: y.roll(7)), mse)),
        "labels",
        judge=OPERATOR.loss,
    ),
    broken(
        OPERATOR,
        "branch_cut",
        replace(
            OPERATOR,
            prepare=lambda model: model.get_submodule("branch").append(Call(Tensor.detach)),
        ),
        "detached",
        places=("branch",),
    ),
]
