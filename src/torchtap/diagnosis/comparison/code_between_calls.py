"""Why a call differs that holds others which agree: what stands between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchtap.diagnosis.comparison.alignment import Pair
from torchtap.diagnosis.comparison.distance import distance, numel_of
from torchtap.diagnosis.comparison.run_rows import Compared
from torchtap.diagnosis.comparison.step_calls import Call

_TIMES = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """Calls without a partner.

    Attributes:
        ones: of the reference.
        twos: of the candidate.
    """

    ones: Sequence[Call] = ()
    twos: Sequence[Call] = ()


def between(one: Compared, found: Sequence[Compared], alone: Alone) -> tuple[str, str]:
    """Why a container adds a difference that none of its parts adds.

    Args:
        one: of the container.
        found: all that was compared.
        alone: calls of one side alone.

    Returns:
        the cause, and a sentence.
    """
    assert one.pair is not None
    name, pair = one.row.name, one.pair
    inner = [
        other
        for other in found
        if other.pair is not None and other.row.port == "output" and pair.one.holds(other.pair.one)
    ]
    child = _departing(inner)
    missing = _missing(pair, alone, inner, child)
    if missing is not None:
        call, side = missing
        return "missing", (
            f"{call.name} ({call.traits.type}) runs only in the {side}, inside {name}; all other "
            f"calls in there agree when they are given the same."
        )
    crossing = _crossing([other.pair for other in inner if other.pair is not None])
    if crossing is not None:
        first, second = crossing
        return "order", (
            f"Inside {name} the reference calls {first} before {second}, and the candidate "
            f"{second} before {first}."
        )
    if not inner:
        return "computation", f"{name} computes something else{_types(pair)}."
    where = f"seen first at the input of {child.row.name}" if child else "after the last of them"
    return "computation", (
        f"The calls inside {name} agree when they are given the same, so what stands between them "
        f"differs, {where}."
    )


def _missing(
    pair: Pair, alone: Alone, inner: Sequence[Compared], child: Compared | None
) -> tuple[Call, str] | None:
    """Return the call of one side alone that stands where the values depart, and the side.

    One that hands its input on is not missed, and neither are calls whose parameters together are
    those of calls that only the other side has, as where three weights are one.
    """
    sides = [
        [call for call in calls if call.is_leaf and whole.holds(call) and not _is_idle(call)]
        for calls, whole in ((alone.ones, pair.one), (alone.twos, pair.two))
    ]
    sizes = [sum(sum(call.traits.sizes) for call in side) for side in sides]
    if sizes[0] == sizes[1]:
        sides = [[call for call in side if not call.traits.sizes] for side in sides]
    for place, (side, calls) in enumerate(zip(sides, (alone.ones, alone.twos), strict=True)):
        paired = [_of_side(other, place) for other in inner]
        until = None if child is None else _of_side(child, place)
        leaves = [call for call in side if _is_just_before(call, until, paired)]
        if leaves:
            around = [call for call in calls if call.holds(leaves[0]) and _is_whole(call, calls)]
            whole = max(around, key=lambda call: call.place, default=leaves[0])
            return whole, ("reference", "candidate")[place]
    return None


def _of_side(one: Compared, place: int) -> Call:
    assert one.pair is not None
    return (one.pair.one, one.pair.two)[place]


def _is_just_before(call: Call, until: Call | None, paired: Sequence[Call]) -> bool:
    """Return whether no call that both sides have begins between a call and the one that departs.

    Where inputs were not recorded nothing departs, and any call will do.
    """
    if until is None and any(one.start is None for one in paired):
        return True
    end = math.inf if until is None else _begin(until)
    between = [one for one in paired if one is not until and call.place < _begin(one) < end]
    return call.place < end and not between


def _begin(call: Call) -> float:
    return call.place if call.start is None else call.start


def _is_idle(call: Call) -> bool:
    """Return whether a call hands its input on."""
    given, made = call.port("input"), call.port("output")
    if not given or len(given) != len(made) or sum(numel_of(given)) != sum(numel_of(made)):
        return False
    return distance(given, made).error == 0


def _is_whole(call: Call, alone: Sequence[Call]) -> bool:
    """Return whether all leaves inside a call are alone too: it is no mere wrapper of others."""
    return sum(call.holds(one) for one in alone if one.is_leaf) == call.num_inside


def _crossing(pairs: Sequence[Pair]) -> tuple[str, str] | None:
    """Two calls that follow each other in the reference, and the other way in the candidate."""
    leaves = [pair for pair in pairs if pair.one.is_leaf]
    for first, second in pairwise(leaves):
        if second.two.place < first.two.place:
            return first.one.name, second.one.name
    return None


def _departing(inner: Sequence[Compared]) -> Compared | None:
    """Return the first call whose input departs by more than all outputs before it."""
    worst = 0.0
    for other in sorted(inner, key=lambda each: _begin(_of_side(each, 0))):
        row = other.row
        if row.inherited > _TIMES * row.tolerance and row.inherited > 4 * worst:
            return other
        if other.pair is not None and other.pair.one.is_leaf:
            worst = max(worst, row.total)
    return None


def _types(pair: Pair) -> str:
    one, two = pair.one.traits.type, pair.two.traits.type
    return f": {one} against {two}" if one != two else ""
