"""Watching under ``torch.func``, ``torch.jit`` and ``torch.export``."""

from __future__ import annotations

import pytest
import torch
from absent import reasons
from bits import same
from models import relu_mlp, rows
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_watched_model_can_be_traced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tt.watch(model, "*:*") as w:
        model(torch.ones(1, 2))
        w.step()
        traced = torch.jit.trace(model, torch.ones(1, 2))
    assert torch.equal(traced(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_holds_nothing_of_torchtap() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tt.watch(model, "*:output", to=tt.Stats()):
        program = torch.export.export(model, (torch.ones(1, 2),), strict=True)
    assert "torchtap" not in str(program.graph)


def test_inside_torch_func_it_is_listed_as_absent() -> None:
    model = relu_mlp()
    params = dict(model.named_parameters())

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, params, (x,)).sum()

    plain = torch.func.grad(loss)(params, rows())  # type: ignore[arg-type]
    with tt.watch(model, "*:output,grad_output") as w:
        watched = torch.func.grad(loss)(params, rows())  # type: ignore[arg-type]
    assert all(same(plain[name], watched[name]) for name in params)
    assert len(w.run) == 0
    assert all("torch.func" in reason for reason in reasons(w).values())
    assert set(reasons(w)) >= {"0:output", "2:grad_output"}


def test_inside_vmap_it_is_listed_as_absent() -> None:
    model = relu_mlp()
    with tt.watch(model, "0") as w:
        torch.vmap(model)(rows())
    assert list(reasons(w)) == ["0:output"]
    assert "torch.func" in reasons(w)["0:output"]


def test_functional_call_alone_is_watched() -> None:
    model = relu_mlp()
    params = {name: torch.zeros_like(param) for name, param in model.named_parameters()}
    with tt.watch(model, "2") as w:
        torch.func.functional_call(model, params, (rows(),))
    assert w.run["2:output"].unique().tolist() == [0.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_listed_as_absent() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 3), rows())
    model = Net(lambda m, x: m.plain(m.scripted(x)), scripted=scripted, plain=nn.ReLU())
    with tt.watch(model, "*:output") as w:
        model(rows())
    assert "ScriptModule" in reasons(w)["scripted:output"]
    assert "plain:output" in w.run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_is_a_script_module_is_listed_as_absent() -> None:
    with tt.watch(torch.jit.trace(nn.Linear(3, 3), rows())) as w:
        pass
    assert "ScriptModule" in reasons(w)[".:output"]
