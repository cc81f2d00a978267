"""A look at a model keeps its layout for as long as nothing of the model has changed."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from changed_models import CHANGES, blocks
from torchtap.core import layout as file
from torchtap.core.layout import look_at
from torchtap.core.module_paths import modules_of, types_of
from torchtap.core.plan import Plan, make_plan


def shown(plan: Plan) -> list[object]:
    taps = [(tap.path, tap.type, tap.filters, tap.module(), tap.is_container) for tap in plan.taps]
    return [plan.model, plan.where, taps, plan.absent, plan.types, plan.aliases]


def test_a_second_look_finds_the_same_layout_and_modules() -> None:
    model = blocks()
    first, second = look_at(model), look_at(model)
    assert first.layout is second.layout
    modules, aliases = modules_of(model)
    assert list(second.modules.items()) == list(modules.items())
    assert second.layout.aliases == aliases and second.layout.types == types_of(modules)
    assert second.every == list(model.modules())


def test_a_plan_is_made_once_for_each_request() -> None:
    model = blocks()
    assert make_plan(model, "*") is make_plan(model, ["*"]) is not make_plan(model, "?*")
    assert make_plan(model, "*:*") is not make_plan(model, "*")
    requests = [f"*:output[{number}]" for number in range(40)]
    plans = [make_plan(model, request) for request in requests]
    assert [plan.where for plan in plans] == [(request,) for request in requests]
    assert make_plan(model, requests[-1]) is plans[-1]


def test_functions_modules_and_classes_are_asked_each_time() -> None:
    model, answer = blocks(), [True]
    by_function = lambda site, module: answer[0] and site.port == "output"  # noqa: E731
    assert len(make_plan(model, by_function).taps) == len(list(model.modules()))
    answer[0] = False
    with pytest.raises(Exception, match="the function chose none"):
        make_plan(model, by_function)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_planned_after_a_change_is_what_a_first_look_plans(name: str) -> None:
    model = blocks()
    before = look_at(model).layout
    for where in ("*:*,param,buffer", "*@Linear:output"):
        make_plan(model, where)
    with CHANGES[name](model):
        assert look_at(model).layout is not before
        for where in ("*:*,param,buffer", "*@Linear:output"):
            again = make_plan(model, where)
            file._layouts.clear()
            assert shown(again) == shown(make_plan(model, where))
        assert look_at(model).layout is look_at(model).layout


def test_other_parameters_modes_and_dtypes_change_no_layout() -> None:
    model = blocks()
    before = look_at(model).layout
    model.eval().double().requires_grad_(False)
    model[0].weight = nn.Parameter(torch.zeros(4, 4))
    model.register_forward_hook(lambda *_: None)
    assert look_at(model).layout is before


def test_a_module_that_takes_the_place_of_a_freed_one_is_another() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    make_plan(model, "*")
    for _ in range(50):  # Python soon gives an address again.
        del model[0]
        model.append(nn.Linear(2, 2))
        assert make_plan(model, "*").taps[1].module() is model[0]


def test_scripted_models_are_looked_at_anew() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    assert look_at(model).layout is not look_at(model).layout
    assert [tap.path for tap in make_plan(model, "*").taps] == ["", "0"]


def test_no_module_is_kept_alive() -> None:
    gc.disable()
    try:
        model = blocks()
        make_plan(model, "*")
        refs = [weakref.ref(module) for module in model.modules()]
        key = id(model)
        assert key in file._layouts
        del model
        assert [ref() for ref in refs] == [None] * len(refs)
        assert key not in file._layouts
    finally:
        gc.enable()


def test_a_part_that_was_taken_out_is_free() -> None:
    model = blocks()
    make_plan(model, "*")
    part = weakref.ref(model[1])
    del model[1]
    assert part() is None


def test_copies_and_pickles_have_nothing_of_it() -> None:
    model = blocks()
    before, names = pickle.dumps(model), list(vars(model))
    make_plan(model, "*")
    assert pickle.dumps(model) == before and list(vars(model)) == names
    copied = copy.deepcopy(model)
    assert look_at(copied).layout is not look_at(model).layout
    assert {id(module) for module in look_at(copied).every}.isdisjoint(map(id, model.modules()))


def in_threads(function: Callable[[int], object], number: int = 8) -> list[object]:
    together = threading.Barrier(number)

    def one(place: int) -> object:
        together.wait()
        return function(place)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def test_threads_that_look_at_the_same_time_find_the_same() -> None:
    model = blocks()

    def look(place: int) -> object:
        return [shown(make_plan(model, f"*:output[{turn % 20}]")) for turn in range(60)]

    first, *others = in_threads(look)
    assert all(other == first for other in others)


def test_a_thread_that_changes_another_model_disturbs_nobody() -> None:
    models = [blocks() for _ in range(4)]

    def change(place: int) -> object:
        model = models[place]
        for turn in range(30):
            model.append(nn.Linear(4, 4))
            assert len(make_plan(model, "*").taps) == len(list(model.modules())), turn
        return True

    assert in_threads(change, 4) == [True] * 4
