"""Sparse values stay sparse: in memory, in a folder, in a file, merged and exported."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bits import content
from records import record, run_of
from safetensors import safe_open
from safetensors.torch import load, load_file
from torch import Tensor, nn

import torchtap as tt
from torchtap.runs.export import export_run

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


def coo(*, coalesced: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """With a hole, a NaN, and a place that is there twice unless it is coalesced."""
    places = torch.tensor([[4, 0, 4], [1, 2, 1]])
    values = torch.tensor([1.5, float("nan"), -0.0]).to(dtype)
    whole = torch.sparse_coo_tensor(places, values, (6, 3))
    return whole.coalesce() if coalesced else whole


def blocks(layout: torch.layout) -> Tensor:
    dense = torch.zeros(4, 6)
    dense[0, 0], dense[3, 5] = 2.0, -1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        return dense.to_sparse(layout=layout, blocksize=size)


def of_int32() -> Tensor:
    parts = blocks(torch.sparse_csr)
    indices = parts.crow_indices().int(), parts.col_indices().int()
    return torch.sparse_csr_tensor(*indices, parts.values(), parts.shape)


MADE: dict[str, Callable[[], Tensor]] = {
    "coo": coo,
    "coalesced": lambda: coo(coalesced=True),
    "bfloat16": lambda: coo(dtype=torch.bfloat16),
    "complex128": lambda: coo(dtype=torch.complex128),
    "hybrid": lambda: torch.sparse_coo_tensor(
        torch.tensor([[3, 1]]), torch.randn(2, 2, 5), (4, 2, 5)
    ),
    "nothing": lambda: torch.zeros(2, 3).to_sparse(),
    "large": lambda: torch.sparse_coo_tensor(
        torch.tensor([[7, 1]]), torch.randn(2, 30_000), (10**9, 30_000)
    ),
    "csr": lambda: blocks(torch.sparse_csr),
    "csr of int32": of_int32,
    "csc": lambda: blocks(torch.sparse_csc),
    "bsr": lambda: blocks(torch.sparse_bsr),
    "bsc": lambda: blocks(torch.sparse_bsc),
}


def parts(value: Tensor) -> list[object]:
    """Shape, indices and values to the bit, however they lie in memory."""
    if value.layout is torch.sparse_coo:
        found = [value._indices(), value._values()]
    elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
        found = [value.crow_indices(), value.col_indices(), value.values()]
    else:
        found = [value.ccol_indices(), value.row_indices(), value.values()]
    return [value.shape, *(content(one) for one in found)]


def in_a_folder(value: Tensor, path: Path) -> tt.Run:
    disk = tt.Disk(path / "run")
    for step in range(2):
        disk.take(record(value=value, step=step))
        disk.close_step(step)
    disk.close()
    return tt.open(path / "run")


def crashed(value: Tensor, path: Path) -> tt.Run:
    disk = tt.Disk(path / "run")
    for step in range(2):
        disk.take(record(value=value, step=step))
        disk.close_step(step)
    disk.flush()
    shutil.copytree(path / "run", path / "copy")
    disk.close()
    return tt.open(path / "copy")


def in_a_file(value: Tensor, path: Path) -> tt.Run:
    run = run_of(*(record(value=value, step=step) for step in range(2)))
    return tt.open(run.save(path / "run.safetensors"))


def from_folder_to_file(value: Tensor, path: Path) -> tt.Run:
    return tt.open(in_a_folder(value, path).save(path / "run.safetensors"))


def merged(value: Tensor, path: Path) -> tt.Run:
    runs = []
    for rank in range(2):
        of_rank = (record(value=value, step=step, labels=("replica of 2",)) for step in range(2))
        run = run_of(*of_rank)
        meta = replace(run.meta, rank=rank, world_size=2)
        run = tt.Run([*run.records()], meta)
        runs.append(tt.open(run.save(path / f"run.rank{rank}.safetensors")))
    return tt.merge(runs)


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("kept", [in_a_folder, crashed, in_a_file, from_folder_to_file, merged])
def test_a_sparse_value_comes_back_to_the_bit(
    kept: Callable[[Tensor, Path], tt.Run], made: Callable[[], Tensor], tmp_path: Path
) -> None:
    value = made()
    run = kept(value, tmp_path)
    for step in range(2):
        found = run.get("fc", step=step)
        assert (found.layout, found.dtype) == (value.layout, value.dtype)
        assert parts(found) == parts(value)
        if value.layout is torch.sparse_coo:
            assert found.is_coalesced() == value.is_coalesced()
        assert not any("dense" in label for label in run.record("fc", step=step).labels)
    assert run.nbytes < 1_000_000
    assert "fc" in str(run)


def test_rows_and_joined_values_are_those_of_the_dense_one(tmp_path: Path) -> None:
    value = blocks(torch.sparse_csr)
    for name, one in {"csr": value, "coo": value.to_sparse_coo()}.items():
        run = in_a_folder(one, tmp_path / name)
        dense = torch.cat([value.to_dense()] * 2)
        assert torch.equal(run.cat("fc").to_dense(), dense)
        assert torch.equal(run.rows("fc", [7, 0, 3]), dense[[7, 0, 3]])
        assert run.rows("fc", []).shape == (0, 6)
        assert run.stats("fc").l1 == 3.0


def test_the_gradient_of_an_embedding_takes_what_it_has(tmp_path: Path) -> None:
    net = nn.Embedding(1_000_000, 16, sparse=True)
    ids = torch.tensor([3, 999_999, 3])
    disk = tt.Disk(tmp_path / "run", num_steps=2)
    with tt.watch(net, "*:param_grad", to=disk) as w:
        assert "unknown" in str(w.plan) or w.plan.sizes[0].total_bytes is None
        for _ in range(2):
            net.weight.grad = None
            net(ids).sum().backward()
            w.step()
        planned = w.plan.sizes[0].total_bytes
    right = torch.sparse_coo_tensor(ids[None], torch.ones(3, 16), (1_000_000, 16))
    assert content(tt.open(tmp_path / "run")[".:param_grad[weight]"]) == content(right)
    total = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert total < 20_000
    assert planned is not None and 0 < planned < 20_000


def test_it_is_read_without_torchtap(tmp_path: Path) -> None:
    in_a_folder(coo(), tmp_path)
    import pyarrow as pa

    attempt = tmp_path / "run" / "rank-00000" / "attempt-000"
    entry = pa.ipc.open_stream(attempt / "journal.arrows").read_all().to_pylist()[0]
    assert (entry["dtype"], json.loads(entry["shape"])) == ("float32.sparse_coo", [6, 3])
    data = (attempt / entry["file"]).read_bytes()[entry["offset"] :][: entry["nbytes"]]
    parts = load(data)
    found = torch.sparse_coo_tensor(parts["indices"], parts["values"], (6, 3))
    assert content(found) == content(coo())


def test_bytes_that_are_no_such_tensor_are_refused(tmp_path: Path) -> None:
    beyond = torch.sparse_coo_tensor(torch.tensor([[9]]), torch.ones(1), (10,))
    in_a_folder(beyond, tmp_path)
    attempt = tmp_path / "run" / "rank-00000" / "attempt-000"
    small = attempt / "small.arrows"
    data = small.read_bytes()
    assert data.count(b'"shape":"[10]"') == 2
    small.write_bytes(data.replace(b'"shape":"[10]"', b'"shape":"[99]"'))
    run = tt.open(tmp_path / "run", verify=False)
    with pytest.raises(tt.RunError, match=r"holds no value float32\.sparse_coo"):
        run["fc"]


def test_it_is_exported_in_parts(tmp_path: Path) -> None:
    value = coo()
    run = run_of(record("odd", value), record("plain", torch.ones(2)))
    (file,) = export_run(run, "safetensors", tmp_path / "out.safetensors")
    found = load_file(file)
    assert sorted(found) == ["odd:output.indices", "odd:output.values", "plain:output"]
    with safe_open(file, framework="np") as opened:
        said = opened.metadata()
    assert json.loads(said["sparse"]) == {
        "odd:output": {"layout": "sparse_coo", "shape": [6, 3], "is_coalesced": False}
    }
    back = torch.sparse_coo_tensor(found["odd:output.indices"], found["odd:output.values"], (6, 3))
    assert content(back.coalesce()) == content(value.coalesce())
    (file,) = export_run(run, "npz", tmp_path / "out.npz")
    arrays = np.load(file)
    assert np.array_equal(arrays["odd_output_0.0.-1.forward.indices"], value._indices().numpy())
