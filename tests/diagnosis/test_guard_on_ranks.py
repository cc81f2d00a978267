"""Ranks that train together come to one verdict, which names the rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import run_on_two_ranks

_BEGIN = """
import os
import torch
from torch import distributed, nn
import torchtap as tt
from torchtap.testing import Net

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)


def make():
    return Net(lambda m, x: m.last(m.gate(m.fc(x))), fc=nn.Linear(2, 2), last=nn.Linear(2, 1),
               gate=Net(lambda m, x: torch.exp(x)))


def batch(bad_rank):
    return torch.full((3, 2), 1e4 if rank == bad_rank else 1.0)
"""

_DDP = """
model = nn.parallel.DistributedDataParallel(make())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(bad_rank, guard, bad_loss=None):
    optimizer.zero_grad()
    loss = model(batch(bad_rank)).square().mean()
    loss.backward()
    guard.log(loss=float("nan") if rank == bad_rank and bad_loss else loss, ids=["a", "b", "c"])
    optimizer.step()


with tt.guard(model, on="skip") as guard:
    for bad_rank in (None, 1, None, 0):
        step(bad_rank, guard)
assert guard.skipped == [1, 3], guard.skipped
for number, bad_rank in ((1, 1), (3, 0)):
    origin = guard.origins[number]
    assert (origin.operation, origin.module, origin.rank) == ("exp", "gate", bad_rank), origin
    assert origin.rows == (0, 1, 2) and origin.ids == ("a", "b", "c"), origin
    assert ("came to this rank" in origin.text) == (rank != bad_rank), origin.text
values = torch.cat([one.detach().flatten() for one in model.parameters()])
others = [torch.empty_like(values) for _ in range(2)]
distributed.all_gather(others, values)
assert torch.equal(*others) and values.isfinite().all()

with tt.guard(model) as guard:
    try:
        step(None, guard)
        step(1, guard, bad_loss=True)
    except tt.NonFiniteError as error:
        assert error.origin is guard.origin
    else:
        raise AssertionError("no rank may go on")
"""

_FSDP = """
from torch.distributed.fsdp import fully_shard

model = make()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tt.guard(model, on="skip") as guard:
    for bad_rank in (None, 1, None):
        optimizer.zero_grad()
        model(batch(bad_rank)).square().mean().backward()
        optimizer.step()
assert guard.skipped == [1], guard.skipped
assert "sharded" in guard.origin.text, guard.origin.text
assert all(one.to_local().isfinite().all() for one in model.parameters())
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [_DDP, _FSDP], ids=["ddp", "fsdp2"])
def test_a_step_is_left_out_on_all_ranks_and_the_rank_is_named(
    tmp_path: Path, program: str
) -> None:
    run_on_two_ranks(tmp_path, _BEGIN + program)
