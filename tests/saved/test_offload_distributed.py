"""Offloading under DistributedDataParallel and FSDP2, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torchtap

SCRIPT = """
import os, sys, warnings
import torch, torchtap as tt
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torchtap.saved.copy_streams import use_streams
from torchtap.testing import FakeStreams

warnings.simplefilter("ignore")
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.LayerNorm(16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Checkpointed(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def bare():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Checkpointed(), Block(), nn.Linear(16, 3))


def build():
    model = bare()
    if sys.argv[1] == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model[:3]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def steps(**offload):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    off = None
    if offload:
        attached = {"model": model} if offload.pop("is_attached") else {}
        off = tt.offload(min_bytes=0, **attached, **offload)
        if attached:
            enter, leave = (lambda: None), (lambda: None)
        else:
            enter, leave = off.__enter__, lambda: off.__exit__(None, None, None)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(4):
        x = torch.randn(5, 16, generator=generator)
        if off is not None:
            enter()
        loss = model(x).square().sum()
        if off is not None:
            leave()
        loss.backward()
        for param in model.parameters():
            grad = param.grad
            found.append(grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    if off is not None:
        off.close()
        report = off.report()
        assert report.packed_nbytes > 0 and report.kept_nbytes["parameter"] > 0, report
        assert report.fetched_nbytes > 0, report
    return found


x = torch.randn(5, 16)
one, other = tt.saved_report(bare(), x), tt.saved_report(build(), x)
for name in ("count", "nbytes", "param_nbytes"):
    assert getattr(one, name) == getattr(other, name) > 0, (one, other)

plain = steps()
WAYS = ({"to": "disk"}, {"to": "cpu"}, {"to": "disk", "max_bytes": 4000})
for is_attached in (False, True):
    for how in WAYS:
        with use_streams(FakeStreams(4)):
            moved = steps(is_attached=is_attached, **how)
        assert len(plain) == len(moved) > 0
        assert all(torch.equal(a, b) for a, b in zip(plain, moved)), (is_attached, how)
distributed.destroy_process_group()
print("equal", rank, flush=True)
os._exit(0)  # PyTorch's own threads of gloo abort the interpreter's end now and then.
"""


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_gradients_are_equal_to_the_bit(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    source = str(Path(torchtap.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(script), kind],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
