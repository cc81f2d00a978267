"""Edits of gradients whose calls are taken natively, and the same in Python: equal to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import grads
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt

WAYS = ("1", "0")


class Mixed(nn.Module):
    """Modules that return a view, hand on what they are given, are called twice, and write."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)  # A view, of an input of three dimensions.
        self.same = nn.Identity()
        self.act = nn.ReLU()
        self.over = nn.ReLU(inplace=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.lin(x))
        x = self.same(x) + x
        x = self.over(self.lin(x))
        return self.out(checkpoint(self.act, x, use_reentrant=False) * 0.5)


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().double()


def times(factor: float) -> Any:
    return lambda gradient, record: gradient * (factor + record.call)


def trained(way: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """Return all that three steps under two edits and a watch leave behind."""
    monkeypatch.setenv("TORCHTAP_NATIVE", way)
    model = mixed()
    seen: list[tt.Record] = []
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with (
        tt.edit(model, "*:grad_output", times(2.0)) as first,
        tt.watch(model, "*:grad_output", to=seen.append) as w,
        tt.edit(model, "lin:grad_output", times(3.0)) as second,
    ):
        for _ in range(3):
            model(x).square().sum().backward()
            for one in (first, second, w):
                one.step()
        model(x)  # No backward follows.
        reports = [(e.calls, [str(entry) for entry in e.absent]) for e in (first, second)]
    gradients = {name: one.grad for name, one in model.named_parameters()}
    rows = [(str(r.site), r.step, r.call, r.phase, r.kept.clone()) for r in seen]
    assert not any(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return reports, gradients, rows


def test_both_ways_leave_the_same_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    native, python = (trained(way, monkeypatch) for way in WAYS)
    assert native[0] == python[0]
    assert native[1].keys() == python[1].keys()
    assert all(torch.equal(native[1][name], python[1][name]) for name in native[1])
    assert [row[:4] for row in native[2]] == [row[:4] for row in python[2]]
    assert all(torch.equal(a[4], b[4]) for a, b in zip(native[2], python[2], strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_the_gradients_are_those_of_the_formula(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", way)
    torch.manual_seed(0)
    first, last = nn.Linear(3, 4), nn.Linear(4, 1)
    model = nn.Sequential(first, nn.Identity(), last).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    for _ in range(2):  # The first call of a module is Python's.
        model.zero_grad()
        with tt.edit(model, ["0:grad_output", "1:grad_output"], tt.edits.scale(4.0)) as edit:
            model(x)
            model(x).sum().backward()
        # Twice by 4, a power of two: at the module that made it, and at the one that hands it on.
        expected = 16 * last.weight.T @ torch.ones(1, 5, dtype=torch.float64) @ x
        assert first.weight.grad is not None
        assert torch.allclose(first.weight.grad, expected, rtol=1e-12, atol=0)
        assert edit.calls == {"0:grad_output": {1: 1}, "1:grad_output": {1: 1}}


class OwnError(ValueError):
    """One of the user's."""


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_function_keeps_its_class_and_the_model_goes_on(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", way)
    model, x = mixed(), torch.randn(2, 3, 4, dtype=torch.float64)

    def refuses(gradient: Tensor, record: tt.Record) -> Tensor | None:
        if str(record.site) == "act:grad_output" and record.step == 1:
            raise OwnError("not this one")
        return None

    with tt.edit(model, "*:grad_output", refuses) as edit:
        model(x).sum().backward()
        edit.step()
        with pytest.raises(OwnError, match="not this one") as caught:
            model(x).sum().backward()
        edit.step()
        model.zero_grad()
        model(x).sum().backward()
    assert "act:grad_output" in "".join(caught.value.__notes__)
    edited = grads(model)
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(grads(model), edited, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_raises_is_left_all_the_same(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", way)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    with tt.edit(model, "*:grad_output", tt.edits.scale(2.0)) as edit:
        for width in (4, 3, 4):
            try:
                model(torch.ones(2, width)).sum().backward()
            except RuntimeError as error:
                assert width == 3 and "shapes" in str(error)
        # Two forwards returned; the one that raised has taken its number.
        assert edit.fired == dict.fromkeys(edit.fired, 2) and len(edit.fired) == 5
