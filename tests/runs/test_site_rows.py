"""Rows of a site over all steps: any of them, and as a data set."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bits import content
from hypothesis import given, settings, strategies as st
from recordings import batch, small_net
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import torchtap as tt

DTYPES = [
    *(torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64),
    *(torch.float8_e4m3fn, torch.complex128),
]

WIDTH = 1000
SIZES = [20, 20, 7, 0, 30]
"""Rows of each step: with 1,000 numbers each some values are small, some are not."""


def recorded(path: Path, sizes: list[int] = SIZES) -> tt.Run:
    with tt.watch(layer := nn.Identity(), to=[tt.Memory(), tt.Disk(path)]) as w:
        for step, size in enumerate(sizes):
            generator = torch.Generator().manual_seed(step)
            layer(torch.randn(size, WIDTH, generator=generator))
            w.step(ids=[f"{step}-{row}" for row in range(size)])
    return w.run


@pytest.fixture(params=["memory", "disk", "crashed", "unverified"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tt.Run:
    memory = recorded(tmp_path / "run")
    if request.param == "crashed":
        (tmp_path / "run" / "rank-00000" / "attempt-000" / "index.safetensors").unlink()
    how: dict[str, Callable[[], tt.Run]] = {
        "memory": lambda: memory,
        "disk": lambda: tt.open(tmp_path / "run"),
        "crashed": lambda: tt.open(tmp_path / "run"),
        "unverified": lambda: tt.open(tmp_path / "run", verify=False),
    }
    return how[request.param]()


@pytest.mark.parametrize(
    "indices",
    [[], [0], [76, 0, 3, 3, -1, 40, 46], list(range(77)), [39, 40]],
    ids=["none", "one", "some", "all", "ends"],
)
def test_rows_are_those_of_all_values_joined(run: tt.Run, indices: list[int]) -> None:
    whole = torch.cat(
        [
            torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(s))
            for s, n in enumerate(SIZES)
        ]
    )
    for form in (
        indices,
        np.array(indices, dtype=np.int64),
        torch.tensor(indices, dtype=torch.int64),
    ):
        assert content(run.rows(".:output", form)) == content(whole[indices])
    assert run.num_rows(".:output") == 77


@pytest.mark.parametrize("indices", [[77], [-78], [0.5], [[1]], ["a"]], ids=str)
def test_rows_that_are_not_there_are_refused(run: tt.Run, indices: Any) -> None:
    with pytest.raises(tt.InputError):
        run.rows(".:output", indices)


def test_rows_of_one_lane_are_gathered_together(tmp_path: Path) -> None:
    recorded(tmp_path / "run", [100] * 5)
    run = tt.open(tmp_path / "run")
    chosen = np.random.default_rng(0).permutation(500)
    assert content(run.rows(".:output", chosen)) == content(run.cat(".:output")[chosen])


def test_rows_of_a_damaged_value_are_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "run", [100] * 3)
    (lane,) = tmp_path.rglob("lanes/*")
    with lane.open("r+b") as stream:
        stream.seek(4096 + 150 * WIDTH * 4)
        stream.write(b"\xff")
    run = tt.open(tmp_path / "run")
    assert run.rows(".:output", [99, 200]).shape == (2, WIDTH)
    with pytest.raises(tt.RunError, match="step 1, call 0, is damaged"):
        run.rows(".:output", [100])


def test_rows_that_differ_in_shape_are_refused(tmp_path: Path) -> None:
    with tt.watch(layer := nn.Identity(), to=tt.Disk(tmp_path / "run")) as w:
        for width in (3, 4, 50_000, 60_000):
            layer(torch.ones(2, width))
            w.step()
    run = tt.open(tmp_path / "run")
    for pair in ([0, 2], [4, 6], [1, 5]):
        with pytest.raises(tt.RunError, match="differ in shape or dtype"):
            run.rows(".:output", pair)
    assert run.rows(".:output", [6, 7]).shape == (2, 60_000)


def test_bare_numbers_are_one_row_each(tmp_path: Path) -> None:
    with tt.watch(layer := nn.Identity(), to=tt.Disk(tmp_path / "run")) as w:
        for step in range(3):
            layer(torch.tensor(float(step)))
            w.step()
    assert tt.open(tmp_path / "run").rows(".:output", [2, 0]).tolist() == [2.0, 0.0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-77, 76), max_size=50))
def test_any_rows_are_what_indexing_gives(tmp_path_factory: Any, indices: list[int]) -> None:
    home = tmp_path_factory.getbasetemp() / "any-rows"
    if not home.exists():
        recorded(home)
    run = tt.open(home)
    assert content(run.rows(".:output", indices)) == content(run.cat(".:output")[indices])


@pytest.mark.parametrize("width", [9000, 5], ids=["lane", "small"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_any_dtype_have_the_bits_that_were_written(
    tmp_path: Path, dtype: torch.dtype, width: int
) -> None:
    size = torch.empty(0, dtype=torch.uint8).view(dtype).element_size()
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (3, 16, width * size))
    bits = bits.to(torch.uint8)
    with tt.watch(layer := nn.Identity(), to=tt.Disk(tmp_path / "run")) as w:
        for one in bits:
            layer(one.view(dtype))
            w.step()
    chosen = [47, 0, 16, 16, 31]
    run = tt.open(tmp_path / "run")
    for one in (run, tt.open(run.save(tmp_path / "run.safetensors"))):
        found = one.rows(".:output", chosen)
        assert found.dtype is dtype and found.shape == (5, width)
        assert torch.equal(found.view(torch.uint8), bits.view(48, -1)[chosen])


def test_values_that_are_checked_ahead_are_refused_in_their_turn(tmp_path: Path) -> None:
    values = torch.randn(12, 1 << 18)
    with tt.watch(layer := nn.Identity(), to=tt.Disk(tmp_path / "run")) as w:
        for value in values:
            layer(value)
            w.step()
    (lane,) = (tmp_path / "run").rglob("lanes/*")
    with lane.open("r+b") as file:
        file.seek(4096 + 7 * values[0].nbytes + 5)
        file.write(b"?")
    run, read = tt.open(tmp_path / "run"), []
    with pytest.raises(tt.RunError, match=r"step 7, call 0, is damaged"):
        for record in run.records(".:output"):
            read.append(record.value)
    assert content(torch.stack(read)) == content(values[:7])
    # The others can be read, and reading a part leaves no thread behind.
    assert content(run.get(".:output", step=11)) == content(values[11])
    some = tt.open(tmp_path / "run").records(".:output")
    assert content(next(some).value) == content(values[0])
    some.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name.startswith("torchtap-check"):
            thread.join(5)
            assert not thread.is_alive()


# --- as a data set ----------------------------------------------------------------------------


def test_an_item_is_a_row_with_its_id(run: tt.Run) -> None:
    data = run.dataset(".:output", ids=True)
    assert len(data) == 77
    for number, name in ((0, "0-0"), (19, "0-19"), (40, "2-0"), (47, "4-0"), (-1, "4-29")):
        row, found = data[number]
        assert found == name
        assert content(row) == content(run.cat(".:output")[number])
    assert content(run.dataset(".:output")[3]) == content(run.cat(".:output")[3])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_has_every_row_once(tmp_path: Path, workers: int) -> None:
    recorded(tmp_path / "run")
    run = tt.open(tmp_path / "run")
    data = run.dataset(".:output", ids=True)
    seen: dict[str, Any] = {}
    for rows, ids in DataLoader(data, batch_size=8, shuffle=True, num_workers=workers):
        seen |= {name: content(row) for name, row in zip(ids, rows, strict=True)}
    whole = run.cat(".:output")
    names = [name for step in run.steps for name in run.ids(step)]
    assert seen == {name: content(row) for name, row in zip(names, whole, strict=True)}


def test_whole_batches_are_read_at_once(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    data = tt.open(tmp_path / "run").dataset(".:output")
    sampler = BatchSampler(RandomSampler(data), 16, drop_last=False)
    batches = list(DataLoader(data, sampler=sampler, batch_size=None))
    assert [len(one) for one in batches] == [16, 16, 16, 16, 13]


def test_workers_that_are_spawned_open_the_files_themselves(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    run = tt.open(tmp_path / "run")
    loader = DataLoader(
        run.dataset(".:output"), batch_size=16, num_workers=1, multiprocessing_context="spawn"
    )
    assert content(torch.cat(list(loader))) == content(run.cat(".:output"))


def test_ids_that_are_not_one_per_row_are_refused(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, to=tt.Disk(tmp_path / "run")) as w:
        net(batch(0))
        w.step(ids=[1, 2])
    run = tt.open(tmp_path / "run")
    with pytest.raises(tt.RunError, match="Step 0 has 2 ids for 4 rows of 1:output"):
        run.dataset("1", ids=True)
    assert len(run.dataset("1")) == 4


def test_a_data_set_that_is_sent_to_a_worker_has_the_rows_that_it_had(tmp_path: Path) -> None:
    recorded(tmp_path / "run", [4] * 6)
    rows = tt.open(tmp_path / "run").dataset(".:output", ids=True)
    sent = pickle.dumps(rows)
    layer = nn.Identity()
    with tt.watch(layer, to=tt.Disk(tmp_path / "run", resume=True)) as w:
        w.step(6)
        layer(torch.ones(3, WIDTH))
        w.step(ids=["6-0", "6-1", "6-2"])
    assert len(tt.open(tmp_path / "run").dataset(".:output")) == 27  # It has grown.
    there = pickle.loads(sent)
    assert len(there) == len(rows) == 24
    assert there[-1][1] == rows[-1][1] == "5-3"
    assert content(there[-1][0]) == content(rows[-1][0])


@pytest.mark.parametrize("size", [4, 9], ids=["other values", "other rows"])
def test_a_data_set_whose_rows_are_others_in_a_worker_says_so(tmp_path: Path, size: int) -> None:
    recorded(tmp_path / "run", [4] * 6)
    rows = tt.open(tmp_path / "run").dataset(".:output")
    sent, before = pickle.dumps(rows), content(rows[23])
    layer = nn.Identity()
    with tt.watch(layer, to=tt.Disk(tmp_path / "run", resume=True)) as w:
        for step in range(3, 6):
            w.step(step)
            layer(torch.ones(size, WIDTH))
    with pytest.raises(tt.RunError, match=r"has other rows of \.:output than when this data set"):
        pickle.loads(sent)
    assert content(rows[23]) == before


def test_a_gradient_that_comes_late_is_no_other_row_in_a_worker(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, "0:grad_output", to=disk) as w:
        late = None
        for step in range(4):
            loss = net(batch(step)).sum()
            if step == 1:
                late = loss
            else:
                loss.backward()
            w.step()
        disk.flush()
        sent = pickle.dumps(tt.open(tmp_path / "run").dataset("0:grad_output"))
        assert late is not None
        late.backward()
        w.step()
        disk.flush()
        with pytest.raises(tt.RunError, match="gradients of earlier steps, came since"):
            pickle.loads(sent)


_BATCH = torch.arange(24.0).reshape(2, 4, 3)
_PARTS = [_BATCH[0, :2], _BATCH[1, 1:3]]
_JAGGED = {
    "whole": lambda: torch.nested.nested_tensor(_PARTS, layout=torch.jagged),
    "with gaps": lambda: torch.nested.narrow(
        _BATCH, 1, torch.tensor([0, 1]), torch.tensor([2, 2]), layout=torch.jagged
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", _JAGGED)
def test_rows_of_jagged_values_are_those_of_their_parts(kind: str, tmp_path: Path) -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output") as w:
        for _ in range(2):
            model(_JAGGED[kind]())
            w.step()
    w.run.save(tmp_path / "run.safetensors")
    right = torch.cat([*_PARTS, *_PARTS])
    for run in (w.run, tt.open(tmp_path / "run.safetensors")):
        assert torch.equal(run.cat("."), right)
        assert torch.equal(run.rows(".", [5, 2, -1]), right[[5, 2, -1]])
        assert run.rows(".", []).shape == (0, 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_values_of_strided_layout_have_no_rows() -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output") as w:
        model(torch.nested.nested_tensor(_PARTS))
    with pytest.raises(tt.RunError, match="has no rows"):
        w.run.rows(".", [0])
    assert "[2 parts]" in repr(next(w.run.records()))
    assert "12" in str(w.run)
