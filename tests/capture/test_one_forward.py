"""A watch around one forward: each call is the first of its module, and hooks come and go."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.stats.kernels import native

ENGINES = ("0", "1") if native.takes_calls() else ("0",)
pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def chosen(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test run by both engines."""
    monkeypatch.setenv("TORCHTAP_NATIVE", engine)


def tables(model: nn.Module) -> Iterator[Any]:
    """Yield the tables of hooks of all modules."""
    for module in model.modules():
        yield from (module._forward_hooks, module._forward_hooks_with_kwargs)
        yield from (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
        yield module._forward_hooks_always_called


class InMemoryOfTheCaller(nn.Module):
    """Returns the memory that it was given, with a graph and without a view."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class TwoKinds(nn.Module):
    """Overwrites outputs of two dtypes, and views of them; leaves others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.single, self.wide = nn.Linear(4, 4), nn.Linear(4, 4).double()
        self.kept, self.flat = nn.Linear(4, 4), nn.Flatten(0)

    def forward(self, x: Tensor) -> Tensor:
        single = self.single(x)
        double = self.wide(x.double())
        kept = self.kept(x)
        flat = self.flat(kept * 1)
        single.relu_()
        double.add_(1)
        flat.mul_(3)
        return single.sum() + double.sum() + kept.sum() + flat.sum()


def test_values_are_those_that_a_plain_hook_clones() -> None:
    model, x, plain = TwoKinds(), torch.randn(3, 4), dict[str, Tensor]()
    handles = [
        module.register_forward_hook(
            lambda _, __, output, name=name: plain.update({name: output.detach().clone()})
        )
        for name, module in model.named_children()
    ]
    model(x)
    for handle in handles:
        handle.remove()
    for _ in range(2):
        with tt.watch(model, ["*@Linear", "*@Flatten"]) as w:
            model(x)
        found = {one.site.path: one.value for one in w.run.records()}
        assert found.keys() == plain.keys()
        assert all(torch.equal(found[path], plain[path]) for path in plain)
        assert not w.absent


def test_the_first_forward_tells_which_outputs_are_overwritten() -> None:
    model = TwoKinds()
    with tt.watch(model, ["*@Linear", "*@Flatten"]) as w:
        model(torch.randn(3, 4))
        w.step()
        taps = w._engine.hooks.taps
        copied = {path: tap.states["output", ""].copies for path, tap in taps.items()}
    assert copied == {"single": True, "wide": True, "kept": False, "flat": True}


def test_memory_of_the_caller_is_copied_each_time() -> None:
    model = nn.Sequential(InMemoryOfTheCaller())
    with tt.watch(model, "0") as w:
        for _ in range(3):
            x = torch.ones(2, requires_grad=True) * 1
            model(x)
            x.detach().numpy()[:] = 7  # No version tells of it.
            w.step()
    assert [one.value.tolist() for one in w.run.records("0")] == [[2.0, 2.0]] * 3


def test_the_order_of_first_calls_is_that_of_the_calls() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    model.forward = lambda x: model["b"](model["c"](model["a"](x)))
    with tt.watch(model, "*@Linear") as w:
        model(torch.ones(1, 2))
    assert w.run.meta.order == ("a", "c", "b")


def test_statistics_of_a_first_tensor_are_those_of_float64() -> None:
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh()), torch.randn(6, 5)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        out = model(x)
        out.square().sum().backward()
    expected = out.detach().double()
    found = w.run.stats("1:output")
    assert (found.numel, found.num_tensors) == (42, 1)
    assert math.isclose(found.mean, expected.mean().item(), rel_tol=1e-12)
    assert math.isclose(found.l2, expected.norm().item(), rel_tol=1e-12)
    assert math.isclose(w.run.stats("1:grad_output").l2, 2 * expected.norm().item(), rel_tol=1e-6)
    assert math.isclose(
        w.run.mean_norm("1:output")["1"], expected.mean(0).norm().item(), rel_tol=1e-9
    )


def test_entries_of_both_engines_stand_on_one_table_and_go_in_any_order(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    model, other = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "1" if engine == "0" else "0"
    for order in permutations(range(3)):
        watches = []
        for one in (engine, other, engine):
            monkeypatch.setenv("TORCHTAP_NATIVE", one)
            watches.append(tt.watch(model, "*:*"))
        for table in tables(copy.deepcopy(model)), tables(pickle.loads(pickle.dumps(model))):
            assert not any((dict(one), vars(one)) != ({}, {}) for one in table)
        for place in order:
            assert any(map(vars, tables(model)))
            watches[place].close()
        assert not any((dict(one), vars(one)) != ({}, {}) for one in tables(model))


def test_hooks_rest_and_come_back_between_those_of_others() -> None:
    model, seen = nn.Sequential(nn.Linear(2, 2)), []
    with ExitStack() as stack:
        w = stack.enter_context(tt.watch(model, "0", every=2))
        w.step()
        assert not model[0]._forward_hooks
        handle = model[0].register_forward_hook(lambda *_: seen.append(1))
        w.step()
        assert len(model[0]._forward_hooks) == 2
        model(torch.ones(1, 2))
        handle.remove()
        assert len(model[0]._forward_hooks) == 1
    assert seen == [1] and len(w.run) == 1
    assert not any((dict(one), vars(one)) != ({}, {}) for one in tables(model))


class Settings(nn.Module):
    """Has attributes of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.empty = nn.Parameter(torch.zeros(2, 3)), None
        self.register_parameter("none", None)
        self.big, self.small, self.largest = 2**53, -(2**53) + 1, 2**80
        self.nan, self.inf, self.rate = math.nan, math.inf, 0.1
        self.short, self.long, self._own = "x" * 60, "x" * 61, 3
        self.flag, self.several = True, (1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.sum()


def test_facts_of_modules_are_what_they_are_as_a_watch_begins() -> None:
    model = nn.Sequential(Settings(), nn.LazyLinear(2), nn.Linear(2, 2).eval())
    model[2].weight.requires_grad_(False)
    del model[1].training
    with tt.watch(model, "*") as w:
        model[0].__dict__["rate"] = 9.0  # Too late.
    meta = w.run.meta
    assert meta.settings["0"] == {
        "small": -(2**53) + 1,
        "rate": 0.1,
        "short": "x" * 60,
        "flag": True,
    }
    assert meta.settings["2"] == {"in_features": 2, "out_features": 2}
    assert meta.num_parameters == {"0": 6, "2": 6}  # A lazy one has no shape yet.
    assert meta.modes == {"": True, "0": True, "1": True, "2": False}
    assert meta.requires_grad == {
        "0.weight": True,
        "1.weight": True,
        "1.bias": True,
        "2.weight": False,
        "2.bias": True,
    }
