"""Makes one run of those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from torchtap.core.absence import Absence
from torchtap.core.record import said_steps
from torchtap.runs.merging.findings import RUN, Findings
from torchtap.runs.merging.gather_numbers import gather
from torchtap.runs.merging.notes import merged_notes
from torchtap.runs.merging.records import RecordMerge
from torchtap.runs.merging.rules import said_ranks
from torchtap.runs.merging.series import SeriesMerge
from torchtap.runs.merging.sources import Source, check, common_steps, sources_of
from torchtap.runs.merging.stages import Stages, stages_of
from torchtap.runs.meta import Meta
from torchtap.runs.run import Run
from torchtap.runs.scalars import Scalars
from torchtap.stats.series import Series

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of merging.

    Attributes:
        run: of all ranks.
        differing: replicas that are not equal, in the order of the steps in which they began.
    """

    run: Run
    differing: tuple[Absence, ...]


def merge_runs(
    named: Iterable[tuple[str, Run]],
    *,
    allow_missing: bool = False,
    stages: bool = False,
    every_step: bool = False,
) -> Merged:
    """Merge runs as :func:`torchtap.merge` does, and return the replicas that differ, too.

    Args:
        named: what each run is called in messages, and the run.
        allow_missing: as there.
        stages: as there.
        every_step: merge also steps that some ranks lack, as the last batch of a data set that is
            too small to be shared by all.
    """
    sources = sources_of(named)
    missing = check(sources, allow_missing=allow_missing)
    pipeline = stages_of(sources, missing, asked=stages)
    held = {source.rank: source.run._contents() for source in sources}
    steps, findings = common_steps(sources, every=every_step), Findings()
    if missing:
        findings.refuse(RUN, f"{said_ranks(missing)} of {sources[0].meta.world_size}: not given")
    _note_steps(sources, steps, findings)
    records = RecordMerge(held, steps, pipeline, findings).merge()
    measured = {rank: one.series for rank, one in held.items()}
    series = SeriesMerge(measured, steps, pipeline, findings).merge()
    series.evaluation = _evaluation(measured, pipeline, findings)
    absent = [*findings.absent, *_absent_of(sources)]
    run = Run(
        records,
        _meta(sources),
        lambda: absent,
        lambda: series,
        scalars=_scalars(sources),
        ranks=gather(held, steps),
        notes=lambda: merged_notes(source.run._find_notes() for source in sources),
    )
    return Merged(run, tuple(findings.in_order))


def _evaluation(
    measured: Mapping[int, Series], pipeline: Stages, findings: Findings
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
        findings.refuse(RUN, said)
    return SeriesMerge(there, steps, pipeline, findings).merge() if steps else None


def _scalars(sources: Sequence[Source]) -> Scalars:
    """Numbers that were logged: the mean of the ranks, and where they differ also that of each."""
    merged = Scalars()
    for name in dict.fromkeys(name for source in sources for name in source.run.scalar_names):
        own = {
            source.rank: dict(zip(*source.run.scalars(name), strict=True))
            for source in sources
            if name in source.run.scalar_names
        }
        first, *others = own.values()
        is_same = all(one == first for one in others)
        for step in sorted(set().union(*own.values())):
            numbers = {rank: one[step] for rank, one in own.items() if step in one}
            if len(numbers) == len(own):
                merged.log(step, {name: fmean(numbers.values())})
            if not is_same:
                merged.log(step, {f"{name} of rank {rank}": v for rank, v in numbers.items()})
    return merged


# ---------------------------------------------------------------------- what is said of it


def _meta(sources: Sequence[Source]) -> Meta:
    every = [source.meta for source in sorted(sources, key=lambda source: source.meta.stages)]
    return replace(
        every[0],
        model=" + ".join(dict.fromkeys(meta.model for meta in every)),
        modules=_union(meta.modules for meta in every),
        aliases=_union(meta.aliases for meta in every),
        created=min(meta.created for meta in every),
        rank=None,
        batch_ranks=(),
        stages=(),
    )


def _union(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """The entries of all, each as the first table has it."""
    found: dict[str, T] = {}
    for table in tables:
        found |= {path: entry for path, entry in table.items() if path not in found}
    return found


def _note_steps(sources: Sequence[Source], steps: Sequence[int], findings: Findings) -> None:
    """Say which steps are left out, because some ranks lack them."""
    lacking: dict[tuple[int, ...], list[int]] = {}
    own = {source.rank: set(source.run.steps) for source in sources}
    every, merged = sorted(set().union(*own.values())), set(steps)
    for step in (step for step in every if step not in merged):
        ranks = tuple(rank for rank, there in own.items() if step not in there)
        lacking.setdefault(ranks, []).append(step)
    for ranks, missed in lacking.items():
        verb = "lacks" if len(ranks) == 1 else "lack"
        findings.refuse(RUN, f"{said_ranks(ranks)} {verb} {said_steps(missed)}: left out")


def _absent_of(sources: Sequence[Source]) -> list[Absence]:
    """Return the absences of all ranks, each once; those of some ranks say which."""
    found: dict[Absence, list[int]] = {}
    for source in sources:
        for absence in dict.fromkeys(source.run.absent):
            found.setdefault(absence, []).append(source.rank)
    return [
        absence
        if len(ranks) == _num_having(absence.site.path, sources)
        else Absence(absence.site, f"{absence.reason} (on {said_ranks(ranks)})")
        for absence, ranks in found.items()
    ]


def _num_having(path: str, sources: Sequence[Source]) -> int:
    """Return how many ranks have a module; all for a mark, whose path is of no module."""
    return sum(path in source.meta.modules for source in sources) or len(sources)
