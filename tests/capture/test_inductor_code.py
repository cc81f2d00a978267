"""The code that inductor writes for a watched graph, and the values that it hands over."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import torchtap as tt
from torchtap.stats.statistics import NUMBERS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
WHERE = "*:output,grad_output"
OPERATOR = "torch.ops.torchtap.emit.default"
CALL = re.compile(r"torchtap_hand_over\((.*), \(([^()]*),\), '(\w+)'")


class Nested(nn.Module):
    """Each block returns what its last layer returned."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.GELU()),
            nn.Sequential(
                nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.0)), nn.Identity()
            ),
        )
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(x))


class Overwriting(nn.Module):
    """Writes into what a module inside of it returned, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y.mul_(2.0)


class Remembering(nn.Module):
    """Its two parts return one buffer, which is written into between them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(5, 6))
        self.first, self.second = nn.Identity(), nn.Identity()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        memory: Any = self.memory
        before = self.first(memory).sum()
        memory.copy_(x)
        return self.layer(x) + before + self.second(memory)


def written(train_it: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what a training returns, and the code of all graphs that it compiles."""
    # Code that is taken from the disk is not written again.
    no_graphs = torch._inductor.config.patch(fx_graph_cache=False)
    with no_graphs, torch._functorch.config.patch(enable_autograd_cache=False):
        run, codes = run_and_get_code(train_it)
    return run, codes


def train(model: nn.Module, call: Any, *, steps: int = 3, batches: int = 1, **how: Any) -> Any:
    with tt.watch(model, WHERE, to=tt.Stats(**how)) as w:
        for step in range(steps):
            for number in range(batches):
                call(normal(5, 6, seed=7 * step + number)).square().mean().backward()
            w.step()
    return w.run


def assert_same(run: Any, other: Any, *, rel: float = 1e-4) -> None:
    assert set(map(str, other.sites)) == set(map(str, run.sites))
    for site in run.sites:
        for step in (*run.series.steps_of(site), "all"):
            one, two = run.stats(site, step=step), other.stats(site, step=step)
            assert (two.num_tensors, two.numel) == (one.num_tensors, one.numel), (str(site), step)
            for name in NUMBERS:
                expected = pytest.approx(getattr(one, name), rel=rel, abs=1e-5, nan_ok=True)
                assert getattr(two, name) == expected, (str(site), step, name)
    assert other.mean_norm() == pytest.approx(run.mean_norm(), rel=rel, abs=1e-6)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_value_of_several_modules_is_handed_over_once(batches: int) -> None:
    model, twin = seeded(Nested), seeded(Nested)
    compiled = torch.compile(model, fullgraph=True)
    run, codes = written(lambda: train(model, compiled, batches=batches))
    assert_same(train(twin, twin, batches=batches), run)

    forward, backward = codes
    for code, port in ((forward, "output"), (backward, "grad_output")):
        calls = [tickets for _, tickets, at in CALL.findall(code) if at == port]
        # Both of the linear layers, the last one, a block with its last layer, and all that return
        # what the second GELU does. The hooks of the model itself run outside of the graph.
        assert sorted(len(tickets.split(", ")) for tickets in calls) == [1, 1, 1, 2, 6]
        assert OPERATOR not in code


def test_one_value_has_the_same_statistics_at_all_of_its_sites() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 900), nn.Dropout(0.0)), nn.Identity())
    compiled = torch.compile(model, fullgraph=True)
    run, codes = written(lambda: train(model, compiled))  # Its 4,500 elements are sampled.
    assert "torchtap_hand_over" in codes[0]
    for port in ("output", "grad_output"):
        for step in (0, 1, 2):
            one, *others = (
                run.stats(f"{path}:{port}", step=step) for path in ("0.0", "0.1", "0", "1", ".")
            )
            for other in others:
                assert [getattr(other, name) for name in NUMBERS] == [
                    getattr(one, name) for name in NUMBERS
                ]
                assert other.histogram.counts.sum() == one.histogram.counts.sum() == 2048
                assert other.histogram.bins.tolist() == one.histogram.bins.tolist()
                assert other.histogram.counts.tolist() == one.histogram.counts.tolist()


@pytest.mark.parametrize("make", [Overwriting, Remembering])
def test_what_is_overwritten_in_between_is_handed_over_as_it_was(make: Any) -> None:
    model, twin = seeded(make), seeded(make)
    compiled = torch.compile(model, fullgraph=True)
    run, codes = written(lambda: train(model, compiled))
    assert "torchtap_hand_over" in codes[0]
    assert_same(train(twin, twin), run)


def test_the_operator_is_called_where_inductor_has_no_such_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.codegen.custom_extern_kernel_codegen import CUSTOM_EXTERN_KERNEL_CODEGEN

    monkeypatch.delitem(CUSTOM_EXTERN_KERNEL_CODEGEN, OPERATOR)
    model, twin = seeded(Nested), seeded(Nested)
    compiled = torch.compile(model, fullgraph=True)
    run, codes = written(lambda: train(model, compiled))
    assert_same(train(twin, twin), run)
    assert all(OPERATOR in code and "hand_over" not in code for code in codes)


def test_a_cuda_graph_does_not_hold_the_operator() -> None:
    """A replay runs no Python: inductor cuts its CUDA graphs at operators of this tag."""
    with tt.watch(nn.Linear(2, 2), WHERE, to=tt.Stats()):
        torch.compile(lambda x: x, backend="eager")(torch.ones(1))
        assert torch.Tag.cudagraph_unsafe in torch.ops.torchtap.emit.default.tags
