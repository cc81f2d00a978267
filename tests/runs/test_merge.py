"""Runs of several ranks as one: rules by port and placement, what is said, and bad input.

The ranks here are made in one process: records and numbers with the labels that a rank's own have.
``test_merge_ranks.py`` does the same with real ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_numbers import leaf as random
from records import held_run, record, run_of
from torch import Tensor, nn

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.core.record import Record
from torchtap.runs.merging.merge import merge_all
from torchtap.runs.step_notes import StepNotes

FORMS = ["kept", "measured"]
LOCAL = ("local",)
PARTIAL = ("partial sum of 2, not reduced",)


def values(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed, dtype=torch.float64).detach()


def shard(place: int, of: int, dim: int = 0) -> tuple[str, ...]:
    return (f"shard {place} of {of} (Shard(dim={dim}))",)


def rank(
    number: int,
    *records: Record,
    form: str = "kept",
    of: int = 2,
    batch_ranks: tuple[int, ...] = (),
    statistics: Sequence[Any] = (),
    **options: Any,
) -> tt.Run:
    """The run of one rank: the records themselves, or what ``tt.Stats`` measures of them."""
    run = run_of(*records, **options)
    meta = replace(run.meta, rank=number, world_size=of, batch_ranks=batch_ranks)
    if form == "kept":
        return held_run(records, meta, absent=run.absent)
    stats = tt.Stats(exact=True, statistics=statistics)
    for step in sorted({one.step for one in records}):
        for one in records:
            if one.step == step:
                stats.take(one)
        stats.close_step(step)
    return held_run((), meta, absent=run.absent, series=stats.measured())


def saved(folder: Path, runs: Iterable[tt.Run]) -> list[Path]:
    return [run.save(folder / f"rank{number}.safetensors") for number, run in enumerate(runs)]


def assert_is(stats: tt.Statistics, value: Tensor) -> None:
    """The numbers are those of this tensor."""
    wide = value.double()
    assert stats.numel == value.numel()
    assert stats.mean == pytest.approx(float(wide.mean()), rel=1e-12)
    assert stats.std == pytest.approx(float(wide.std(correction=0)), rel=1e-12)
    assert stats.l2 == pytest.approx(float(wide.norm()), rel=1e-12)
    assert (stats.min, stats.max) == (float(wide.min()), float(wide.max()))


def reasons(run: tt.Run, text: str) -> str:
    return "; ".join(entry.reason for entry in run.absent if str(entry.site) == text)


both_forms = pytest.mark.parametrize("form", FORMS)


# --- parts of the batch -----------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("port", ["input", "output", "grad_output", "grad_input"])
def test_what_flows_is_added_up_to_the_whole_batch(form: str, port: str) -> None:
    whole = values(6, 5)
    parts = whole[:2], whole[2:]
    runs = [rank(n, record("fc", part, port=port), form=form) for n, part in enumerate(parts)]
    merged = tt.merge(reversed(runs))
    stats = merged.stats(f"fc:{port}")
    assert_is(stats, whole)
    assert stats.num_tensors == 2
    times = [note for note in stats.notes if "2 times the gradient of the whole" in note]
    assert len(times) == port.startswith("grad")
    assert stats.quantile(0.3) == tt.measure(whole).quantile(0.3)
    if form == "kept" or port in ("input", "output"):  # Of gradients it was not asked for.
        norm = float(whole.mean(0).norm())
        assert merged.mean_norm(f"fc:{port}")["fc"] == pytest.approx(norm, rel=1e-12)
    assert not merged.absent


def test_kept_parts_stand_side_by_side_as_further_calls_with_their_rank() -> None:
    """Rank 0 calls ``fc`` twice, rank 1 once: the calls of rank 1 come after."""
    whole = values(3, 4, 2)
    zero = [record("fc", whole[0]), record("fc", whole[1], call=1), record("relu", whole[0])]
    one = [record("fc", whole[2]), record("relu", whole[2])]
    merged = tt.merge([rank(0, *zero), rank(1, *one)])
    found = [(row.call, row.labels) for row in merged.records("fc:output")]
    assert found == [(0, ("rank 0",)), (1, ("rank 0",)), (2, ("rank 1",))]
    assert [row.call for row in merged.records("relu:output")] == [0, 1]
    assert torch.equal(merged.cat("fc:output"), whole.flatten(0, 1))
    assert torch.equal(merged["fc:output"], whole[2])


def test_other_phases_and_backwards_are_kept_apart_as_on_each_rank() -> None:
    rows = [
        record("fc", values(2, 2), phase="recompute"),
        record("fc", values(2, 2), port="grad_output", backward=1),
    ]
    merged = tt.merge([rank(0, *rows), rank(1, *rows)])
    assert [row.call for row in merged.records("fc:output", phase="recompute")] == [0, 1]
    assert [row.backward for row in merged.records("fc:grad_output")] == [1, 1]
    assert "fc:output" in merged and not list(merged.records("fc:output"))


def test_a_value_that_only_some_ranks_have_in_a_step_is_said() -> None:
    both = [record("fc", values(2, 2), step=step) for step in (0, 1)]
    for form in FORMS:
        root = [record("", values(2), step=step) for step in (0, 1)]
        merged = tt.merge([rank(0, *both, *root, form=form), rank(1, both[0], *root, form=form)])
        assert reasons(merged, "fc:output") == "rank 1 has none in step 1, and others do"
        assert merged.stats("fc:output", step=1).numel == 4
        assert merged.stats("fc:output", step=0).numel == 8


def test_ids_of_all_ranks_are_those_of_the_run_and_are_saved(tmp_path: Path) -> None:
    """Rank 2 works on the batch of rank 1, as under tensor parallelism."""
    runs = []
    for number, ids in enumerate([["a", "b"], ["c"], ["c"]]):
        notes = StepNotes()
        notes.note(4, 100.0 - number, ids, {"split": "train"})
        one = rank(number, record("fc", values(2, 2), step=4), of=3)
        runs.append(held_run(one.records(), one.meta, notes=notes))
    merged = tt.merge(runs)
    for run in (merged, tt.open(merged.save(tmp_path / "run.safetensors"))):
        assert run.ids(4) == ["a", "b", "c"]
        assert run.labels(4) == {"split": "train"}
        assert run.times == ([4], [100.0])


def test_the_same_batch_on_every_rank_is_noticed() -> None:
    runs = [rank(n, record("fc", values(2, 2)), form="measured") for n in range(2)]
    merged = tt.merge(runs)
    assert "the same samples on each" in merged.stats("fc:output").notes[-1]


# --- replicas ---------------------------------------------------------------------------------


def parameters(change: float, *, step: int = 0, port: str = "param") -> Record:
    weight = values(4, 3, seed=step)
    weight[1, 2] += change
    return record("fc", weight, port=port, leaf="weight", step=step)


@both_forms
@pytest.mark.parametrize("port", ["param", "buffer", "update", "step_grad"])
def test_replicas_are_taken_once(form: str, port: str) -> None:
    merged = tt.merge([rank(n, parameters(0, port=port), form=form) for n in range(2)])
    stats = merged.stats(f"fc:{port}[weight]")
    assert_is(stats, values(4, 3))
    assert stats.num_tensors == 1
    assert not merged.absent


@both_forms
def test_the_update_ratio_of_replicas_is_that_of_one(form: str) -> None:
    def rows() -> tuple[Record, ...]:
        change = record("fc", values(4, 3, seed=9) / 7, port="update", leaf="weight")
        return (parameters(0), change)

    merged = tt.merge([rank(n, *rows(), form=form) for n in range(2)])
    ratio = float((values(4, 3, seed=9) / 7).norm() / values(4, 3).norm())
    assert merged.stats("fc:update[weight]").update_ratio == pytest.approx(ratio, rel=1e-12)
    _, ratios = merged.over_ranks("fc:update[weight]", "update_ratio")
    assert ratios == pytest.approx([ratio, ratio], rel=1e-12)


@both_forms
def test_a_replica_that_differs_is_named_with_its_first_step_and_left_out(form: str) -> None:
    def of(number: int) -> tt.Run:
        changes = [0.0, 0.0, 1e-6, 1e-3] if number == 2 else [0.0] * 4
        rows = [parameters(change, step=step) for step, change in enumerate(changes)]
        root = [record("", values(2), step=step) for step in range(4)]
        return rank(number, *rows, *root, form=form, of=4)

    found = merge_all([of(number) for number in range(4)])
    [absence] = found.differing
    assert str(absence.site) == "fc:param[weight]"
    assert absence.reason.startswith("rank 2 differs from ranks 0, 1 and 3, first in step 2, in 2")
    assert found.run.absent[0] == absence
    assert found.run.stats("fc:param[weight]", step=1).numel == 12
    with pytest.raises(tt.SiteError):
        found.run.stats("fc:param[weight]", step=2)
    ranks, norms = found.run.over_ranks("fc:param[weight]", "l2", step=3)
    assert ranks == [0, 1, 2, 3]
    assert norms[2] != norms[0] == norms[1] == norms[3]


@both_forms
def test_a_replica_without_a_value_is_one_that_differs(form: str) -> None:
    """A step that the optimizer made on one rank and not on the other."""
    rows = [parameters(0, port="update", step=step) for step in range(2)]
    root = [record("", values(2), step=step) for step in range(2)]
    runs = [rank(0, rows[0], *root, form=form), rank(1, *rows, *root, form=form)]
    found = merge_all(runs)
    assert [entry.reason for entry in found.run.absent] == [
        "ranks 0 and 1 differ, first in step 1: as replicas they must be equal"
    ]
    assert found.run.stats("fc:update").numel == 12
    norms = found.run.over_ranks("fc:update", "l2", step=1)[1]
    assert math.isnan(norms[0]) and norms[1] > 0


@both_forms
def test_the_replica_that_differed_first_is_said_first(form: str) -> None:
    def of(number: int) -> tt.Run:
        rows = [
            record(path, values(3) + (number if step >= start else 0), port="param", step=step)
            for path, start in (("late", 2), ("early", 1), ("never", 5))
            for step in range(3)
        ]
        return rank(number, *rows, form=form)

    found = merge_all([of(0), of(1)])
    assert [entry.site.path for entry in found.differing] == ["early", "late"]
    assert "ranks 0 and 1 differ, first in step 1" in found.differing[0].reason


def test_sums_that_differ_by_rounding_alone_are_of_equal_values() -> None:
    """An accelerator adds in another order each time. One element that differs is more."""
    runs = [rank(n, parameters(0), form="measured") for n in range(2)]
    held = runs[1].series.rows._by_step
    held[0] = rows = held[0].copy()  # What was read of a series is read-only.
    rows[0, 2:6] *= 1 + 1e-14
    assert not merge_all(runs).differing
    rows[0, 2:6] *= 1 + 1e-9
    assert merge_all(runs).differing


@both_forms
def test_buffers_that_differ_may_be_meant_to(form: str) -> None:
    """Batch norm keeps statistics of its own on each rank, unless DDP broadcasts them."""
    runs = [rank(n, record("bn", values(3, seed=n), port="buffer"), form=form) for n in range(2)]
    found = merge_all(runs)
    assert "broadcast_buffers" in reasons(found.run, "bn:buffer")
    assert "bn:buffer" not in found.run and not found.differing


def test_runs_that_kept_and_measured_are_merged_in_both() -> None:
    def of(number: int, change: float = 0.0) -> tt.Run:
        rows = [record("fc", values(2, seed=number)), parameters(change * number)]
        both = rank(number, *rows, form="measured")
        return held_run(rows, both.meta, series=both.series)

    merged = tt.merge([of(0), of(1)])
    whole = torch.cat([values(2, seed=number) for number in range(2)])
    assert torch.equal(merged.cat("fc:output"), whole)
    assert_is(merged.stats("fc:output"), whole)
    assert torch.equal(merged["fc:param"], values(4, 3))
    assert len(merge_all([of(0), of(1, 1e-3)]).differing) == 1


# --- shards -----------------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("port", ["param", "output"])
def test_uneven_shards_are_put_together(form: str, dim: int, port: str) -> None:
    whole = values(7, 5)
    peers = (0, 1, 2) if port == "output" else ()
    parts = whole.chunk(3, dim)
    runs = [
        rank(
            n,
            record("fc", part, port=port, labels=shard(n, 3, dim)),
            form=form,
            of=3,
            batch_ranks=peers,
        )
        for n, part in enumerate(parts)
    ]
    merged = tt.merge([runs[1], runs[2], runs[0]])
    site = f"fc:{port}"
    assert_is(merged.stats(site), whole)
    assert merged.stats(site).num_tensors == 1
    assert merged.stats(site).shape == (7, 5)
    assert merged.stats(site).notes == ("3 shards together",)
    if form == "kept":
        assert torch.equal(merged[site], whole)
    if port == "output":
        norm = float(whole.mean(0).norm())
        assert merged.mean_norm(site)["fc"] == pytest.approx(norm, rel=1e-12)
    assert not merged.absent


@both_forms
def test_the_update_ratio_of_shards_is_that_of_the_whole(form: str) -> None:
    """Norms add up as roots of sums of squares, and neither as sums nor as means."""
    weight, change = values(5, 3), values(5, 3, seed=1)
    runs = [
        rank(
            n,
            record("fc", weight.chunk(2)[n], port="param", labels=shard(n, 2)),
            record("fc", change.chunk(2)[n], port="update", labels=shard(n, 2)),
            form=form,
        )
        for n in range(2)
    ]
    merged = tt.merge(runs)
    stats = merged.stats("fc:update")
    assert stats.weight_l2 == pytest.approx(float(weight.norm()), rel=1e-12)
    assert stats.update_ratio == pytest.approx(float(change.norm() / weight.norm()), rel=1e-12)


@both_forms
@pytest.mark.parametrize("inner", [False, True])
def test_shards_on_a_mesh_of_two_dims_are_joined_in_the_order_of_the_cuts(
    form: str, inner: bool
) -> None:
    """With ``_StridedShard`` the first dim of the mesh cuts what the second has cut before."""
    whole = values(8, 2)
    runs = []
    for number in range(4):
        first, second = divmod(number, 2)
        if inner:
            part = whole.chunk(2)[second].chunk(2)[first]
            label = f"shard {first} of 2 (_StridedShard(dim=0, sf=2)) on dp; "
        else:
            part = whole.chunk(2)[first].chunk(2)[second]
            label = f"shard {first} of 2 (Shard(dim=0)) on dp; "
        labels = (label + f"shard {second} of 2 (Shard(dim=0)) on tp",)
        row = record("fc", part, port="param", labels=labels)
        runs.append(rank(number, row, form=form, of=4))
    merged = tt.merge(runs)
    assert_is(merged.stats("fc:param"), whole)
    if form == "kept":
        assert torch.equal(merged["fc:param"], whole)


@both_forms
def test_shards_that_are_replicated_are_taken_once_and_compared(form: str) -> None:
    """HSDP: two replicas of two shards; the second replica of the second shard is broken."""
    whole = values(4, 2)

    def of(number: int, change: float) -> tt.Run:
        _, place = divmod(number, 2)
        label = f"replica of 2 on dp; shard {place} of 2 (Shard(dim=0)) on shards"
        value = whole.chunk(2)[place] + (change if number == 3 else 0)
        return rank(number, record("fc", value, port="param", labels=(label,)), form=form, of=4)

    merged = tt.merge([of(number, 0) for number in range(4)])
    assert_is(merged.stats("fc:param"), whole)
    found = merge_all([of(number, 1e-3) for number in range(4)])
    assert "ranks 1 and 3 differ" in found.differing[0].reason
    assert "fc:param" not in found.run


@both_forms
def test_a_shard_that_is_missing_leaves_no_whole(form: str) -> None:
    runs = [
        rank(n, record("fc", values(2), port="param", labels=shard(n, 3)), form=form, of=3)
        for n in (0, 2)
    ]
    merged = tt.merge(runs, allow_missing=True)
    assert "fc:param" not in merged
    assert "2 of its 3 shards are there" in reasons(merged, "fc:param")
    assert "rank 1 of 3: not given" in reasons(merged, ".:output")


@both_forms
def test_a_shard_without_a_value_in_one_step_leaves_that_step_out(form: str) -> None:
    rows = [
        [record("fc", values(2), port="update", labels=shard(n, 2), step=k) for k in range(2)]
        for n in range(2)
    ]
    root = [record("", values(1), step=step) for step in range(2)]
    merged = tt.merge([rank(0, *rows[0], *root, form=form), rank(1, rows[1][0], *root, form=form)])
    assert reasons(merged, "fc:update") == "rank 1 has none in step 1, and others do"
    assert merged.stats("fc:update", step=0).numel == 4
    with pytest.raises(tt.SiteError):
        merged.stats("fc:update", step=1)


# --- what cannot be merged --------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize(
    ("port", "labels", "said"),
    [
        ("param_grad", LOCAL, "watch step_grad"),
        ("param_grad", PARTIAL, "a sum that was not reduced"),
        ("step_grad", PARTIAL, "a sum that was not reduced"),
        ("output", PARTIAL, "a sum that was not reduced"),
        ("output", ("of a mesh that this rank is not in",), "not all ranks are in"),
        ("saved", (), "each rank's own memory"),
    ],
)
def test_what_has_no_whole_is_left_out_and_said(
    form: str, port: str, labels: tuple[str, ...], said: str
) -> None:
    runs = [
        rank(n, record("fc", values(2, seed=n), port=port, labels=labels), form=form)
        for n in range(2)
    ]
    merged = tt.merge(runs)
    assert f"fc:{port}" not in merged
    assert said in reasons(merged, f"fc:{port}")
    ranks, norms = merged.over_ranks(f"fc:{port}", "l2")
    assert norms == [pytest.approx(float(values(2, seed=n).norm()), rel=1e-12) for n in ranks]


@both_forms
def test_placements_that_differ_or_change_have_no_whole(form: str) -> None:
    one = record("fc", values(2), port="param", labels=shard(0, 2))
    plain = record("fc", values(2), port="param")
    merged = tt.merge([rank(0, one, form=form), rank(1, plain, form=form)])
    assert "different placements" in reasons(merged, "fc:param")
    both = [one, record("fc", values(2), port="param", labels=("replica of 2",), call=1)]
    merged = tt.merge([rank(0, *both, form=form), rank(1, *both, form=form)])
    assert "several placements" in reasons(merged, "fc:param")


def test_reduced_gradients_are_put_together_and_no_longer_called_so() -> None:
    runs = [
        rank(n, record("fc", values(2), port="param_grad", labels=("reduced", *shard(n, 2))))
        for n in range(2)
    ]
    assert tt.merge(runs).record("fc:param_grad").labels == ("2 shards together",)


# --- ranks of one batch -----------------------------------------------------------------------


@both_forms
def test_plain_tensors_of_one_batch_are_replicas_where_they_are_equal(form: str) -> None:
    runs = [rank(n, record("fc", values(2)), form=form, batch_ranks=(0, 1)) for n in range(2)]
    merged = tt.merge(runs)
    assert_is(merged.stats("fc:output"), values(2))
    assert any("taken once" in note for note in merged.stats("fc:output").notes)
    gradients = [record("fc", values(2), port="grad_output")]
    merged = tt.merge([rank(n, *gradients, form=form, batch_ranks=(0, 1)) for n in range(2)])
    assert not any("times" in note for note in merged.stats("fc:grad_output").notes)


def test_plain_tensors_of_one_batch_that_differ_are_parts_of_unknown_place() -> None:
    """Numbers can be added without it. Values cannot be joined, so they are left out."""

    def runs(form: str) -> list[tt.Run]:
        rows = (record("fc", values(2, seed=n)) for n in range(2))
        return [rank(n, row, form=form, batch_ranks=(0, 1)) for n, row in enumerate(rows)]

    merged = tt.merge(runs("measured"))
    assert_is(merged.stats("fc:output"), torch.cat([values(2, seed=n) for n in range(2)]))
    assert any("taken for parts" in note for note in merged.stats("fc:output").notes)
    with pytest.raises(tt.RunError, match="do not fit together"):
        merged.mean_norm("fc:output")
    merged = tt.merge(runs("kept"))
    assert "use_local_output=False" in reasons(merged, "fc:output")


@both_forms
def test_batches_of_several_ranks_are_added_up(form: str) -> None:
    """Four ranks: 0 and 1 have one half of the batch, 2 and 3 the other; each a half of it."""
    whole = values(4, 6)
    runs = []
    for number in range(4):
        batch, place = divmod(number, 2)
        part = whole.chunk(2)[batch].chunk(2, 1)[place]
        labels = shard(place, 2, 1)
        row = record("fc", part, port="grad_output", labels=labels)
        peers = (0, 1) if batch == 0 else (2, 3)
        runs.append(rank(number, row, form=form, of=4, batch_ranks=peers))
    merged = tt.merge(runs)
    stats = merged.stats("fc:grad_output")
    assert_is(stats, whole)
    assert any("2 times the gradient" in note for note in stats.notes)
    if form == "kept":
        assert torch.equal(merged.cat("fc:grad_output"), whole)
        labels = merged.record("fc:grad_output", call=1).labels
        assert labels[-1] == "ranks 2 and 3"


def test_parameter_gradients_of_one_batch_are_replicas() -> None:
    row = record("norm", values(2), port="param_grad", labels=LOCAL)
    merged = tt.merge([rank(n, row, batch_ranks=(0, 1)) for n in range(2)])
    assert merged.record("norm:param_grad").labels == ()


# --- steps ------------------------------------------------------------------------------------


@both_forms
def test_a_rank_that_ended_early_leaves_the_common_steps(form: str) -> None:
    def of(number: int, steps: int) -> tt.Run:
        rows = [record("fc", values(2, 3, seed=10 * number + k), step=k) for k in range(steps)]
        return rank(number, *rows, form=form, of=3)

    merged = tt.merge([of(0, 5), of(1, 2), of(2, 4)])
    assert merged.steps == [0, 1]
    assert reasons(merged, ".:output") == (
        "rank 1 lacks steps 2, 3: left out; ranks 1 and 2 lack step 4: left out"
    )
    parts = [values(2, 3, seed=10 * number + k) for number in range(3) for k in range(2)]
    everything = merged.stats("fc:output", step="all")
    assert_is(everything, torch.cat(parts))
    if form == "measured":  # Taken apart again from what was added up over all steps.
        assert everything.quantile(0.5) == tt.measure(torch.cat(parts)).quantile(0.5)
        with pytest.raises(tt.RunError, match="left out"):
            merged.mean_norm("fc:output")
    _, means = merged.over_ranks("fc:output", "mean", step=4)
    assert means[0] == pytest.approx(float(values(2, 3, seed=4).mean()))
    assert math.isnan(means[1]) and math.isnan(means[2])
    assert merged.over_ranks("fc:output", "mean")[1][1] == pytest.approx(
        float(values(2, 3, seed=11).mean())
    )


def test_without_the_histograms_of_all_steps_there_is_none_over_all_and_it_is_said() -> None:
    def of(number: int, steps: int) -> tt.Run:
        stats = tt.Stats(keep=1)
        for step in range(steps):
            stats.take(record("fc", values(2), step=step))
            stats.close_step(step)
        run = run_of(record("fc", values(2)))
        return held_run((), replace(run.meta, rank=number, world_size=2), series=stats.measured())

    merged = tt.merge([of(0, 4), of(1, 2)])
    stats = merged.stats("fc:output", step="all")
    assert stats.histogram is None and stats.numel == 8
    assert any("no histogram over all steps" in note for note in stats.notes)
    for other in (2, 3):  # With 2, what the last step of rank 0 counted is taken out again.
        merged = tt.merge([of(0, 3), of(1, other)])
        stats = merged.stats("fc:output", step="all")
        assert stats.quantile(0.5) == tt.measure(values(2)).quantile(0.5)
        assert stats.histogram is not None and stats.histogram.num_counted == 2 * other * 2


# --- further statistics -----------------------------------------------------------------------


class Cubes:
    """A statistic of a user's own."""

    name = "cubes"

    def init(self) -> float:
        return 0.0

    def update(self, state: float, tensor: Tensor) -> float:
        return state + float(tensor.pow(3).sum())

    def merge(self, one: float, two: float) -> float:
        return one + two

    def finish(self, state: float) -> float:
        return state


