"""Errors that only a GPU raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_an_input_that_was_left_on_the_cpu_is_named(kind: str) -> None:
    made = {"linear": (nn.Linear(4, 3), (2, 4)), "conv": (nn.Conv2d(4, 3, 1), (2, 4, 5, 5))}
    module, shape = made[kind]
    net = nn.Sequential(module).cuda()
    batch = torch.ones(shape)
    with pytest.raises(RuntimeError) as caught, tt.explain_errors():
        net(batch)
    (note,) = caught.value.__notes__
    assert "on different devices: batch on cpu" in note
    assert "0.weight" in note
    net(batch.to("cuda:0"))


def test_a_device_that_is_full_is_explained() -> None:
    with pytest.raises(RuntimeError) as caught, tt.explain_errors():
        torch.empty(1 << 50, device="cuda")
    assert "The memory of the device is full" in caught.value.__notes__[0]
