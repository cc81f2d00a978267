"""A watch of a model that was watched before is as one of a model that never was."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from changed_models import CHANGES, blocks
from torchtap.core import layout as file

WHERE = "*:*,param,buffer,param_grad"
NATIVE = pytest.mark.parametrize("native", ["0", "1"])
SINKS = pytest.mark.parametrize("measures", [False, True])


def seen(model: nn.Module, where: str = WHERE, *, measures: bool) -> dict[str, Any]:
    """All that a watch of one forward and backward tells."""
    model.zero_grad()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    with tt.watch(model, where, to=tt.Stats() if measures else None) as w:
        model(x).square().sum().backward()
    run, meta = w.run, w.run.meta
    told = {
        name: getattr(meta, name)
        for name in ("model", "modules", "aliases", "where", "num_parameters", "modes", "settings")
    }
    told |= {"requires_grad": meta.requires_grad, "order": meta.order}
    told |= {"absent": [str(one) for one in w.absent], "plan": str(w.plan), "page": str(w)}
    told["sites"] = [str(site) for site in run.sites]
    if measures:
        told["numbers"] = str(run.table())
    else:
        rows = sorted((str(one.site), one.call, one.phase, one.backward) for one in run.records())
        told["records"] = rows
        told["values"] = {
            str(one.site): one.value.tolist() for one in run.records() if one.call == 0
        }
    return told


@NATIVE
@SINKS
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_it_sees_what_a_first_watch_sees(
    name: str, measures: bool, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model = blocks()
    seen(model, measures=measures)
    model[3].reset_running_stats()
    with CHANGES[name](model):
        twin = copy.deepcopy(model)  # Was never looked at.
        if name == "forward_of_its_own":  # Its function runs the parts of the other.
            pair: Any = twin[1]
            pair.forward = lambda x: pair.second(pair.first(x)) * 2
        assert id(twin) not in file._layouts
        assert seen(model, measures=measures) == seen(twin, measures=measures)


@NATIVE
@SINKS
def test_modes_dtypes_and_gradients_are_those_of_each_watch(
    measures: bool, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model = blocks()
    plain = seen(model, measures=measures)
    model[1].eval()
    model[0].requires_grad_(False)
    model[2].first.weight = nn.Parameter(torch.ones(4, 4))
    model[4].__dict__["rate"] = 0.5
    found, twin = seen(model, measures=measures), copy.deepcopy(model)
    model[3].reset_running_stats()
    twin[3].reset_running_stats()
    assert seen(model, measures=measures) == seen(twin, measures=measures)
    assert found["modes"]["1"] is False and plain["modes"]["1"] is True
    assert found["requires_grad"]["0.weight"] is False and plain["requires_grad"]["0.weight"]
    assert found["settings"]["4"] == {"inplace": False, "rate": 0.5}


@NATIVE
@SINKS
def test_many_watches_in_a_row_see_the_same(
    measures: bool, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model = blocks().eval()
    first = seen(model, measures=measures)
    for _ in range(5):
        assert seen(model, measures=measures) == first
    other = seen(model, "*@Linear:output", measures=measures)
    assert other != first and seen(model, measures=measures) == first


def test_hooks_of_others_that_come_between_are_seen() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    is_inside: list[bool] = []

    def runs_it_again(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if not is_inside:
            is_inside.append(True)
            module(output)
            is_inside.clear()

    x = torch.ones(1, 2)
    for _ in range(2):
        with tt.watch(model, "0:output") as w:
            model(x)
        assert [one.call for one in w.run.records("0:output")] == [0]
    handle = model[0].register_forward_hook(runs_it_again)
    with tt.watch(model, "0:output") as w:
        model(x)
    # The inner call ends first, and is yet the second.
    assert [one.call for one in w.run.records("0:output")] == [1, 0]
    handle.remove()


def test_a_model_that_was_watched_is_as_if_it_never_was() -> None:
    model = blocks()
    before = pickle.dumps(model)
    for _ in range(3):
        with tt.watch(model, WHERE):
            assert pickle.dumps(model) == before
            assert not any(map(vars, tables(copy.deepcopy(model))))
        assert pickle.dumps(model) == before
        assert not any(map(vars, tables(model)))


def tables(model: nn.Module) -> list[Any]:
    """The hook tables of all modules."""
    own = [table for module in model.modules() for table in vars(module).values()]
    return [table for table in own if isinstance(table, dict) and hasattr(table, "__dict__")]


@SINKS
def test_a_model_that_was_watched_is_freed_at_once(measures: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        model = blocks()
        with tt.watch(model, to=tt.Stats() if measures else None) as w:
            model(torch.ones(2, 4))
        ref = weakref.ref(model[0])
        del model
        assert ref() is None
        assert "0:output" in w.run
    finally:
        gc.enable()


@NATIVE
@SINKS
@pytest.mark.parametrize("where", ["*", "*:output,grad_output", WHERE])
def test_a_watch_that_was_closed_leaves_nothing_for_the_collector(
    where: str, measures: bool, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model, x = blocks(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # The first one imports.
        gc.collect()
        gc.disable()
        try:
            with tt.watch(model, where, to=tt.Stats() if measures else None) as w:
                model(x).sum().backward()
                optimizer.step()
                w.step()
            run = w.run
            refs = [weakref.ref(w), weakref.ref(w._engine.calls), weakref.ref(run)]
            refs.append(weakref.ref(w._delivery.sinks[0]))
            assert bool(run)
            del w, run
            assert [ref() for ref in refs] == [None] * len(refs)
        finally:
            gc.enable()


def test_watches_of_one_model_in_many_threads() -> None:
    model, number = blocks().eval(), 8
    together = threading.Barrier(number)

    def watch(place: int) -> list[int]:
        together.wait()
        found = []
        for _ in range(10):
            with tt.watch(model, "0:output", to=tt.Memory()) as w, torch.no_grad():
                model(torch.full((1, 4), float(place)))
            values = [one.value for one in w.run.records("0:output")]
            mine = model[0](torch.full((1, 4), float(place)))
            found.append(sum(torch.equal(value, mine) for value in values))
        return found

    with ThreadPoolExecutor(number) as pool:
        counts = list(pool.map(watch, range(number)))
    # Others may run in the same watch; its own call is always there.
    assert all(count >= 1 for found in counts for count in found)
    assert not any(module._forward_hooks for module in model.modules())