def measured_by(
    make: Callable[[], Sequence[Any]], labels: Callable[[int], tuple[str, ...]] = lambda n: ()
) -> tuple[list[tt.Run], Tensor]:
    """Two ranks, each with statistics of its own, and the two steps of values that they share."""
    whole = values(2, 4, 6)
    whole[1, 3, 1] = math.inf
    dim = 1 if labels(0) else 0
    runs = [
        rank(
            n,
            *(
                record("fc", whole[k].chunk(2, dim)[n].contiguous(), step=k, labels=labels(n))
                for k in range(2)
            ),
            form="measured",
            statistics=make(),
            batch_ranks=(0, 1) if labels(0) else (),
        )
        for n in range(2)
    ]
    return runs, whole


def whole_run(whole: Tensor, statistics: Sequence[Any]) -> tt.Run:
    """One process with all of it."""
    rows = [record("fc", value, step=step) for step, value in enumerate(whole)]
    return rank(0, *rows, form="measured", statistics=statistics)


def test_statistics_of_parts_of_the_batch_are_merged_by_their_own_merge() -> None:
    def wanted() -> list[Any]:
        own = [tt.stats.along(1), tt.stats.effective_rank(), tt.stats.top_k(3)]
        return [*own, tt.stats.first_nonfinite(), Cubes()]

    runs, whole = measured_by(wanted)
    merged, true = tt.merge(runs), whole_run(whole, wanted())
    for step in 0, 1, [0, 1], "all":
        found = merged.stats("fc:output", step=step).extra
        truth = true.stats("fc:output", step=step).extra
        assert torch.allclose(found["along(1)"].rows[:, :9], truth["along(1)"].rows[:, :9])
        assert found["effective_rank"] == pytest.approx(truth["effective_rank"], rel=1e-9)
        sizes = [[one.value for one in extra["top_k"]] for extra in (found, truth)]
        assert sizes[0] == sizes[1]
        assert found["cubes"] == pytest.approx(truth["cubes"], rel=1e-9)
    assert merged.stats("fc:output").extra["first_nonfinite"].order == 1
    assert merged.stats("fc:output", step=0).extra["first_nonfinite"] is None


