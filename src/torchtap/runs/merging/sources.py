"""The runs that are to be merged: whether they are of one training, and what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from typing import NamedTuple

from torchtap.core.errors import InputError, RunError
from torchtap.core.record import steps_there
from torchtap.runs.merging.rules import Ranks, said_ranks
from torchtap.runs.meta import Meta
from torchtap.runs.run import Run
from torchtap.stats.catalogue.protocol import Statistic


class Source(NamedTuple):
    """The run of one rank, and what it is called in messages."""

    name: str
    run: Run

    @property
    def meta(self) -> Meta:
        """The metadata of the run."""
        return self.run.meta

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.meta.rank or 0

    def __str__(self) -> str:
        return f"{self.name} (rank {self.meta.rank} of {self.meta.world_size})"


def sources_of(named: Iterable[tuple[str, Run]]) -> list[Source]:
    """The runs of several ranks, by rank.

    Args:
        named: what each is called in messages, and the run.

    Raises:
        InputError: there is none, or one that is no run of one rank among several.
    """
    found = [Source(name, run) for name, run in named]
    if not found:
        raise InputError("There is no run to merge; expected one of each rank.")
    for source in found:
        if source.meta.rank is None:
            raise InputError(f"{source.name} was merged already; expected the run of one rank.")
        if source.meta.world_size == 1 and not source.meta.modules:
            raise InputError(
                f"{source.name} does not say of which rank it is: its attempt.json is missing or "
                f"damaged. Leave it out, by allow_missing=True (--allow-missing)."
            )
        if source.meta.world_size == 1:
            raise InputError(
                f"{source.name} is of a single process, and there is nothing to merge. Watch after "
                f"torch.distributed.init_process_group, so that the run knows its rank."
            )
    return sorted(found, key=lambda source: source.rank)


# ---------------------------------------------------------------------- of one training?


def check(sources: Sequence[Source], *, allow_missing: bool) -> tuple[int, ...]:
    """See that all are of one training, whatever its modules; returns the ranks that are missing.

    Raises:
        RunError: they are not, or a rank is there twice, or missing and that is not allowed.
    """
    first = sources[0]
    for other in sources[1:]:
        difference = _difference(first, other)
        if difference:
            raise RunError(f"{first} and {other} are not of one training: {difference}.")
    times = Counter(source.rank for source in sources)
    for source in sources:
        if times[source.rank] > 1:
            same = [one.name for one in sources if one.rank == source.rank]
            is_stage = bool(source.meta.stages)
            more = (
                " Watch its stages together: tt.watch(nn.ModuleList(stages))." if is_stage else ""
            )
            raise RunError(
                f"Rank {source.rank} is there {times[source.rank]} times, in "
                f"{' and '.join(same)}. Give one run of each rank.{more}"
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


def _difference(one: Source, two: Source) -> str:
    """Why two runs are not of one training; empty where nothing speaks against it."""
    first, second = one.meta, two.meta
    if first.world_size != second.world_size:
        return f"of {first.world_size} ranks and of {second.world_size}"
    if first.where != second.where:
        return f"watched were {', '.join(first.where)} and {', '.join(second.where)}"
    lists = [source.run.series.statistics for source in (one, two)]
    names = [[str(statistic.name) for statistic in found] for found in lists]
    if one.run.series.sites and two.run.series.sites and not _are_alike(*lists):
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


def _are_alike(one: Sequence[Statistic], two: Sequence[Statistic]) -> bool:
    """Return whether the statistics of two runs merge with each other."""
    return len(one) == len(two) and all(
        type(a) is type(b) and a.name == b.name and (a == b or not is_dataclass(a))
        for a, b in zip(one, two, strict=True)
    )


def common_steps(sources: Sequence[Source], *, every: bool = False) -> list[int]:
    """The steps that all have, or ``every`` step that some have.

    Raises:
        RunError: there is none.
    """
    own = [set(source.run.steps) for source in sources]
    common = sorted(set.union(*own) if every else set.intersection(*own))
    if not common and any(own):
        said = "; ".join(f"{source}: {steps_there(source.run.steps)}" for source in sources)
        raise RunError(
            f"There is no step that all ranks have, and nothing to merge. {said} Leave out what "
            f"recorded nothing by allow_missing=True (--allow-missing)."
        )
    return common


def ranks_of(sources: Sequence[Source], missing: tuple[int, ...], num_stages: int) -> Ranks:
    """Return how the ranks of a stage share the work, as their runs tell.

    Args:
        sources: their runs.
        missing: ranks of which there is none.
        num_stages: among how many stages all ranks are divided.

    Raises:
        RunError: they do not agree.
    """
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
    num_ranks = sources[0].meta.world_size // num_stages
    return Ranks(tuple(batches), max(num_ranks // size, 1), missing)
