"""Maps that are 0 by algebra, and values where inputs are what they are compared with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64)


class Normed(nn.Module):
    """A layer, what comes behind it, and a score of each channel."""

    def __init__(self, behind: nn.Module, channels: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 4, 4)
        self.behind = behind
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.behind(self.conv(x))).mean((2, 3)))
        return out


class OverChannels(nn.Module):
    """A layer norm of each place, or a division by the length."""

    def __init__(self, eps: float | None, channels: int = 16) -> None:
        super().__init__()
        self.norm = None if eps is None else nn.LayerNorm(channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is None:
            return nn.functional.normalize(x, dim=1, eps=0.0)
        out: Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
        return out


class OverPlaces(nn.Module):
    """A softmax over the grid, which no constant changes."""

    def forward(self, x: Tensor) -> Tensor:
        shares = x.flatten(2).softmax(-1)
        return (shares * torch.arange(shares.shape[-1]).to(x)).reshape(x.shape)


ZERO_BY_ALGEBRA = {
    "layer norm": ("hirescam", lambda: OverChannels(0.0)),
    "division by the length": ("hirescam", lambda: OverChannels(None)),
    "instance norm": ("gradcam", lambda: nn.InstanceNorm2d(16)),
    "group norm": ("gradcam", lambda: nn.GroupNorm(16, 16)),
    "softmax over places": ("gradcam", OverPlaces),
    "instance norm, shares": ("xgradcam", lambda: nn.InstanceNorm2d(16, eps=1e-30)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ZERO_BY_ALGEBRA)
def test_a_map_that_is_0_by_algebra_is_0_and_not_its_rounding(
    name: str, dtype: torch.dtype
) -> None:
    method, behind = ZERO_BY_ALGEBRA[name]
    torch.manual_seed(0)
    model = Normed(behind()).eval().to(dtype)
    x = torch.randn(2, 3, 32, 32).to(dtype)
    found = tt.cam(model, x, layer="conv", target=1, method=method, relu=False)
    assert torch.equal(found.values, torch.zeros_like(found.values))
    assert any("0 up to rounding" in note for note in found.notes)
    assert found.faults == ["constant: every value is 0"] * 2


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "xgradcam"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_map_that_is_not_0_keeps_its_values(method: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Normed(nn.GroupNorm(4, 16)).eval().to(dtype)
    x = torch.randn(2, 3, 32, 32).to(dtype)
    found = tt.cam(model, x, layer="conv", target=1, method=method, relu=False)
    twin = tt.cam(
        model.double(), x.double(), layer="conv", target=1, method=method, relu=False
    ).values
    assert not found.notes
    slack = 0.1 if dtype in HALF else 1e-4
    assert float((found.values - twin).abs().max()) <= slack * float(twin.abs().max())


def test_what_the_eps_of_a_norm_leaves_over_is_said() -> None:
    torch.manual_seed(0)
    model, x = Normed(OverChannels(1e-5)).eval(), torch.randn(1, 3, 32, 32)
    found = tt.cam(model, x, layer="conv", target=1, method="hirescam")
    twin = tt.cam(model.double(), x.double(), layer="conv", target=1, method="hirescam")
    assert any("cancel to" in note for note in found.notes)
    torch.testing.assert_close(found.values.double(), twin.values, rtol=0.1, atol=1e-9)


class Unread(nn.Module):
    """Probabilities, which add up to 1 whatever the picture is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((2, 3))).softmax(-1)


@pytest.mark.parametrize("method", ["occlusion", "shapley", "feature_permutation"])
def test_differences_within_the_rounding_of_the_score_are_0(method: str) -> None:
    torch.manual_seed(0)
    model, x = Unread().eval(), torch.randn(2, 3, 16, 16)
    mask = (torch.arange(256) // 64).view(1, 1, 16, 16)
    settings = {} if method == "occlusion" else {"feature_mask": mask}
    found = tt.attribute(model, x, target=lambda out: out.sum(-1), method=method, **settings)
    assert torch.equal(found.values, torch.zeros_like(found.values))
    of_one = tt.attribute(model, x, target=1, method=method, **settings)
    assert bool(of_one.values.any())


def test_channels_within_the_rounding_of_the_score_have_no_weight() -> None:
    torch.manual_seed(0)
    model, x = Unread().eval(), torch.randn(2, 3, 16, 16)
    found = tt.cam(
        model, x, layer="conv", target=lambda out: out.sum(-1), method="ablationcam", relu=False
    )
    assert torch.equal(found.values, torch.zeros_like(found.values))


def test_a_map_of_gradients_below_the_rounding_of_the_score_is_said() -> None:
    torch.manual_seed(0)
    model, x = Unread().eval(), torch.randn(2, 3, 16, 16)
    found = tt.attribute(model, x, target=lambda out: out.sum(-1))
    assert any("may be rounding alone" in note for note in found.notes)
    assert not any("completeness gap" in note for note in found.notes)


# ---------------------------------------------------------------------- inputs equal to baselines


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6(), nn.AvgPool2d(2),
        nn.Conv2d(4, 4, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", ["integrated_gradients", "deeplift", "shapley"])
def test_a_row_that_is_its_baseline_has_a_map_of_0_that_is_complete(
    method: str, dtype: torch.dtype
) -> None:
    model, x = net().to(dtype), torch.zeros(2, 3, 8, 8, dtype=dtype)
    settings = {"n_samples": 1, "feature_mask": torch.tensor([[[[0]]]])}
    found = tt.attribute(
        model, x, target=1, method=method, **(settings if method == "shapley" else {})
    )
    assert torch.equal(found.values, torch.zeros_like(found.values))
    gap = found.check(parts=["repeat"]).gap
    assert gap is not None
    assert torch.equal(gap, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("method", ["deeplift", "lrp", "input_x_gradient"])
def test_half_precision_gives_what_float64_gives(method: str, dtype: torch.dtype) -> None:
    model = net().to(dtype)
    torch.manual_seed(1)
    x = torch.randn(2, 3, 8, 8).to(dtype)
    x[:, :, ::2] = 0  # Half of it is the baseline.
    found = tt.attribute(model, x, target=1, method=method)
    twin = tt.attribute(model.double(), x.double(), target=1, method=method)
    assert bool(found.values.isfinite().all())
    slack = 0.15 * float(twin.values.abs().max())
    torch.testing.assert_close(found.values.double(), twin.values, rtol=0, atol=slack)
