"""Arguments and results of a call are taken by value; and a module is fed with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap.diagnosis.calls.capture import Capture
from torchtap.diagnosis.calls.copies import copied_module
from torchtap.diagnosis.calls.feed import feed
from torchtap.diagnosis.calls.standalone.run_again import Result, differences, run_again
from torchtap.testing import Specimen, zoo

ZOO = [one for one in zoo() if one.raises is None]


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_every_call_in_the_zoo_runs_again_to_the_bit(specimen: Specimen) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    modules = dict(model.named_modules())
    with Capture(modules, lambda path, call: True, with_modules=True) as capture:
        model(*args, **kwargs)
    for one in capture.calls.values():
        if one.has_returned:
            assert one.module is not None
            again = run_again(copied_module(one.module), one.arguments, one.around, {})
            recorded = Result(one.output, one.buffers_after, {}, {}, {})
            assert not any(differences(recorded, again).values())


class Attention(nn.Module):
    """Calls its child with one tensor three times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def test_one_tensor_in_three_places_stays_one() -> None:
    model = Attention()
    with Capture(dict(model.named_modules()), lambda path, call: path == "inner") as capture:
        model(torch.randn(1, 3, 4))
    (query, key, value), _ = capture.calls["inner", 0].arguments
    assert query is key is value


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, row: Tensor) -> Tensor:
            row.zero_()
            return x + 1

    x = torch.ones(2, 3)
    writes = Writes()
    with Capture({"": writes}, lambda path, call: True) as capture:
        y = writes(x, x[0])
    again = feed(writes, capture.calls["", 0])
    assert torch.equal(again.output, y)
    assert torch.equal(y[0], torch.ones(3))


def test_a_module_is_fed_what_another_was_given() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    two = copy.deepcopy(one).eval()
    x = torch.randn(4, 3)
    with Capture(dict(one.named_modules()), lambda path, call: True) as capture:
        expected = one(x)
    before = copy.deepcopy(two.state_dict())
    torch.manual_seed(5)
    states = torch.get_rng_state()

    assert torch.equal(feed(two, capture.calls["", 0]).output, expected)
    in_eval: Any = feed(two, capture.calls["", 0], modes=False)
    assert torch.equal(in_eval.output, two(x))
    assert torch.equal(torch.get_rng_state(), states)
    assert not two.training
    assert all(torch.equal(before[name], now) for name, now in two.state_dict().items())


def test_capturing_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.5))
    x = torch.randn(2, 3)
    torch.manual_seed(3)
    plain = model(x)
    torch.manual_seed(3)
    with Capture(dict(model.named_modules()), lambda path, call: True, with_modules=True):
        captured = model(x)
    assert torch.equal(plain, captured)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
