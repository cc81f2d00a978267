"""Stages of a pipeline: which ranks are which, and whose site is whose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.core.text import plural
from torchtap.runs.merging.placement_rules import UNKNOWN, Ranks, Refused, said_ranks
from torchtap.runs.merging.rank_runs import RankRun, ranks_of, unlike_models
from torchtap.runs.meta import Meta


@dataclass(frozen=True, slots=True)
class Stage:
    """The ranks that run one part of the model.

    Attributes:
        ranks: how they share the work.
        paths: of the modules that they have.
    """

    ranks: Ranks
    paths: frozenset[str]

    @property
    def here(self) -> tuple[int, ...]:
        """Return the ranks to be merged, ascending."""
        return self.ranks.here


@dataclass(frozen=True, slots=True)
class Stages:
    """All stages, in the order of the pipeline; one where there is no pipeline.

    Attributes:
        stages: those of which there are runs.
        num: how many there were.
    """

    stages: tuple[Stage, ...]
    num: int

    def ranks_of(self, site: Site, there: Iterable[int]) -> tuple[int, Ranks]:
        """Return the stage that has a site, by its place, and how its ranks share the work.

        Args:
            site: which.
            there: the ranks that recorded or measured it.

        Raises:
            Refused: several stages have it, and it is another module on each.
        """
        ranks = set(there)
        having = [
            place
            for place, stage in enumerate(self.stages)
            if site.path in stage.paths or ranks & set(stage.here)
        ]
        if len(having) > 1 or (self.num > 1 and not site.path):
            raise Refused(self._several(site, having))
        return having[0], self.stages[having[0]].ranks

    def _several(self, site: Site, having: Sequence[int]) -> str:
        who = "; ".join(said_ranks(self.stages[place].here) for place in having)
        num = len(having) if site.path else self.num
        return (
            f"{f'{site.path!r}' if site.path else 'the root'} is another module on each of {num} "
            f"stages ({who}), so it has no whole: run.over_ranks has the numbers of each rank"
        )


def stages_of(runs: Sequence[RankRun], missing: tuple[int, ...], *, asked: bool) -> Stages:
    """Return the stages that the ranks ran.

    Args:
        runs: of the ranks, in their order.
        missing: ranks of which there is none.
        asked: whether runs of different modules are to be taken for stages.

    Raises:
        RunError: the runs are neither of one model nor of the stages of one pipeline.
    """
    is_told = _is_told(runs)
    groups = _by_modules(runs) if asked and not is_told else _by_stages(runs)
    for first, *others in groups:
        for other in others:
            _refuse_unlike(first, other)
    num_groups = len(groups)
    if is_told:
        meta = groups[0][0].meta
        # A rank may run several stages (an interleaved schedule), and then a group is as many.
        num_groups = max(meta.num_stages // len(meta.stages), num_groups)
    stages = [_stage(group, missing, num_groups, is_told=is_told) for group in groups]
    return Stages(tuple(stages), num_groups)


def _stage(
    group: Sequence[RankRun], missing: tuple[int, ...], num_groups: int, *, is_told: bool
) -> Stage:
    if len(group) == group[0].meta.world_size // num_groups:
        missing = ()  # Those that are missing ran other stages.
    num_microbatches = group[0].meta.num_microbatches if is_told or num_groups == 1 else UNKNOWN
    ranks = ranks_of(group, missing, num_groups)
    paths = frozenset(group[0].meta.modules)
    return Stage(replace(ranks, num_microbatches=num_microbatches), paths)


def _is_told(runs: Sequence[RankRun]) -> bool:
    """Return whether the runs know which stages they are of.

    Raises:
        RunError: some do and others do not, or they are of different pipelines.
    """
    first = runs[0]
    for other in runs[1:]:
        said = [_pipeline(run.meta) for run in (first, other)]
        if said[0] != said[1]:
            raise RunError(
                f"{first} and {other} are not of one training: the first ran {said[0]}, the second "
                f"{said[1]}. Merge runs of watches that were open while the pipeline ran."
            )
    return bool(first.meta.stages)


def _pipeline(meta: Meta) -> str:
    if not meta.stages:
        return "no stage of a pipeline"
    return (
        f"{len(meta.stages)} of {plural(meta.num_stages, 'stage')} of a pipeline that cut a batch "
        f"into {meta.num_microbatches}"
    )


def _by_stages(runs: Sequence[RankRun]) -> list[list[RankRun]]:
    groups: dict[tuple[int, ...], list[RankRun]] = {}
    for run in runs:
        groups.setdefault(run.meta.stages, []).append(run)
    return [groups[stages] for stages in sorted(groups)]


def _by_modules(runs: Sequence[RankRun]) -> list[list[RankRun]]:
    """Return the ranks that have the same modules, where all have some that others lack.

    Raises:
        RunError: they are no stages.
    """
    groups: list[list[RankRun]] = []
    for run in runs:
        same = (group for group in groups if not unlike_models(group[0].meta, run.meta))
        home = next(same, None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    if len(groups) == 1:
        raise RunError(
            f"stages=True (--stages), and all of the {plural(len(runs), 'run')} are of the same "
            f"modules; expected some that others lack. Watch each stage under the names that its "
            f"modules have in the whole model, or merge without stages."
        )
    for place, (one, *_) in enumerate(groups):
        for other, *_ in groups[place + 1 :]:
            why = _why_no_stages(one, other)
            if why:
                raise RunError(f"{one} and {other} are not stages of one pipeline: {why}.")
    return groups


def _why_no_stages(one: RankRun, two: RankRun) -> str:
    """Why two runs cannot be of two stages; empty where they can."""
    first, second = one.meta.modules, two.meta.modules
    measured = {site.path for run in (one, two) for site in run.contents.sites}
    for path in first:
        is_compared = path and path in second and path in measured
        if is_compared and first[path] != second[path]:
            return f"the module {path!r} is {first[path][0]} and {second[path][0]}"
    for run, others in ((one, second), (two, first)):
        if not run.meta.modules.keys() - others.keys():
            return f"{run} has no module that the other lacks"
    return ""


def _refuse_unlike(one: RankRun, two: RankRun) -> None:
    why = unlike_models(one.meta, two.meta)
    if not why:
        return
    way = ""
    if not one.meta.stages and not _why_no_stages(one, two):
        way = (
            " Where they are stages of one pipeline, and torch.distributed.pipelining did not run "
            "it while they were watched, say so by stages=True (--stages)."
        )
    raise RunError(f"{one} and {two} are not of one training: {why}.{way}")