def test_the_cosine_of_the_ranks_is_that_of_the_whole_batch() -> None:
    whole = values(3, 4, 6)
    runs = [
        rank(
            n,
            *(record("fc", whole[k].chunk(2)[n], step=k) for k in range(3)),
            form="measured",
            statistics=[tt.stats.cosine()],
        )
        for n in range(2)
    ]
    merged = tt.merge(runs)
    cosine = torch.nn.functional.cosine_similarity
    true = [float(cosine(whole[k].flatten(), whole[k + 1].flatten(), 0)) for k in range(2)]
    assert merged.stats("fc:output", step=[0, 1]).extra["cosine"] == pytest.approx(true[0])
    for step in [0, 1, 2], "all":
        found = merged.stats("fc:output", step=step).extra["cosine"]
        assert found == pytest.approx(sum(true) / 2)


def test_slices_of_shards_stand_one_after_the_other() -> None:

    def labels(number: int) -> tuple[str, ...]:
        return shard(number, 2, 1)

    runs, whole = measured_by(lambda: [tt.stats.along(1)], labels)
    true = whole_run(whole, [tt.stats.along(1)])
    merged = tt.merge(runs)
    for step in 0, 1, [0, 1], "all":
        found = merged.stats("fc:output", step=step).extra["along(1)"]
        truth = true.stats("fc:output", step=step).extra["along(1)"]
        assert torch.equal(found.rows[:, 0], truth.rows[:, 0])
        assert torch.allclose(found.absmax, truth.absmax) and found.dead_slices() == []
    runs, _ = measured_by(lambda: [tt.stats.along(0)], labels)
    slices = tt.merge(runs).stats("fc:output", step=0).extra["along(0)"]
    assert torch.allclose(slices.l2, whole[0].norm(dim=1))


