"""Each rule of ``tt.rules`` fires on the fault that it is for, at its place, and first.

The faults are planted by construction; nothing here is taken from what the rules say. Healthy
trainings of several seeds and designs are in ``test_rules_healthy.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch
from small_trainings import blobs, classifier, linear, train
from torch import Tensor, nn

import torchtap as tt

F = nn.functional


def _adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def _deep(activation: Callable[[], nn.Module], num: int = 12) -> nn.Sequential:
    middle = [one for _ in range(num) for one in (nn.Linear(32, 32), activation())]
    return classifier(*middle)


class _Cut(nn.Module):
    """Takes the output of its first layer out of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).detach().relu())


class _LogOfNegative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log() if self.training else x


def _nonfinite() -> tt.Run:
    return train(classifier(_LogOfNegative(), nn.Linear(32, 32)), steps=5)


def _vanishing() -> tt.Run:
    return train(_deep(nn.Sigmoid))


class _Louder(nn.Module):
    """Hands on what enters it, and ten times the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * x - 9 * x.detach()


def _exploding() -> tt.Run:
    middle = [one for _ in range(5) for one in (nn.Linear(32, 32), nn.ELU(), _Louder())]
    model = classifier(*middle)
    return train(model, torch.optim.SGD(model.parameters(), lr=1e-7))


def _small_init() -> tt.Run:
    model = classifier(nn.Linear(32, 32), nn.ReLU())
    nn.init.normal_(linear(model, 2).weight, std=1e-5)
    return train(model)


def _large_init() -> tt.Run:
    model = classifier(nn.Linear(32, 32), nn.ReLU())
    with torch.no_grad():
        model[2].weight.mul_(60)
    return train(model)


def _lr_high() -> tt.Run:
    model = classifier()
    return train(model, _adam(model, 3.0))


def _steps_too_small() -> tt.Run:
    model = classifier()
    return train(model, _adam(model, 1e-9))


def _updates_stop() -> tt.Run:
    model = classifier()
    optimizer = _adam(model)

    def stop(step: int) -> None:
        if step == 15:
            optimizer.param_groups[0]["lr"] = 0.0

    return train(model, optimizer, between=stop)


def _dead() -> tt.Run:
    model = classifier()
    nn.init.constant_(linear(model, 0).bias, -50.0)
    return train(model)


def _saturated() -> tt.Run:
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([30.0, -30.0]).repeat(16))
    return train(model)


def _final_activation() -> tt.Run:
    return train(classifier().append(nn.ReLU()))


def _double_softmax() -> tt.Run:
    return train(classifier().append(nn.Softmax(1)))


def _no_activation() -> tt.Run:
    return train(classifier(nn.Linear(32, 32), nn.Linear(32, 32), nn.ReLU()))


def _dropout_high() -> tt.Run:
    return train(classifier(nn.Dropout(0.95)))


def _frozen() -> tt.Run:
    model = classifier(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 32))
    model[4].requires_grad_(False)
    return train(model)


def _not_in_optimizer() -> tt.Run:
    model = classifier()
    return train(model, torch.optim.Adam(model[0].parameters(), lr=3e-3))


def _detached() -> tt.Run:
    return train(_Cut())


def _bn_eval() -> tt.Run:
    model = classifier(nn.BatchNorm1d(32))
    model[2].eval()
    return train(model)


def _no_zero_grad() -> tt.Run:
    return train(classifier(), zero=False)


def _decay_high() -> tt.Run:
    model = classifier()
    return train(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=30.0))


def _loss_rises() -> tt.Run:
    model = classifier()
    return train(model, torch.optim.Adam(model.parameters(), lr=1e-3, maximize=True))


def _labels() -> tt.Run:
    x, y = blobs(num=2048)
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    return train(classifier(), data=(x, shuffled), steps=60)


def _data_scale() -> tt.Run:
    x, y = blobs()
    return train(classifier(), data=(x * 300 + 1000, y))


def _collapsed() -> tt.Run:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(0, keepdim=True).expand_as(x)

    return train(classifier(Mean()))


def _bad_batch() -> tt.Run:
    x, y = blobs(num=32 * 40)
    x[32 * 20 : 32 * 21] *= 1e4
    return train(classifier(), data=(x, y))


def _symmetric() -> tt.Run:
    model = classifier()
    nn.init.constant_(linear(model, 0).weight, 0.1)
    return train(model)


def _stale_low_precision() -> tt.Run:
    model = classifier().to(torch.bfloat16)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(4.0)
    x, y = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return train(model, optimizer, data=(x.bfloat16(), y))


def _underflow() -> tt.Run:
    def small(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float(), target) * 1e-5

    model = classifier().half()
    x, y = blobs()
    return train(model, torch.optim.SGD(model.parameters(), lr=1.0), data=(x.half(), y), loss=small)


def _too_good() -> tt.Run:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(12, (512,), generator=generator)
    x = F.one_hot(y, 12).float() * 4
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12))
    return train(model, _adam(model, 3e-2), data=(x, y))


FAULTS: dict[str, tuple[Callable[[], tt.Run], str]] = {
    "nonfinite": (_nonfinite, "2"),
    "vanishing": (_vanishing, "0"),
    "exploding": (_exploding, "0"),
    "small_init": (_small_init, "2"),
    "large_init": (_large_init, "2"),
    "lr_high": (_lr_high, "."),
    "steps_too_small": (_steps_too_small, "."),
    "updates_stop": (_updates_stop, "."),
    "dead": (_dead, "1"),
    "saturated": (_saturated, "1"),
    "final_activation": (_final_activation, "3"),
    "double_softmax": (_double_softmax, "3"),
    "no_activation": (_no_activation, "2"),
    "dropout_high": (_dropout_high, "2"),
    "frozen": (_frozen, "4"),
    "not_in_optimizer": (_not_in_optimizer, "2"),
    "detached": (_detached, "first"),
    "bn_eval": (_bn_eval, "2"),
    "no_zero_grad": (_no_zero_grad, "."),
    "decay_high": (_decay_high, "."),
    "loss_rises": (_loss_rises, "."),
    "labels": (_labels, "."),
    "data_scale": (_data_scale, "."),
    "collapsed": (_collapsed, "3"),
    "bad_batch": (_bad_batch, "."),
    "symmetric": (_symmetric, "0"),
    "stale_low_precision": (_stale_low_precision, "0"),
    "underflow": (_underflow, "2"),
    "too_good": (_too_good, "."),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_the_diagnosis_at_its_place(rule: str) -> None:
    torch.manual_seed(0)
    make, place = FAULTS[rule]
    found = tt.diagnose(make())
    assert not found.failed
    assert found.findings[0].rule == rule
    assert found.findings[0].path == place
    assert found.findings[0].severity == ("note" if rule == "too_good" else "alarm")


def test_there_is_a_fault_for_every_rule() -> None:
    assert set(FAULTS) == {one.__name__ for one in tt.rules.default}


def test_the_figures_are_those_of_the_construction() -> None:
    torch.manual_seed(0)
    dropout = tt.diagnose(_dropout_high()).findings[0].evidence["share"]
    assert dropout == pytest.approx(0.95, abs=0.02)
    bad = tt.diagnose(_bad_batch()).findings[0]
    assert list(bad.steps) == [20]
    assert bad.evidence["times"] == pytest.approx(1e4, rel=0.5)
    scale = tt.diagnose(_data_scale()).findings[0].evidence["rms"]
    assert scale == pytest.approx(math.hypot(300, 1000), rel=0.05)
    assert tt.diagnose(_updates_stop()).findings[0].steps[0] == 15
    assert tt.diagnose(_symmetric()).findings[0].evidence["value"] == pytest.approx(0.1)


class _Forgotten:
    """An optimizer whose step is never made."""

    def __init__(self, model: nn.Module) -> None:
        self.zero_grad = model.zero_grad

    def step(self) -> None:
        pass


def test_a_forgotten_step_of_the_optimizer_is_an_alarm() -> None:
    torch.manual_seed(0)
    model = classifier()
    found = tt.diagnose(train(model, cast("torch.optim.Optimizer", _Forgotten(model)), steps=30))
    assert [(one.rule, one.path) for one in found.alarms] == [("updates_stop", ".")]
    assert "no optimizer made a step in 30 steps" in found.findings[0].text
    assert "update was watched, and no optimizer made a step" in found.silent[0]


class _ByHand(_Forgotten):
    """A step that is made without an optimizer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model = model

    @torch.no_grad()
    def step(self) -> None:
        for one in self.model.parameters():
            assert one.grad is not None
            one.sub_(one.grad, alpha=0.1)


