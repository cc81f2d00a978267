"""A map of a model in DDP needs no other rank, and leaves its next step as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import run_on_two_ranks

PROGRAM = """
import os, sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
import torchtap as tt

distributed.init_process_group("gloo")
rank = distributed.get_rank()

def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    ).eval()

x = torch.randn(2, 3, 8, 8)
plain, model = net(), DistributedDataParallel(net())
model(x).sum().backward()
before = [param.grad.clone() for param in model.parameters()]
expected = tt.cam(plain, x, layer="1", target=1).values
if rank == 0:  # The other one does not take part.
    for layer in ("1", model.module[1], None):
        found = tt.cam(model, x, layer=layer, target=1)
        assert found.layer == ("1" if layer is not None else "2")
    assert torch.equal(tt.cam(model, x, layer="1", target=1).values, expected)
    tt.cam(model, x, layer="1", target=1, method="ablationcam")
assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))
model.zero_grad()
model(x).sum().backward()
assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))
"""


@pytest.mark.slow
def test_a_map_of_a_model_in_ddp_is_made_on_one_rank_alone(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, PROGRAM)
