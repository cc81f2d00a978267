"""No rule raises an alarm on trainings that are as they should be, for several seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from small_trainings import blobs, classifier, linear, train
from torch import Tensor, nn

import torchtap as tt


class _Residual(nn.Module):
    """A block that starts as nothing on purpose."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


def _plain() -> tt.Run:
    return train(classifier())


def _without_a_loss() -> tt.Run:
    return train(classifier(), logs=False)


def _sgd_with_dropout() -> tt.Run:
    model = classifier(nn.Dropout(0.3))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def _batch_norm() -> tt.Run:
    return train(classifier(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()))


def _convolutions() -> tt.Run:
    def shaped(x: Tensor) -> Tensor:
        return x.reshape(-1, 1, 3, 4)

    x, y = blobs()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 12, 4),
    )
    return train(model, data=(shaped(x), y))


def _residual() -> tt.Run:
    return train(classifier(_Residual(), _Residual()))


def _regression() -> tt.Run:
    x, _ = blobs()
    targets = x[:, :1] * 2 + x[:, 1:2]
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    return train(model, data=(x, targets), loss=nn.functional.mse_loss)


def _frozen_beginning() -> tt.Run:
    model = classifier(nn.Linear(32, 32), nn.ReLU())
    # Weights that were trained before are not as PyTorch made them.
    nn.init.normal_(linear(model, 0).weight, std=0.3)
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2:].parameters(), lr=3e-3)
    return train(model, optimizer)


def _accumulated() -> tt.Run:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = blobs()
    where = "*:*,param,param_grad,update"
    with tt.watch(model, where, to=tt.Stats()) as w:
        for step in range(60):
            rows = torch.arange(32 * step, 32 * (step + 1)) % len(x)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            w.log(loss=loss)
            w.step()
    return w.run


def _attention() -> tt.Run:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(3, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.leave = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.leave(self.layer(self.enter(x.reshape(-1, 4, 3))).mean(1))
            return out

    return train(Encoder())


HEALTHY: list[Callable[[], tt.Run]] = [
    _plain,
    _without_a_loss,
    _sgd_with_dropout,
    _batch_norm,
    _convolutions,
    _residual,
    _regression,
    _frozen_beginning,
    _accumulated,
    _attention,
]


@pytest.mark.parametrize("make", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_training_raises_no_alarm(make: Callable[[], tt.Run], seed: int) -> None:
    torch.manual_seed(seed)
    found = tt.diagnose(make())
    assert [str(one) for one in found.alarms] == []
    assert not found.failed


@pytest.mark.parametrize("bounded", [nn.ReLU6(), nn.Hardtanh(-20.0, 20.0)])
def test_activations_with_bounds_of_their_own_are_not_at_those_of_tanh(bounded: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), bounded, nn.Linear(32, 4))
    nn.init.constant_(linear(model, 0).bias, 2.5)
    with tt.watch(model, "1:output") as w:
        model(blobs()[0])
    assert w.run["1:output"].square().mean() > 1  # No value between -1 and 1 has this square.
    assert [str(one) for one in tt.diagnose(w.run).alarms] == []


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_falls_slowly_and_steadily_is_learning(seed: int) -> None:
    torch.manual_seed(seed)
    x, y = blobs(num=2048)
    model = nn.Linear(12, 4)
    nn.init.normal_(model.weight, std=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    run = train(model, optimizer, data=(x, y), steps=60, batch=256)
    _, losses = run.scalars("loss")
    assert 0.93 * math.log(4) < losses[-1] < math.log(4)
    assert [one.rule for one in tt.diagnose(run).alarms] == []


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("rate", [1e-4, 1e-2])
def test_a_squared_error_of_probabilities_is_no_second_softmax(classes: int, rate: float) -> None:
    torch.manual_seed(0)
    x, _ = blobs()
    targets = nn.functional.one_hot(x[:, :classes].argmax(1), classes).float()
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, classes), nn.Softmax(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    run = train(model, optimizer, data=(x, targets), loss=nn.functional.mse_loss)
    assert [one.rule for one in tt.diagnose(run).alarms] == []
