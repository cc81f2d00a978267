"""The runs that are to be merged: whether they are of one training, and what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchtap.core.errors import InputError, RunError
from torchtap.core.record import steps_there
from torchtap.runs.contents import Contents
from torchtap.runs.merging.placement_rules import Ranks, said_ranks
from torchtap.runs.meta import Meta
from torchtap.runs.source import Source
from torchtap.stats.catalogue.protocol import are_alike


class RankRun(NamedTuple):
    """The run of one rank, and what it is called in messages."""

    name: str
    contents: Contents

    @property
    def source(self) -> Source:
        """Return the source that the run is read from."""
        return self.contents.source

    @property
    def meta(self) -> Meta:
        """Return the metadata of the run."""
        return self.contents.meta

    @property
    def rank(self) -> int:
        """Return the number of the rank."""
        return self.meta.rank or 0

    def __str__(self) -> str:
        return f"{self.name} (rank {self.meta.rank} of {self.meta.world_size})"


def runs_of_ranks(named: Iterable[tuple[str, Source]]) -> list[RankRun]:
    """Return the runs of several ranks, by rank.

    Args:
        named: what each is called in messages, and where it is read from.

    Raises:
        InputError: there is none, or one that is no run of one rank among several.
    """
    runs = [RankRun(name, Contents(one, one.records, one.series)) for name, one in named]
    if not runs:
        raise InputError("There is no run to merge; expected one of each rank.")
    for one in runs:
        if one.meta.rank is None:
            raise InputError(f"{one.name} was merged already; expected the run of one rank.")
        if one.meta.world_size == 1 and not one.meta.modules:
            raise InputError(
                f"{one.name} does not say of which rank it is: its attempt.json is missing or "
                f"damaged. Leave it out, by allow_missing=True (--allow-missing)."
            )
        if one.meta.world_size == 1:
            raise InputError(
                f"{one.name} is of a single process, and there is nothing to merge. Watch after "
                f"torch.distributed.init_process_group, so that the run knows its rank."
            )
    return sorted(runs, key=lambda one: one.rank)


# ---------------------------------------------------------------------- of one training?


def check(runs: Sequence[RankRun], *, allow_missing: bool) -> tuple[int, ...]:
    """See that all are of one training, whatever its modules; returns the ranks that are missing.

    Raises:
        RunError: they are not, or a rank is there twice, or missing and that is not allowed.
    """
    first = runs[0]
    for other in runs[1:]:
        difference = _difference(first, other)
        if difference:
            raise RunError(f"{first} and {other} are not of one training: {difference}.")
    times = Counter(run.rank for run in runs)
    for run in runs:
        if times[run.rank] > 1:
            same = [other.name for other in runs if other.rank == run.rank]
            is_stage = bool(run.meta.stages)
            more = (
                " Watch its stages together: tt.watch(nn.ModuleList(stages))." if is_stage else ""
            )
            raise RunError(
                f"Rank {run.rank} is there {times[run.rank]} times, in "
                f"{' and '.join(same)}. Give one run of each rank.{more}"
            )
    missing = tuple(rank for rank in range(first.meta.world_size) if rank not in times)
    if missing and not allow_missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RunError(
            f"{said_ranks(missing).capitalize()} of {first.meta.world_size} {verb} missing: there "
            f"are {', '.join(map(str, runs))}. Give all of them, or merge without them by "
            f"allow_missing=True (--allow-missing)."
        )
    return missing


def _difference(one: RankRun, two: RankRun) -> str:
    """Say why two runs are not of one training; empty where nothing speaks against it."""
    first, second = one.meta, two.meta
    if first.world_size != second.world_size:
        return f"of {first.world_size} ranks and of {second.world_size}"
    if first.where != second.where:
        return f"watched were {', '.join(first.where)} and {', '.join(second.where)}"
    lists = [run.contents.series.statistics for run in (one, two)]
    names = [[str(statistic.name) for statistic in found] for found in lists]
    is_same = len(lists[0]) == len(lists[1]) and all(map(are_alike, *lists))
    if one.contents.series.sites and two.contents.series.sites and not is_same:
        return f"their further statistics are {names[0]} and {names[1]}, or set up differently"
    return ""


def unlike_models(first: Meta, second: Meta) -> str:
    """Describe how the models of two runs differ; the text is empty where they do not."""
    if first.model != second.model:
        return f"the models are {first.model} and {second.model}"
    for path in dict.fromkeys([*first.modules, *second.modules]):
        kinds = [meta.type_name(path) or "not there" for meta in (first, second)]
        if kinds[0] != kinds[1]:
            return f"the module {path!r} is {kinds[0]} and {kinds[1]}"
    return ""


def common_steps(runs: Sequence[RankRun], *, every: bool = False) -> list[int]:
    """Return the steps that all have, or ``every`` step that some have.

    Raises:
        RunError: there is none.
    """
    own = [set(run.contents.steps) for run in runs]
    common = sorted(set.union(*own) if every else set.intersection(*own))
    if not common and any(own):
        said = "; ".join(f"{run}: {steps_there(run.contents.steps)}" for run in runs)
        raise RunError(
            f"There is no step that all ranks have, and nothing to merge. {said} Leave out what "
            f"recorded nothing by allow_missing=True (--allow-missing)."
        )
    return common


def ranks_of(runs: Sequence[RankRun], missing: tuple[int, ...], num_stages: int) -> Ranks:
    """Return how the ranks of a stage share the work, as their runs tell.

    Args:
        runs: their runs.
        missing: ranks of which there is none.
        num_stages: among how many stages all ranks are divided.

    Raises:
        RunError: they do not agree.
    """
    here = {run.rank for run in runs}
    whole = dict.fromkeys(run.meta.batch_ranks or (run.rank,) for run in runs)
    times = Counter(rank for batch in whole for rank in batch)
    doubled = [rank for rank, number in times.items() if number > 1]
    if doubled:
        said = ", ".join(f"{run}: {run.meta.batch_ranks}" for run in runs)
        raise RunError(
            f"The runs do not agree on which ranks worked on one part of the batch ({said}). Merge "
            f"those of one training."
        )
    batches = [tuple(rank for rank in batch if rank in here) for batch in whole]
    size = max(map(len, whole))
    num_ranks = runs[0].meta.world_size // num_stages
    return Ranks(tuple(batches), max(num_ranks // size, 1), missing)
