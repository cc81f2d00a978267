"""``tt.stats.first_nonfinite``: where the first NaN or infinity came from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchtap as tt


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(4))
def test_the_first_nonfinite_is_that_of_plain_hooks(bad: Any, where: Any) -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Tanh(), relu, nn.Sequential(nn.Linear(3, 3), relu), nn.LogSigmoid())
    batches = [torch.randn(2, 3) for _ in range(4)]
    batches[where][1, 2] = bad
    truth = first_by_hand(model, batches)
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.first_nonfinite()])) as w:
        for batch in batches:
            model(batch)
            assert w.run.steps  # Reading in between moves no call.
    found = {}
    for site in w.run.sites:
        one = w.run.stats(site).extra["first_nonfinite"]
        if one is not None:
            found[site.path] = one
    firsts: dict[Any, Any] = {}
    for path, call in truth:
        firsts.setdefault(path, call)
    assert {path: one.call for path, one in found.items()} == firsts
    assert sorted(found, key=lambda path: found[path].order) == list(firsts)


def test_the_first_nonfinite_of_several_steps_is_the_earliest() -> None:
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.first_nonfinite()])) as w:
        for batch in ([1.0], [math.inf], [2.0], [math.nan]):
            model(torch.tensor([0.0]))
            model(torch.tensor(batch))
            w.step()
    found = [w.run.stats(".:output", step=step).extra["first_nonfinite"] for step in range(4)]
    assert found == [None, (1, 3), None, (1, 7)]
    assert w.run.stats(".:output", step="all").extra["first_nonfinite"] == (3, 3)
    assert w.run.stats(".:output", step=[2, 3]).extra["first_nonfinite"] == (3, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_looking_for_nonfinite_takes_any_dtype_and_empty_tensors(dtype: torch.dtype) -> None:
    statistic = tt.stats.first_nonfinite()
    state = statistic.init()
    assert statistic.finish(state) is None
    for shape in ((0,), (), (2, 3)):
        state = statistic.update(state, torch.ones(shape, dtype=dtype))
    assert statistic.finish(state) is None
    state = statistic.update(state, torch.tensor(math.nan))
    assert statistic.finish(state) == (3, 3)


def first_by_hand(model: nn.Module, batches: Any) -> Any:
    """(path, call) of outputs with a NaN or an Inf, as plain hooks see them come."""
    found: list[Any] = []
    calls: dict[Any, int] = {}

    def look(path: Any) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            call = calls[path] = calls.get(path, -1) + 1
            if not bool(np.isfinite(out.detach().numpy()).all()):
                found.append((path, call))

        return hook

    handles = [one.register_forward_hook(look(path)) for path, one in model.named_modules()]
    for batch in batches:
        model(batch)
    for handle in handles:
        handle.remove()
    return found
