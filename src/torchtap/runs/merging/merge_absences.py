"""Problems found while merging ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchtap.core.absence import Absence
from torchtap.core.record import said_steps
from torchtap.core.site import Site
from torchtap.core.text import plural
from torchtap.runs.merging.placement_rules import said_ranks

_BUFFERS = "each rank keeps buffers of its own, unless DDP broadcasts them (broadcast_buffers=True)"

Groups = Sequence[tuple[int, ...]]
"""Ranks that agree with each other, group by group, the largest first."""


@dataclass(slots=True)
class MergeAbsences:
    """The absences of a merged run, and the replicas that differ.

    Attributes:
        refused: what cannot be merged, and steps and parts that some ranks lack.
        differing: step in which replicas of a site first differ, and what is said of it.
    """

    refused: list[Absence] = field(default_factory=list)
    differing: list[tuple[int, Absence]] = field(default_factory=list)

    def refuse(self, site: Site, reason: str) -> None:
        """A site that cannot be merged."""
        self.refused.append(Absence(site, reason))

    def lack(self, site: Site, steps_of: Mapping[int, Sequence[int]]) -> None:
        """Ranks that have no value of a site in some steps in which others have one."""
        for rank, steps in steps_of.items():
            if steps:
                reason = f"rank {rank} has none in {said_steps(steps)}, and others do"
                self.refused.append(Absence(site, reason))

    def differ(self, site: Site, groups: Groups, steps: Sequence[int]) -> None:
        """Replicas that are not equal.

        Args:
            site: where.
            groups: which ranks agree in the first step in which not all do.
            steps: in which they do not, ascending.
        """
        ranks = [list(group) for group in groups]
        if len(ranks[0]) > len(ranks[1]):
            rest = sorted(rank for group in ranks[1:] for rank in group)
            verb = "differs" if len(rest) == 1 else "differ"
            who = f"{said_ranks(rest)} {verb} from {said_ranks(sorted(ranks[0]))}"
        else:
            who = f"{said_ranks(sorted(rank for group in ranks for rank in group))} differ"
        more = f", in {plural(len(steps), 'step')}" if len(steps) > 1 else ""
        where = f"{who}, first in step {steps[0]}{more}"
        if site.port == "buffer":  # Statistics of batch norm are meant to, under FSDP.
            self.refuse(site, f"{where}: {_BUFFERS}")
        else:
            absence = Absence(site, f"{where}: as replicas they must be equal")
            self.differing.append((steps[0], absence))

    @property
    def in_order(self) -> list[Absence]:
        """Replicas that differ, by the step in which they began to."""
        by_step = sorted(dict.fromkeys(self.differing), key=lambda entry: entry[0])
        return [absence for _, absence in by_step]

    @property
    def absent(self) -> list[Absence]:
        """Return all of it, each once: replicas that differ first."""
        return list(dict.fromkeys([*self.in_order, *self.refused]))


def agreeing(ranks: Sequence[int], same: Sequence[Sequence[bool]]) -> list[tuple[int, ...]]:
    """Group ranks by ``same[i][j]``, whether the i-th and the j-th agree; the largest first."""
    groups: list[list[int]] = []
    for number in range(len(ranks)):
        home = next((group for group in groups if same[group[0]][number]), None)
        if home is None:
            groups.append([number])
        else:
            home.append(number)
    ordered = sorted(groups, key=len, reverse=True)
    return [tuple(ranks[number] for number in group) for group in ordered]