def test_a_training_by_hand_is_no_forgotten_step() -> None:
    torch.manual_seed(0)
    model = classifier()
    assert not tt.diagnose(train(model, cast("torch.optim.Optimizer", _ByHand(model)))).alarms


@pytest.mark.parametrize("logged", ["loss", "minus", "none"])
def test_a_climbed_cross_entropy_is_found_whatever_was_logged(logged: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8)), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with tt.watch(model, "*:*,param,param_grad,update", to=tt.Stats()) as w:
        for _ in range(40):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            (-loss).backward()
            optimizer.step()
            if logged != "none":
                w.log(loss=loss if logged == "loss" else -loss)
            w.step()
    assert [one.rule for one in tt.diagnose(w.run).alarms] == ["loss_rises"]


def test_soft_targets_of_a_confident_model_are_no_climbed_loss() -> None:
    torch.manual_seed(0)
    model, (x, _) = nn.Sequential(nn.Linear(12, 8)), blobs()
    torch.nn.init.normal_(linear(model, 0).weight, std=3.0)
    targets = torch.full((len(x), 8), 1 / 8)
    run = train(model, _adam(model, 0.1), data=(x, targets), logs=False)
    assert "loss_rises" not in [one.rule for one in tt.diagnose(run).findings]


def test_zeros_that_flow_are_no_missing_activation() -> None:
    model = classifier(nn.Linear(32, 32), nn.ReLU())
    for one in model.parameters():
        nn.init.zeros_(one)
    rules = [one.rule for one in tt.diagnose(train(model)).alarms]
    assert rules[0] == "symmetric"
    assert "no_activation" not in rules


def test_the_evidence_of_bad_data_is_the_data() -> None:
    x, y = blobs()
    x[40] = math.nan
    found = tt.diagnose(train(classifier(), data=(x, y))).findings[0]
    assert (found.rule, found.path, found.evidence["first"]) == ("nonfinite", ".", ".:input")
