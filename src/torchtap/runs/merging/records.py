"""What was kept on each rank, as records of the whole.

Values of parts of the batch stand side by side, as further calls of the same step with a label
``rank N``: as micro-batches do. ``run.cat`` joins them, ``run.stats`` measures them together, and
nothing has to be known of the dim along which the samples lie. Shards are joined to one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtap.core.equality import same
from torchtap.core.placement import Axis, split_labels
from torchtap.core.record import UNVERSIONED, Record, new_record
from torchtap.core.site import FLOW_PORTS, Site
from torchtap.runs.contents import Contents
from torchtap.runs.merging.findings import Findings, agreeing
from torchtap.runs.merging.rows import ONE_OF_EQUAL
from torchtap.runs.merging.rules import (
    NO_PLACE,
    Refused,
    Rule,
    Whole,
    fold,
    of_the_whole,
    rule_of,
    said_ranks,
)
from torchtap.runs.merging.stages import Stages


class _Key(NamedTuple):
    """What tells the records of one site and rank apart."""

    step: int
    phase: str
    call: int
    backward: int
    number: int


class _Kept(NamedTuple):
    """One record, and when it came on its rank."""

    order: int
    record: Record


class _Sorted(NamedTuple):
    """One merged record, and what the records are sorted by."""

    step: int
    stage: int
    part: int
    order: int
    record: Record


_OfSite = Mapping[_Key, _Kept]
_Calls = tuple[int, str, str]
"""Step, path and phase: calls are counted for each."""


class RecordMerge:
    """Merges the records of some ranks.

    Args:
        sources: rank -> what it kept.
        steps: those that all ranks have.
        stages: of a pipeline, and how the ranks of each share the work.
        findings: takes what is not as it should be.
    """

    def __init__(
        self,
        sources: Mapping[int, Contents],
        steps: Sequence[int],
        stages: Stages,
        findings: Findings,
    ) -> None:
        self._stages = stages
        self._findings = findings
        self._kept = {rank: _by_site(held, steps) for rank, held in sources.items()}
        self._num_calls = {rank: _num_calls(of) for rank, of in self._kept.items()}

    def merge(self) -> list[Record]:
        """The records of the whole, step by step."""
        found: list[_Sorted] = []
        for site in dict.fromkeys(site for of in self._kept.values() for site in of):
            there = {rank: of[site] for rank, of in self._kept.items() if site in of}
            try:
                stage, ranks = self._stages.ranks_of(site, there)
                rule = rule_of(site, {rank: _labels(of) for rank, of in there.items()}, ranks)
                merged = self._merge_site(site, rule, there)
                found += [one._replace(stage=stage) for one in merged]
            except Refused as refused:
                self._findings.refuse(site, str(refused))
        return [one.record for one in sorted(found, key=lambda one: one[:4])]

    def _merge_site(self, site: Site, rule: Rule, there: Mapping[int, _OfSite]) -> list[_Sorted]:
        found = []
        self._note_lacking(site, rule, there)
        for part, whole in enumerate(rule.wholes):
            differing = _unlike_keys(whole, there)
            if differing and not whole.is_told:
                raise Refused(NO_PLACE)
            for key in set.intersection(*(set(there.get(rank, ())) for rank in whole.ranks)):
                held = {rank: there[rank][key].record for rank in whole.ranks}
                groups = _unlike_values(whole, held)
                if groups is None:
                    order = there[whole.ranks[0]][key].order
                    record = self._record(rule, part, held)
                    found.append(_Sorted(key.step, 0, part, order, record))
                elif whole.is_told:
                    differing.setdefault(key.step, groups)
                else:
                    raise Refused(NO_PLACE)
            if differing:
                steps = sorted(differing)
                self._findings.differ(site, differing[steps[0]], steps)
                found = [one for one in found if one.step not in differing]
        return found

    def _note_lacking(self, site: Site, rule: Rule, there: Mapping[int, _OfSite]) -> None:
        """Say where a part has no value of a step, and others have."""
        parts = [ranks for whole in rule.wholes for ranks in whole.parts.values()]
        steps = [{key.step for rank in ranks for key in there.get(rank, ())} for ranks in parts]
        every = set().union(*steps)
        lacking = zip(parts, steps, strict=True)
        self._findings.lack(
            site, {rank: sorted(every - own) for ranks, own in lacking for rank in ranks}
        )

    # ------------------------------------------------------------------ one record

    def _record(self, rule: Rule, part: int, held: Mapping[int, Record]) -> Record:
        """The record of one part of the batch, made of those of its ranks."""
        whole = rule.wholes[part]
        first = held[whole.ranks[0]]
        kept, version = first.kept, first.version
        if whole.axes:
            parts = {place: held[ranks[0]].value for place, ranks in whole.parts.items()}
            kept, version = fold(parts, whole.axes, _joined), UNVERSIONED
        _, others = split_labels(first.labels)
        said = () if whole.is_told else (ONE_OF_EQUAL,)
        labels = (*of_the_whole(others), *rule.notes, *said)
        call = first.call
        if len(rule.wholes) > 1:
            labels = (*labels, said_ranks(whole.ranks))
            call += self._calls_before(rule, part, first)
        row = (first.site, first.step, call, first.phase, first.backward, labels, kept, version)
        return new_record(Record, row)

    def _calls_before(self, rule: Rule, part: int, record: Record) -> int:
        """How many calls of this module and step the parts of the batch before this one have."""
        key = (record.step, record.site.path, record.phase)
        return sum(
            max(self._num_calls[rank].get(key, 0) for rank in whole.ranks)
            for whole in rule.wholes[:part]
        )


def _by_site(held: Contents, steps: Sequence[int]) -> dict[Site, dict[_Key, _Kept]]:
    """The records of one rank that nothing has overwritten."""
    found: dict[Site, dict[_Key, _Kept]] = {}
    for order, record in enumerate(held.records(steps=steps, phase=None)):
        if record.overwritten:
            continue
        of = found.setdefault(record.site, {})
        key = _Key(record.step, record.phase, record.call, record.backward, 0)
        while key in of:  # A recomputation that is repeated, two leaves whose names are alike.
            key = key._replace(number=key.number + 1)
        of[key] = _Kept(order, record)
    return found


def _num_calls(kept: Mapping[Site, _OfSite]) -> dict[_Calls, int]:
    found: dict[_Calls, int] = {}
    for site, of in kept.items():
        for key in of if site.port in FLOW_PORTS else ():
            calls = (key.step, site.path, key.phase)
            found[calls] = max(found.get(calls, 0), key.call + 1)
    return found


def _labels(of: _OfSite) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for kept in of.values() for label in kept.record.labels))


def _unlike_keys(whole: Whole, there: Mapping[int, _OfSite]) -> dict[int, list[tuple[int, ...]]]:
    """Steps in which one replica has values that another has not -> which ranks agree."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for ranks in whole.parts.values():
        keys = [set(there.get(rank, ())) for rank in ranks]
        some: set[_Key] = set().union(*keys)
        unlike = {key.step for key in some if not all(key in one for one in keys)}
        for step in unlike:
            own = [{key for key in one if key.step == step} for one in keys]
            found[step] = agreeing(ranks, [[one == two for two in own] for one in own])
    return found


def _unlike_values(whole: Whole, held: Mapping[int, Record]) -> list[tuple[int, ...]] | None:
    """Of replicas that are not equal, which ranks agree; ``None`` where all are."""
    for ranks in whole.parts.values():
        first, *others = (held[rank].value for rank in ranks)
        if not all(same(first, value) for value in others):
            values = [held[rank].value for rank in ranks]
            return agreeing(ranks, [[same(one, two) for two in values] for one in values])
    return None


def _joined(parts: list[Tensor], axis: Axis) -> Tensor:
    if axis.dim is None:
        raise Refused(NO_PLACE)
    try:
        return torch.cat(parts, axis.dim)
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise Refused(f"its shards do not fit together, their shapes are {shapes}") from error