@pytest.mark.parametrize("statistic", [tt.stats.effective_rank(), tt.stats.top_k(2)])
def test_what_shards_do_not_tell_is_said(statistic: Any) -> None:
    runs, _ = measured_by(lambda: [statistic], lambda n: shard(n, 2, 1))
    merged = tt.merge(runs)
    assert f"of {statistic.name!r}, the ranks have shards" in reasons(merged, "fc:output")
    with pytest.raises(tt.RunError, match="the ranks have shards"):
        merged.stats("fc:output").extra[statistic.name]


def test_a_statistic_of_a_users_own_in_saved_runs_is_not_merged_and_that_is_said(
    tmp_path: Path,
) -> None:
    runs, whole = measured_by(lambda: [Cubes()])
    files = saved(tmp_path, runs)
    for merged in tt.merge(files), tt.open(tt.merge(files).save(tmp_path / "all.safetensors")):
        assert "of 'cubes', the runs of the ranks were saved" in reasons(merged, "fc:output")
        with pytest.raises(tt.RunError, match="not its merge"):
            merged.stats("fc:output").extra["cubes"]
        assert merged.stats("fc:output", step=0).numel == 24
    live = tt.open(tt.merge(runs).save(tmp_path / "live.safetensors"))
    cubes = live.stats("fc:output", step=0).extra["cubes"]
    assert cubes == pytest.approx(float(whole[0].pow(3).sum()))


