"""Operations of a loss, and outputs that meet its targets, tell what is wrong outside a model."""

from __future__ import annotations

import pytest
import torch
from small_trainings import WHERE, blobs, classifier, linear, train
from torch import Tensor, nn

import torchtap as tt

F = nn.functional


def _first(run: tt.Run) -> tuple[str, str, str]:
    found = tt.diagnose(run)
    assert not found.failed
    return found.findings[0].rule, found.findings[0].severity, found.findings[0].path


def _fresh(model: nn.Module, wrong: bool, steps: int = 50) -> tt.Run:
    """Train on new points in each step, with the targets of other points where it is wrong."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for step in range(steps):
            x, y = blobs(step, num=32)
            y = y[torch.randperm(32)] if wrong else y
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.step()
    return w.run


@pytest.mark.parametrize("seed", range(3))
def test_targets_of_others_are_named_though_no_loss_is_logged(seed: int) -> None:
    torch.manual_seed(seed)
    run = _fresh(classifier(), wrong=True)
    assert _first(run) == ("labels", "alarm", ".")
    found = tt.diagnose(run).findings[0]
    assert abs(found.evidence["agreement"]) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_targets_that_are_learned_are_left_alone(seed: int) -> None:
    torch.manual_seed(seed)
    assert [str(one) for one in tt.diagnose(_fresh(classifier(), wrong=False)).alarms] == []


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.cross_entropy(out.softmax(1), y),
        lambda out, y: F.nll_loss(out.softmax(1).log_softmax(1), y),
        lambda out, y: F.cross_entropy(out.softmax(0), y),
        lambda out, y: F.nll_loss(out.log_softmax(0), y),
        lambda out, y: F.cross_entropy(out.log_softmax(1).exp(), y),
        lambda out, y: F.binary_cross_entropy_with_logits(out.sigmoid(), F.one_hot(y, 4).float()),
    ],
)
def test_a_softmax_outside_of_the_model_is_seen(loss: object) -> None:
    torch.manual_seed(0)
    assert _first(train(classifier(), loss=loss)) == ("double_softmax", "alarm", ".")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.nll_loss(out.log_softmax(1), y),
        lambda out, y: F.cross_entropy(out.log_softmax(1), y),
        lambda out, y: F.cross_entropy(out, y) + 0 * out.softmax(1).mean(),
        lambda out, y: F.binary_cross_entropy(out.sigmoid(), F.one_hot(y, 4).float()),
    ],
)
def test_one_softmax_is_enough(loss: object) -> None:
    torch.manual_seed(0)
    run = train(classifier(), loss=loss)  # type: ignore[arg-type]
    assert "double_softmax" not in [one.rule for one in tt.diagnose(run).findings]


@pytest.mark.parametrize("logs", [True, False])
def test_a_turned_sign_is_named_for_any_error(*, logs: bool) -> None:
    torch.manual_seed(0)
    x, _ = blobs()
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    run = train(
        model, data=(x, x[:, :1]), loss=lambda out, y: -F.huber_loss(out, y), steps=60, logs=logs
    )
    assert _first(run) == ("loss_rises", "alarm", ".")


def test_classes_first_by_a_reshape_are_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5))
    x, y = torch.randn(64, 6, 4), torch.randint(5, (64, 6))
    wrong = train(model, data=(x, y), loss=lambda out, y: F.cross_entropy(out.reshape(-1, 5, 6), y))
    found = tt.diagnose(wrong).findings[0]
    assert (found.rule, found.severity) == ("labels", "alarm")
    assert "reshaped" in found.text
    right = train(model, data=(x, y), loss=lambda out, y: F.cross_entropy(out.transpose(1, 2), y))
    assert "reshaped" not in " ".join(one.text for one in tt.diagnose(right).findings)


@pytest.mark.parametrize("error", [F.smooth_l1_loss, F.huber_loss, F.l1_loss])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_column_compared_with_a_row_is_named_for_any_error(error: object) -> None:
    torch.manual_seed(0)
    x, _ = blobs()
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    run = train(model, data=(x, x[:, 0]), loss=error)  # type: ignore[arg-type]
    assert _first(run) == ("labels", "alarm", ".")


@pytest.mark.parametrize(
    ("end", "targets"),
    [(nn.ReLU(), -1.0), (nn.Sigmoid(), 3.0), (nn.Tanh(), -4.0), (nn.Softplus(), -1.0)],
)
def test_targets_out_of_reach_of_the_last_activation_are_named(
    end: nn.Module, targets: float
) -> None:
    torch.manual_seed(0)
    x, _ = blobs()
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), end)
    run = train(model, data=(x, targets * x[:, :1].abs()), loss=F.mse_loss)
    assert _first(run) == ("final_activation", "alarm", "3")
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), end)
    nn.init.constant_(linear(model, 2).bias, 0.5)
    run = train(model, data=(x, x[:, :1].sigmoid()), loss=F.mse_loss)
    assert "final_activation" not in [one.rule for one in tt.diagnose(run).findings]


def test_targets_in_a_column_of_the_input_are_named() -> None:
    torch.manual_seed(0)
    x, y = blobs()
    leaking = torch.cat([x[:, :11], y[:, None].float()], 1)
    run = train(classifier(), data=(leaking, y))
    found = tt.diagnose(run).findings[0]
    assert (found.rule, found.severity, found.evidence["copied"]) == ("too_good", "alarm", 1)


def test_an_averaged_copy_and_a_head_that_is_not_used_are_not_frozen_by_mistake() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.unused = classifier(), nn.Linear(4, 4), nn.Linear(4, 2)
            self.unused.requires_grad_(False)
            self.slow = classifier().requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            inner = self.body(x)
            self.unused(inner)
            out: Tensor = self.head(inner)
            return out

    torch.manual_seed(0)
    found = tt.diagnose(train(Two())).findings
    assert [str(one) for one in found if one.rule == "frozen"] == []


def test_a_code_that_fades_is_collapsed_where_it_is_made() -> None:
    class Code(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(12, 6), nn.Linear(6, 12)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            code = self.enter(x)
            return self.leave(code + torch.randn_like(code)), code

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.mse_loss(out[0], y) + 20 * out[1].square().mean()

    torch.manual_seed(0)
    x, _ = blobs()
    model = Code()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run = train(model, optimizer, data=(x, x), loss=loss, steps=80)  # type: ignore[arg-type]
    assert ("collapsed", "enter") in [(one.rule, one.path) for one in tt.diagnose(run).alarms]


def test_matrices_of_zeros_behind_each_other_never_begin() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    for place in (0, 2, 4):
        nn.init.zeros_(linear(model, place).weight)
        nn.init.zeros_(linear(model, place).bias)
    assert _first(train(model)) == ("symmetric", "alarm", "0")
