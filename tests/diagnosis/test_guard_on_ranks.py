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

origin = tt.locate(model, lambda x: model(x).square().mean().backward(), batch(1))
assert (origin.operation, origin.module, origin.rank) == ("exp", "gate", 1), origin
"""

_SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)

model, bad_rank = make(), 1
if KIND == "fsdp2":
    fully_shard(model.fc)
    fully_shard(model)
elif KIND == "fsdp1":
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
else:  # All ranks have the same batch; the unit whose exp overflows is on the first.
    parallelize_module(
        model, init_device_mesh("cpu", (2,)), {"fc": ColwiseParallel(), "last": RowwiseParallel()}
    )
    batch, bad_rank = (lambda bad: torch.full((3, 2), 1.0 if bad is None else 1e4)), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def state():
    held = [one for param in model.parameters() for one in (param, param.grad)]
    return [getattr(one, "_local_tensor", one).clone() for one in held]


def is_exp(origin):
    return (origin.operation, origin.module, origin.rank) == ("exp", "gate", bad_rank)


with tt.guard(model, on="skip") as guard:
    for bad in (None, bad_rank, None):
        step(batch(bad))
assert guard.skipped == [1], guard.skipped
if KIND == "fsdp1":
    assert "sharded by FullyShardedDataParallel" in guard.origin.text, guard.origin.text
else:
    assert is_exp(guard.origin), guard.origin
assert all(one.isfinite().all() for one in state())

before = state()
origin = tt.locate(model, step, batch(bad_rank))
assert is_exp(origin), origin
assert all(map(torch.equal, before, state()))
assert tt.locate(model, step, batch(None)) is None
step(batch(None))  # The model goes on.
assert all(one.isfinite().all() for one in state())

for run in (
    lambda: tt.record_call(model, ".", batch(None)),
    lambda: tt.audit(model, batch(None)),
):
    try:
        run()
    except tt.CaptureError as error:
        assert "is sharded over ranks" in str(error), error
    else:
        raise AssertionError("a rank alone has a part of the weights")
if KIND != "fsdp1":
    found = tt.compare(model, model, batch(None))  # By all ranks.
    assert found.same and "Compared 4 calls" in str(found), found
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp1", "tensor_parallel"])
def test_a_step_is_left_out_on_all_ranks_and_the_rank_is_named(tmp_path: Path, kind: str) -> None:
    program = _DDP if kind == "ddp" else f"KIND = {kind!r}\n{_SHARDED}"
    run_on_two_ranks(tmp_path, _BEGIN + program)
