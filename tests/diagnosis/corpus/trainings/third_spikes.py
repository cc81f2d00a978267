"""Made-up gradients: spiking neurons, signs as weights, rounding; and a fixed reservoir."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, adam, broken, draw, healthy, pick, sgd
from trainings.faults import everywhere, times, without
from trainings.parts import fit, mse, on_inputs


class Spike(torch.autograd.Function):
    """A step whose gradient is that of a steep sigmoid."""

    @staticmethod
    def forward(ctx: Any, above: Tensor) -> Tensor:
        """1 above the threshold."""
        ctx.save_for_backward(above)
        return (above > 0).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The surrogate."""
        (above,) = ctx.saved_tensors
        return grads[0] / (1 + 4 * above.abs()).square()


class Leaky(nn.Module):
    """Neurons that add up their input, leak, and fire above a threshold."""

    def __init__(self, threshold: float = 1.0, *, surrogate: bool = True) -> None:
        super().__init__()
        self.threshold, self.surrogate = threshold, surrogate

    def forward(self, currents: Tensor) -> Tensor:
        """float32[T, B, N] to spikes of the same shape."""
        level, spikes = torch.zeros_like(currents[0]), []
        for current in currents:
            level = 0.8 * level + current
            above = level - self.threshold
            fired = Spike.apply(above) if self.surrogate else (above > 0).float()
            spikes.append(fired)
            level = level * (1 - fired.detach())
        return torch.stack(spikes)


class Spiking(nn.Module):
    """Ten times of one picture through two layers of neurons."""

    def __init__(self, threshold: float = 1.0, *, surrogate: bool = True) -> None:
        super().__init__()
        self.enter, self.first = nn.Linear(64, 48), Leaky(threshold, surrogate=surrogate)
        self.middle, self.second = nn.Linear(48, 32), Leaky(threshold, surrogate=surrogate)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to logits [B, 10]."""
        x = self.enter(2 * x.flatten(1)).expand(10, -1, -1)
        spikes = self.second(self.middle(self.first(x)) * 2)
        logits: Tensor = self.head(spikes.mean(0))
        return logits


class Signs(nn.Linear):
    """A linear layer of which only the signs count."""

    through = True

    def forward(self, x: Tensor) -> Tensor:
        """The gradient passes the sign as it is."""
        signs = self.weight.sign()
        if self.through:
            signs = self.weight + (signs - self.weight).detach()
        return nn.functional.linear(x, signs / self.in_features**0.5, self.bias)


class Rounded(nn.Module):
    """Sixteen levels from -2 to 2."""

    def __init__(self, *, through: bool = True) -> None:
        super().__init__()
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        """Round, and let the gradient pass."""
        x = x.clamp(-2, 2)
        near = (x * 4).round() / 4
        return x + (near - x).detach() if self.through else near


def _binary() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        Signs(64, 64),
        nn.BatchNorm1d(64),
        nn.Hardtanh(),
        Signs(64, 48),
        nn.BatchNorm1d(48),
        nn.Hardtanh(),
        nn.Linear(48, 10),
    )


def _coarse(*, through: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 32),
        nn.ReLU(),
        Rounded(through=through),
        nn.Linear(32, 32),
        nn.ReLU(),
        Rounded(through=through),
        nn.Linear(32, 1),
    )


class Reservoir(nn.Module):
    """A recurrent network that stays as it was drawn, and a readout that learns."""

    def __init__(self, radius: float = 0.9, *, bounded: bool = True) -> None:
        super().__init__()
        self.bounded = bounded
        self.into = nn.Linear(1, 60).requires_grad_(False)
        self.again = nn.Linear(60, 60, bias=False).requires_grad_(False)
        self.readout = nn.Linear(60, 1)
        nn.init.normal_(self.again.weight, std=radius / 60**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, T, 1] to the same shape."""
        state, states = torch.zeros(len(x), 60), []
        for each in x.unbind(1):
            state = self.into(each) + self.again(state)
            state = state.tanh() if self.bounded else state
            states.append(state)
        done: Tensor = self.readout(torch.stack(states, 1))
        return done


