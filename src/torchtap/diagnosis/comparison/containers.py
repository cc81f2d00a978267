"""Why a call differs that holds others which agree: what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchtap.diagnosis.comparison.alignment import Pair
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
    name = one.row.name
    missing = _missing(one.pair, alone)
    if missing is not None:
        call, is_reference = missing
        side = "reference" if is_reference else "candidate"
        text = (
            f"{call.name} ({call.traits.type}) runs only in the {side}, inside {name}; all other "
            f"calls in there agree when they are given the same."
        )
        return "missing", text
    inner = [
        other
        for other in found
        if other.pair is not None
        and other.row.port == "output"
        and one.pair.one.holds(other.pair.one)
    ]
    crossing = _crossing([other.pair for other in inner if other.pair is not None])
    if crossing is not None:
        first, second = crossing
        text = (
            f"Inside {name} the reference calls {first} before {second}, and the candidate "
            f"{second} before {first}."
        )
        return "order", text
    child = _departing(inner)
    where = f"seen first at the input of {child.row.name}" if child else "after the last of them"
    if not inner:
        return "computation", f"{name} computes something else{_types(one.pair)}."
    text = (
        f"The calls inside {name} agree when they are given the same, so what stands between them "
        f"differs, {where}."
    )
    return "computation", text


def _missing(pair: Pair, alone: Alone) -> tuple[Call, bool] | None:
    """The first call without a partner inside a pair, leaves before what only wraps others."""
    found = [(call, True) for call in alone.ones if pair.one.holds(call)]
    found += [(call, False) for call in alone.twos if pair.two.holds(call)]
    leaves = [each for each in found if each[0].is_leaf]
    if not leaves:
        return None
    leaf, is_reference = min(leaves, key=lambda each: each[0].place)
    calls = [call for call, side in found if side is is_reference]
    around = [call for call in calls if call.holds(leaf) and _is_whole(call, calls)]
    return max(around, key=lambda call: call.place, default=leaf), is_reference


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
    """The first call whose input departs by more than all outputs before it."""
    worst = 0.0
    for other in sorted(inner, key=_start):
        row = other.row
        if row.inherited > _TIMES * row.tolerance and row.inherited > 4 * worst:
            return other
        if other.pair is not None and other.pair.one.is_leaf:
            worst = max(worst, row.total)
    return None


def _start(one: Compared) -> float:
    assert one.pair is not None
    call = one.pair.one
    return call.place if call.start is None else call.start


def _types(pair: Pair) -> str:
    one, two = pair.one.traits.type, pair.two.traits.type
    return f": {one} against {two}" if one != two else ""
