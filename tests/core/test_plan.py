"""A plan says what will be tapped, before the model is touched."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from models import resnet18, seeded
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel

import torchtap as tt
from torchtap.core.module_paths import modules_of
from torchtap.core.plan import Filter, Plan, make_plan
from torchtap.testing import Net


def net() -> nn.Module:
    """A small convolutional net, with a shared activation and a buffer."""
    relu = nn.ReLU()
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), relu)
    head = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), relu)
    return Net(lambda m, x: m.head(m.stem(x).mean((2, 3))), stem=stem, head=head)


def taps(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {tap.path: tap.ports for tap in plan.taps}


def planned(where: object) -> list[str]:
    return list(taps(make_plan(net(), where)))  # type: ignore[arg-type]


CONV = ["stem.0"]
EVERYTHING = ["", "stem", "stem.0", "stem.1", "stem.2", "head", "head.0", "head.1"]


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("*", EVERYTHING),
        (".", [""]),
        ("stem", ["stem"]),
        ("stem.?", ["stem.0", "stem.1", "stem.2"]),
        ("stem*", ["stem", "stem.0", "stem.1", "stem.2"]),
        ("re:.*\\.1", ["stem.1", "head.1"]),
        ("@Conv2d", CONV),
        ("@_ConvNd", CONV),
        ("head*@Linear", ["head.1"]),
        (["stem.0", "head.1"], ["stem.0", "head.1"]),
        (["stem*", "!stem.?"], ["stem"]),
        (["!stem*", "!head*"], [""]),
        ("head.2", ["stem.2"]),
        (nn.Conv2d, CONV),
        ([nn.Conv2d, "head"], ["stem.0", "head"]),
        (lambda site, module: site.port == "output" and isinstance(module, nn.ReLU), ["stem.2"]),
        (tt.Pattern("head"), ["head"]),
        (("stem", "head"), ["stem", "head"]),
    ],
)
def test_what_a_request_selects(where: object, paths: list[str]) -> None:
    assert planned(where) == paths


def test_a_module_of_the_model_selects_itself() -> None:
    model = net()
    assert taps(make_plan(model, model.stem[1])) == {"stem.1": ("output",)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "ports"),
    [
        ("stem.0", ("output",)),
        ("stem.0:input", ("input",)),
        ("stem.0:*", ("input", "output", "grad_input", "grad_output")),
        (["stem.0:input", "stem.0:grad_output"], ("input", "grad_output")),
        (["stem.0:*", "!stem.0:input,output"], ("grad_input", "grad_output")),
        ("stem.0:param,param_grad", ("param", "param_grad")),
        (["stem.1:buffer", "stem.0:param[weight]"], ("param",)),
    ],
)
def test_which_ports_are_wanted(where: object, ports: tuple[str, ...]) -> None:
    assert taps(make_plan(net(), where))["stem.0"] == ports  # type: ignore[arg-type]


def test_modules_without_state_are_passed_over_for_state_ports() -> None:
    assert planned("*:buffer") == ["stem.1"]
    assert planned("*:param") == ["stem.0", "stem.1", "head.1"]


def test_a_leaf_narrows_the_parameters() -> None:
    assert planned("*:param[bias]") == ["stem.0", "stem.1", "head.1"]
    assert planned("*:buffer[num_batches_tracked]") == ["stem.1"]


def test_a_function_chooses_parameters_by_name() -> None:
    plan = make_plan(net(), lambda site, module: str(site) == "head.1:param_grad[bias]")
    (tap,) = plan.taps
    assert (tap.path, tap.ports) == ("head.1", ("param_grad",))
    assert tap.filters["param_grad"].accepts("bias")
    assert not tap.filters["param_grad"].accepts("weight")


def test_a_function_may_choose_everything() -> None:
    every = make_plan(net(), lambda site, module: True)
    assert list(taps(every)) == EVERYTHING
    assert set(taps(every)["stem.1"]) >= {"input", "grad_output", "param", "buffer"}


@pytest.mark.parametrize(
    ("chosen", "leaf", "accepted"),
    [
        (Filter(), "x", True),
        (Filter(("a", "b")), "b", True),
        (Filter(("a",)), "b", False),
        (Filter(("",), ("b",)), "b", False),
        (Filter(("",), ("b",)), "b.0", False),
        (Filter(("",), ("b",)), "a", True),
    ],
)
def test_a_filter_includes_and_excludes(chosen: Filter, leaf: str, accepted: bool) -> None:
    assert chosen.accepts(leaf) is accepted


def test_only_a_filter_without_conditions_is_open() -> None:
    assert Filter().is_open
    assert not Filter(("a",)).is_open
    assert not Filter(("",), ("a",)).is_open


def test_planning_touches_nothing() -> None:
    model = net()
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    make_plan(model, "*:*")
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == before
    assert not any(module._forward_hooks for module in model.modules())


def test_a_plan_is_frozen() -> None:
    plan = make_plan(net(), "*")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.model = "other"  # type: ignore[misc]


def test_a_plan_holds_its_model_weakly() -> None:
    model = net()
    plan = make_plan(model, "stem.0")
    assert plan.taps[0].module() is model.stem[0]
    del model
    assert plan.taps[0].module() is None


def test_a_plan_shows_what_it_taps() -> None:
    with tt.watch(net(), "stem.0:output,grad_output") as w:
        text = repr(w.plan)
    assert "stem.0" in text
    assert "grad_output" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_plan_of_many_modules_stays_narrow() -> None:
    text = repr(make_plan(seeded(lambda: resnet18(width=4)), "*:*"))
    assert max(map(len, text.splitlines())) <= 100


def test_where_is_kept_as_text() -> None:
    model = net()
    plan = make_plan(model, ["stem*", nn.Linear, model.head])  # type: ignore[list-item]
    assert plan.where == ("stem*", "*@Linear", "head")


def test_types_are_those_of_the_mro() -> None:
    plan = make_plan(net(), "*")
    assert plan.types["stem.0"] == ("Conv2d", "_ConvNd")
    assert plan.types[""] == ("Net",)


# --- the walk over modules --------------------------------------------------------------------


def test_modules_are_those_of_named_modules() -> None:
    model = net()
    modules, _ = modules_of(model)
    assert list(modules.items()) == list(model.named_modules())


def test_a_shared_module_has_a_first_path_and_aliases() -> None:
    _, aliases = modules_of(net())
    assert aliases == {"head.2": "stem.2"}


def test_modules_below_a_shared_module_have_aliases_too() -> None:
    block = nn.Sequential(nn.Linear(2, 2))
    _, aliases = modules_of(nn.ModuleDict({"a": block, "b": block}))
    assert aliases == {"b": "a", "b.0": "a.0"}


def test_a_module_that_contains_itself_is_walked_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.add_module("again", model)
    modules, _ = modules_of(model)
    assert list(modules) == ["", "0"]


def test_wrappers_are_looked_through() -> None:
    model = net()
    wrapped = torch.compile(DataParallel(model), backend="eager")
    modules, _ = modules_of(wrapped)  # type: ignore[arg-type]
    assert list(modules) == EVERYTHING
    assert modules[""] is model


@pytest.mark.usefixtures("one_process")
def test_a_wrapper_that_is_sharded_is_looked_through_too() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    assert type(model[0]).__name__ == "FSDPCheckpointWrapper"
    assert list(modules_of(model)[0]) == ["", "0"]


def test_a_wrapped_child_stands_at_the_wrappers_path() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(torch.compile(nn.Sequential(inner), backend="eager"))  # type: ignore[call-overload]
    modules, _ = modules_of(model)
    assert modules["0.0"] is inner
    assert list(taps(make_plan(model, inner))) == ["0.0"]


def test_a_wrapper_given_as_a_module_means_what_it_wraps() -> None:
    model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"))  # type: ignore[call-overload]
    assert list(taps(make_plan(model, model[0]))) == ["0"]


def test_a_missing_child_is_passed_over() -> None:
    model = net()
    model.register_module("nothing", None)
    assert planned("*") == list(modules_of(model)[0])