def test_a_users_own_statistic_of_replicas_is_kept_from_files_too(tmp_path: Path) -> None:
    rows = [record("fc", values(3), port="param")]
    runs = [rank(n, *rows, form="measured", statistics=[Cubes()]) for n in range(2)]
    merged = tt.merge(saved(tmp_path, runs))
    cubes = merged.stats("fc:param").extra["cubes"]
    assert cubes == pytest.approx(float(values(3).pow(3).sum()))
    assert not merged.absent


def test_what_a_users_merge_raises_says_that_it_was_merging_ranks() -> None:
    class Broken(Cubes):
        def merge(self, one: float, two: float) -> float:
            raise ZeroDivisionError("mine")

    runs = [
        rank(n, record("fc", values(2)), form="measured", statistics=[Broken()]) for n in range(2)
    ]
    with pytest.raises(ZeroDivisionError) as raised:
        tt.merge(runs)
    assert "of two ranks at fc:output" in raised.value.__notes__[0]


# --- what was logged, and evaluation ----------------------------------------------------------


def test_logged_numbers_are_averaged_and_where_they_differ_those_of_each_rank_stay(
    tmp_path: Path,
) -> None:
    """Steps that were not recorded count too; rank 0 logged one step more."""
    runs = []
    for number in range(2):
        model = nn.ReLU()
        with tt.watch(model, every=2) as w:
            for step in range(4 - number):
                model(values(2))
                w.log(loss=number + step)
                w.log(lr=0.5) if step < 3 else None
                w.step()
        meta = replace(w.run.meta, rank=number, world_size=2)
        runs.append(held_run(w.run.records(), meta, scalars=w.run.source.scalars))
    merged = tt.open(tt.merge(runs).save(tmp_path / "all.st"))
    assert merged.scalar_names == ["loss", "loss of rank 0", "loss of rank 1", "lr"]
    assert merged.scalars("loss") == ([0, 1, 2], [0.5, 1.5, 2.5])
    assert merged.scalars("loss of rank 0") == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
    assert merged.scalars("lr") == ([0, 1, 2], [0.5, 0.5, 0.5])
    assert merged.steps == [0, 2]


