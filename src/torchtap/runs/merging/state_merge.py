"""States of the further statistics of each rank, as one of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtap.core.site import Site
from torchtap.runs.merging.placement_rules import MergeRule
from torchtap.stats.algebra import States, merge_states, of_ranks
from torchtap.stats.catalogue.protocol import Statistic, ranks_by_step
from torchtap.stats.catalogue.results import Missing

_NOT_KEPT = (
    "over all steps it takes each of them, and some are left out or kept no longer. Watch with a "
    "larger tt.Stats(keep=...)."
)


@dataclass(slots=True)
class StateMerge:
    """Merges what the further statistics have of one site.

    Args:
        site: where, for messages.
        rule: how the parts of the ranks make up the whole.
        num_dims: of its tensors, where that is known.
        statistics: in the order of the states.

    Attributes:
        missing: name of a statistic -> why it is not merged.
    """

    site: Site
    rule: MergeRule
    num_dims: int | None
    statistics: Sequence[Statistic]
    missing: dict[str, str] = field(default_factory=dict)

    def of_step(self, held: Mapping[int, States]) -> States | None:
        """Merge the states of one step, given as rank -> its states."""
        if not held or not self.statistics:
            return None
        return [self._of_ranks(place, one, held) for place, one in enumerate(self.statistics)]

    def of_all(
        self, per_step: Sequence[States] | None, held: Mapping[int, States] | None
    ) -> States | None:
        """Merge the states of all steps together.

        Args:
            per_step: what :meth:`of_step` gave for each; ``None`` if not all are kept.
            held: rank -> its states of all steps; ``None`` where some are left out.
        """
        if not self.statistics or not (per_step or held):
            return None
        return [self._of_all(n, one, per_step, held) for n, one in enumerate(self.statistics)]

    def _of_all(
        self,
        place: int,
        one: Statistic,
        per_step: Sequence[States] | None,
        held: Mapping[int, States] | None,
    ) -> Any:
        if held is not None and not (ranks_by_step(one) and self.rule.num_parts > 1):
            return self._of_ranks(place, one, held)
        if not per_step:
            return Missing(_NOT_KEPT)
        [state] = merge_states([one], ([states[place]] for states in per_step)) or [None]
        return state

    def _of_ranks(self, place: int, one: Statistic, held: Mapping[int, States]) -> Any:
        own = {rank: states[place] for rank, states in held.items()}
        try:
            state = self.rule.whole_of(own, of_ranks(one, self.num_dims))
        except Exception as error:
            error.add_note(f"Raised by the merge of {one.name!r}, of two ranks at {self.site}.")
            raise
        if isinstance(state, Missing) and self.rule.num_parts > 1:
            self.missing.setdefault(str(one.name), state.why)
        return state
