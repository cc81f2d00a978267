"""A statistic of a user's own whose states are packed: in files, folders, attempts and ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from records import held_run, record, run_of
from safetensors import safe_open
from torch import Tensor, nn

import torchtap as tt
from killed import die, killed_in
from ranks import run_on_two_ranks
from torchtap.runs.store.layout import attempts_in, ranks_in
from torchtap.stats.catalogue.kinds import named_value

Sums = tuple[Tensor, Tensor]


class RowMean:
    """Mean of the magnitudes in each row, ``float64[rows]``."""

    def __init__(self, name: str = "row_mean") -> None:
        self.name = name

    def init(self) -> Sums | None:
        return None

    def update(self, state: Sums | None, tensor: Tensor) -> Sums:
        new = tensor.double().abs().sum(-1), torch.tensor(tensor.shape[-1])
        return new if state is None else self.merge(state, new)

    def merge(self, one: Sums, two: Sums) -> Sums:
        return one[0] + two[0], one[1] + two[1]

    def finish(self, state: Sums) -> Tensor:
        return state[0] / state[1]

    def pack(self, state: Sums) -> dict[str, Tensor]:
        return {"total": state[0], "count": state[1]}

    def unpack(self, parts: Mapping[str, Tensor]) -> Sums:
        return parts["total"], parts["count"]


@dataclass(frozen=True)
class RunningCovariance:
    """Covariance of the features, by raw moments, which numpy's formula does not use."""

    name: str = "covariance"

    def init(self) -> dict[str, Tensor]:
        return {}

    def update(self, state: dict[str, Tensor], tensor: Tensor) -> dict[str, Tensor]:
        wide = tensor.double()
        return self.merge(
            state, {"n": torch.tensor(len(wide)), "sum": wide.sum(0), "outer": wide.T @ wide}
        )

    def merge(self, one: dict[str, Tensor], two: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: one[name] + two[name] for name in one} if one and two else {**one, **two}

    def finish(self, state: dict[str, Tensor]) -> Tensor:
        mean = state["sum"] / state["n"]
        return state["outer"] / state["n"] - torch.outer(mean, mean)

    def pack(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state

    def unpack(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(parts)


def both() -> list[Any]:
    return [RowMean(), tt.stats.cosine(), RunningCovariance()]


def value(step: int, rank: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng([step, rank]).normal(1.0, 2.0, (4, 3)))


def measure(steps: Sequence[int], statistics: Sequence[Any] | None = None, **sink: Any) -> tt.Run:
    """A run in memory, whose one site has :func:`value` in each step."""
    stats = tt.Stats(statistics=both() if statistics is None else statistics)
    to = [tt.Disk(values=None, **sink), stats] if sink else stats
    model = nn.Identity()
    with tt.watch(model, to=to) as w:  # type: ignore[arg-type]
        for step in steps:
            w.step(step)
            model(value(step))
            w.step()
    return w.run


def assert_right(run: tt.Run, values: Sequence[NDArray[np.float64]], step: Any) -> None:
    """Against numpy's own formulas."""
    extra = run.stats(".:output", step=step).extra
    row_mean = np.mean([np.abs(one).mean(1) for one in values], axis=0)
    np.testing.assert_allclose(extra["row_mean"], row_mean, rtol=1e-12)
    covariance = np.cov(np.concatenate(values), rowvar=False, ddof=0)
    np.testing.assert_allclose(extra["covariance"], covariance, rtol=1e-10)


def numpy_of(steps: Sequence[int], rank: int = 0) -> list[NDArray[np.float64]]:
    return [value(step, rank).numpy() for step in steps]


def test_every_window_of_a_file_is_merged_by_the_statistics_own_code(tmp_path: Path) -> None:
    live = measure(range(4))
    again = tt.open(live.save(tmp_path / "a.safetensors"))
    for path in (tmp_path / "a.safetensors", again.save(tmp_path / "b.safetensors")):
        run = tt.open(path, statistics=both())
        reopened = tt.open(run.save(tmp_path / "c.safetensors"), statistics=both())
        for one in (run, reopened):
            for step, window in ((2, [2]), ([1, 3], [1, 3]), ("all", range(4))):
                assert_right(one, numpy_of(window), step)
                assert_right(live, numpy_of(window), step)
        assert run.over_steps(".:output", "row_mean")[0] == [0, 1, 2, 3]
        assert run.stats(".:output", step="all").extra["cosine"] == pytest.approx(
            live.stats(".:output", step="all").extra["cosine"], abs=0
        )


def test_attempts_of_which_one_was_killed_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    measure(range(3), path=path)
    killed_in(lambda: measure(range(3, 6), [RowMean(), Dying()], path=path, resume=True))
    measure(range(2, 7), path=path, resume=True)
    for folder in (path, ranks_in(path)[0]):
        run = tt.open(folder, statistics=both())
        assert run.steps == list(range(7))
        for step, window in ((0, [0]), ([1, 4, 6], [1, 4, 6]), ("all", range(7))):
            assert_right(run, numpy_of(window), step)
    last = tt.open(attempts_in(ranks_in(path)[0])[2], statistics=both())
    assert_right(last, numpy_of(range(2, 7)), "all")
    with pytest.raises(tt.RunError, match=r"packed by RowMean.*statistics=\[RowMean"):
        _ = tt.open(path).stats(".:output", step="all").extra["row_mean"]


class Dying(RunningCovariance):
    """One that ends the process in the third step."""

    def update(self, state: dict[str, Tensor], tensor: Tensor) -> dict[str, Tensor]:
        if torch.equal(tensor, value(5)):
            die()
        return super().update(state, tensor)


def rank_run(rank: int, statistics: Sequence[Any], labels: tuple[str, ...] = ()) -> tt.Run:
    """One rank of two, whose part of the batch is :func:`value` of it."""
    stats = tt.Stats(statistics=statistics)
    for step in range(3):
        port, leaf = ("param", "weight") if labels else ("output", "")
        stats.take(record("", value(step, rank), port=port, leaf=leaf, step=step, labels=labels))
        stats.close_step(step)
    meta = replace(run_of(types={"": ("Identity",)}).meta, rank=rank, world_size=2)
    return held_run((), meta, series=stats.measured())


def test_files_of_two_ranks_are_merged(tmp_path: Path) -> None:
    live = [rank_run(number, both()) for number in range(2)]
    files = [run.save(tmp_path / f"{number}.safetensors") for number, run in enumerate(live)]
    opened = [tt.open(file, statistics=both()) for file in files]
    for merged in (tt.merge(opened), tt.merge(live), tt.merge([live[0], opened[1]])):
        assert not merged.absent
        again = tt.open(merged.save(tmp_path / "merged.safetensors"), statistics=both())
        for run in (merged, again):
            for step, window in ((1, [1]), ([0, 2], [0, 2]), ("all", range(3))):
                assert_right(run, numpy_of(window) + numpy_of(window, rank=1), step)
    unmerged = tt.merge(files)
    assert any("of 'row_mean', the file holds" in entry.reason for entry in unmerged.absent)


def test_shards_are_merged_by_a_statistic_that_says_how() -> None:
    class OfShards(RowMean):
        def merge_shards(self, one: Sums, two: Sums, dim: int | None, num: int | None) -> Sums:
            assert (dim, num) == (0, 2)
            return torch.cat([one[0], two[0]]), one[1]

    class Anywhere(RunningCovariance):
        needs_places = False

    def merged(statistics: Sequence[Any]) -> Mapping[str, Any]:
        runs = [rank_run(n, statistics, (f"shard {n} of 2 (Shard(dim=0))",)) for n in range(2)]
        return tt.merge(runs).stats(".:param[weight]", step=1).extra

    whole = np.concatenate([value(1, rank).numpy() for rank in range(2)])
    extra = merged([OfShards(), Anywhere()])
    np.testing.assert_allclose(extra["row_mean"], np.abs(whole).mean(1), rtol=1e-12)
    np.testing.assert_allclose(extra["covariance"], np.cov(whole, rowvar=False, ddof=0), rtol=1e-10)
    with pytest.raises(tt.RunError, match=r"the ranks have shards.*merge_shards, or needs_places"):
        _ = merged([RowMean()])["row_mean"]


_TRAINING = """
import os, sys, torch, torchtap as tt
from torch import distributed, nn
sys.path.insert(0, {home!r})
from test_own_statistics import RowMean, RunningCovariance, value
distributed.init_process_group("gloo")
rank, net = distributed.get_rank(), nn.Identity()
for steps in (range(2), range(1, 3)):
    stats = tt.Stats(statistics=[RowMean(), RunningCovariance()])
    with tt.watch(net, to=[tt.Disk(sys.argv[1] + "/run", values=None, resume=True), stats]) as w:
        for step in steps:
            w.step(step)
            net(value(step, rank))
            w.step()
"""


@pytest.mark.slow
def test_attempts_of_two_real_ranks_are_one_run(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, _TRAINING.format(home=str(Path(__file__).parent)))
    run = tt.open(tmp_path / "run", statistics=[RowMean(), RunningCovariance()])
    for step, window in ((2, [2]), ([0, 1], [0, 1]), ("all", range(3))):
        values = [part for one in window for part in (value(one).numpy(), value(one, 1).numpy())]
        assert_right(run, values, step)


def test_without_its_class_the_packed_parts_are_read_by_their_names(tmp_path: Path) -> None:
    path = measure(range(3)).save(tmp_path / "a.safetensors")
    run = tt.open(path)
    parts = run.stats(".:output", step=1).extra["row_mean"]
    total = np.abs(value(1).numpy()).sum(1)
    np.testing.assert_allclose(parts["total"], total, rtol=1e-12)
    assert parts["count"].dtype is torch.int64 and int(parts["count"]) == 3
    assert int(run.over_steps(".:output", "row_mean.count")[1][2]) == 3
    assert "statistics=[RowMean(...)]" in repr(parts)
    assert "packed by RowMean" in str(run.table(columns=["row_mean"]))
    with pytest.raises(tt.RunError, match=r"packed by RowMean.*statistics=\[RowMean\(\.\.\.\)\]"):
        _ = run.stats(".:output", step=[0, 1]).extra["row_mean"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([RowMean("row_mena")], "no statistic of that name; did you mean 'row_mean'?.*'cosine'"),
        ([RowMean(), RowMean()], "Two statistics are named 'row_mean'"),
        ([RowMean("cosine")], "a Cosine of tt.stats. Leave it out"),
        ([3], "3 is no statistic"),
        ([tt.stats.along(0, name="row_mean")], "no pack and unpack. Expected a .* as RowMean"),
    ],
)
def test_statistics_that_the_run_does_not_have_are_refused(
    given: list[Any], said: str, tmp_path: Path
) -> None:
    for path in (tmp_path / "a.safetensors", tmp_path / "run"):
        if path.suffix:
            measure(range(1)).save(path)
        else:
            measure(range(1), path=path)
        with pytest.raises(tt.InputError, match=said):
            tt.open(path, statistics=given)


def test_one_of_pack_and_unpack_is_refused_before_the_training() -> None:
    class Half(RowMean):
        unpack: Any = None

    with pytest.raises(tt.InputError, match="has pack and no unpack: expected both, or neither"):
        tt.Stats(statistics=[Half()])


class Raising(RowMean):
    def pack(self, state: Sums) -> dict[str, Tensor]:
        raise ValueError("no room")


class Listing(RowMean):
    def pack(self, state: Sums) -> Any:
        return [*state]


class Numbers(RowMean):
    def pack(self, state: Sums) -> Any:
        return {"total": 1.5}


class Sparse(RowMean):
    def pack(self, state: Sums) -> dict[str, Tensor]:
        return {"total": state[0].to_sparse()}


class Unfinished(RowMean):
    pack: Any = None
    unpack: Any = None

    def finish(self, state: Sums) -> Tensor:
        raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("statistic", "said"),
    [
        (Raising, "its pack raised ValueError: no room"),
        (Listing, "its pack returned a list; expected a mapping of texts to tensors"),
        (Numbers, "its pack returned a float as part 'total'"),
        (Sparse, r"its pack returned a tensor that is torch\.sparse_coo"),
        (Unfinished, "its finish raised ZeroDivisionError: mine"),
    ],
)
def test_a_state_that_cannot_be_packed_costs_no_run(
    statistic: type[RowMean], said: str, tmp_path: Path
) -> None:
    live = measure(range(2), [statistic(), RunningCovariance()], path=tmp_path / "run")
    live.save(tmp_path / "a.safetensors")
    for path in (tmp_path / "a.safetensors", tmp_path / "run"):
        run = tt.open(path, statistics=[RunningCovariance()])
        extra = run.stats(".:output", step=1).extra
        with pytest.raises(tt.RunError, match=f"'row_mean' of .* {said}"):
            _ = extra["row_mean"]
        assert extra["covariance"].shape == (3, 3)
        (entry,) = [one for one in run.absent if "row_mean" in one.reason]
        assert str(entry.site) == ".:output" and said.split("torch")[0] in entry.reason


