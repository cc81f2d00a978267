"""Watching compiled models with sinks that keep values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from absent import reasons
from bits import same
from models import relu_mlp, rows
from torch import nn

import torchtap as tt
from torchtap.testing import Net


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_watched_before_it_is_compiled_gives_the_right_values() -> None:
    model, x = relu_mlp(), rows()
    hidden = nn.functional.linear(x, model[0].weight, model[0].bias)  # type: ignore[arg-type]
    compiled: Any = torch.compile(model, backend="eager")
    with tt.watch(compiled, "*:output,grad_output") as w:
        for _ in range(2):
            compiled(x).sum().backward()
            w.step()
    for step in range(2):
        assert same(w.run.get("0:output", step=step), hidden)
        assert same(w.run.get("1:output", step=step), hidden.relu())
        assert w.run.get("2:grad_output", step=step).unique().tolist() == [1.0]


@pytest.mark.usefixtures("fresh_compiler")
def test_paths_of_a_compiled_model_have_no_prefix() -> None:
    compiled: Any = torch.compile(relu_mlp(), backend="eager")
    with tt.watch(compiled) as w:
        compiled(rows())
    assert [str(site) for site in w.run.sites] == [".:output", "0:output", "1:output", "2:output"]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_compiled_before_it_is_watched_is_listed_as_absent() -> None:
    model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    compiled: Any = torch.compile(model, backend="eager")
    compiled(rows())
    with tt.watch(compiled, ["a", "b"]) as w:
        compiled(rows())
    found = reasons(w)
    assert set(found) | {str(site) for site in w.run.sites} == {"a:output", "b:output"}
    assert found
    assert all("compile" in reason and "reset()" in reason for reason in found.values())


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_itself_again_after_the_watch() -> None:
    model, x = relu_mlp(), rows()
    plain = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    with tt.watch(compiled) as w:
        compiled(x)
    num_records = len(w.run)
    assert same(compiled(x), plain)
    assert len(w.run) == num_records
