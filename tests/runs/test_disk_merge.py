"""Ranks on disk are merged by what their journals say of values, and values are read when asked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchtap as tt
from torchtap.core.site import Site
from torchtap.runs.meta import Meta
from torchtap.runs.store.attempt import AttemptWriter
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.lanes import Value
from torchtap.runs.store.layout import attempt_folder, rank_folder

Of = tuple[str, int, Tensor]
"""Site, step and value."""
MODULES = {"": ("Net",), "a": ("Linear",), "b": ("Linear",)}


def write_ranks(
    path: Path, ranks: Iterable[Iterable[Of]], labels: Mapping[int, tuple[str, ...]] | None = None
) -> tt.Run:
    """A run of several ranks; a step is committed when the next one begins."""
    listed = [list(one) for one in ranks]
    for rank, values in enumerate(listed):
        folder = attempt_folder(rank_folder(path, rank), 0)
        folder.mkdir(parents=True)
        meta = Meta("Net", MODULES, rank=rank, world_size=len(listed), where=("*",))
        facts = {"rank": rank, "world_size": len(listed), "attempt": 0, "meta": asdict(meta)}
        writer = AttemptWriter(folder, facts, durability="none")
        own = (labels or {}).get(rank, ())
        for step in sorted({step for _, step, _ in values}):
            calls: dict[str, int] = {}
            for text, at, value in values:
                if at == step:
                    call = calls[text] = calls.get(text, -1) + 1
                    dtype = str(value.dtype).removeprefix("torch.")
                    data: Any = value.contiguous().view(torch.uint8).numpy()
                    shape = tuple(value.shape)
                    site = Site.parse(text)
                    key = (site, step, call, "forward", -1, own, dtype, shape)
                    writer.append(Value(*key, memoryview(data.reshape(-1))))
            writer.commit(Commit(step, step, float(step)))
        writer.close()
    return tt.open(path)


def value(seed: int, rows: int = 4) -> Tensor:
    """Draw equal rows every time."""
    return torch.randn(rows, 5000, generator=torch.Generator().manual_seed(seed))


def damage(path: Path, rank: int, lane: str) -> None:
    """Overwrite the first value of a lane of one rank."""
    (file,) = (path / f"rank-{rank:05d}").rglob(f"lanes/*{lane}*")
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xff" * 50)


def test_no_value_is_read_when_ranks_are_merged(tmp_path: Path) -> None:
    ranks = [
        [("a:param[weight]", step, value(0)) for step in range(3)]
        + [("b:output", step, value(10 * rank + step)) for step in range(3)]
        for rank in range(2)
    ]
    write_ranks(tmp_path, ranks)
    damage(tmp_path, 1, "param")
    damage(tmp_path, 1, "output")
    run = tt.open(tmp_path)
    assert run.steps == [0, 1, 2] and not run.absent
    assert torch.equal(run.get("a:param[weight]", step=0), value(0))  # It is rank 0's.
    assert torch.equal(run.get("b:output", step=0, call=0), value(0))
    with pytest.raises(tt.RunError, match="b:output in step 0, call 0, is damaged"):
        run.get("b:output", step=0, call=1)
    assert torch.equal(run.cat("b:output", steps=2), torch.cat([value(2), value(12)]))


def test_replicas_that_differ_are_named_by_their_checksums(tmp_path: Path) -> None:
    ranks = [
        [("a:param[weight]", step, value(step + (rank == 2 and step > 0))) for step in range(3)]
        for rank in range(3)
    ]
    run = write_ranks(tmp_path, ranks)
    assert run.steps == [0]
    assert "rank 2 differs from ranks 0 and 1, first in step 1, in 2 steps" in run.absent[0].reason
    assert torch.equal(run["a:param[weight]"], value(0))


def test_not_a_number_is_equal_whatever_its_bits_are(tmp_path: Path) -> None:
    ranks = []
    for bits in (0x7FC00000, 0x7FC00001):
        weight = value(0)
        weight.view(torch.int32)[0, 0] = bits
        ranks.append([("a:param[weight]", 0, weight)])
    run = write_ranks(tmp_path, ranks)
    assert not run.absent
    assert run["a:param[weight]"].isnan().sum() == 1


def test_replicas_of_other_shapes_or_dtypes_differ(tmp_path: Path) -> None:
    flat, half = value(0).reshape(2, 10_000), value(0).view(torch.int32)
    for number, other in enumerate((flat, half)):
        ranks = [[("a:param[weight]", 0, one), ("b", 0, value(1))] for one in (value(0), other)]
        run = write_ranks(tmp_path / str(number), ranks)
        assert "ranks 0 and 1 differ" in run.absent[0].reason


def test_shards_are_joined_when_they_are_read(tmp_path: Path) -> None:
    labels = {rank: (f"shard {rank} of 2 (Shard(dim=0))",) for rank in range(2)}
    ranks = [
        [("a:param[weight]", step, value(step)[2 * rank : 2 * rank + 2]) for step in range(3)]
        for rank in range(2)
    ]
    run = write_ranks(tmp_path, ranks, labels)
    record = run.record("a:param[weight]", step=2)
    assert torch.equal(record.value, value(2))
    assert record.labels == ("2 shards together",)
    assert run.nbytes == 3 * value(0).nbytes
    assert str(run).splitlines()[-1].split()[:3] == ["a:param[weight]", "4x5000", "float32"]
    assert torch.equal(run.rank(1)["a:param[weight]"], value(2)[2:])


def test_shards_that_do_not_fit_are_refused_without_reading_them(tmp_path: Path) -> None:
    labels = {rank: (f"shard {rank} of 2 (Shard(dim=0))",) for rank in range(2)}
    ranks = [
        [("a:param[weight]", 0, value(0)[:, : 5000 - 7 * rank]), ("b:param[weight]", 0, value(1))]
        for rank in range(2)
    ]
    run = write_ranks(tmp_path, ranks, labels)
    assert "its shards do not fit together" in run.absent[0].reason
    assert str(run.absent[0].site) == "a:param[weight]"
    assert run["b:param[weight]"].shape == (8, 5000)


def test_values_that_only_one_rank_has_are_in_their_places(tmp_path: Path) -> None:
    """Ranks whose records are not alike are matched by what they are."""
    one = [("a", step, value(step)) for step in range(4) for _ in range(1 + step % 2)]
    two = [("b", 0, value(7)), *(("a", step, value(20 + step)) for step in range(4))]
    run = write_ranks(tmp_path, [one, two])
    assert run.steps == [0, 1, 2, 3]
    found = [(str(r.site), r.step, r.call, r.labels) for r in run.records()]
    expected: list[tuple[str, int, int, tuple[str, ...]]] = []
    for step in range(4):
        here = 1 + step % 2
        expected += [("a:output", step, call, ("rank 0",)) for call in range(here)]
        expected += [("b:output", 0, 0, ())] if step == 0 else []
        expected += [("a:output", step, here, ("rank 1",))]
    assert found == expected
    for step in range(4):
        parts = [value(step)] * (1 + step % 2) + [value(20 + step)]
        assert torch.equal(run.cat("a", steps=step), torch.cat(parts))


def test_rows_of_a_merged_run_are_those_of_its_values(tmp_path: Path) -> None:
    ranks = [[("a", step, value(10 * rank + step)) for step in range(3)] for rank in range(2)]
    run = write_ranks(tmp_path, ranks)
    wanted = [0, 23, 5, 11, 4]
    whole = torch.cat([value(10 * rank + step) for step in range(3) for rank in range(2)])
    assert torch.equal(run.rows("a", wanted), whole[wanted])
    assert torch.equal(run.rows("a", [1, 9]), whole[[1, 9]])  # Both are on rank 0.


def test_calls_beyond_all_measure_are_matched_too(tmp_path: Path) -> None:
    from torchtap.runs.merging.matching import _codes, _ranked_codes

    columns = [np.array([[3, 1, 2], [2**40, -(2**40), 5]]), np.array([[1, 3], [-(2**40), 2**40]])]
    found = _codes([list(one) for one in columns]), _ranked_codes([list(one) for one in columns])
    for codes in found:
        assert codes[0][0] == codes[1][1] and codes[0][1] == codes[1][0]
        assert codes[0].argsort().tolist() == [1, 2, 0]


# --- ranks that are not whole ------------------------------------------------------------------


def two_ranks(path: Path) -> Path:
    """A run of two ranks; returns the attempt of the second."""
    write_ranks(path, [[("a", s, value(10 * rank + s)) for s in range(3)] for rank in range(2)])
    return path / "rank-00001" / "attempt-000"


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (("attempt.json",), "what its attempt.json says of it, such as its rank, is missing"),
        (("journal.arrows", "index.safetensors"), "journal.arrows is missing"),
    ],
)
def test_a_rank_that_cannot_be_merged_is_left_out_and_named(
    lost: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    home = two_ranks(tmp_path)
    for name in lost:
        (home / name).unlink()
    run = tt.open(tmp_path)
    assert torch.equal(run.cat("a"), torch.cat([value(step) for step in range(3)]))
    reasons = [entry.reason for entry in run.absent]
    assert reasons[0] == "rank 1 of 2: not given"
    assert reasons[1].startswith(f"rank 1 is left out: {said}")
    assert run.ids(0) == []
    found = run.rank(1)
    if "attempt.json" in lost:
        assert torch.equal(found.get("a", step=2), value(12))


def test_a_rank_that_has_committed_nothing_yet_comes_in_when_it_has(tmp_path: Path) -> None:
    home = two_ranks(tmp_path / "run")
    home.rename(tmp_path / "later")
    home.mkdir()
    run = tt.open(tmp_path / "run")
    assert len(run) == 3 and "rank 1 is left out" in run.absent[-1].reason
    home.rmdir()
    (tmp_path / "later").rename(home)
    assert run.refresh()
    assert len(run) == 6 and not run.absent
    assert run.times[0] == [0, 1, 2]


def test_a_copy_of_a_rank_is_not_taken_for_another(tmp_path: Path) -> None:
    home = two_ranks(tmp_path)
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "rank-00000" / "attempt-000", home)
    with pytest.raises(tt.RunError, match="Rank 0 is there 2 times, in rank 0 and rank 1"):
        len(tt.open(tmp_path))


def test_a_flipped_bit_in_any_file_of_any_rank_shows_no_wrong_tensor(tmp_path: Path) -> None:
    ranks = [
        [
            entry
            for step in range(2)
            for entry in (
                ("a:param[weight]", step, value(step)[:1, :200]),
                ("b", step, value(10 * rank + step)),
            )
        ]
        for rank in range(2)
    ]
    write_ranks(tmp_path, ranks)
    (tmp_path / "rank-00001" / "attempt-000" / "index.safetensors").unlink()
    chance, most = random.Random(0), 0
    for file in sorted(one for one in tmp_path.rglob("*") if one.is_file()):
        whole = file.read_bytes()
        for place in chance.sample(range(min(len(whole), 6000)), 12):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            most = max(most, read_and_compare(tmp_path))
        file.write_bytes(whole)
    assert most == read_and_compare(tmp_path) == 6


def read_and_compare(path: Path) -> int:
    """How many values of a run of two ranks can be read; all of them are right."""
    try:
        run = tt.open(path)
        listed = [(str(one), step) for one in run.sites for step in run.steps]
    except tt.RunError:
        return 0
    many = 0
    for text, step in listed:
        for call in range(2):
            try:
                record = run.record(text, step=step, call=call)
            except (tt.RunError, tt.SiteError):
                continue
            rank = int(record.labels[-1][-1]) if record.labels else None
            if text == "a:param[weight]":
                assert torch.equal(record.value, value(step)[:1, :200])
            elif rank is not None:
                assert torch.equal(record.value, value(10 * rank + step))
            else:  # Of one rank that is there alone.
                assert any(torch.equal(record.value, value(10 * n + step)) for n in range(2))
            many += 1
    return many
