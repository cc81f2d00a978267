"""Notes beside the rows of a comparison: how calls were aligned, what was not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from torchtap.core.text import plural
from torchtap.diagnosis.comparison.alignment import Pair
from torchtap.diagnosis.comparison.rounding import coarsest, epsilon
from torchtap.diagnosis.comparison.run_rows import Compared, dtypes_of_pair
from torchtap.diagnosis.comparison.step_calls import StepCalls

_SINGLE = 2.0**-23


class Step(Protocol):
    """The parts of a compared step that notes read."""

    @property
    def sides(self) -> tuple[StepCalls, StepCalls]:
        """Both sides."""

    @property
    def pairs(self) -> Sequence[Pair]:
        """Aligned calls."""

    @property
    def found(self) -> Sequence[Compared]:
        """Calls and states that were compared."""


def noted(step: Step) -> list[str]:
    """Sentences on one step."""
    return [*_aligned(step), *_blind(step), *_nan(step), *_statistics(step), *_lost(step)]


def _aligned(step: Step) -> list[str]:
    how = Counter(pair.how for pair in step.pairs)
    if not how["map"] and not how["like"]:
        return []
    names = {"path": "by path", "map": "by map", "like": "by order, type and parameters"}
    said = ", ".join(f"{how[key]} {text}" for key, text in names.items() if how[key])
    return [f"Aligned {plural(len(step.pairs), 'call')}: {said}."]


def _blind(step: Step) -> list[str]:
    """Say what is below the rounding of a coarse dtype, and so was not seen."""
    dtype = coarsest(dtype for pair in step.pairs for dtype in dtypes_of_pair(pair))
    if not dtype or epsilon(dtype) <= _SINGLE:
        return []
    least = min((one.row.tolerance for one in step.found if one.row.tolerance > 0), default=0.0)
    if least < epsilon(dtype):  # A tolerance was asked for.
        return []
    return [
        f"Rounding of {dtype} hides differences below {least:.2g} of a value: a tanh GELU in place "
        f"of the exact one (2e-4), or another eps, would not be seen. Compare in float32."
    ]


def _nan(step: Step) -> list[str]:
    with_nan = [one for one in step.found if one.total.num_nan]
    if not with_nan:
        return []
    total = sum(one.total.num_nan for one in with_nan)
    first = with_nan[0].row
    return [
        f"{plural(total, 'element')} are NaN in both at the same place, first at "
        f"{first.name}:{first.port}, and count as equal."
    ]


def _statistics(step: Step) -> list[str]:
    measured = [one for one in step.found if one.total.is_bound]
    if not measured:
        return []
    said = (
        f"{plural(len(measured), 'value')} are compared by their statistics, of all calls of a "
        f"step together: distances are at least as large as said, and values whose norm, mean, "
        f"std, minimum and maximum agree count as equal."
    )
    if not all(side.is_ordered for side in step.sides):
        said += " Statistics do not tell the order of calls; that of the modules is taken."
    return [said]


def _lost(step: Step) -> list[str]:
    num = sum(side.num_lost for side in step.sides)
    if not num:
        return []
    return [
        f"{plural(num, 'value')} were overwritten before they were compared; watch with "
        f"copy='always'."
    ]
