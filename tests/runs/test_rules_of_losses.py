"""A loss and its gradient tell together which loss it is, its sign, and what it compares."""

from __future__ import annotations

import pytest
import torch
from small_trainings import WHERE, blobs, classifier, train
from torch import Tensor, nn

import torchtap as tt

F = nn.functional


def _regression(seed: int = 0) -> tuple[Tensor, Tensor]:
    x, _ = blobs(seed)
    return x, (x[:, :1] - x[:, 1:2] * x[:, 2:3]) + 0.5


def _regressor() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))


def _logged(sign: float, logged_sign: float) -> tt.Run:
    """Train on ``sign`` times the squared error, and log ``logged_sign`` times it."""
    model, (x, y) = _regressor(), _regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for _ in range(40):
            optimizer.zero_grad()
            error = F.mse_loss(model(x), y)
            (sign * error).backward()
            optimizer.step()
            w.log(loss=logged_sign * error.detach())
            w.step()
    return w.run


def _rules(run: tt.Run) -> list[str]:
    return [one.rule for one in tt.diagnose(run).alarms]


@pytest.mark.parametrize("logged_sign", [1.0, -1.0])
def test_a_climbed_squared_error_is_found_whatever_sign_was_logged(logged_sign: float) -> None:
    assert _rules(_logged(-1.0, logged_sign))[0] == "loss_rises"


@pytest.mark.parametrize("logged_sign", [1.0, -1.0])
def test_a_squared_error_that_falls_is_not_climbed(logged_sign: float) -> None:
    assert "loss_rises" not in [one.rule for one in tt.diagnose(_logged(1.0, logged_sign)).findings]


def test_a_likelihood_of_logits_has_no_minimum() -> None:
    torch.manual_seed(0)
    found = tt.diagnose(train(classifier(), loss=F.nll_loss, steps=60)).findings[0]
    assert (found.rule, found.severity) == ("loss_rises", "alarm")
    assert "without bound" in found.text


def test_a_density_that_is_learnt_falls_below_zero_without_an_alarm() -> None:
    def likelihood(out: Tensor, y: Tensor) -> Tensor:
        return (out[:, 1:] + 0.5 * ((y - out[:, :1]) / out[:, 1:].exp()) ** 2).mean()

    torch.manual_seed(0)
    x, _ = blobs()
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run = train(model, optimizer, data=(x, x[:, :1] * 0.1), loss=likelihood, steps=150)
    assert run.scalars("loss")[1][-1] < -1
    assert _rules(run) == []


def test_each_output_compared_with_all_targets_is_named_with_its_share() -> None:
    def broadcast(out: Tensor, y: Tensor) -> Tensor:
        return (out - y.squeeze(1)).square().mean()

    data = _regression()
    run = train(_regressor(), data=data, loss=broadcast, steps=60)
    found = tt.diagnose(run).findings[0]
    assert (found.rule, found.severity) == ("labels", "alarm")
    # All that is left is the variance of the targets.
    assert found.evidence["share"] == pytest.approx(1.0, abs=0.05)


def test_outputs_pulled_to_one_number_on_purpose_are_no_wrong_targets() -> None:
    run = train(_regressor(), data=_regression(), loss=lambda out, y: out.square().mean())
    assert "labels" not in [one.rule for one in tt.diagnose(run).findings]


def test_targets_of_another_scale_are_named() -> None:
    x, y = _regression()
    run = train(_regressor(), data=(x, y * 1e4), loss=F.mse_loss)
    found = tt.diagnose(run).findings[0]
    assert (found.rule, found.severity) == ("data_scale", "alarm")
    first = float((y[:32] * 1e4).square().mean().sqrt())
    assert found.evidence["error"] == pytest.approx(first, rel=1e-3)


def test_a_softmax_over_the_batch_is_named() -> None:
    torch.manual_seed(0)
    found = tt.diagnose(train(classifier().append(nn.Softmax(0)))).findings[0]
    assert (found.rule, found.path) == ("final_activation", "3")
    assert found.evidence["samples"] == 32


@pytest.mark.parametrize("reduction", ["mean", "sum", "samples"])
def test_a_second_sigmoid_is_named_whatever_the_loss_is_divided_by(reduction: str) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        how = "mean" if reduction == "mean" else "sum"
        found = F.binary_cross_entropy_with_logits(out, F.one_hot(y, 4).float(), reduction=how)
        return found / len(y) if reduction == "samples" else found

    torch.manual_seed(0)
    found = tt.diagnose(train(classifier().append(nn.Sigmoid()), loss=loss)).findings
    assert [one.rule for one in found if one.path == "3"] == ["final_activation"]
    assert found[0].evidence["is_exact"]


def test_gradients_never_cleared_are_found_where_those_of_a_softmax_sum_to_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU(), nn.Linear(32, 4))
    assert "no_zero_grad" in _rules(train(model, zero=False))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU(), nn.Linear(32, 4))
    assert _rules(train(model)) == []


def test_large_first_steps_of_a_line_that_is_learnt_are_no_alarm() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, -1.0])[:, None] + 0.7
    model = nn.Linear(6, 1)
    run = train(model, torch.optim.SGD(model.parameters(), lr=0.1), data=(x, y), loss=F.mse_loss)
    assert _rules(run) == []


@pytest.mark.parametrize(("bias", "severity"), [(-3.0, "note"), (-30.0, "alarm")])
def test_dead_units_are_an_alarm_where_they_stop_the_training(bias: float, severity: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
    few = nn.init.constant_(torch.empty(64), bias)
    few[:20] = 0.0 if bias > -10 else bias
    with torch.no_grad():
        model[0].bias.copy_(few)
    found = [one for one in tt.diagnose(train(model, steps=80)).findings if one.rule == "dead"]
    assert [one.severity for one in found] == [severity]


def test_a_loss_that_is_too_good_is_compared_with_chance() -> None:
    torch.manual_seed(0)
    y = torch.arange(256) % 8
    x = torch.cat([F.one_hot(y, 8) * 2.0, torch.randn(256, 8)], 1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    run = train(model, torch.optim.Adam(model.parameters(), lr=1e-2), data=(x, y), steps=60)
    found = next(one for one in tt.diagnose(run).findings if one.rule == "too_good")
    assert "chance among 8 classes is 2.1" in found.text
