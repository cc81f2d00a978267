"""Calls are numbered in the order in which they are entered, whatever else is watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


class Nested(nn.Module):
    """Calls itself twice at each depth but the last."""

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        if depth == 2:
            return x + 1
        return self(x * 2, depth + 1) + self(x * 3, depth + 1) + depth


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nested = Nested()

    def forward(self, x: Tensor) -> Tensor:
        return self.nested(x)


# By hand, from x = 1, in the order in which calls are entered: the whole, its first half (x = 2)
# with its two leaves, and its second half (x = 3) with its two.
ENTERED = [31.0, 13.0, 5.0, 7.0, 18.0, 7.0, 10.0]


@pytest.mark.parametrize(
    "where", ["nested:output", "nested:output,grad_output", "nested:input,output", "*:*"]
)
def test_calls_inside_calls_have_the_same_numbers_whatever_else_is_watched(where: str) -> None:
    model = Calling()
    with tt.watch(model, where) as w:
        for _ in range(2):
            model(torch.ones(1, requires_grad=True)).backward()
            w.step()
    for step in range(2):
        found = [w.run.get("nested:output", step=step, call=call).item() for call in range(7)]
        assert found == ENTERED


@pytest.mark.parametrize("port", ["output", "output,grad_output", "input,output"])
def test_an_edit_finds_the_call_inside_calls(port: str) -> None:
    def only_output(tensor: Tensor, record: tt.Record) -> Tensor | None:
        return tensor * 0 if record.site.port == "output" else None

    results = []
    for call in range(7):
        model = Calling()
        with tt.edit(model, f"nested:{port}", only_output, calls=call, missing="ignore") as e:
            results.append(model(torch.ones(1, requires_grad=True)).item())
        assert e.fired["nested:output"] == 1
    whole = ENTERED[0]
    # Without one of the parts, the whole is that much less.
    assert results == [0.0, *(whole - part for part in ENTERED[1:])]


def test_a_call_that_raised_has_a_number_whatever_else_is_edited() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for divisor in (0, 1, 2):
            try:
                x = m.divide(x, divisor)
            except ZeroDivisionError:
                continue
        return x

    def divide(m: Any, x: Tensor, divisor: int) -> Tensor:
        return x + 1 // divisor

    for ports in ("output", "input,output", "output,grad_input"):
        model = Net(forward, divide=Net(divide))
        seen: list[Any] = []

        def note(tensor: Tensor, record: tt.Record, seen: list[int] = seen) -> None:
            if record.site.port == "output":
                seen.append(record.call)

        with tt.edit(model, f"divide:{ports}", note, missing="ignore"):
            model(torch.ones(1, requires_grad=True))
        with tt.watch(model, f"divide:{ports}") as w:
            model(torch.ones(1, requires_grad=True))
        assert seen == [1, 2], ports
        assert [row.call for row in w.run.records("divide:output")] == [1, 2], ports
