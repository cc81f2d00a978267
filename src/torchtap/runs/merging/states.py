"""States of the further statistics of each rank, as one of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from torchtap.core.placement import Axis
from torchtap.core.site import Site
from torchtap.runs.merging.rules import Coordinate, Rule, fold
from torchtap.stats.catalogue.cosine import Cosine, Trail
from torchtap.stats.catalogue.effective_rank import EffectiveRank
from torchtap.stats.catalogue.nonfinite import FirstNonfinite, Search
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.catalogue.results import Finished, Missing
from torchtap.stats.catalogue.slices import Along, Slices
from torchtap.stats.catalogue.top_k import TopK

_NO_CODE = (
    "the runs of the ranks were saved, and a file holds the result of a statistic of your own and "
    "not its merge. Read it from each rank: tt.open(FILE).stats(SITE).extra."
)
_OF_SHARDS = "the ranks have shards, whose places and features are not those of the whole."
_UNKNOWN_CUT = "the ranks have parts of which it is not known along which dim they were cut."
_NOT_KEPT = (
    "over all steps it takes each of them, and some are left out or kept no longer. Watch with a "
    "larger tt.Stats(keep=...)."
)

States = list[Any]
Join = Callable[[Any, Any], Any]


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
    rule: Rule
    num_dims: int | None
    statistics: Sequence[Statistic]
    missing: dict[str, str] = field(default_factory=dict)

    def of_step(self, held: Mapping[int, States]) -> States | None:
        """Merge the states of one step, given as rank -> its states."""
        if not held or not self.statistics:
            return None
        return [self._merged(place, one, held) for place, one in enumerate(self.statistics)]

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
        is_in_order = isinstance(one, Cosine) and self._num_parts > 1
        if held is not None and not is_in_order:
            return self._merged(place, one, held)
        if not per_step:
            return Missing(_NOT_KEPT)
        return reduce(_unless_missing(one.merge), [states[place] for states in per_step])

    @property
    def _num_parts(self) -> int:
        return sum(len(whole.parts) for whole in self.rule.wholes)

    def _merged(self, place: int, one: Statistic, held: Mapping[int, States]) -> Any:
        wholes = []
        for whole in self.rule.wholes:
            parts: dict[Coordinate, Any] = {
                where: held[ranks[0]][place]
                for where, ranks in whole.parts.items()
                if ranks[0] in held
            }
            if parts:
                wholes.append(fold(parts, whole.axes, lambda row, axis: self._cut(one, row, axis)))
        state = reduce(_unless_missing(self._side_by_side(one)), wholes)
        if isinstance(state, Missing) and self._num_parts > 1:
            self.missing.setdefault(str(one.name), state.why)
        return state

    def _side_by_side(self, one: Statistic) -> Join:
        """Return the function that merges states of parts of the batch."""
        if isinstance(one, Finished):
            return lambda a, b: Missing(_NO_CODE)
        if isinstance(one, Cosine):
            return _beside
        if isinstance(one, FirstNonfinite):
            return _first
        return self._own_merge(one)

    def _cut(self, one: Statistic, row: list[Any], axis: Axis) -> Any:
        """States of shards along one dim of the mesh, together."""
        if len(row) == 1:
            return row[0]
        join: Join
        if isinstance(one, TopK):
            join = lambda a, b: Missing(_OF_SHARDS)  # noqa: E731
        elif isinstance(one, Along | EffectiveRank):
            join = self._along(one, axis)
        else:
            join = self._side_by_side(one)
        return reduce(_unless_missing(join), row)

    def _along(self, one: Along | EffectiveRank, axis: Axis) -> Join:
        """Return the function that merges a statistic that keeps one dim apart, cut or not."""
        num = self.num_dims
        if axis.dim is None or num is None:
            return lambda a, b: Missing(_UNKNOWN_CUT)
        is_cut = -num <= one.dim < num and one.dim % num == axis.dim % num
        if not is_cut:
            return self._own_merge(one)
        return _chained if isinstance(one, Along) else lambda a, b: Missing(_OF_SHARDS)

    def _own_merge(self, one: Statistic) -> Join:
        def merge(a: Any, b: Any) -> Any:
            try:
                return one.merge(a, b)
            except Exception as error:
                error.add_note(f"Raised by the merge of {one.name!r}, of two ranks at {self.site}.")
                raise

        return merge


def _unless_missing(join: Join) -> Join:
    """Return a join that gives a missing state where there is one, and calls ``join`` otherwise."""

    def joined(one: Any, two: Any) -> Any:
        lost = next((state for state in (one, two) if isinstance(state, Missing)), None)
        return join(one, two) if lost is None else lost

    return joined


def _beside(one: Trail, two: Trail) -> Trail:
    """One vector of both: the cosine of neighbouring steps is then that of the whole batch."""
    if one.first is None or two.first is None or one.last is None or two.last is None:
        return one if two.first is None else two
    return Trail(torch.cat([one.first, two.first]), torch.cat([one.last, two.last]))


def _first(one: Search, two: Search) -> Search:
    """The one that came first: ranks run the same program, so their orders can be compared."""
    if one.found is None or two.found is None:
        return two if one.found is None else one
    orders = [int(state.found[1]) for state in (one, two) if state.found is not None]
    is_second = orders[0] < 0 or 0 <= orders[1] < orders[0]
    return Search(max(one.num_tensors, two.num_tensors), two.found if is_second else one.found)


def _chained(one: Slices, two: Slices) -> Slices:
    """The slices of one shard, then those of the next."""
    rows = torch.cat([one.rows, two.rows])
    return Slices(rows, torch.cat([one.saturated_elements, two.saturated_elements]))
