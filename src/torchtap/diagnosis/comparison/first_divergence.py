"""The place where a difference begins: the innermost call that adds more than rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchtap.diagnosis.comparison.distance import distance
from torchtap.diagnosis.comparison.result import Row
from torchtap.diagnosis.comparison.run_rows import Compared

Why = Callable[[Compared], tuple[str, str]]
"""A comparison whose call adds a difference -> its cause and a sentence."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where a difference begins.

    Attributes:
        place: of the row among the rows.
        row: with its cause and text.
        is_new: whether it is a row of its own, which stands before that one.
    """

    place: int
    row: Row
    is_new: bool = False


def first_divergence(found: Sequence[Compared], why: Why) -> Divergence | None:
    """Return the first row that adds a difference beyond rounding; ``None`` if there is none.

    Forward comes before backward, and both before parameters and what is computed of gradients.
    Where nothing adds and inputs differ, it is the input that does.

    Args:
        found: rows in the order of execution.
        why: asked for the cause.
    """
    for phase in ("forward", "eval"):
        place = _adding([one if one.row.phase == phase else None for one in found])
        if place is not None:
            return _divergence(found, place, why)
        place = _swapped(found, phase)
        if place is not None:
            return Divergence(place, _of_order(found[place]))
        place = _inheriting(found, phase)
        if place is not None:
            return Divergence(place, _of_input(found[place]), is_new=True)
    place = _adding([one if one.row.phase == "backward" else None for one in found])
    if place is None:
        place = next((at for at, one in enumerate(found) if _is_state_beyond(one)), None)
    return None if place is None else _divergence(found, place, why)


def _divergence(found: Sequence[Compared], place: int, why: Why) -> Divergence:
    cause, text = why(found[place])
    return Divergence(place, replace(found[place].row, cause=cause, text=text))


def adds(one: Compared) -> bool:
    """Return whether a call adds more than rounding explains."""
    row = one.row
    return row.is_beyond and not math.isnan(row.added) and not row.added <= row.tolerance


def _adding(found: Sequence[Compared | None]) -> int | None:
    """Place of the first call that adds a difference, where none inside of it does."""
    adding = [(place, one) for place, one in enumerate(found) if one is not None and adds(one)]
    for place, one in adding:
        if one.pair is None:
            return place
        inner = (other.pair for _, other in adding if other is not one)
        if not any(pair is not None and one.pair.one.holds(pair.one) for pair in inner):
            return place
    return None


def _inheriting(found: Sequence[Compared], phase: str) -> int | None:
    """Place of the outermost call whose input differs first, where no call adds a difference."""
    rows = [
        (place, one)
        for place, one in enumerate(found)
        if one.row.phase == phase and one.pair is not None and _inherits(one.row)
    ]
    if not any(one.row.is_beyond and math.isnan(one.row.added) for _, one in rows):
        return None
    return min(rows, key=lambda each: _began(each[1]))[0]


def _inherits(row: Row) -> bool:
    return row.inherited > row.tolerance or (row.port == "input" and row.is_beyond)


def _swapped(found: Sequence[Compared], phase: str) -> int | None:
    """Place of the first call whose values are those of another call of the candidate's module."""
    by_path: dict[tuple[str, str], list[Compared]] = {}
    for one in found:
        if one.pair is not None and one.row.port == "output" and one.row.phase == phase:
            by_path.setdefault((one.pair.one.path, one.pair.two.path), []).append(one)
    for place, one in enumerate(found):
        if one.pair is None or one.row.port != "output" or not one.row.is_beyond:
            continue
        others = by_path.get((one.pair.one.path, one.pair.two.path), [])
        own = one.pair.one.port("output")
        for other in others if len(others) > 1 else ():
            theirs = other.pair.two.port("output") if other.pair is not None else {}
            if other is not one and distance(own, theirs).relative <= one.row.tolerance:
                return place
    return None


def _of_order(one: Compared) -> Row:
    text = (
        f"{one.row.name} is called in another order: call {one.row.call} of the reference has the "
        f"values of another call of the candidate, and no call adds a difference."
    )
    return replace(one.row, cause="order", text=text)


def _began(one: Compared) -> tuple[float, int]:
    assert one.pair is not None
    call = one.pair.one
    return call.place if call.start is None else call.start, call.path.count(".")


def _of_input(one: Compared) -> Row:
    row = one.row
    how = f" by {row.inherited:.2g}" if math.isfinite(row.inherited) else ""
    what = "the model gets other data" if row.path == "." else "no call before it makes that"
    where = one.inherited.leaf if one.inherited is not None else ""
    leaf = f" (most at {where})" if where else ""
    text = (
        f"The input of {row.name} differs already{how}{leaf}, and no module that was compared "
        f"makes the difference: {what}."
    )
    total = row.inherited if math.isfinite(row.inherited) else row.total
    nothing = math.nan
    return replace(
        row, port="input", total=total, inherited=nothing, added=nothing, cause="input", text=text
    )


def _is_state_beyond(one: Compared) -> bool:
    return one.states is not None and one.row.is_beyond
