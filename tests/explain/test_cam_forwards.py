"""Score-CAM and Ablation-CAM: weights by hand, in batches of any width, stopped and interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchtap as tt

WIDTHS = (1, 2, 3, 32, 1000)


class Net(nn.Module):
    """Convolution, an in-place rectifier, pooling, two linear layers; it counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.conv = nn.Conv2d(3, 5, 3)
            self.norm = nn.BatchNorm2d(5)
            self.act = nn.ReLU(inplace=True)
            self.one, self.two = nn.Linear(5, 6), nn.Linear(6, 4)
        self.rows: list[int] = []
        self.raises_at: int | None = None
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.raises_at is not None and len(self.rows) >= self.raises_at:
            raise KeyboardInterrupt
        self.rows.append(len(x))
        return self.behind(self.norm(self.conv(x)))

    def behind(self, value: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(self.act(value).mean((2, 3)))))


def pictures(rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, 10, 12, generator=torch.Generator().manual_seed(7)).double()


def net() -> Net:
    return Net().double()


def weighed(weights: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("bk,bkhw->bhw", weights, value).relu()


@torch.no_grad()
def ablated(model: Net, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """Weights and values at the norm, one row and one channel after the other."""
    value = model.norm(model.conv(x))
    weights = torch.zeros(value.shape[:2], dtype=torch.float64)
    for row, one in enumerate(classes):
        whole = model.behind(value[row : row + 1].clone())[0, one]
        for channel in range(value.shape[1]):
            without = value[row : row + 1].clone()
            without[:, channel] = 0
            weights[row, channel] = (whole - model.behind(without)[0, one]) / whole
    return weights, value


@torch.no_grad()
def masked(model: Net, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """Expected scores of masks of the input, before the softmax."""
    value = model.norm(model.conv(x))
    scores = torch.zeros(value.shape[:2], dtype=torch.float64)
    for row, one in enumerate(classes):
        for channel in range(value.shape[1]):
            mask = functional.interpolate(
                value[row, channel][None, None], size=(10, 12), mode="bilinear"
            )[0, 0]
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            scores[row, channel] = model.behind(model.norm(model.conv(x[row : row + 1] * mask)))[
                0, one
            ]
    return scores, value


@pytest.mark.parametrize("batch_size", WIDTHS)
def test_ablationcam_weighs_each_channel_by_what_is_lost_without_it(batch_size: int) -> None:
    model, x = net(), pictures()
    found = tt.cam(
        model, x, layer="norm", target=[1, 3], method="ablationcam", batch_size=batch_size
    )
    torch.testing.assert_close(found.values, weighed(*ablated(model, x, [1, 3])))
    assert max(model.rows) <= max(batch_size, 2)


@pytest.mark.parametrize("batch_size", WIDTHS)
def test_scorecam_weighs_each_channel_by_the_score_of_the_input_masked_with_it(
    batch_size: int,
) -> None:
    model, x = net(), pictures()
    scores, value = masked(model, x, [1, 3])
    found = tt.cam(model, x, layer="norm", target=[1, 3], method="scorecam", batch_size=batch_size)
    torch.testing.assert_close(found.values, weighed(scores.softmax(1), value))


def test_a_constant_channel_makes_no_mask() -> None:
    model, x = net(), pictures(1)
    with torch.no_grad():
        model.norm.weight[2] = 0
        model.norm.bias[2] = 4
    scores, value = masked(model, x, [1])
    scores[:, 2] = -torch.inf
    found = tt.cam(model, x, layer="norm", target=1, method="scorecam")
    torch.testing.assert_close(found.values, weighed(scores.softmax(1), value))


def test_a_negative_score_turns_the_sign_of_ablation_weights_and_is_said() -> None:
    model, x = net(), pictures()
    with torch.no_grad():
        model.two.bias[1] = -10
    found = tt.cam(model, x, layer="norm", target=1, method="ablationcam")
    torch.testing.assert_close(found.values, weighed(*ablated(model, x, [1, 1])))
    assert "score of row 0, 1 is negative" in " ".join(found.notes)


@pytest.mark.parametrize("method", ["scorecam", "ablationcam"])
def test_max_evals_tries_the_channels_with_the_largest_activation(method: str) -> None:
    model, x = net(), pictures(1)
    weights, value = (ablated if method == "ablationcam" else masked)(model, x, [1])
    energy = value.square().sum((0, 2, 3))
    kept = set(energy.argsort(descending=True)[:3].tolist())
    for channel in set(range(5)) - kept:
        weights[:, channel] = 0 if method == "ablationcam" else -torch.inf
    if method == "scorecam":
        weights = weights.softmax(1)
    model.rows.clear()
    found = tt.cam(model, x, layer="norm", target=1, method=method, max_evals=3)
    torch.testing.assert_close(found.values, weighed(weights, value))
    assert "stopped after 3 of 5 channels (max_evals)" in " ".join(found.notes)
    # Those that find the value, who reads it, and how many fit in a forward.
    assert sum(model.rows) <= 3 + 8


@pytest.mark.parametrize("method", ["scorecam", "ablationcam"])
def test_an_interruption_gives_what_is_there_and_says_so(method: str) -> None:
    model, x = net(), pictures(1)
    whole = tt.cam(model, x, layer="norm", target=1, method=method, batch_size=1)
    forwards = len(model.rows)
    model.rows.clear()
    model.raises_at = forwards - 2
    found = tt.cam(model, x, layer="norm", target=1, method=method, batch_size=1)
    assert "interrupted after 3 of 5 channels" in " ".join(found.notes)
    model.raises_at = None
    expected = tt.cam(model, x, layer="norm", target=1, method=method, max_evals=3)
    torch.testing.assert_close(found.values, expected.values)
    assert not torch.equal(found.values, whole.values)


def test_an_interruption_before_the_first_channel_is_one() -> None:
    model = net()
    model.raises_at = 0
    with pytest.raises(KeyboardInterrupt):
        tt.cam(model, pictures(), layer="norm", target=1, method="scorecam")


@pytest.mark.parametrize("method", ["scorecam", "ablationcam"])
def test_a_model_that_mixes_rows_is_run_one_channel_at_a_time(method: str) -> None:
    model, x = net(), pictures()
    model.norm.train()
    statistics = model.norm.running_mean
    assert statistics is not None
    before = statistics.clone()
    one = tt.cam(model, x, layer="conv", target=1, method=method, batch_size=1)
    many = tt.cam(model, x, layer="conv", target=1, method=method)
    assert torch.equal(one.values, many.values)
    notes = " ".join(many.notes)
    assert "normalises over the batch" in notes
    assert "mixes the rows of a batch" in notes
    assert model.norm.running_mean is statistics
    assert torch.equal(statistics, before)


def test_a_target_of_one_number_for_the_batch_is_run_one_channel_at_a_time() -> None:
    model, x = net(), pictures(1)
    expected = tt.cam(model, x, layer="norm", target=1, method="ablationcam")
    found = tt.cam(
        model, x, layer="norm", target=lambda out: out[:, 1].mean(), method="ablationcam"
    )
    torch.testing.assert_close(found.values, expected.values)
    assert "one number for a whole batch" in " ".join(found.notes)


def test_only_one_call_of_a_layer_is_ablated() -> None:
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            value = self.norm(self.conv(x))
            return self.behind(self.norm(value.sin()))

    model, x = Twice().double(), pictures(1)
    with torch.no_grad():
        first = model.norm(model.conv(x))
        whole = model.behind(model.norm(first.sin()))[0, 1]
        weights = torch.zeros(1, 5, dtype=torch.float64)
        for channel in range(5):
            without = first.clone()
            without[:, channel] = 0
            weights[0, channel] = (whole - model.behind(model.norm(without.sin()))[0, 1]) / whole
    found = tt.cam(model, x, layer="norm", target=1, method="ablationcam", call=0, batch_size=2)
    torch.testing.assert_close(found.values, weighed(weights, first))


def test_tokens_are_ablated_and_token_numbers_are_not_masked() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), Mean(), nn.Linear(4, 3)).double()
    ids = torch.tensor([[1, 5, 2, 7]])
    with torch.no_grad():
        value = model[1](model[0](ids))
        behind = nn.Sequential(model[2], model[3])
        whole = behind(value)[0, 1]
        weights = torch.zeros(4, dtype=torch.float64)
        for channel in range(4):
            without = value.clone()
            without[..., channel] = 0
            weights[channel] = (whole - behind(without)[0, 1]) / whole
    found = tt.cam(model, ids, layer="1", target=1, method="ablationcam")
    torch.testing.assert_close(found.values, (value @ weights).relu())
    with pytest.raises(tt.InputError, match="token numbers"):
        tt.cam(model, ids, layer="1", target=1, method="scorecam")


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def test_further_inputs_are_repeated_with_the_rows() -> None:
    class Two(Net):
        def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
            assert shift is not None
            return super().forward(x) * shift

    model, x = Two().double(), pictures()
    shift = torch.tensor([[1.0], [2.0]]).double()
    wide = tt.cam(model, x, layer="norm", target=1, method="scorecam", shift=shift)
    narrow = tt.cam(model, x, layer="norm", target=1, method="scorecam", shift=shift, batch_size=1)
    torch.testing.assert_close(wide.values, narrow.values)
    assert 10 in model.rows


def test_pictures_of_bytes_are_masked_and_rounded() -> None:
    class Bytes(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double() / 255)

    model = Bytes().double()
    x = torch.randint(0, 256, (1, 3, 10, 12), dtype=torch.uint8)
    scores = torch.zeros(1, 5, dtype=torch.float64)
    with torch.no_grad():
        value = model.norm(model.conv(x.double() / 255))
        for channel in range(5):
            mask = functional.interpolate(
                value[:, channel : channel + 1], size=(10, 12), mode="bilinear"
            )
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            scores[0, channel] = model((x * mask).round().to(torch.uint8))[0, 1]
    found = tt.cam(model, x, layer="norm", target=1, method="scorecam")
    torch.testing.assert_close(found.values, weighed(scores.softmax(1), value))
    assert found.size == (10, 12)
    assert tt.cam(model, x, layer="norm", target=1).values.shape == (1, 8, 10)


def test_progress_is_shown_when_it_is_asked_for(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("torchtap.core.progress._QUIET_SECONDS", 0.0)

    class Slow(Net):
        def forward(self, x: Tensor) -> Tensor:
            import time

            time.sleep(0.15)
            return super().forward(x)

    tt.cam(
        Slow().double(), pictures(1), layer="norm", target=1, method="scorecam", progress=True,
        batch_size=1,
    )  # fmt: skip
    assert "scorecam: channels" in capsys.readouterr().err
