"""The source of the run of all ranks, merged from those of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TypeVar

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.record import said_steps
from torchtap.runs.merging.merge_absences import MergeAbsences
from torchtap.runs.merging.merged_notes import merged_notes
from torchtap.runs.merging.placement_rules import said_ranks
from torchtap.runs.merging.rank_numbers import RankNumbers, numbers_of_ranks
from torchtap.runs.merging.rank_runs import RankRun, check, common_steps, runs_of_ranks
from torchtap.runs.merging.record_merge import RecordMerge
from torchtap.runs.merging.series_merge import SeriesMerge
from torchtap.runs.merging.stages import Stages, stages_of
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.source import Source, SourceDefaults
from torchtap.runs.step_notes import StepNotes
from torchtap.stats.series import Series

T = TypeVar("T")


@dataclass(eq=False)
class MergedSource(SourceDefaults):
    """The source of the run of all ranks. See :class:`~torchtap.runs.source.Source`.

    Attributes:
        differing: replicas that are not equal, in the order of the steps in which they began.
        merged: the runs that it is made of.
    """

    records: Records
    meta: Meta
    series: Series
    absent: Sequence[Absence]
    scalars: Scalars
    ranks: RankNumbers
    differing: tuple[Absence, ...]
    merged: Sequence[RankRun]

    expected = ()

    @cached_property
    def notes(self) -> StepNotes:
        """Times, sample ids and labels of the steps of all ranks."""
        return merged_notes(run.source.notes for run in self.merged)


def merge_sources(
    named: Iterable[tuple[str, Source]],
    *,
    allow_missing: bool = False,
    stages: bool = False,
    every_step: bool = False,
) -> MergedSource:
    """Merge runs as :func:`torchtap.merge` does.

    Args:
        named: what each run is called in messages, and where it is read from.
        allow_missing: as there.
        stages: as there.
        every_step: merge also steps that some ranks lack, as the last batch of a data set that is
            too small to be shared by all.
    """
    runs = runs_of_ranks(named)
    missing = check(runs, allow_missing=allow_missing)
    pipeline = stages_of(runs, missing, asked=stages)
    held = {run.rank: run.contents for run in runs}
    steps, problems = common_steps(runs, every=every_step), MergeAbsences()
    if missing:
        problems.refuse(WHOLE_RUN, f"{said_ranks(missing)} of {runs[0].meta.world_size}: not given")
    _note_steps(runs, steps, problems)
    records = RecordMerge(held, steps, pipeline, problems).merge()
    measured = {rank: one.series for rank, one in held.items()}
    series = SeriesMerge(measured, steps, pipeline, problems).merge()
    series.evaluation = _evaluation(measured, pipeline, problems)
    numbers = numbers_of_ranks(held, steps)
    absent = [*problems.absent, *_absent_of(runs)]
    told = (absent, _scalars(runs), numbers, tuple(problems.in_order), runs)
    return MergedSource(records, _meta(runs), series, *told)


def _evaluation(
    measured: Mapping[int, Series], pipeline: Stages, problems: MergeAbsences
) -> Series | None:
    """Merge the series of evaluation forwards, in the steps in which all ranks have some."""
    there = {rank: one.evaluation for rank, one in measured.items() if one.evaluation is not None}
    if not there:
        return None
    own = [set(there[rank].steps) if rank in there else set() for rank in measured]
    steps = sorted(set.intersection(*own))
    others = sorted(set.union(*own) - set(steps))
    if others:
        said = f"evaluation forwards in {said_steps(others)} were not on all ranks: left out"
        problems.refuse(WHOLE_RUN, said)
    return SeriesMerge(there, steps, pipeline, problems).merge() if steps else None


def _scalars(runs: Sequence[RankRun]) -> Scalars:
    """Numbers that were logged: the mean of the ranks, and where they differ also that of each."""
    merged = Scalars()
    for name in dict.fromkeys(name for run in runs for name in run.source.scalars.names):
        own = {
            run.rank: dict(zip(*run.source.scalars.of(name), strict=True))
            for run in runs
            if name in run.source.scalars.names
        }
        first, *others = own.values()
        is_same = all(other == first for other in others)
        for step in sorted(set().union(*own.values())):
            numbers = {rank: one[step] for rank, one in own.items() if step in one}
            if len(numbers) == len(own):
                merged.log(step, {name: fmean(numbers.values())})
            if not is_same:
                merged.log(step, {f"{name} of rank {rank}": v for rank, v in numbers.items()})
    return merged


# ---------------------------------------------------------------------- what is said of it


def _meta(runs: Sequence[RankRun]) -> Meta:
    every = [run.meta for run in sorted(runs, key=lambda run: run.meta.stages)]
    return replace(
        every[0],
        model=" + ".join(dict.fromkeys(meta.model for meta in every)),
        modules=_union(meta.modules for meta in every),
        aliases=_union(meta.aliases for meta in every),
        created=min(meta.created for meta in every),
        rank=None,
        batch_ranks=(),
        stages=(),
        modes=_union(meta.modes for meta in every),
        requires_grad=_union(meta.requires_grad for meta in every),
        settings=_union(meta.settings for meta in every),
        optimizers=_distinct(optimizer for meta in every for optimizer in meta.optimizers),
        foreign_steps=any(meta.foreign_steps for meta in every),
        order=_distinct(path for meta in every for path in meta.order),
        findings=_distinct(finding for meta in every for finding in meta.findings),
    )


def _distinct(entries: Iterable[T]) -> tuple[T, ...]:
    """Return each entry once; those of a file have no hash."""
    distinct: list[T] = []
    for entry in entries:
        if entry not in distinct:
            distinct.append(entry)
    return tuple(distinct)


def _union(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return the entries of all, each as the first table has it."""
    union: dict[str, T] = {}
    for table in tables:
        union |= {path: entry for path, entry in table.items() if path not in union}
    return union


def _note_steps(runs: Sequence[RankRun], steps: Sequence[int], problems: MergeAbsences) -> None:
    """Say which steps are left out, because some ranks lack them."""
    lacking: dict[tuple[int, ...], list[int]] = {}
    own = {run.rank: set(run.contents.steps) for run in runs}
    every, merged = sorted(set().union(*own.values())), set(steps)
    for step in (step for step in every if step not in merged):
        ranks = tuple(rank for rank, there in own.items() if step not in there)
        lacking.setdefault(ranks, []).append(step)
    for ranks, missed in lacking.items():
        verb = "lacks" if len(ranks) == 1 else "lack"
        problems.refuse(WHOLE_RUN, f"{said_ranks(ranks)} {verb} {said_steps(missed)}: left out")


def _absent_of(runs: Sequence[RankRun]) -> list[Absence]:
    """Return the absences of all ranks, each once; those of some ranks say which."""
    ranks_of: dict[Absence, list[int]] = {}
    for run in runs:
        for absence in dict.fromkeys(run.source.absent):
            ranks_of.setdefault(absence, []).append(run.rank)
    return [
        absence
        if len(ranks) == _num_having(absence.site.path, runs)
        else Absence(absence.site, f"{absence.reason} (on {said_ranks(ranks)})")
        for absence, ranks in ranks_of.items()
    ]


def _num_having(path: str, runs: Sequence[RankRun]) -> int:
    """Return how many ranks have a module; all for a mark, whose path is of no module."""
    return sum(path in run.meta.modules for run in runs) or len(runs)
