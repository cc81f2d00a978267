"""Hooks that rest while a step is not recorded: their place in the order, and what is left."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from models import relu_mlp, rows
from torch import Tensor, nn

import torchtap as tt
from torchtap.hooks.module_hook import OWN_HOOKS, WATCH_AFTER


def every_other(step: int) -> bool:
    return step % 2 == 0


def tables(model: nn.Module) -> list[Any]:
    return [
        table
        for module in model.modules()
        for table in (module._forward_hooks, module._forward_pre_hooks)
    ]


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def test_a_step_that_is_not_recorded_has_no_hook_on_the_model() -> None:
    model = relu_mlp()
    with tt.watch(model, ["*:*", "*:param,param_grad"], every=every_other) as w:
        model(rows()).sum().backward()
        assert any(tables(model))
        w.step()
        assert not any(tables(model))
        model(rows()).sum().backward()
        w.step()
        model(rows()).sum().backward()
        assert w.run.steps == [0, 2]
        assert [record.step for record in w.run.records("0:grad_output")] == [0, 2]
    assert not any(map(vars, tables(model)))


def test_a_first_step_that_is_not_recorded_has_none_either() -> None:
    model = relu_mlp()
    with tt.watch(model, "*:output", every=lambda step: step == 1) as w:
        assert not any(tables(model))
        model(rows())
        w.step()
        model(rows())
        assert w.run.steps == [1]


@pytest.mark.parametrize("end", ["before", "while"])
def test_a_watch_that_is_closed_while_its_hooks_rest_leaves_nothing(end: str) -> None:
    model = relu_mlp()
    w = tt.watch(model, "*:output", every=every_other)
    other = tt.watch(model, "*:output", every=every_other)
    w.step()
    if end == "before":
        other.step()
    w.close()
    other.close()
    assert not any(tables(model)) and not any(map(vars, tables(model)))


def test_another_watch_that_is_opened_while_the_hooks_rest_keeps_its_own() -> None:
    model = relu_mlp()
    resting = tt.watch(model, "*:output", every=every_other)
    resting.step()
    other = tt.watch(model, "*:output")
    model(rows())
    other.step()
    resting.step()
    model(rows())
    resting.close()
    other.close()
    assert resting.run.steps == [2] and other.run.steps == [0, 1]
    assert len(resting.run) == len(list(model.modules())) == len(other.run) / 2
    assert not any(tables(model)) and not any(map(vars, tables(model)))


def order_of(model: nn.Module) -> list[str]:
    """Names of the hooks on the first module, in their order."""
    names = {doubled: "doubled"}
    return [
        hook.role if isinstance(hook, OWN_HOOKS) else names.get(hook, getattr(hook, "name", ""))
        for hook in model[0]._forward_hooks.values()
    ]


def named(name: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        return None

    hook.name = name  # type: ignore[attr-defined]
    return hook


Change = Callable[[nn.Module], object]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: None, ["early", WATCH_AFTER, "late"]),
        (
            lambda m: m[0].register_forward_hook(named("new")),
            ["early", WATCH_AFTER, "late", "new"],
        ),
        (
            lambda m: m[0].register_forward_hook(named("new"), prepend=True),
            ["new", "early", WATCH_AFTER, "late"],
        ),
        (lambda m: m[0]._forward_hooks.popitem(), ["early", WATCH_AFTER]),
        (lambda m: m[0]._forward_hooks.popitem(last=False), [WATCH_AFTER, "late"]),
    ],
    ids=["nothing", "appended", "prepended", "last removed", "first removed"],
)
def test_hooks_that_rested_are_where_they_were(change: Change, expected: list[str]) -> None:
    model = relu_mlp()
    model[0].register_forward_hook(named("early"))
    with tt.watch(model, "0:output", every=every_other) as w:
        model[0].register_forward_hook(named("late"))
        w.step()
        assert order_of(model) == ["early", "late"]
        change(model)
        w.step()
        assert order_of(model) == expected


def test_a_lone_hook_wakes_behind_one_that_was_prepended() -> None:
    model = relu_mlp()
    with tt.watch(model, "0:output", every=every_other) as w:
        w.step()
        model[0].register_forward_hook(doubled, prepend=True)
        w.step()
        assert torch.equal(model[0](rows()), w.run["0:output"])


def note(seen: list[int], at: int, record: tt.Record) -> None:
    seen.append(at)


@pytest.mark.parametrize("first", [0, 1])
def test_two_watches_wake_in_any_order_where_they_were(first: int) -> None:
    model, seen = relu_mlp(), list[int]()
    watches = [
        tt.watch(model, "0:output", to=partial(note, seen, at), every=every_other)
        for at in range(2)
    ]
    for w in watches:
        w.step()
    for w in (watches[first], watches[1 - first]):
        w.step()
    model(rows())
    assert seen == [0, 1]
    for w in watches:
        w.close()


def test_an_edit_that_came_while_the_hooks_rested_is_seen() -> None:
    model = relu_mlp()
    with tt.watch(model, "0:output", every=every_other) as w:
        w.step()
        with tt.edit(model, {"0": tt.edits.zero()}):
            w.step()
            model(rows())
        assert w.run["0:output"].unique().tolist() == [0.0]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_that_is_made_while_hooks_rest_has_none(how: Callable[[Any], Any]) -> None:
    model = relu_mlp()
    model[0].register_forward_hook(doubled)
    with tt.watch(model, "*:output", every=every_other) as w:
        w.step()
        other = how(model)
        w.step()
        assert sum(map(len, tables(other))) == 1
        assert not any(map(vars, tables(other)))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("first", [True, False], ids=["recorded first", "resting first"])
def test_a_compiled_model_is_compiled_once_for_each_state(first: bool) -> None:
    model = relu_mlp()
    numbers = torch._dynamo.utils.counters["stats"]
    before = numbers["unique_graphs"]
    with tt.watch(model, "*:output", to=tt.Stats(), every=lambda n: (n % 2 == 0) is first) as w:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        made = []
        for _ in range(6):
            compiled(rows()).sum().backward()
            made.append(numbers["unique_graphs"] - before)
            w.step()
        assert made == [1, 2, 2, 2, 2, 2]
        assert w.run.steps == [n for n in range(6) if (n % 2 == 0) is first]


@pytest.mark.slow
def test_a_model_that_is_compiled_while_hooks_rest_is_recorded_all_the_same() -> None:
    """The compiler is imported while no hook is there to notice it."""
    program = """
import sys, torch, torchtap as tt
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
w = tt.watch(model, "*:output", to=tt.Stats(), every=lambda step: step == 1)
assert "torch._dynamo" not in sys.modules
compiled = torch.compile(model, backend="eager", fullgraph=True)
for _ in range(3):
    compiled(torch.ones(1, 2))
    w.step()
print([w.run.stats(site).numel for site in ("0:output", "1:output")], w.run.steps)
w.close()
print(torch._dynamo.config.skip_nnmodule_hook_guards)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["[2, 2] [1]", "True"], ran.stderr