class Unreadable(RowMean):
    def unpack(self, parts: Mapping[str, Tensor]) -> Sums:
        return parts["totl"], parts["count"]


class Refusing(RowMean):
    def unpack(self, parts: Mapping[str, Tensor]) -> Any:
        return 3


def test_what_unpack_or_merge_raises_is_said_where_it_is_read(tmp_path: Path) -> None:
    path = measure(range(2)).save(tmp_path / "a.safetensors")
    for given, step, said in (
        (Unreadable(), 0, r"unpack of Unreadable raised KeyError: 'totl'.*total float64\[4\]"),
        (Refusing(), [0, 1], "merge of Refusing raised TypeError: .*given an int"),
        (Refusing(), 0, "finish of Refusing raised TypeError"),
    ):
        stats = tt.open(path, statistics=[given]).stats(".:output", step=step)
        assert stats.num_finite == 12 * (2 if step else 1)
        with pytest.raises(tt.RunError, match=f"'row_mean' of .:output .*{said}"):
            _ = stats.extra["row_mean"]
        assert not math.isnan(float(stats.extra["cosine"])) or step == 0
    files = [rank_run(n, both()).save(tmp_path / f"{n}.safetensors") for n in range(2)]
    merged = tt.merge([tt.open(file, statistics=[Refusing()]) for file in files])
    assert any("merge of Refusing raised" in entry.reason for entry in merged.absent)
    assert merged.stats(".:output").num_finite == 24


def test_a_file_names_classes_of_ours_as_before(tmp_path: Path) -> None:
    """The form in which earlier versions wrote and read states, letter by letter."""
    top, model = tt.stats.top_k(1), nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=[top])) as w:
        model(torch.tensor([[1.0, -3.0]]))
    path = w.run.save(tmp_path / "a.safetensors")
    with safe_open(path, "np") as file:
        text = file.get_tensor("torchtap.stats.further").tobytes()
        series = json.loads(file.metadata()["torchtap"])["series"]
        numbers = file.get_tensor("torchtap.stats.further.numbers")
    element = ["of", "Element", [["float", 0], ["tuple", [0, 1]], 0]]
    of_step = [["of", "Largest", [["tuple", [element]], 1]]]
    of_all = json.loads(json.dumps(of_step).replace('["float", 0]', '["float", 1]'))
    assert json.loads(text) in (
        [[-1, 0, of_step], [0, 0, of_all]],
        [[-1, 0, of_all], [0, 0, of_step]],
    )
    assert numbers.tolist() == [-3.0, -3.0]
    assert series["further"] == [{"kind": "TopK", "arguments": [1, "top_k"]}]


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'Slices'"):
        named_value(type("Slices", (), {}))
