"""Rules by which the values of the ranks at one site make up the whole, by port and placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from torchtap.core.placement import Axis, split_labels
from torchtap.core.site import Site
from torchtap.core.text import plural
from torchtap.stats.algebra import Algebra

Coordinate = tuple[int, ...]
T = TypeVar("T")

LOCAL = (
    "each rank has the gradient of its own loss, from before DDP averages them, and no merge gives "
    "that average: watch step_grad, which the optimizer used; run.over_ranks has the numbers of "
    "each rank"
)
SAVED = (
    "what autograd keeps is each rank's own memory and part of no whole; run.over_ranks has the "
    "numbers of each rank"
)
NO_PLACE = (
    "each rank has a part of it as a plain tensor, so which part is not known; tensor parallelism "
    "labels it with use_local_output=False"
)

BEFORE_SCALING = (
    "from before the schedule of the pipeline divides it by the number of microbatches "
    "(scale_grads): step_grad is what the optimizer used"
)
UNKNOWN = 0
"""Stands for a number of microbatches that no rank recorded."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The division of the work among the ranks of one model, or of one stage of a pipeline.

    Attributes:
        batches: of each part of the batch, the ranks that worked on it and are to be merged.
        num_batches: how many parts there were.
        missing: ranks that there were and that are not to be merged.
        num_microbatches: into how many parts a pipeline cuts each part of the batch.
    """

    batches: tuple[tuple[int, ...], ...]
    num_batches: int
    missing: tuple[int, ...] = ()
    num_microbatches: int = 1

    @property
    def here(self) -> tuple[int, ...]:
        """Return the ranks to be merged, ascending."""
        return tuple(sorted(rank for batch in self.batches for rank in batch))


class Refused(Exception):
    """The parts of a site cannot be merged; its argument says why."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The ranks that have one value between them.

    Attributes:
        parts: place in the mesh -> the ranks that have this part, which are replicas.
        axes: the dims of the mesh along which it is cut, one for each number of a place.
        is_told: whether labels say all this. Where they do not, and there are several ranks, the
            values have to: replicas where they are equal.
    """

    parts: Mapping[Coordinate, tuple[int, ...]]
    axes: tuple[Axis, ...] = ()
    is_told: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all of them, ascending."""
        return tuple(sorted(rank for ranks in self.parts.values() for rank in ranks))

    def cut_by_values(self) -> Whole:
        """Return one part for each rank, with no known dim, for ranks whose values differ."""
        parts: dict[Coordinate, tuple[int, ...]] = {
            (number,): (rank,) for number, rank in enumerate(self.ranks)
        }
        return Whole(parts, (Axis("shard", len(parts)),))


