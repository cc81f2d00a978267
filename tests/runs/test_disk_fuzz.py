"""Whatever is done to any file of a folder: it reads right, or refuses, or ``doctor`` finds it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bits import content
from recordings import batch, files_of, small_net

import torchtap as tt
from killed import die, killed_in
from torchtap.runs.store.folder_doctor import examine

STATISTICS = ("mean", "l2", "numel", "min", "max", "zeros")


def train(path: Path, first: int, last: int, *, seed: int, dies: bool = False) -> None:
    """Record steps with lanes, small values, statistics, ids, labels and numbers."""
    net = small_net()
    with tt.watch(net, "*:output,param", to=[tt.Disk(path, resume=True), tt.Stats()]) as w:
        w.step(first)
        for step in range(first, last):
            net(batch(seed + step, 2000))
            w.log(loss=float(seed + step))
            w.step(ids=[f"{seed}-{step}"], half=step // 2)
        if dies:
            w.sync()
            die()


def closed(path: Path, seed: int) -> None:
    train(path, 0, 4, seed=seed)


def killed(path: Path, seed: int) -> None:
    killed_in(lambda: train(path, 0, 4, seed=seed, dies=True))


def resumed(path: Path, seed: int) -> None:
    killed_in(lambda: train(path, 0, 3, seed=seed, dies=True))
    train(path, 2, 4, seed=seed)


def everything(path: Path) -> dict[str, Any]:
    """All that a run says of itself, but for what is absent."""
    run = tt.open(path)
    records = {(str(r.site), r.step, r.call, r.phase): r for r in run.records(phase=None)}
    return {
        "values": {key: (content(one.value), one.labels) for key, one in records.items()},
        "steps": run.steps,
        "sites": [str(site) for site in run.sites],
        "ids": [run.ids(step) for step in run.steps],
        "labels": [run.labels(step) for step in run.steps],
        "times": run.times,
        "scalars": [run.scalars(name) for name in run.scalar_names],
        "model": (run.meta.model, run.meta.where, run.meta.created),
        "statistics": [run.over_steps(site, name) for site in run.sites for name in STATISTICS],
    }


Data = bytearray
Mutation = Callable[[random.Random, Data, bytes], Data]


def flip(chance: random.Random, data: Data, other: bytes) -> Data:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def flip_near_the_start(chance: random.Random, data: Data, other: bytes) -> Data:
    data[chance.randrange(min(len(data), 3000))] ^= 1 << chance.randrange(8)
    return data


def overwrite(chance: random.Random, data: Data, other: bytes) -> Data:
    for _ in range(chance.randrange(2, 40)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return data


def blank(chance: random.Random, data: Data, other: bytes) -> Data:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.randrange(1, 5000))
    data[start:end] = bytes(end - start)
    return data


def cut(chance: random.Random, data: Data, other: bytes) -> Data:
    return data[: chance.randrange(len(data))]


def append(chance: random.Random, data: Data, other: bytes) -> Data:
    return data + chance.randbytes(chance.randrange(1, 5000))


def insert(chance: random.Random, data: Data, other: bytes) -> Data:
    place = chance.randrange(len(data))
    data[place:place] = chance.randbytes(chance.choice([1, 4, 8, 64]))
    return data


def huge(chance: random.Random, data: Data, other: bytes) -> Data:
    place = chance.randrange(max(1, min(len(data), 4000) - 8))
    data[place : place + 8] = chance.choice([b"\xff" * 8, (1 << 40).to_bytes(8, "little")])
    return data


def another_digit(chance: random.Random, data: Data, other: bytes) -> Data:
    places = [place for place, one in enumerate(data[:60_000]) if 48 <= one <= 57]
    if places:
        place = chance.choice(places)
        data[place] = 48 + (data[place] - 48 + chance.randrange(1, 10)) % 10
    return data


def of_another_run(chance: random.Random, data: Data, other: bytes) -> Data:
    return Data(other)


MUTATIONS: list[Mutation] = [
    *(flip, flip_near_the_start, overwrite, blank, cut, append, insert, huge, another_digit),
    of_another_run,
]


def assert_right_or_noticed(path: Path, truth: dict[str, Any], what: str) -> None:
    try:
        if everything(path) == truth:
            return
        assert not examine(path).is_whole, what
    except tt.TorchtapError:
        pass  # It refuses, by a clear error.


@pytest.mark.slow
@pytest.mark.parametrize("make", [closed, killed, resumed])
def test_any_change_of_any_file_is_right_or_noticed(
    make: Callable[[Path, int], None], tmp_path: Path
) -> None:
    source, another, copy = tmp_path / "source", tmp_path / "another", tmp_path / "copy"
    make(source, 0)
    make(another, 100)
    truth, chance = everything(source), random.Random(make.__name__)
    names = [file.relative_to(source) for file in files_of(source)]
    for name in names:
        whole, other = (source / name).read_bytes(), another / name
        for mutation in MUTATIONS:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            changed = mutation(chance, Data(whole), other.read_bytes() if other.exists() else b"")
            (copy / name).write_bytes(changed)
            assert_right_or_noticed(copy, truth, f"{mutation.__name__} of {name}")
        (copy / name).unlink()
        assert_right_or_noticed(copy, truth, f"{name} is deleted")
        shutil.copy(source / name, copy / name)


@pytest.mark.slow
@pytest.mark.parametrize("make", [closed, killed, resumed])
def test_files_that_changed_places_are_right_or_noticed(
    make: Callable[[Path, int], None], tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    make(source, 0)
    truth = everything(source)
    names = [file.relative_to(source) for file in files_of(source)]
    for number, one in enumerate(names):
        for other in names[:number]:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            shutil.copy(source / one, copy / other)
            shutil.copy(source / other, copy / one)
            assert_right_or_noticed(copy, truth, f"{one} and {other}")
