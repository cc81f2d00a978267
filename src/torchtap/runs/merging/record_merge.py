"""Merge the values that were kept on each rank into records of the whole.

Values of parts of the batch stand side by side, as further calls of the same step with a label
``rank N``: as micro-batches do. ``run.cat`` joins them, ``run.stats`` measures them together, and
nothing has to be known of the dim along which the samples lie. Shards are joined to one tensor.

Columns are merged, and neither records made nor values read: those of replicas on disk are equal
where dtype, shape and checksum are, shards are joined when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.placement import split_labels
from torchtap.core.ports import FLOW_PORTS
from torchtap.core.record import UNVERSIONED
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.merging.matching import match
from torchtap.runs.merging.merge_absences import MergeAbsences
from torchtap.runs.merging.merged_values import Cut, FactTable, MergedValues
from torchtap.runs.merging.placement_rules import (
    NO_PLACE,
    MergeRule,
    Refused,
    Whole,
    of_the_whole,
    rule_of,
    said_ranks,
)
from torchtap.runs.merging.replicas import Replicas
from torchtap.runs.merging.row_comparison import ONE_OF_EQUAL
from torchtap.runs.merging.stages import Stages
from torchtap.runs.records import Records
from torchtap.runs.store.index import Tables

Column = NDArray[Any]
_MOST = 1 << 62


@dataclass(slots=True)
class _Chunk:
    """The merged records of one site and one part of the batch.

    Attributes:
        keys: which of the keys they are of.
        calls: of each.
        labels: of each, by number.
        stage: of a pipeline.
        part: of the batch.
        orders: by which they are sorted within their step, stage and part.
        owner: as of :class:`MergedValues`.
        places: where the values stand.
        facts: dtype and shape of each, by number.
        versions: of values that may be overwritten, else ``None``.
    """

    keys: Column
    calls: Column
    labels: Column
    stage: int
    part: int
    orders: Column
    owner: int
    places: Column
    facts: Column
    versions: Column | None


@dataclass(slots=True)
class _Numbered:
    """Labels of records, each with a number."""

    entries: list[tuple[str, ...]] = field(default_factory=lambda: [()])

    def number(self, labels: tuple[str, ...]) -> int:
        """Return the number of some labels, which are new or not."""
        if labels not in self.entries:
            self.entries.append(labels)
        return self.entries.index(labels)


class RecordMerge:
    """Merges the records of some ranks.

    Args:
        sources: rank -> what it kept.
        steps: those that all ranks have.
        stages: of a pipeline, and how the ranks of each share the work.
        problems: takes what is not as it should be.
    """

    def __init__(
        self,
        sources: Mapping[int, Contents],
        steps: Sequence[int],
        stages: Stages,
        problems: MergeAbsences,
    ) -> None:
        self._stages = stages
        self._problems = problems
        self._steps = np.asarray(steps, dtype=np.int64)
        self._matched = match(sources, steps)
        self._places_of_ranks = {rank: n for n, rank in enumerate(self._matched.ranks)}
        self._keys = self._matched.keys_of_sites()
        self._num_calls: dict[str, Column] = {}
        self._cuts: list[Cut] = []
        self._labels = _Numbered()
        self._table = FactTable()

    def merge(self) -> Records:
        """Return the records of the whole, step by step."""
        chunks: list[_Chunk] = []
        for site, keys in zip(self._matched.sites, self._keys, strict=True):
            try:
                chunks += self._merge_site(site, keys)
            except Refused as refused:
                self._problems.refuse(site, str(refused))
        return self._joined(chunks)

    # ------------------------------------------------------------------ one site

    def _merge_site(self, site: Site, keys: Column) -> list[_Chunk]:
        matched = self._matched
        orders = matched.orders[:, keys]
        labels = {}
        for number, (rank, held) in enumerate(zip(matched.ranks, matched.held, strict=True)):
            own = orders[number][orders[number] >= 0]
            if len(own):
                labels[rank] = held.labels(own)
        stage, ranks = self._stages.ranks_of(site, labels)
        rule = rule_of(site, labels, ranks)
        self._note_lacking(site, rule, keys, orders)
        replicas = Replicas(matched, self._places_of_ranks, keys, orders)
        parts: list[tuple[int, Whole, Column]] = []
        left_out: set[int] = set()
        for part, whole in enumerate(rule.wholes):
            chosen, differing = replicas.compare(whole)
            # Where no placement was recorded, values that differ may be shards, and nothing tells
            # of which dim.
            if differing and not whole.is_told:
                raise Refused(NO_PLACE)
            if differing:
                numbers = sorted(differing)
                steps = self._steps[numbers].tolist()
                self._problems.differ(site, differing[numbers[0]](), steps)
                left_out |= differing.keys()
            parts.append((part, whole, chosen))
        if left_out:
            is_out = np.isin(matched.columns["step"][keys], list(left_out))
            parts = [(part, whole, chosen[~is_out[chosen]]) for part, whole, chosen in parts]
        return [
            self._chunk(
                site, rule, part, whole, keys=keys[chosen], orders=orders[:, chosen], stage=stage
            )
            for part, whole, chosen in parts
            if len(chosen)
        ]

    def _note_lacking(self, site: Site, rule: MergeRule, keys: Column, orders: Column) -> None:
        """Say where a part has no value of a step, and others have."""
        if (orders >= 0).all():
            return
        steps = self._matched.columns["step"][keys]
        parts = [ranks for whole in rule.wholes for ranks in whole.parts.values()]
        own = []
        for ranks in parts:
            rows = [self._places_of_ranks[rank] for rank in ranks if rank in self._places_of_ranks]
            own.append(np.unique(steps[(orders[rows] >= 0).any(axis=0)]))
        every = np.unique(np.concatenate(own)) if own else np.zeros(0, np.int64)
        self._problems.lack(
            site,
            {
                rank: self._steps[np.setdiff1d(every, there)].tolist()
                for ranks, there in zip(parts, own, strict=True)
                for rank in ranks
            },
        )

    def _chunk(
        self,
        site: Site,
        rule: MergeRule,
        part: int,
        whole: Whole,
        *,
        keys: Column,
        orders: Column,
        stage: int,
    ) -> _Chunk:
        """Return the records of one part of the batch, made of those of its ranks."""
        matched = self._matched
        rank = self._places_of_ranks[whole.ranks[0]]
        places = matched.places(rank, orders[rank])
        records, owner, versions = matched.held[rank].records, rank, None
        if whole.axes:
            facts = self._cut(whole, orders)
            # A negative owner is a cut: its values are joined of several ranks when they are read.
            owner, places = -len(self._cuts), np.arange(len(keys))
        else:
            facts = self._table.of(records, places)
            if records.values.entries is None:
                versions = records.column_at("version", places)
        calls = matched.columns["call"][keys]
        if len(rule.wholes) > 1:
            # Each rank of data parallelism counts its calls from 0; in the whole, those of a rank
            # follow those of the ranks before it.
            calls = calls + self._calls_before(rule, part, site, keys)
        labels = self._labels_of(rule, whole, rank, orders[rank])
        own = orders[rank]
        return _Chunk(
            keys=keys,
            calls=calls,
            labels=labels,
            stage=stage,
            part=part,
            orders=own,
            owner=owner,
            places=places,
            facts=facts,
            versions=versions,
        )

    def _cut(self, whole: Whole, orders: Column) -> Column:
        """Keep how values are cut into shards; returns their facts."""
        shards = {}
        for where, ranks in whole.parts.items():
            number = self._places_of_ranks[ranks[0]]
            shards[where] = number, self._matched.places(number, orders[number])
        cut = Cut(whole.axes, shards)
        facts = cut.facts([held.records for held in self._matched.held], self._table)
        self._cuts.append(cut)
        return facts

    def _labels_of(self, rule: MergeRule, whole: Whole, rank: int, orders: Column) -> Column:
        distinct, which = self._matched.held[rank].labels_of_each(orders)
        numbers = []
        for labels in distinct:
            _, others = split_labels(labels)
            said = () if whole.is_told else (ONE_OF_EQUAL,)
            labels = (*of_the_whole(others), *rule.notes, *said)
            if len(rule.wholes) > 1:
                labels = (*labels, said_ranks(whole.ranks))
            numbers.append(self._labels.number(labels))
        codes: Column = np.array(numbers, dtype=np.int32)[which]
        return codes

    # ------------------------------------------------------------------ numbers of calls

    def _calls_before(self, rule: MergeRule, part: int, site: Site, keys: Column) -> Column:
        """Return how many calls of this module, step and phase the parts before this one have."""
        numbers = self._calls_of(site.path)
        flat = self._moments(keys)
        before: Column = np.zeros(len(keys), dtype=np.int64)
        for whole in rule.wholes[:part]:
            rows = [self._places_of_ranks[rank] for rank in whole.ranks]
            # The ranks of one part ran the same calls; where one lacks some, the others tell.
            before += numbers[rows].max(axis=0)[flat]
        return before

    def _calls_of(self, path: str) -> Column:
        """Return ``int64[ranks, steps * phases]``: how many calls of a module each rank has."""
        if path not in self._num_calls:
            num = len(self._steps) * len(self._matched.phases)
            num_calls = np.zeros((len(self._matched.ranks), num), dtype=np.int64)
            for number in self._flow_sites.get(path, ()):
                keys = self._keys[number]
                calls, flat = self._matched.columns["call"][keys] + 1, self._moments(keys)
                orders = self._matched.orders[:, keys]
                for row, own in zip(num_calls, orders, strict=True):
                    is_there = own >= 0
                    # Call numbers count from 0, so the largest and one more is how many there were.
                    np.maximum.at(row, flat[is_there], calls[is_there])
            self._num_calls[path] = num_calls
        return self._num_calls[path]

    @cached_property
    def _flow_sites(self) -> dict[str, list[int]]:
        """Path -> the numbers of its sites through which values and gradients flow."""
        flow: dict[str, list[int]] = {}
        for number, site in enumerate(self._matched.sites):
            if site.port in FLOW_PORTS:
                flow.setdefault(site.path, []).append(number)
        return flow

    def _moments(self, keys: Column) -> Column:
        """Return a number for step and phase of each key."""
        columns, num_phases = self._matched.columns, len(self._matched.phases)
        moments: Column = columns["step"][keys] * num_phases + columns["phase"][keys]
        return moments

    # ------------------------------------------------------------------ all sites

    def _joined(self, chunks: Sequence[_Chunk]) -> Records:
        """Return the records of all sites, sorted by step, stage, part of the batch and arrival."""
        matched = self._matched
        sizes = [len(chunk.keys) for chunk in chunks]

        def each(values: Sequence[int], kind: Any) -> Column:
            return np.repeat(np.array(values, dtype=kind), sizes)

        def all_of(parts: Sequence[Column], kind: Any) -> Column:
            return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, kind)

        keys = all_of([chunk.keys for chunk in chunks], np.int64)
        own = matched.columns
        order = _sorted_by(
            own["step"][keys],
            each([chunk.stage for chunk in chunks], np.int64),
            each([chunk.part for chunk in chunks], np.int64),
            all_of([chunk.orders for chunk in chunks], np.int64),
        )
        keys = keys[order]
        sites, numbers = _by_arrival(matched.sites, own["site"][keys])
        columns = {
            "site": numbers,
            "step": self._steps[own["step"][keys]],
            "call": all_of([chunk.calls for chunk in chunks], np.int32)[order],
            "phase": own["phase"][keys].astype(np.int8),
            "backward": own["backward"][keys].astype(np.int32),
            "labels": all_of([chunk.labels for chunk in chunks], np.int32)[order],
        }
        values = MergedValues(
            records=[held.records for held in matched.held],
            owners=each([chunk.owner for chunk in chunks], np.int32)[order],
            places=all_of([chunk.places for chunk in chunks], np.int64)[order],
            cuts=self._cuts,
            facts=all_of([chunk.facts for chunk in chunks], np.int32)[order],
            table=self._table,
            index=(
                columns,
                Tables(sites, self._labels.entries, phase=list(matched.phases)),
            ),
        )
        unversioned = [np.full(len(chunk.keys), UNVERSIONED, np.int64) for chunk in chunks]
        versions = None
        if any(chunk.versions is not None for chunk in chunks):
            known = zip(chunks, unversioned, strict=True)
            versions = all_of([b if a.versions is None else a.versions for a, b in known], np.int64)
            versions = versions[order]
        return Records.from_columns(
            values, columns, sites, self._labels.entries, matched.phases, versions
        )


def _sorted_by(*columns: Column) -> Column:
    """Return the order of rows by some columns, none of which has a negative number."""
    sizes = [int(one.max()) + 1 if len(one) else 1 for one in columns]
    if prod(sizes) >= _MOST:
        return np.lexsort(columns[::-1])
    # Small numbers are put into one, so that one column is sorted in place of four.
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        code *= size
        code += column
    return np.argsort(code, kind="stable")


def _by_arrival(sites: Sequence[Site], numbers: Column) -> tuple[list[Site], Column]:
    """Return the sites that are there, by arrival, and which of them each row is of."""
    first = np.full(len(sites), -1, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # The last that is written stays.
    there = np.flatnonzero(first >= 0)
    there = there[np.argsort(first[there])]
    renumbered = np.zeros(len(sites), dtype=np.int32)
    renumbered[there] = np.arange(len(there))
    return [sites[number] for number in there.tolist()], renumbered[numbers]