def _digits(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 48, *digits())
    return x, y


def _bumps(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 64, 3)
    return x, torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def _narma(step: int) -> tuple[Tensor, Tensor]:
    """A moving average that multiplies what came two steps before."""
    x = torch.rand(24, 40, generator=torch.Generator().manual_seed(step))
    late = x.roll(2, 1)
    late[:, :2] = 0
    y = 0.5 * x + 1.5 * late * x.roll(1, 1) - 0.4
    y[:, :3] = 0
    return x[..., None], y[..., None]


def _blank(step: int, x: Tensor) -> Tensor:
    """Once a batch of a broken camera."""
    return x * 0 + 3e3 * pick(step, 2, *x.shape) if step % 20 == 19 and step < 1000 else x


def _no_through(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Signs):
            module.through = False


SPIKES = D("spiking", Spiking, fit(_digits), adam(1e-2), steps=60, seed=21)
BINARY = D("signs_as_weights", _binary, fit(_digits), adam(1e-2), steps=60, seed=22)
COARSE = D("sixteen_levels", _coarse, fit(_bumps, mse), adam(1e-2), steps=90, seed=23)
ECHO = D(
    "reservoir", Reservoir, fit(_narma, mse), sgd(0.1, momentum=0.9), steps=80, seed=24,
    trained=lambda model: model.get_submodule("readout").parameters(),
)  # fmt: skip

CASES = [
    *(healthy(each) for each in (SPIKES, BINARY, COARSE, ECHO)),
    broken(
        SPIKES,
        "never_fires",
        replace(SPIKES, model=lambda: Spiking(200.0)),
        "dead",
        places=("first", "second"),
    ),
    broken(
        SPIKES,
        "no_surrogate",
        replace(SPIKES, model=lambda: Spiking(surrogate=False)),
        "detached",
        "vanishing",
        places=("enter", "middle", "first", "second"),
    ),
    broken(SPIKES, "hot", replace(SPIKES, optimizer=adam(3.0)), "lr_high", "exploding"),
    broken(
        SPIKES,
        "weights_tiny",
        replace(SPIKES, prepare=everywhere(nn.Linear, lambda layer: layer.weight.data.mul_(1e-3))),
        "small_init",
        "dead",
        places=("enter", "middle", "head", "first", "second"),
    ),
    broken(
        BINARY,
        "not_straight_through",
        replace(BINARY, late=_no_through),
        "detached",
        "vanishing",
        "updates_stop",
        places=("1", "4"),
    ),
    broken(
        BINARY,
        "left_in_eval",
        replace(BINARY, late=lambda model: model.eval()),
        "bn_eval",
        places=("2", "5"),
    ),
    broken(
        BINARY,
        "broken_camera",
        replace(BINARY, loss=fit(on_inputs(_digits, _blank))),
        "bad_batch",
    ),
    broken(
        COARSE,
        "rounded_away",
        replace(COARSE, model=lambda: _coarse(through=False)),
        "detached",
        "vanishing",
        places=("0", "3", "2", "5"),
    ),
    broken(
        COARSE,
        "first_layer_huge",
        replace(COARSE, prepare=times("0", 80.0)),
        "large_init",
        "saturated",
        places=("0", "2"),
    ),
    broken(
        COARSE,
        "end_not_given",
        replace(COARSE, trained=without("3", "6")),
        "not_in_optimizer",
        places=("3", "6"),
    ),
    broken(
        ECHO,
        "runs_away",
        replace(ECHO, model=lambda: Reservoir(6.0, bounded=False)),
        "nonfinite",
        "exploding",
        "large_init",
    ),
    broken(
        ECHO,
        "full_of_ones",
        replace(ECHO, model=lambda: Reservoir(60.0)),
        "saturated",
        "large_init",
        places=("again", "."),
    ),
]