@dataclass(frozen=True, slots=True)
class MergeRule:
    """The rule by which a site is merged.

    Attributes:
        wholes: the values there are, each of some ranks; several are those of parts of the batch.
        labels: of the ranks, those that say no placement.
        notes: what is to be known of each value.
        together: what is to be known of all of them together.
    """

    wholes: tuple[Whole, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    together: tuple[str, ...] = ()

    @property
    def num_parts(self) -> int:
        """Return the number of parts, of all wholes."""
        return sum(len(whole.parts) for whole in self.wholes)

    def whole_of(self, held: Mapping[int, T], algebra: Algebra[T]) -> T | None:
        """Make one of what the ranks have; ``None`` where none has any.

        Args:
            held: rank -> what it has; of replicas the first counts.
            algebra: how parts are merged, and shards joined.
        """
        wholes = []
        for whole in self.wholes:
            first = {place: ranks[0] for place, ranks in whole.parts.items() if ranks[0] in held}
            parts = {place: held[rank] for place, rank in first.items()}
            if parts:
                wholes.append(joined_whole(parts, whole.axes, algebra))
        return algebra.merge(wholes) if wholes else None


def rule_of(site: Site, labels: Mapping[int, tuple[str, ...]], ranks: Ranks) -> MergeRule:
    """Return the rule by which the parts of the ranks are merged.

    Args:
        site: where.
        labels: rank -> what its records or numbers say of themselves; those that have none lack.
        ranks: how they share the work.

    Raises:
        Refused: they cannot be.
    """
    how = site.kind.ranks
    if how == "private":
        raise Refused(SAVED)
    split = {rank: split_labels(said) for rank, said in labels.items()}
    others = tuple(dict.fromkeys(label for _, more in split.values() for label in more))
    placed = {rank: _one_placement(rank, found) for rank, (found, _) in split.items()}
    is_unplaced = None in placed.values() or "local" in others
    if how == "losses" and is_unplaced and ranks.num_batches > 1:
        raise Refused(LOCAL)
    is_state = how != "parts"
    every = (ranks.here,) if is_state else ranks.batches
    wholes = [_whole(own, placed, is_state=is_state) for own in every if set(own) & set(placed)]
    others = of_the_whole(others)
    notes = [f"{plural(len(whole.parts), 'shard')} together" for whole in wholes if whole.axes]
    if is_state:
        is_sum = how == "losses" and ranks.num_microbatches != 1
        notes += [BEFORE_SCALING] if is_sum else []
        return MergeRule(tuple(wholes), others, tuple(dict.fromkeys(notes)))
    if site.is_gradient:
        notes += _factor(ranks)
    together = [f"{len(wholes)} parts of the batch together"] if len(wholes) > 1 else []
    together += [f"without {said_ranks(ranks.missing)}"] if ranks.missing else []
    return MergeRule(tuple(wholes), others, tuple(dict.fromkeys(notes)), tuple(together))


def _factor(ranks: Ranks) -> list[str]:
    """Return a note on how many times the gradient of the whole batch those of its parts are."""
    num = ranks.num_batches * max(ranks.num_microbatches, 1)
    times = f"{num} times"
    if ranks.num_microbatches == UNKNOWN:
        times = f"{f'{times} ' if num > 1 else ''}the number of microbatches times"
    elif num == 1:
        return []
    part = "rank" if ranks.num_microbatches == 1 else "microbatch"
    return [
        f"of each {part}'s own loss: {times} the gradient of the whole batch where losses are means"
    ]


def of_the_whole(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels that hold for merged values too."""
    return tuple(label for label in labels if label not in ("local", "reduced"))


def fold(
    parts: Mapping[Coordinate, T], axes: Sequence[Axis], join: Callable[[list[T], Axis], T]
) -> T:
    """Put parts together, one dim of the mesh after the other: what was cut last comes first.

    Args:
        parts: place in the mesh -> part.
        axes: as of :class:`Whole`.
        join: puts parts together along one dim of the mesh, in their order.
    """
    inner = [number for number, axis in enumerate(axes) if axis.is_inner]
    order = inner + [n for n in reversed(range(len(axes))) if n not in inner]
    held = dict(parts)
    for number in order:
        rows: dict[Coordinate, list[T]] = {}
        for place in sorted(held):
            rest = (*place[:number], 0, *place[number + 1 :])
            rows.setdefault(rest, []).append(held[place])
        held = {place: join(row, axes[number]) for place, row in rows.items()}
    [whole] = held.values()
    return whole


def joined_whole(parts: Mapping[Coordinate, T], axes: Sequence[Axis], algebra: Algebra[T]) -> T:
    """Join the shards of one whole, given by their places in the mesh."""
    return fold(parts, axes, lambda row, axis: algebra.join(row, axis.dim))


def _one_placement(rank: int, found: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...] | None:
    if len(found) > 1:
        raise Refused(f"rank {rank} held it in several placements, and which when is not known")
    return found[0] if found else None


def _whole(
    ranks: Sequence[int], placed: Mapping[int, tuple[Axis, ...] | None], *, is_state: bool
) -> Whole:
    there = {rank: placed[rank] for rank in ranks if rank in placed}
    axes = {rank: axes for rank, axes in there.items() if axes is not None}
    if not axes:
        return Whole({(): tuple(ranks)}, is_told=is_state or len(ranks) == 1)
    shapes = {rank: _shape(one) for rank, one in axes.items()}
    if len(axes) < len(there) or len(set(shapes.values())) > 1:
        raise Refused(
            f"{said_ranks(list(there))} held it in different placements: their parts do not fit"
        )
    kinds = {axis.kind for one in axes.values() for axis in one}
    if "partial" in kinds:
        raise Refused(
            "each rank has a part of a sum that was not reduced, and the whole is known to none: "
            "run.over_ranks has the numbers of the parts"
        )
    if "elsewhere" in kinds:
        raise Refused("it is of a mesh of ranks that not all ranks are in")
    return _placed_whole(axes)


def _placed_whole(axes: Mapping[int, tuple[Axis, ...]]) -> Whole:
    first = next(iter(axes.values()))
    cut = [number for number, axis in enumerate(first) if axis.kind == "shard"]
    parts: dict[Coordinate, tuple[int, ...]] = {}
    for rank, one in axes.items():
        place = tuple(one[number].place for number in cut)
        parts[place] = (*parts.get(place, ()), rank)
    wanted = prod(first[number].size for number in cut)
    if len(parts) < wanted:
        raise Refused(f"{len(parts)} of its {wanted} shards are there: a whole takes all of them")
    return Whole(dict(sorted(parts.items())), tuple(first[number] for number in cut))


def _shape(axes: Sequence[Axis]) -> tuple[tuple[str, int, int | None], ...]:
    """Return kind, size and dim of each axis, which the placements of all ranks must share."""
    return tuple((axis.kind, axis.size, axis.dim) for axis in axes)


def said_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, ``ranks 0 and 2``, or ``ranks 0 to 7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
