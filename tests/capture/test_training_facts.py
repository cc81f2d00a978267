"""The metadata of a run describe the training: modes, gradients wanted, optimizers, order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt


class _Net(nn.Module):
    """Calls its second layer first, and never the last."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 2)
        self.first = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.25)
        self.never = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.first(x)))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, watch: tt.Watch) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        watch.step()


def _recorded(folder: Path | None = None) -> tt.Run:
    model = _Net()
    model.drop.eval()
    model.first.bias.requires_grad_(False)
    groups = [
        {"params": [model.first.weight], "lr": 0.5},
        {"params": [model.second.weight, model.second.bias], "weight_decay": 0.125},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.25, momentum=0.5)
    to: list[tt.Sink] = [tt.Stats()] if folder is None else [tt.Disk(folder), tt.Stats()]
    with tt.watch(model, "*", to=to) as w:
        _train(model, optimizer, w)
    return w.run if folder is None else tt.open(folder)


@pytest.fixture(params=["memory", "file", "folder"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tt.Run:
    if request.param == "folder":
        return _recorded(tmp_path / "run")
    run = _recorded()
    return run if request.param == "memory" else tt.open(run.save(tmp_path / "run.safetensors"))


def test_the_training_is_in_the_metadata(run: tt.Run) -> None:
    meta = run.meta
    assert meta.modes == {"": True, "second": True, "first": True, "drop": False, "never": True}
    assert [name for name, needs in meta.requires_grad.items() if not needs] == ["first.bias"]
    assert meta.settings["drop"] == {"p": 0.25, "inplace": False}
    assert meta.settings["first"] == {"in_features": 3, "out_features": 4}
    assert meta.order == ("", "first", "drop", "second") or meta.order == (
        "first",
        "drop",
        "second",
        "",
    )
    one, two = meta.optimizers
    assert (one["optimizer"], one["lr"], one["weight_decay"]) == ("SGD", 0.5, 0)
    assert (two["lr"], two["weight_decay"], two["momentum"]) == (0.25, 0.125, 0.5)
    assert (one["params"], two["params"]) == (["first.weight"], ["second.weight", "second.bias"])
    assert meta.unoptimized == ("never.weight", "never.bias")


def test_the_modes_are_those_of_training_and_not_of_a_validation() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model) as w:
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
        model.train()
        _train(model, optimizer, w)
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
        assert w.run.meta.modes == {"": True, "0": True, "1": True}


def test_a_model_trained_in_eval_mode_says_so() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    with tt.watch(model) as w:
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), w)
    assert w.run.meta.modes == {"": False, "0": False, "1": False}


def test_optimizers_of_other_models_are_left_out_and_groups_that_come_later_are_read() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    foreign = torch.optim.SGD(other.parameters(), lr=1.0)
    optimizer = torch.optim.SGD([model.weight], lr=0.5)
    with tt.watch(model) as w:
        _train(other, foreign, w)
        assert not w.run.meta.optimizers
        assert not w.run.meta.unoptimized
        _train(model, optimizer, w)
        assert list(w.run.meta.unoptimized) == ["bias"]
        optimizer.add_param_group({"params": [model.bias], "lr": 2.0})
        _train(model, optimizer, w)
    assert [group["lr"] for group in w.run.meta.optimizers] == [0.5, 2.0]
    assert not w.run.meta.unoptimized


def test_ranks_are_merged_with_what_is_known_of_the_training() -> None:
    from dataclasses import replace

    runs = []
    for rank in range(2):
        found = _recorded()
        found.source.meta  # noqa: B018 - of the watch, read once
        held = tt.Run([], replace(found.meta, rank=rank, world_size=2), series=found.series)
        runs.append(held)
    merged = tt.merge(runs).meta
    assert merged.optimizers == runs[0].meta.optimizers
    assert merged.modes == runs[0].meta.modes
    assert merged.order == runs[0].meta.order
