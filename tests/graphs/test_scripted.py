"""Models of TorchScript: a node each, or an error that says what cannot be seen."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import EditError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())


def made(kind: str) -> nn.Module:
    """A model that is scripted, or traced, or has such a part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "script":
            return torch.jit.script(plain())
        if kind == "trace":
            return torch.jit.trace(plain(), torch.rand(5, 3))
        if kind == "frozen":
            return torch.jit.freeze(torch.jit.script(plain().eval()))
        return nn.Sequential(torch.jit.script(plain()), nn.Linear(4, 2))


KINDS = ("script", "trace", "frozen", "part")


def values(model: nn.Module) -> list[Tensor]:
    return [one.clone() for one in model.buffers()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("study", ["graph", "summary", "saved_report", "verify"])
def test_what_runs_a_scripted_model_leaves_its_statistics(kind: str, study: str) -> None:
    model, x = made(kind), torch.rand(5, 3)
    before, own = values(model), [id(one) for one in model.buffers()]
    getattr(tt, study)(model, x)
    assert all(map(torch.equal, before, values(model)))
    assert own == [id(one) for one in model.buffers()]
    model(x)
    assert kind == "frozen" or not all(map(torch.equal, before, values(model)))


def test_a_scripted_part_is_one_node_between_its_neighbours_and_said_to_be() -> None:
    found = tt.graph(made("part"), torch.rand(5, 3))
    assert [(one.name, one.path) for one in found.nodes] == [
        ("input", "input"),
        ("Sequential", "0"),
        ("Linear", "1"),
        ("output", ""),
    ]
    assert [(one.source, one.target) for one in found.edges] == [(0, 1), (1, 2), (2, 3)]
    (note,) = found.notes
    assert note == "0 is a ScriptModule, shown as one node: what runs inside is not seen"
    assert "gives it a gradient" in found.why_no_grad("0.0.weight")


def test_the_whole_model_may_be_a_script_and_global_hooks_are_gone_after() -> None:
    model = made("script")
    found = tt.graph(model, torch.rand(5, 3))
    assert [one.name for one in found.nodes] == ["input", "Sequential", "output"]
    hooks: Any = torch.nn.modules.module
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks


def test_the_autograd_graph_of_a_script_says_what_it_hides() -> None:
    model = made("part")
    for _ in range(3):  # From the second call on, it is one node of its own.
        loss = model(torch.rand(5, 3)).sum()
    nodes = [loss.grad_fn]
    for one in nodes:  # Whether PyTorch joins them depends on what ran before in the process.
        nodes += [after for after, _ in one.next_functions if after is not None]
    if not any("DifferentiableGraph" in one.name() for one in nodes):
        pytest.skip("PyTorch made no node of its own for the script")
    found = tt.graph(loss, model=model)
    (node,) = found.find("DifferentiableGraphBackward")
    assert node.note == "PyTorch does not show what is kept"
    assert "these bytes are not counted" in repr(found)


@pytest.mark.parametrize("kind", ["script", "trace", "part"])
def test_features_of_what_takes_no_hooks_are_refused(kind: str) -> None:
    with pytest.raises(EditError, match="is a ScriptModule, which takes no hooks"):
        tt.features(made(kind), "0")


def test_features_around_a_script_are_those_of_the_model() -> None:
    model, x = made("part").eval(), torch.rand(5, 3)
    assert torch.equal(tt.features(model, "1")(x)["1:output"], model(x))
