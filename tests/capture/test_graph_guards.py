"""The checks of our hooks that Dynamo makes before it runs a graph, and graphs in a pause."""

from __future__ import annotations

import re

import pytest
import torch
from models import TinyGPT, seeded
from random_numbers import normal
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters

import torchtap as tt
from torchtap.stats.statistics import NUMBERS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
OF_A_HOOK = re.compile(r"hooks\)\)\[0\]\](?:\.args\[1\])?\.(\w+)")
OF_A_PARTIAL = {"args", "func", "keywords"}


class Stack(nn.Module):
    """Blocks that may call themselves, as far as anyone knows, and so have pre-hooks too."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(x)
        return out.square().mean()


def guards_of(model: nn.Module) -> str:
    """The checks of the one graph that a model's forward was compiled to."""
    (entry,) = _debug_get_cache_entry_list(type(model).forward.__code__)
    return str(entry.guard_manager)


@pytest.mark.parametrize(
    ("make", "batch"),
    [(Stack, normal(5, 6)), (TinyGPT, torch.arange(12).remainder(65).view(2, 6))],
)
def test_no_two_hooks_are_compared(make: type[nn.Module], batch: torch.Tensor) -> None:
    model = seeded(make)
    with tt.watch(model, "?*:output,grad_output", to=tt.Stats()):
        torch.compile(model, backend="aot_eager", fullgraph=True)(batch)
    found = guards_of(model)
    assert "_forward_hooks[" in found  # The hooks are looked at.
    compared = [
        line
        for line in found.splitlines()
        if "LAMBDA_GUARD" in line and line.count("hooks") > 1 and " is " in line
    ]
    assert compared == []


def test_a_hook_is_asked_for_its_ticket_and_one_text() -> None:
    model = seeded(Stack)
    with tt.watch(model, "?*:output,grad_output", to=tt.Stats()):
        torch.compile(model, backend="aot_eager", fullgraph=True)(normal(5, 6))
    asked = set(OF_A_HOOK.findall(guards_of(model)))
    # Where hooks are native, they are partials of native functions.
    assert asked - OF_A_PARTIAL == {"ticket", "asks"}


@pytest.mark.parametrize("begins_paused", [False, True])
def test_a_pause_compiles_nothing_anew_and_takes_nothing(begins_paused: bool) -> None:
    eager, compiled = seeded(Stack), seeded(Stack)
    call = torch.compile(compiled, fullgraph=True)
    runs = []
    for model, run in ((eager, eager), (compiled, call)):
        with tt.watch(model, "?*:output,grad_output", to=tt.Stats(exact=True)) as w:
            counters.clear()
            for number in range(4):
                if number == (0 if begins_paused else 2):
                    w.pause()
                run(normal(5, 6, seed=number)).backward()
                if number == 2:
                    w.resume()
                    run(normal(5, 6, seed=9)).backward()
                w.step()
        runs.append(w.run)
    # One graph, and one for the steps that begin in a pause, in which the hooks are off.
    assert counters["stats"]["unique_graphs"] == 1 + begins_paused
    one, two = runs
    assert two.steps == one.steps == ([2, 3] if begins_paused else [0, 1, 2, 3])
    assert set(map(str, two.sites)) == set(map(str, one.sites))
    for site in one.sites:
        for step in one.steps:
            mine, theirs = one.stats(site, step=step), two.stats(site, step=step)
            assert theirs.num_tensors == mine.num_tensors == 1, (str(site), step)
            for name in set(NUMBERS) - {"zeros", "subnormal"}:
                expected = pytest.approx(getattr(mine, name), rel=1e-5, abs=1e-6)
                assert getattr(theirs, name) == expected, (str(site), step, name)
