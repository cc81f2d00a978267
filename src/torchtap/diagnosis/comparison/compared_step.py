"""The findings of one step, and the result that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtap.diagnosis.comparison.alignment import Pair
from torchtap.diagnosis.comparison.code_between_calls import Alone
from torchtap.diagnosis.comparison.first_divergence import Divergence
from torchtap.diagnosis.comparison.renaming import near_misses
from torchtap.diagnosis.comparison.result import Comparison
from torchtap.diagnosis.comparison.run_rows import Compared
from torchtap.diagnosis.comparison.step_calls import Call, State, StepCalls


@dataclass(frozen=True, slots=True, eq=False)
class ComparedStep:
    """The findings of one step.

    Attributes:
        sides: the step of the reference and of the candidate.
        pairs: aligned calls.
        found: calls and states that both have.
        alone: calls that one has.
        states: parameters and the like that only the reference has, and only the candidate.
        first: where the difference begins.
    """

    sides: tuple[StepCalls, StepCalls]
    pairs: Sequence[Pair]
    found: Sequence[Compared]
    alone: Alone
    states: tuple[Sequence[State], Sequence[State]]
    first: Divergence | None


def alone_of(sides: tuple[StepCalls, StepCalls], pairs: Sequence[Pair]) -> Alone:
    """Return the calls that have no partner."""
    paired = {id(call) for pair in pairs for call in (pair.one, pair.two)}
    ones, twos = ([call for call in side.calls if id(call) not in paired] for side in sides)
    return Alone(ones, twos)


def result_of(step: ComparedStep, notes: Sequence[str], names: tuple[str, str]) -> Comparison:
    """Make the result of a step: rows of what is not equal to the bit."""
    rows = [one.row for one in step.found]
    first = step.first
    if first is not None and first.is_new:
        place = next(at for at, row in enumerate(rows) if row.is_beyond)
        rows.insert(place, first.row)
    elif first is not None:
        rows[first.place] = first.row
    kept = [row for row in rows if row.total != 0 or row.cause]
    only_a, only_b = only_of(step)
    return Comparison(
        same=first is None,
        rows=kept,
        first=None if first is None else first.row,
        only_a=only_a,
        only_b=only_b,
        notes=[*notes, *near_misses(only_a, only_b)],
        pairs=[(pair.one.name, pair.two.name, pair.one.number) for pair in step.pairs],
        names=names,
    )


def only_of(step: ComparedStep) -> tuple[list[str], list[str]]:
    """Paths of modules that only one side has."""
    paired = [{call.path for call in each} for each in zip(*map(_calls, step.pairs), strict=True)]
    known = paired or [set(), set()]
    sides = (step.alone.ones, step.states[0]), (step.alone.twos, step.states[1])
    only = []
    for (calls, states), there in zip(sides, known, strict=True):
        paths = [call.path for call in calls]
        paths += [state.path for state in states if state.port in ("param", "buffer")]
        only.append([path or "." for path in dict.fromkeys(paths) if path not in there])
    return only[0], only[1]


def _calls(pair: Pair) -> tuple[Call, Call]:
    return pair.one, pair.two
