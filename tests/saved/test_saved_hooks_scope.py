"""Saved-tensor hooks of an offload are on from call to call, and from block to block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.hooks.saved_pairs import top

STEPS = 3


def attached(model: nn.Module) -> tuple[tt.Offload, AbstractContextManager[object]]:
    return tt.offload("disk", model=model, min_bytes=0), nullcontext()


def block(model: nn.Module) -> tuple[tt.Offload, AbstractContextManager[object]]:
    off = tt.offload("disk", min_bytes=0)
    return off, off


Begin = Callable[[nn.Module], tuple[tt.Offload, AbstractContextManager[object]]]


@pytest.mark.parametrize("begin", [attached, block])
def test_every_step_is_offloaded_like_the_first(begin: Begin) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh())
    x = torch.ones(64, 64)
    off, around = begin(model)
    for step in range(1, STEPS + 1):
        with around:
            loss = model(x).sum()
            off.flush()
        assert top() is None
        loss.backward()
        # Linear saves x, and tanh its result: 64 x 64 float32 each.
        assert off.report().packed_nbytes == step * 2 * 64 * 64 * 4
    off.close()


def test_blocks_in_blocks_put_the_hooks_on_once() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        with off:
            first = x.exp()
        second = x.exp()
    third = x.exp()
    (first + second + third).sum().backward()
    assert off.report().packed_nbytes == 2 * 64 * 64 * 4
    assert top() is None
