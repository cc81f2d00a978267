"""The probe that every map goes by: which tensors it shows, and what it leaves behind."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import bits
import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.module_paths import modules_of
from torchtap.core.plan import make_plan
from torchtap.explain.site_probe import SiteProbe, Visit, plan_of
from torchtap.testing import Net


class Visits:
    """Keeps what it is shown: site and call -> value."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], Tensor] = {}

    def __call__(self, tensor: Tensor, visit: Visit) -> None:
        self.seen[str(visit.site), visit.call] = tensor.detach().clone()


def probe_of(model: nn.Module, where: Any, visit: Any, **how: Any) -> SiteProbe:
    return SiteProbe(modules_of(model)[0], make_plan(model, where), visit, **how)


class Countdown(nn.Module):
    """Calls itself."""

    def forward(self, x: Tensor, times: int = 2) -> Tensor:
        return self(x, times - 1) + 1 if times else x


@pytest.mark.parametrize("reads", [False, True])
def test_calls_are_numbered_as_they_are_entered(reads: bool) -> None:
    model, visits = Countdown(), Visits()
    with probe_of(model, ".", visits, reads=reads) as probe:
        for _ in range(2):  # Each forward by itself.
            probe.begin()
            model(torch.zeros(1))
    assert {call: float(value) for (_, call), value in visits.seen.items()} == {2: 0, 1: 1, 0: 2}


def test_a_call_that_raises_has_a_number_and_no_value() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            m.fc(x[:, :1])
        return m.fc(x)

    model, x = seeded(lambda: Net(forward, fc=nn.Linear(3, 2))), normal(2, 3)
    before, visits = bits.hooks(model), Visits()
    with pytest.raises(ZeroDivisionError), probe_of(model, "fc:input,output", visits):
        model(x)
        raise ZeroDivisionError
    assert set(visits.seen) == {("fc:input", 0), ("fc:input", 1), ("fc:output", 1)}
    assert torch.equal(visits.seen["fc:output", 1], model.fc(x))
    assert bits.differences(bits.hooks(model), before) == []


def test_a_mark_is_shown_after_edits_and_replaced_at_the_chosen_call() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return tt.mark(x, "point") + 10 * tt.mark(x, "point")

    model, x, visits = Net(forward), torch.ones(1), Visits()
    plan = plan_of(modules_of(model)[0], ["point"])
    with tt.edit(model, "point", lambda tensor: tensor * 3):
        with SiteProbe(modules_of(model)[0], plan, visits, reads=True):
            tt.mark(torch.zeros(1), "point")  # Outside of the model.
            assert model(x) == 33
        with SiteProbe(modules_of(model)[0], plan, lambda tensor, _: tensor + 1, call=1) as probe:
            assert model(x) == 43
            probe.begin()
            wrong = probe.showing(lambda tensor, _: tensor.double())
            message = r"point:output \(call 1\) is float32\[1\]"
            with pytest.raises(tt.CaptureError, match=message), wrong:
                model(x)
    assert {site: float(value) for site, value in visits.seen.items()} == {
        ("point:output", 0): 3,
        ("point:output", 1): 3,
    }


def test_a_value_in_an_object_is_read_and_never_replaced() -> None:
    def forward(m: Net, x: Tensor) -> Any:
        return SimpleNamespace(value=x)

    model, x, visits = Net(forward), normal(2), Visits()
    with probe_of(model, ".", visits, reads=True):
        model(x)
    assert torch.equal(visits.seen[".:output[value]", 0], x)
    with probe_of(model, ".", lambda tensor, _: tensor + 1):
        assert model(x).value is x