def test_evaluation_forwards_are_added_up_apart() -> None:
    """Rank 1 ran one in step 1 that rank 0 did not run."""
    whole = values(2, 3)

    def of(number: int) -> tt.Run:
        rows = [record("fc", values(2), step=step) for step in range(2)]
        steps = [0] if number == 0 else [0, 1]
        rows += [record("fc", whole[number], phase="eval", step=step) for step in steps]
        return rank(number, *rows, form="measured")

    merged = tt.merge([of(0), of(1)])
    assert_is(merged.stats("fc:output", phase="eval"), whole)
    assert merged.stats("fc:output").numel == 4
    assert "evaluation forwards in step 1 were not on all ranks" in reasons(merged, ".:output")


# --- stages of a pipeline ---------------------------------------------------------------------

BLOCKS = {"": ("Net",), "layers": ("ModuleDict",)}


def stage_run(
    number: int,
    place: int,
    *,
    of: int = 2,
    num_stages: int = 2,
    told: bool = True,
    form: str = "kept",
    types: Any = None,
    rows: Sequence[Record] = (),
) -> tt.Run:
    """A rank with the block ``layers.PLACE``, whose values are its place and the rank."""
    path = f"layers.{place}"
    value = values(2, 3, seed=10 * place + number)
    own = [
        record(path, value),
        record(path, value, port="grad_output"),
        record(path, values(4, seed=place), port="param", leaf="weight"),
        record(path, values(4, seed=place), port="param_grad", leaf="weight"),
        record("", value),
        *rows,
    ]
    types = {**BLOCKS, path: ("Linear",)} if types is None else types
    run = rank(number, *own, form=form, of=of, types=types)
    seen = {"stages": (place,), "num_stages": num_stages, "num_microbatches": 4} if told else {}
    meta = replace(run.meta, **seen)  # type: ignore[arg-type]
    return held_run(run.records(), meta, absent=run.absent, series=run.series)


@both_forms
def test_each_stage_has_sites_of_its_own_and_the_roots_are_named(form: str) -> None:
    merged = tt.merge([stage_run(n, n, form=form) for n in (1, 0)])
    for place in range(2):
        whole = values(2, 3, seed=11 * place)
        assert_is(merged.stats(f"layers.{place}:output"), whole)
        assert_is(merged.stats(f"layers.{place}:param[weight]"), values(4, seed=place))
        notes = merged.stats(f"layers.{place}:grad_output").notes
        assert "of each microbatch's own loss: 4 times the gradient" in notes[0]
        [note] = merged.stats(f"layers.{place}:param_grad").notes
        assert "scale_grads" in note
    assert ".:output" not in merged
    assert "the root is another module on each of 2 stages (rank 0; rank 1)" in reasons(
        merged, ".:output"
    )
    assert len(merged.absent) == 1
    norms = [float(values(2, 3, seed=seed).norm()) for seed in (0, 11)]
    assert merged.over_ranks(".:output", "l2")[1] == pytest.approx(norms, rel=1e-12)
    assert list(merged.meta.modules) == ["", "layers", "layers.0", "layers.1"]
    assert merged.meta.type_name("layers.1") == "Linear"


@both_forms
def test_replicas_of_a_stage_are_merged_among_themselves(form: str) -> None:
    """Ranks 0 and 2 run the first stage, 1 and 3 the second, whose parameters differ."""
    change = record("layers.1", values(3), port="buffer", leaf="x")
    other = record("layers.1", values(3, seed=5), port="param", leaf="x")
    runs = [stage_run(n, n % 2, of=4, form=form) for n in range(3)]
    runs[1] = stage_run(
        1, 1, of=4, form=form, rows=[change, record("layers.1", values(3), port="param", leaf="x")]
    )
    found = merge_all([*runs, stage_run(3, 1, of=4, form=form, rows=[change, other])])
    whole = torch.cat([values(2, 3, seed=seed) for seed in (0, 2)])
    assert_is(found.run.stats("layers.0:output"), whole)
    assert found.run.stats("layers.1:output").num_tensors == 2
    assert_is(found.run.stats("layers.0:param[weight]"), values(4))
    assert "8 times the gradient" in found.run.stats("layers.0:grad_output").notes[0]
    [absence] = found.differing
    assert str(absence.site) == "layers.1:param[x]"
    assert "ranks 1 and 3 differ" in absence.reason
    if form == "kept":
        assert torch.equal(found.run.cat("layers.0:output"), whole)
        order = [str(row.site) for row in found.run.records("*:output")]
        assert order == ["layers.0:output"] * 2 + ["layers.1:output"] * 2


def test_what_other_pipelines_ran_is_taken_for_stages_only_if_that_is_said() -> None:
    runs = [stage_run(n, n, told=False) for n in range(2)]
    with pytest.raises(tt.RunError, match=r"'layers\.0' is Linear and not there.*stages=True"):
        tt.merge(runs)
    merged = tt.merge(runs, stages=True)
    assert_is(merged.stats("layers.1:output"), values(2, 3, seed=11))
    assert merged.stats("layers.0:output").numel == 6
    assert "the number of microbatches times" in merged.stats("layers.0:grad_output").notes[0]


