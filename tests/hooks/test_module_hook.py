"""Hooks that are put on and taken off while other threads call the modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt
from other_threads import other_threads


@pytest.mark.usefixtures("switches_often")
def test_attaching_and_closing_raise_nothing_in_calls_of_other_threads() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3)
    expected = model(x)

    def call() -> None:
        assert torch.equal(model(x), expected)

    with other_threads(call, call, call) as wait:
        for _ in range(20):
            with tt.watch(model, "*:*"):
                wait()
            with tt.watch(model, "*:output", to=tt.Stats()):
                wait()
            with tt.edit(model, "*:input,output", lambda _: None, missing="ignore"):
                wait()
