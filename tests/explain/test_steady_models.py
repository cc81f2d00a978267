"""Models that are not the same at each run: those whose state is put back, and those refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt

OTHER = "gave other scores when it was run again"


class Recurrent(nn.Module):
    """Keeps what it has seen: in a buffer, or in an attribute that nothing puts back."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.fc = nn.Linear(4, 3)
        if buffer:
            self.register_buffer("past", torch.zeros(3))
        else:
            self.past = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc(self.conv(x).tanh().mean(-1)) + self.past
        self.past = out.detach().mean(0)
        return out


def model(*, buffer: bool) -> nn.Module:
    return seeded(lambda: Recurrent(buffer=buffer))


MANY: list[tuple[str, dict[str, Any]]] = [
    ("occlusion", {"sliding_window_shapes": (2, 1)}),
    ("occlusion", {"sliding_window_shapes": (2, 1), "batch_size": 1}),
    ("integrated_gradients", {"n_steps": 5}),
    ("shapley", {"n_samples": 1}),
    ("smoothgrad", {"n_samples": 3}),
    ("gradient", {"at": "conv"}),
]


@pytest.mark.parametrize(("method", "given"), MANY)
def test_runs_that_cannot_be_compared_are_refused(method: str, given: dict[str, Any]) -> None:
    with pytest.raises(tt.InputError, match=OTHER):
        tt.attribute(model(buffer=False), normal(2, 2, 5), target=1, method=method, **given)


@pytest.mark.parametrize("method", ["scorecam", "ablationcam"])
@pytest.mark.parametrize("batch_size", [1, 32])
def test_channels_of_such_a_model_are_not_compared(method: str, batch_size: int) -> None:
    net, x = model(buffer=False), normal(2, 2, 5)
    with pytest.raises(tt.InputError, match=OTHER):
        tt.cam(net, x, layer="conv", target=1, method=method, batch_size=batch_size)


@pytest.mark.parametrize(("method", "given"), MANY)
def test_a_state_in_buffers_is_put_back_and_compared(method: str, given: dict[str, Any]) -> None:
    found = tt.attribute(model(buffer=True), normal(2, 2, 5), target=1, method=method, **given)
    assert bool(found.values.isfinite().all())


@torch.no_grad()
def test_occlusion_of_a_state_in_buffers_is_that_of_single_calls() -> None:
    x = normal(2, 2, 5)
    found = tt.attribute(
        model(buffer=True), x, target=1, method="occlusion", sliding_window_shapes=(2, 5)
    )
    empty = torch.zeros_like(x)
    lost = model(buffer=True)(x)[:, 1] - model(buffer=True)(empty)[:, 1]
    torch.testing.assert_close(found.values, lost[:, None, None].expand_as(x))


@pytest.mark.parametrize("make", [tt.cam, tt.attribute])
def test_a_lazy_model_is_refused_and_stays_lazy(make: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(tt.InputError, match="Module '3' is a LazyLinear that is not initialised"):
        make(net, normal(1, 3, 8, 8))
    assert isinstance(net[3].weight, nn.UninitializedParameter)
