"""The first tensor of each site: native meters begin by themselves, in memory of sinks before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.stats.kernels import native
from torchtap.testing import Net

ENGINES = ("0", "1") if native.takes_calls() else ("0",)
pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def chosen(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test run by both engines."""
    monkeypatch.setenv("TORCHTAP_NATIVE", engine)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x * 2,
    "dims in another order": lambda x: (x * 2).permute(0, 2, 1) * 1,
    "with gaps": lambda x: (x * 2)[:, ::2],
    "one sample": lambda x: x[:1] * 2,
    "a dim of one": lambda x: (x * 2).unsqueeze(1),
    "no dims": lambda x: (x * 2).sum(),
    "empty": lambda x: x[:0] * 2,
    "float64": lambda x: x.double() * 2,
    "bfloat16": lambda x: x.bfloat16() * 2,
    "float16": lambda x: x.half() * 2,
    "negated": lambda x: torch._neg_view(x * 2),
    "whole numbers": lambda x: (x.detach() * 9).long(),
    "not finite": lambda x: x / 0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_those_of_float64(kind: str) -> None:
    inner, x = KINDS[kind], torch.randn(4, 6, 8, requires_grad=True)
    part = Net(lambda _, x: inner(x))
    model, truth = Net(lambda net, x: net.part(x), part=part), inner(x).detach().double()
    stats = tt.Stats()
    with tt.watch(model, "part", to=stats) as w:
        model(x)
    if not truth.numel():
        assert w.run.stats("part").numel == 0
        return
    found, finite = w.run.stats("part"), truth[truth.isfinite()]
    assert (found.numel, found.num_finite) == (truth.numel(), finite.numel())
    assert found.l2 == pytest.approx(finite.norm().item(), rel=1e-12)
    if truth.dim() and finite.numel() == truth.numel():
        expected = truth.mean(0).norm().item()
        assert w.run.mean_norm("part")["part"] == pytest.approx(expected, rel=1e-12)


def test_what_came_before_a_look_and_after_it_is_summed() -> None:
    model, batches = nn.Linear(3, 2), [torch.randn(size, 3) for size in (4, 4, 5)]
    truth = torch.cat([model(one).detach().double() for one in batches])
    with tt.watch(model, to=tt.Stats()) as w:
        for number, batch in enumerate(batches):
            model(batch)
            if number < 2:
                assert w.run.stats(".").numel == truth[: 4 * (number + 1)].numel()
    assert w.run.stats(".").mean == pytest.approx(truth.mean().item(), rel=1e-12)
    assert w.run.mean_norm(".")["."] == pytest.approx(truth.mean(0).norm().item(), rel=1e-12)
    assert w.run.stats(".").shape is None  # They differ.


def test_another_dtype_comes_later() -> None:
    model, x = Net(lambda _, x: x * 2), torch.randn(4, 3)
    with tt.watch(model, to=tt.Stats()) as w:
        model(x.clone().requires_grad_())
        model(x.double().requires_grad_())
    truth = torch.cat([x.double() * 2] * 2)
    assert w.run.stats(".").dtype == "mixed"
    assert w.run.stats(".").l2 == pytest.approx(truth.norm().item(), rel=1e-12)
    assert w.run.mean_norm(".")["."] == pytest.approx(truth.mean(0).norm().item(), rel=1e-6)


def test_a_tensor_without_all_of_its_memory_is_absent() -> None:
    def freed(_: Net, x: Tensor) -> Tensor:
        y = x * 2
        y.untyped_storage().resize_(8)
        return y

    model = Net(lambda net, x: net.part(x).shape, part=Net(freed))
    with tt.watch(model, "part", to=tt.Stats()) as w:
        model(torch.ones(4, 3, requires_grad=True))
    assert "cannot be read" in w.absent[0].reason


def test_sinks_one_after_the_other_and_inside_each_other_share_nothing() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(5, 3)
    kept = []
    for factor in range(1, 5):
        with tt.watch(model, to=tt.Stats()) as outer, tt.watch(model, to=tt.Stats()) as inner:
            expected = model(x * factor).detach().double().norm().item()
        kept.append((outer.run, expected))
        kept.append((inner.run, expected))
        del outer, inner
    for run, expected in kept:
        assert run.stats("1").l2 == pytest.approx(expected, rel=1e-12)
        assert run.stats("1").histogram.num_counted == 20


def test_memory_of_a_sink_that_is_gone_is_blank_for_the_next() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3)
    for closes in (True, False, True):
        w = tt.watch(model, "*:output,grad_output", to=tt.Stats())
        model(torch.randn(64, 3)).sum().backward()
        if closes:
            w.close()
        del w  # One that was not closed has measured what nobody took.
        with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
            y = model(x)
            y.sum().backward()
        found = w.run.stats("1")
        assert found.numel == 20 and found.histogram.num_counted == 20
        assert found.l2 == pytest.approx(y.detach().double().norm().item(), rel=1e-12)
        assert w.run.stats("1:grad_output").l1 == 20


def test_a_gradient_that_comes_when_its_sink_is_gone_is_nobodys() -> None:
    model, x = nn.Linear(3, 4), torch.randn(5, 3)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        late = model(x)
    del w
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        y = model(x)
        late.mul(7).sum().backward()
        y.sum().backward()
    assert w.run.stats(".:grad_output").l1 == 20


def test_threads_begin_one_site_together() -> None:
    model, batch = nn.Linear(3, 2), torch.randn(4, 3)
    with tt.watch(model, to=tt.Stats()) as w:
        threads = [threading.Thread(target=model, args=(batch,)) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    truth = model(batch).detach().double()
    assert w.run.stats(".").numel == 8 * truth.numel()
    assert w.run.mean_norm(".")["."] == pytest.approx(truth.mean(0).norm().item(), rel=1e-12)


def test_the_first_tensor_may_come_in_inference_mode() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    stats = tt.Stats()
    with tt.watch(model, to=stats) as w:
        with torch.inference_mode():
            truth = model(x).double()
            stats.ended()
        w.step()
        model(x.double().float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
    assert w.run.stats(".", step=0).l2 == pytest.approx(truth.norm().item(), rel=1e-12)
    assert w.run.stats(".", step=1).numel == 2 * truth.numel()