def test_stages_whose_paths_are_alike_have_no_sites_that_could_be_mixed_up() -> None:
    """Ranks of one model would be added up: only their runs know that they are stages."""
    types = {**BLOCKS, "layers.0": ("Linear",)}
    runs = [stage_run(n, 0, types=types) for n in range(2)]
    runs[1] = with_meta(runs[1], stages=(1,))
    merged = tt.merge(runs)
    assert not merged.sites
    assert "'layers.0' is another module on each of 2 stages" in reasons(merged, "layers.0:output")


def test_a_missing_rank_is_said_of_the_stage_that_it_ran() -> None:
    runs = [stage_run(n, n % 2, of=4, form="measured") for n in range(3)]
    merged = tt.merge(runs, allow_missing=True)
    assert "without rank 3" in merged.stats("layers.1:output").notes
    assert "without rank 3" not in merged.stats("layers.0:output").notes
    alone = tt.merge([stage_run(0, 0)], allow_missing=True)
    assert "4 times the gradient" in alone.stats("layers.0:grad_output").notes[0]
    assert "another module on each of 2 stages (rank 0)" in reasons(alone, ".:output")


def test_stages_are_saved_with_the_run(tmp_path: Path) -> None:
    runs = [stage_run(n, n) for n in range(2)]
    for run, path in zip(runs, saved(tmp_path, runs), strict=True):
        assert tt.open(path).meta == run.meta
    merged = tt.merge(runs)
    assert tt.open(merged.save(tmp_path / "all.st")).meta == merged.meta
    assert merged.meta.stages == ()


def unlike(place: int, **types: tuple[str, ...]) -> tt.Run:
    table = {**BLOCKS, f"layers.{place}": ("Linear",), "norm": ("LayerNorm",), **types}
    rows = [record("norm", values(2))]
    return stage_run(place, place, told=False, types=table, rows=rows)


NO_STAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: [stage_run(n, 0, told=False) for n in range(2)], "all of the 2 runs are of the same"),
    (lambda: [unlike(0), unlike(1, norm=("RMSNorm",))], "'norm' is LayerNorm and RMSNorm"),
    (
        lambda: [stage_run(0, 0, told=False), stage_run(1, 1, told=False, types=BLOCKS)],
        "run 1.* has no module that the other lacks",
    ),
    (
        lambda: [stage_run(0, 0), stage_run(1, 1, told=False)],
        "ran 1 of 2 stages of a pipeline that cut a batch into 4, the second no stage",
    ),
    (
        lambda: [stage_run(0, 0, num_stages=4), stage_run(1, 1)],
        "ran 1 of 4 stages .*, the second 1 of 2",
    ),
    (
        lambda: [stage_run(0, 0, of=2), stage_run(0, 1, of=2), stage_run(1, 1)],
        "Rank 0 is there 2 times.*Watch its stages together",
    ),
    (
        lambda: [stage_run(n, 0, of=2, types=t) for n, t in enumerate([None, BLOCKS])],
        "'layers.0' is Linear and not there",
    ),
]


@pytest.mark.parametrize(("make", "said"), NO_STAGES, ids=[said[:24] for _, said in NO_STAGES])
def test_what_are_no_stages_of_one_pipeline_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(tt.RunError, match=f"(?s){said}"):
        tt.merge(make(), stages=True)


def test_unlike_models_that_are_no_stages_have_no_hint() -> None:
    with pytest.raises(tt.RunError) as raised:
        tt.merge([unlike(0), unlike(1, norm=("RMSNorm",))])
    assert "stages" not in str(raised.value)


def test_the_command_takes_stages(tmp_path: Path) -> None:
    files = [str(file) for file in saved(tmp_path, [stage_run(n, n, told=False) for n in range(2)])]
    out = tmp_path / "all.safetensors"
    assert cli.run(["merge", *files, "--to", str(out)]) == 2
    assert cli.run(["merge", *files, "--to", str(out), "--stages"]) == 0
    assert "layers.0:output" in tt.open(out) and "layers.1:output" in tt.open(out)


# --- bad input --------------------------------------------------------------------------------


def one(number: int, of: int = 2, **options: Any) -> tt.Run:
    return rank(number, record("fc", values(2)), of=of, **options)


def with_meta(run: tt.Run, **changes: Any) -> tt.Run:
    return tt.Run(list(run.records()), replace(run.meta, **changes))


def of_other_types() -> tt.Run:
    return one(1, types={"fc": ("Conv2d",)})


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (list, tt.InputError, "no run to merge"),
    (lambda: "rank0.safetensors", tt.InputError, "not one alone"),
    (lambda: one(0), tt.InputError, "not one alone"),
    (lambda: [one(0), 3], tt.InputError, "Item 1 of the list is a int"),
    (lambda: [run_of(record())], tt.InputError, "run 0 of the list is of a single process"),
    (lambda: [tt.merge([one(0), one(1)]), one(1)], tt.InputError, "was merged already"),
    (lambda: [one(0), one(0)], tt.RunError, "Rank 0 is there 2 times, in run 0.* and run 1"),
    (lambda: [one(0), one(1, of=3)], tt.RunError, "of 2 ranks and of 3"),
    (lambda: [one(2, of=4)], tt.RunError, "Ranks 0, 1 and 3 of 4 are missing: .*allow_missing"),
    (lambda: [one(0, of=2)], tt.RunError, "Rank 1 of 2 is missing"),
    (
        lambda: [one(0), with_meta(one(1), model="Other")],
        tt.RunError,
        "run 0.*rank 0 of 2.* and run 1.*the models are Net and Other",
    ),
    (lambda: [one(0), of_other_types()], tt.RunError, "module 'fc' is Linear and Conv2d"),
    (lambda: [one(0), with_meta(one(1), where=("x",))], tt.RunError, "watched were"),
    (
        lambda: [one(0), rank(1, record("fc", values(2), step=4))],
        tt.RunError,
        r"no step that all ranks have.*Its steps are \[4\]",
    ),
    (
        lambda: [
            one(0, form="measured", statistics=[tt.stats.top_k(1)]),
            one(1, form="measured", statistics=[tt.stats.top_k(2)]),
        ],
        tt.RunError,
        "their further statistics are",
    ),
    (
        lambda: [one(0, batch_ranks=(0, 1)), one(1)],
        tt.RunError,
        "do not agree on which ranks worked on one part",
    ),
]


