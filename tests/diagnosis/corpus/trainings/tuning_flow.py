"""A normalising flow (affine couplings) on two moons."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.data import rows_of, scaled
from trainings.design import Design as D, adam, broken, healthy
from trainings.faults import times, without


class Coupling(nn.Module):
    """Moves one coordinate by a scale and a shift that depend on the other."""

    def __init__(self, first: int, bounded: bool) -> None:
        super().__init__()
        self.first, self.bounded = first, bounded
        self.net = nn.Sequential(
            nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The moved points, and the log of the volume."""
        kept, moved = x[:, self.first, None], x[:, 1 - self.first, None]
        log_scale, shift = self.net(kept).chunk(2, -1)
        log_scale = log_scale.tanh() if self.bounded else log_scale
        moved = moved * log_scale.exp() + shift
        return torch.cat([kept, moved] if self.first == 0 else [moved, kept], -1), log_scale[:, 0]


class Flow(nn.Module):
    """Several couplings; gives the negative log-likelihood of each point."""

    def __init__(self, bounded: bool = True, many: int = 4) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(i % 2, bounded) for i in range(many))

    def forward(self, x: Tensor) -> Tensor:
        """Under a standard normal distribution: float32[B]."""
        volume = x.new_zeros(len(x))
        for coupling in self.couplings:
            x, more = coupling(x)
            volume = volume + more
        return 0.5 * x.square().sum(-1) - volume


@cache
def _moons() -> Tensor:
    from sklearn.datasets import make_moons

    x, _ = make_moons(1000, noise=0.05, random_state=0)
    return scaled(torch.tensor(x, dtype=torch.float32))


def _likelihood(model: nn.Module, step: int) -> Tensor:
    (x,) = rows_of(step, 64, _moons())
    return model(x).mean()


def _far(model: nn.Module, step: int) -> Tensor:
    """One batch in other units, as a loader that forgets to normalise a shard."""
    (x,) = rows_of(step, 64, _moons())
    return model(x * (1000.0 if step == 24 else 1.0)).mean()


FLOW = D("flow", Flow, _likelihood, adam(3e-3), steps=50)
FREE = D(
    "flow_unbounded", lambda: Flow(False, 3), _likelihood, adam(2e-3), steps=50, clip=1.0, seed=1
)

CASES = [
    healthy(FLOW),
    healthy(FREE),
    broken(
        FREE,
        "scale_explodes",
        replace(FREE, prepare=times("couplings.1.net.4", 400.0), clip=None),
        "large_init",
        "exploding",
        "nonfinite",
        places=("couplings.1.net.4",),
    ),
    broken(
        FREE,
        "one_batch_in_other_units",
        replace(FREE, loss=_far, clip=None),
        "bad_batch",
        "nonfinite",
    ),
    broken(
        FLOW,
        "one_coupling_not_given",
        replace(FLOW, trained=without("couplings.2")),
        "not_in_optimizer",
        places=("couplings.2", "couplings.2.net.0", "couplings.2.net.2", "couplings.2.net.4"),
    ),
]
