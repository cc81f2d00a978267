"""Each rank writes a folder of its own, and one run is read."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from bits import content

import torchtap as tt
from ranks import run_on_two_ranks
from torchtap.cli import app as cli
from torchtap.runs.store.folder_doctor import examine

_TRAINING = """
import os, sys, torch, torchtap as tt
from torch import distributed, nn
from recordings import batch, small_net
distributed.init_process_group("gloo")
rank = distributed.get_rank()
net = nn.parallel.DistributedDataParallel(small_net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
where = "*:output,grad_output,param,step_grad"
with tt.watch(net, where, to=[tt.Disk(sys.argv[1] + "/run"), tt.Stats()]) as w:
    for step in range(4 - rank):
        x = batch(step, 6)[3 * rank : 3 * rank + 3]
        optimizer.zero_grad()
        if step < 3:
            net(x).square().mean().backward()
            optimizer.step()
        else:
            net.module(x)
        w.log(loss=float(step + rank))
        w.step(ids=[100 * step + 3 * rank + row for row in range(3)])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(home, _TRAINING)
    return home / "run"


def one_process(steps: int) -> tt.Run:
    """Train with the whole batch in one process."""
    from recordings import batch, small_net

    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sinks: list[tt.Sink] = [tt.Memory(), tt.Stats()]
    with tt.watch(net, "*:output,grad_output,param,step_grad", to=sinks) as w:
        for step in range(steps):
            optimizer.zero_grad()
            net(batch(step, 6)).square().mean().backward()
            optimizer.step()
            w.step()
    return w.run


@pytest.mark.slow
def test_the_ranks_are_one_run(folder: Path) -> None:
    run, expected = tt.open(folder), one_process(3)
    assert run.meta.rank is None
    assert run.steps == [0, 1, 2]
    for step in range(3):
        for site in ("0:output", "2:output"):
            torch.testing.assert_close(run.cat(site, steps=step), expected.cat(site, steps=step))
        for site in ("0:param[weight]", "2:step_grad[bias]"):
            torch.testing.assert_close(run.get(site, step=step), expected.get(site, step=step))
    assert run.ids(1) == [100, 101, 102, 103, 104, 105]
    assert run.scalars("loss of rank 1") == ([0, 1, 2], [1.0, 2.0, 3.0])
    assert any("rank 1 lacks step 3" in entry.reason for entry in run.absent)


@pytest.mark.slow
def test_statistics_are_those_of_all_values_together(folder: Path) -> None:
    run, expected = tt.open(folder), one_process(3)
    for site in ("0:output", "1:output"):
        found, right = run.stats(site, step=2), expected.stats(site, step=2)
        assert (found.numel, found.zeros) == (right.numel, right.zeros)
        assert found.mean == pytest.approx(right.mean, rel=1e-5)
        assert found.l2 == pytest.approx(right.l2, rel=1e-5)
    assert run.over_ranks("0:output", "numel", step=0) == ([0, 1], [48.0, 48.0])


def test_each_rank_is_a_run(folder: Path) -> None:
    run = tt.open(folder)
    assert run.rank(0).steps == [0, 1, 2, 3]
    assert run.rank(1).steps == [0, 1, 2]
    assert run.rank(1).ids(0) == [3, 4, 5]
    alone = tt.open(folder / "rank-00001")
    assert alone.meta.rank == 1
    assert content(alone["0:output"]) == content(run.rank(1)["0:output"])
    with pytest.raises(tt.RunError, match="has nothing of rank 2; there is 0, 1"):
        run.rank(2)


def test_a_rank_that_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "rank-00001")
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3]
    assert "rank 1 of 2: not given" in run.absent[0].reason
    assert run.cat("0:output", steps=0).shape == (3, 16)


def test_the_command_merges_a_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.safetensors"
    assert cli.run(["merge", str(folder), "--to", str(out)]) == 0
    assert tt.open(out).steps == [0, 1, 2]
    assert cli.run(["doctor", str(folder)]) == 0


def test_a_folder_of_ranks_is_listed_and_saved(folder: Path, tmp_path: Path) -> None:
    saved = tt.open(tt.open(folder).save(tmp_path / "merged.safetensors"))
    assert saved.steps == [0, 1, 2]
    assert str(tt.open(folder)).startswith("Run of Sequential")
    assert tt.merge([folder / "rank-00000", folder / "rank-00001"]).steps == [0, 1, 2]


_SHARDED = """
import os, sys, torch, torchtap as tt
from torch import distributed
from torch.distributed.fsdp import fully_shard
from recordings import batch, small_net
distributed.init_process_group("gloo")
rank = distributed.get_rank()
net = small_net()
for layer in net[0], net[2]:
    fully_shard(layer)
fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
where = "*:output,grad_output,param,param_grad,step_grad,buffer"
with tt.watch(net, where, to=[tt.Disk(sys.argv[1] + "/run"), tt.Stats()]) as w:
    for step in range(3):
        optimizer.zero_grad()
        net(batch(step, 6)[3 * rank : 3 * rank + 3]).square().mean().backward()
        optimizer.step()
        w.step()
"""


@pytest.mark.slow
def test_shards_of_fsdp_are_whole_parameters_and_what_flows_is_side_by_side(
    tmp_path: Path,
) -> None:
    run_on_two_ranks(tmp_path, _SHARDED)
    run, expected = tt.open(tmp_path / "run"), one_process(3)
    for step, (path, leaf) in product(range(3), product("02", ("weight", "bias"))):
        for port in ("param", "step_grad"):
            text = f"{path}:{port}[{leaf}]"
            whole = expected.get(text, step=step)
            torch.testing.assert_close(run.get(text, step=step), whole)
            assert run.stats(text, step=step).numel == whole.numel()
            # Of 16 rows each rank has 8, of 3 the first has 2.
            own = [run.rank(rank).record(text, step=step) for rank in range(2)]
            assert torch.equal(torch.cat([one.value for one in own]), run.get(text, step=step))
            assert [len(one.value) for one in own] == ([8, 8] if path == "0" else [2, 1])
            for rank, one in enumerate(own):
                assert any(label.startswith(f"shard {rank} of 2") for label in one.labels)
        torch.testing.assert_close(run.cat("1", steps=step), expected.cat("1", steps=step))
        assert [one.labels[-1] for one in run.records("1", steps=step)] == ["rank 0", "rank 1"]
    assert not run.absent
    assert examine(tmp_path / "run").is_whole
    saved = tt.open(run.save(tmp_path / "merged.safetensors"))
    assert content(saved["0:param[weight]"]) == content(run["0:param[weight]"])

    shutil.rmtree(tmp_path / "run" / "rank-00001")
    half = tt.open(tmp_path / "run")
    with pytest.raises(tt.SiteError):
        half["0:param[weight]"]
    said = {str(one.site): one.reason for one in half.absent}
    assert said["0:param[weight]"].startswith("1 of its 2 shards are there: a whole takes all")
    assert half.cat("1", steps=0).shape == (3, 16)
    assert half.rank(0)["0:param[weight]"].shape == (8, 8)