@pytest.mark.parametrize(("make", "error", "said"), BAD, ids=[said[:24] for _, _, said in BAD])
def test_bad_input_is_refused_by_name(
    make: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"(?s){said}"):
        tt.merge(make())


def test_a_file_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        tt.merge([tmp_path / "nothing.safetensors"])


def test_ranks_that_are_missing_are_said_where_that_was_allowed() -> None:
    rows = [record("fc", values(2), port=port) for port in ("output", "grad_output", "param")]
    merged = tt.merge([rank(1, *rows, form="measured", of=4)], allow_missing=True)
    assert "ranks 0, 2 and 3 of 4: not given" in reasons(merged, ".:output")
    assert "without ranks 0, 2 and 3" in merged.stats("fc:output").notes
    assert any("4 times" in note for note in merged.stats("fc:grad_output").notes)
    assert merged.stats("fc:param").notes == ()
    assert merged.meta.world_size == 4


def test_runs_that_recorded_nothing_merge_to_one_that_did_not() -> None:
    merged = tt.merge([rank(0), rank(1)])
    assert merged.steps == [] and not merged.sites and not merged.absent


# --- what a run knows of its rank -------------------------------------------------------------


def test_a_run_of_one_process_is_of_rank_0_of_1_and_does_not_show_it() -> None:
    with tt.watch(nn.ReLU()) as w:
        pass
    assert (w.run.meta.rank, w.run.meta.world_size, w.run.meta.batch_ranks) == (0, 1, ())
    assert "rank" not in repr(w.run)


@pytest.mark.usefixtures("one_process")
def test_a_run_knows_its_rank() -> None:
    with tt.watch(nn.ReLU()) as w:
        pass
    assert (w.run.meta.rank, w.run.meta.world_size) == (0, 1)


def test_the_rank_is_shown_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = one(1)
    assert repr(run).startswith("Run of Net, rank 1 of 2: 1 site")
    [path] = saved(tmp_path, [run])
    assert tt.open(path).meta == run.meta
    assert cli.run(["ls", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Run of Net, rank 1 of 2: 1 site")
    assert repr(tt.merge([one(0), one(1)])).startswith("Run of Net, 2 ranks merged: 1 site")


def test_what_is_absent_is_said_with_its_ranks_unless_on_all() -> None:
    everywhere = tt.Absence(tt.Site("a"), "it did not run")
    here = tt.Absence(tt.Site("b"), "it did not run")
    merged = tt.merge([one(0, absent=[everywhere]), one(1, absent=[everywhere, here])])
    assert [entry.reason for entry in merged.absent] == [
        "it did not run",
        "it did not run (on rank 1)",
    ]


# --- over ranks -------------------------------------------------------------------------------


@both_forms
def test_the_numbers_of_each_rank_are_kept_in_the_file_too(form: str, tmp_path: Path) -> None:
    parts = [values(2, 3, seed=seed) * (seed + 1) for seed in range(3)]
    runs = [rank(n, record("fc", part), form=form, of=3) for n, part in enumerate(parts)]
    merged = tt.merge(saved(tmp_path, runs))
    again = tt.open(merged.save(tmp_path / "all.safetensors"))
    third = tt.open(again.save(tmp_path / "again.safetensors"))
    for run in merged, again, third:
        for name, of in (("l2", torch.norm), ("mean", torch.mean)):
            ranks, found = run.over_ranks("fc", name)
            assert ranks == [0, 1, 2]
            assert found == [pytest.approx(float(of(part)), rel=1e-12) for part in parts]
        assert run.over_ranks("fc:output", "absmax")[1] == [float(x.abs().max()) for x in parts]
        assert run.over_ranks("fc:output", "numel", step=0)[1] == [6, 6, 6]


def test_over_ranks_says_what_it_does_not_have() -> None:
    merged = tt.merge([one(0), one(1)])
    with pytest.raises(tt.RunError, match=r"of rank 0 alone.*tt.merge"):
        one(0).over_ranks("fc", "l2")
    with pytest.raises(tt.SiteError, match=r"no number 'absmx'.*absmax"):
        merged.over_ranks("fc", "absmx")
    with pytest.raises(tt.RunError, match="'median' is not kept of each rank"):
        merged.over_ranks("fc", "median")
    with pytest.raises(tt.SiteError, match="step 7"):
        merged.over_ranks("fc", "l2", step=7)
    with pytest.raises(tt.SiteError, match=r"fd.*fc"):
        merged.over_ranks("fd", "l2")


# --- the command line -------------------------------------------------------------------------


def test_the_command_merges_lists_and_says_by_its_code_whether_replicas_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all.safetensors"
    files = [str(file) for file in saved(tmp_path, [one(0), one(1)])]
    assert cli.run(["merge", *reversed(files), "--to", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Run of Net, 2 ranks merged: 1 site, 2 records")
    assert printed.endswith(f"wrote {out}\n")
    assert tt.open(out).meta.rank is None
    assert cli.run(["merge", *files, "--to", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rank"], told["world_size"], told["num_records"]) == (None, 2, 2)
    broken = [rank(n, parameters(n / 100)) for n in range(2)]
    files = [str(file) for file in saved(tmp_path, broken)]
    assert cli.run(["merge", *files, "--to", str(out)]) == 1
    assert "ranks 0 and 1 differ, first in step 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rank0.safetensors"], "--to"),
        (["--to", "all.safetensors"], "RANK_FILES"),
        (["rank0.safetensors", "--to", "all.txt"], "ends in .safetensors"),
        (["rank0.safetensors", "--to", "rank0.safetensors"], "the run of a rank"),
        (["rank0.safetensors", "--to", "all.safetensors"], "--allow-missing"),
        (["rank9.safetensors", "--to", "all.safetensors"], "rank9.safetensors"),
    ],
)
def test_the_command_refuses_bad_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, [one(0)])
    assert cli.run(["merge", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "all.safetensors").exists()


def test_the_command_merges_without_missing_ranks_if_told_to(tmp_path: Path) -> None:
    [file] = saved(tmp_path, [one(0)])
    out = tmp_path / "all.safetensors"
    assert cli.run(["merge", str(file), "--to", str(out), "--allow-missing"]) == 0
    assert tt.open(out).meta.world_size == 2
