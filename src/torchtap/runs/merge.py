"""``tt.merge``: the runs of all ranks of one training as one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError, RunError
from torchtap.core.record import steps_there
from torchtap.runs.contents import Meta
from torchtap.runs.merge_findings import RUN, Findings, said_steps
from torchtap.runs.merge_records import RecordMerge
from torchtap.runs.merge_rules import Ranks, said_ranks
from torchtap.runs.merge_series import SeriesMerge
from torchtap.runs.rank_numbers import gather
from torchtap.runs.run import Run, open_run
from torchtap.stats.catalogue.protocol import Statistic


@dataclass(frozen=True, slots=True)
class Merged:
    """What merging gave.

    Attributes:
        run: of all ranks.
        differing: replicas that are not equal, in the order of the steps in which they began.
    """

    run: Run
    differing: tuple[Absence, ...]


class _Source(NamedTuple):
    """The run of one rank, and what it is called in messages."""

    name: str
    run: Run

    @property
    def meta(self) -> Meta:
        """What is known of it."""
        return self.run.meta

    @property
    def rank(self) -> int:
        """Which it is."""
        return self.meta.rank or 0

    def __str__(self) -> str:
        return f"{self.name} (rank {self.meta.rank} of {self.meta.world_size})"


def merge(runs: Iterable[Run | str | Path], *, allow_missing: bool = False) -> Run:
    """The runs of all ranks of one training as one run.

    What the ranks have of a site makes up the whole by its port and placement:

    - Inputs, outputs and their gradients are of parts of the batch. Their statistics are added up,
      as of one process with the whole batch. Kept values stand side by side, as further calls of
      the step with a label ``rank N``, and ``run.cat`` joins them. A gradient is of the rank's own
      loss: where that is a mean over its part of the batch, it is as many times the gradient of
      the whole as there are parts, and ``notes`` says so.
    - Parameters, buffers and updates are replicas, taken once. All ranks are compared; steps in
      which they differ are left out, and ``absent`` names site, step and ranks.
    - Shards (FSDP, tensor parallelism) are put together, their statistics added up.
    - Partial sums, and gradients of parameters from before DDP averages them, are left out:
      ``absent`` says so, and ``run.over_ranks`` has the numbers of each rank.
    - Ranks of one batch (tensor parallelism) that have a plain tensor each: replicas where they are
      equal, else parts of one value, added up; ``notes`` says which.
    - Steps that not all ranks have are left out, and ``absent`` says which ranks lack them.

    Args:
        runs: one of each rank, in any order: runs, or the files that they were saved to.
        allow_missing: merge without the ranks that are not given; ``absent`` and ``notes`` say so.

    Returns:
        a run with ``meta.rank`` of ``None``. It is saved and opened as any other.

    Raises:
        InputError: there is no run, one of a single process, or one that was merged already.
        RunError: they are not of one training: another model, other patterns, another number of
            ranks, a rank twice or missing, or no step that all have.

    Example:
        >>> import dataclasses, torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> def rank(number):  # Under torchrun, each process saves such a run: w.run.save(...)
        ...     with tt.watch(relu) as w:
        ...         _ = relu(torch.full((1, 2), float(number)))
        ...     meta = dataclasses.replace(w.run.meta, rank=number, world_size=2)
        ...     return tt.Run(list(w.run.records()), meta)
        >>> run = tt.merge([rank(0), rank(1)])
        >>> run.cat(".:output")
        tensor([[0., 0.],
                [1., 1.]])
        >>> run.over_ranks(".:output", "mean")
        ([0, 1], [0.0, 1.0])
    """
    return merge_all(runs, allow_missing=allow_missing).run


def merge_all(runs: Iterable[Run | str | Path], *, allow_missing: bool = False) -> Merged:
    """As :func:`merge`, with the replicas that differ."""
    sources = _sources(runs)
    missing = _check(sources, allow_missing=allow_missing)
    held = {source.rank: source.run._contents() for source in sources}
    steps, findings = _common_steps(sources), Findings()
    if missing:
        findings.refuse(RUN, f"{said_ranks(missing)} of {sources[0].meta.world_size}: not given")
    _note_steps(sources, steps, findings)
    ranks = _ranks(sources, missing)
    records = RecordMerge(held, steps, ranks, findings).merge()
    measured = {rank: one.series for rank, one in held.items()}
    series = SeriesMerge(measured, steps, ranks, findings).merge()
    absent = [*findings.absent, *_absent_of(sources)]
    run = Run(
        records,
        _meta(sources),
        lambda: absent,
        lambda: series,
        ranks=gather(held, steps),
    )
    return Merged(run, tuple(findings.in_order))


def _sources(runs: Iterable[Run | str | Path]) -> list[_Source]:
    if isinstance(runs, str | Path | Run):
        raise InputError("tt.merge takes a list of runs or files, one of each rank, not one alone.")
    found = []
    for number, one in enumerate(runs):
        if isinstance(one, Run):
            found.append(_Source(f"run {number} of the list", one))
        elif isinstance(one, str | Path):
            found.append(_Source(str(one), open_run(one)))
        else:
            raise InputError(
                f"Item {number} of the list is a {type(one).__name__}; expected a run or its file."
            )
    if not found:
        raise InputError("There is no run to merge; expected one of each rank.")
    for source in found:
        if source.meta.rank is None:
            raise InputError(f"{source.name} was merged already; expected the run of one rank.")
        if source.meta.world_size == 1:
            raise InputError(
                f"{source.name} is of a single process, and there is nothing to merge. Watch after "
                f"torch.distributed.init_process_group, so that the run knows its rank."
            )
    return sorted(found, key=lambda source: source.rank)


# ---------------------------------------------------------------------- of one training?


def _check(sources: Sequence[_Source], *, allow_missing: bool) -> tuple[int, ...]:
    """See that all are of one training; returns the ranks that are missing."""
    first = sources[0]
    for other in sources[1:]:
        difference = _difference(first, other)
        if difference:
            raise RunError(f"{first} and {other} are not of one training: {difference}.")
    times = Counter(source.rank for source in sources)
    for source in sources:
        if times[source.rank] > 1:
            same = [one.name for one in sources if one.rank == source.rank]
            raise RunError(
                f"Rank {source.rank} is there {times[source.rank]} times, in "
                f"{' and '.join(same)}. Give one run of each rank."
            )
    missing = tuple(rank for rank in range(first.meta.world_size) if rank not in times)
    if missing and not allow_missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RunError(
            f"{said_ranks(missing).capitalize()} of {first.meta.world_size} {verb} missing: there "
            f"are {', '.join(map(str, sources))}. Give all of them, or merge without them by "
            f"allow_missing=True (--allow-missing)."
        )
    return missing


def _difference(one: _Source, two: _Source) -> str:
    """Why two runs are not of one training; empty where nothing speaks against it."""
    first, second = one.meta, two.meta
    if first.world_size != second.world_size:
        return f"of {first.world_size} ranks and of {second.world_size}"
    if first.model != second.model:
        return f"the models are {first.model} and {second.model}"
    for path in dict.fromkeys([*first.modules, *second.modules]):
        kinds = [meta.type_name(path) or "not there" for meta in (first, second)]
        if kinds[0] != kinds[1]:
            return f"the module {path!r} is {kinds[0]} and {kinds[1]}"
    if first.where != second.where:
        return f"watched were {', '.join(first.where)} and {', '.join(second.where)}"
    lists = [source.run.series.statistics for source in (one, two)]
    names = [[str(statistic.name) for statistic in found] for found in lists]
    if one.run.series.sites and two.run.series.sites and not _are_alike(*lists):
        return f"their further statistics are {names[0]} and {names[1]}, or set up differently"
    return ""


def _are_alike(one: Sequence[Statistic], two: Sequence[Statistic]) -> bool:
    """Whether the statistics of two runs merge with each other."""
    return len(one) == len(two) and all(
        type(a) is type(b) and a.name == b.name and (a == b or not is_dataclass(a))
        for a, b in zip(one, two, strict=True)
    )


def _common_steps(sources: Sequence[_Source]) -> list[int]:
    own = [set(source.run.steps) for source in sources]
    common = sorted(set.intersection(*own))
    if not common and any(own):
        said = "; ".join(f"{source}: {steps_there(source.run.steps)}" for source in sources)
        raise RunError(
            f"There is no step that all ranks have, and nothing to merge. {said} Leave out what "
            f"recorded nothing by allow_missing=True (--allow-missing)."
        )
    return common


def _ranks(sources: Sequence[_Source], missing: tuple[int, ...]) -> Ranks:
    """How the ranks share the work, as their runs tell."""
    here = {source.rank for source in sources}
    whole = dict.fromkeys(source.meta.batch_ranks or (source.rank,) for source in sources)
    times = Counter(rank for batch in whole for rank in batch)
    doubled = [rank for rank, number in times.items() if number > 1]
    if doubled:
        said = ", ".join(f"{source}: {source.meta.batch_ranks}" for source in sources)
        raise RunError(
            f"The runs do not agree on which ranks worked on one part of the batch ({said}). Merge "
            f"those of one training."
        )
    batches = [tuple(rank for rank in batch if rank in here) for batch in whole]
    size = max(map(len, whole))
    return Ranks(tuple(batches), max(sources[0].meta.world_size // size, 1), missing)


# ---------------------------------------------------------------------- what is said of it


def _meta(sources: Sequence[_Source]) -> Meta:
    first = sources[0].meta
    created = min(source.meta.created for source in sources)
    return replace(first, rank=None, batch_ranks=(), created=created)


def _note_steps(sources: Sequence[_Source], steps: Sequence[int], findings: Findings) -> None:
    """Say which steps are left out, because some ranks lack them."""
    every = sorted(set().union(*(source.run.steps for source in sources)))
    lacking: dict[tuple[int, ...], list[int]] = {}
    for step in (step for step in every if step not in set(steps)):
        ranks = tuple(source.rank for source in sources if step not in source.run.steps)
        lacking.setdefault(ranks, []).append(step)
    for ranks, missed in lacking.items():
        verb = "lacks" if len(ranks) == 1 else "lack"
        findings.refuse(RUN, f"{said_ranks(ranks)} {verb} {said_steps(missed)}: left out")


def _absent_of(sources: Sequence[_Source]) -> list[Absence]:
    """What is absent on all ranks, and on some of them."""
    found: dict[Absence, list[int]] = {}
    for source in sources:
        for absence in dict.fromkeys(source.run.absent):
            found.setdefault(absence, []).append(source.rank)
    return [
        absence
        if len(ranks) == len(sources)
        else Absence(absence.site, f"{absence.reason} (on {said_ranks(ranks)})")
        for absence, ranks in found.items()
    ]
