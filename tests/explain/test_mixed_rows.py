"""Models that mix the rows of a batch: one run in each forward, whatever is added to their scores.

The expected maps are those of ``batch_size=1``, where no rows stand beside those of the caller, and
for occlusion also a loop over the features.
"""

from __future__ import annotations

import pytest
import torch
from models import relu_mlp, rows, seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

MIXES = "mixes the rows"


def normalised(offset: float) -> Net:
    def forward(m: Net, x: Tensor) -> Tensor:
        value = m.one(x)
        return m.two(torch.tanh((value - value.mean(0)) / value.std(0))) + offset

    return seeded(lambda: Net(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 1)))


@torch.no_grad()
def lost(model: nn.Module, x: Tensor) -> Tensor:
    """Losses of the score of each row by each feature at 0, one forward for each."""
    found = torch.zeros_like(x)
    for feature in range(x.shape[1]):
        other = x.clone()
        other[:, feature] = 0
        found[:, feature] = (model(x) - model(other))[:, 0]
    return found


@pytest.mark.parametrize("offset", [0.0, 50.0, 500.0, -5000.0])
def test_mixed_rows_are_noticed_whatever_is_added_to_the_scores(offset: float) -> None:
    model, x = normalised(offset), normal(4, 6)
    found = tt.attribute(model, x, target=0, method="occlusion")
    assert any(MIXES in note for note in found.notes)
    torch.testing.assert_close(found.values, lost(model, x), rtol=0, atol=1e-6 * abs(offset) + 1e-6)


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_large_score_alone_is_no_mixing(method: str, offset: float) -> None:
    inner = relu_mlp()
    model = Net(lambda m, x: m.inner(x) + offset, inner=inner)
    found = tt.attribute(model, rows(num=2), target=1, method=method)
    assert not any(MIXES in note for note in found.notes)


@pytest.mark.parametrize("method", ["ablationcam", "scorecam"])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_maps_by_forwards_of_mixed_rows_are_those_of_single_channels(
    method: str, offset: float
) -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        value = torch.relu(m.norm(m.two(torch.relu(m.one(x)))))
        return m.last(value.mean((2, 3))) + offset

    model = seeded(
        lambda: Net(
            forward,
            one=nn.Conv2d(3, 64, 3),
            two=nn.Conv2d(64, 8, 3),
            norm=nn.BatchNorm2d(8),
            last=nn.Linear(8, 3),
        )
    ).train()
    x = normal(8, 3, 9, 9)
    alone = tt.cam(model, x, layer="one", target=1, method=method, batch_size=8)
    found = tt.cam(model, x, layer="one", target=1, method=method)
    assert any(MIXES in note for note in found.notes)
    assert torch.equal(found.values, alone.values)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("baseline", [0.0, 0.1])
@pytest.mark.parametrize("reduced", ["amax", "amin", "max"])
def test_integrated_gradients_notice_mixing_that_a_baseline_does_not_show(
    seed: int, baseline: float, reduced: str
) -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        size = x.max() if reduced == "max" else getattr(x.abs(), reduced)()
        return m.one(x) / (size + 0.1)

    model = seeded(lambda: Net(forward, one=nn.Linear(6, 5)))
    x = normal(3, 6, seed=seed)
    alone = tt.attribute(model, x, target=1, baselines=baseline, n_steps=50, batch_size=1)
    found = tt.attribute(model, x, target=1, baselines=baseline, n_steps=50)
    assert any(MIXES in note for note in found.notes)
    assert torch.equal(found.values, alone.values)


def test_channels_ablated_beside_many_similar_copies_are_noticed() -> None:
    """The copies hardly change each other's statistics, and the effect of a channel all the same.

    Where a row is alone, batch norm undoes what a channel adds to all places.
    """
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 64, 3),
            nn.ReLU(),
            nn.Conv2d(64, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
    ).train()
    for seed in range(8):
        x = normal(1, 3, 9, 9, seed=seed)
        alone = tt.cam(model, x, layer="0", target=1, method="ablationcam", batch_size=1)
        found = tt.cam(model, x, layer="0", target=1, method="ablationcam", batch_size=64)
        assert torch.equal(found.values, alone.values)
