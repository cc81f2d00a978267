"""Rows of two runs: how far the calls of one step are from each other, and what they inherit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchtap.core.site import Site
from torchtap.diagnosis.comparison.alignment import Pair
from torchtap.diagnosis.comparison.distance import (
    EQUAL,
    Distance,
    Values,
    distance,
    dtypes_of,
    shapes_of,
)
from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.result import Row
from torchtap.diagnosis.comparison.rounding import coarsest, epsilon, kinks, rounding
from torchtap.diagnosis.comparison.step_calls import State, StepCalls

_GRADIENT = "param_grad"
_SHARE = 0.05
"""Gradients below this share of the largest of their kind are allowed its rounding: one that is
zero but for rounding, as that of the bias of keys, is noise."""
Noise = Mapping[tuple[str, str, int], float]
"""Path of the reference, port and call -> distance of two runs of the reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A row and what it was made of.

    Attributes:
        row: the numbers.
        pair: the calls; ``None`` of a state.
        states: the parameters or the like; ``None`` of a call.
        total: of the values.
        inherited: of the inputs, or of the incoming gradients; ``None`` where not known.
    """

    row: Row
    pair: Pair | None
    states: tuple[State, State] | None
    total: Distance
    inherited: Distance | None

    @property
    def is_equal(self) -> bool:
        """Return whether the values are the same."""
        return self.total.error == 0


def compared_calls(
    pairs: Sequence[Pair],
    step: int,
    *,
    fixed: float | None,
    noise: Noise,
    is_live: bool,
    least: float = 0.0,
) -> list[Compared]:
    """Outputs in the order of the calls, then gradients of inputs in the order of the backward.

    Args:
        pairs: aligned calls.
        step: of the reference.
        fixed: the tolerance for all, if one was asked for.
        noise: of the reference against itself.
        is_live: whether what a call adds will be found by feeding it; else rounding adds up over
            the calls before it.
        least: distance that is allowed at least.
    """
    compared = []
    num_before = 0
    for pair in pairs:
        num_before += pair.one.is_leaf
        terms = _Terms(pair, fixed, noise, num_before=None if is_live else num_before)
        terms.allow(least)
        ports = pair.one.values.keys() & pair.two.values.keys()
        if "output" in ports:
            compared.append(_of_port(pair, "output", "input", step, terms))
        elif "input" in ports:
            compared.append(_of_port(pair, "input", "", step, terms))
    is_equal = all(one.is_equal for one in compared)
    for pair in reversed(pairs):
        terms = _Terms(pair, fixed, noise, num_before=None if is_live else num_before)
        if not (is_equal or (is_live and pair.one.is_leaf)):
            terms.allow(max(least, kinks(dtypes_of_pair(pair), terms.num_calls)))
        for port, source in _gradient_ports(pair):
            compared.append(_of_port(pair, port, source, step, terms))
    return _with_largest(compared, fixed)


def _gradient_ports(pair: Pair) -> Iterator[tuple[str, str]]:
    ports = pair.one.values.keys() & pair.two.values.keys()
    if "grad_output" in ports:
        yield "grad_output", ""
    if "grad_input" in ports:
        yield "grad_input", "grad_output"


class _Terms:
    """How far rounding explains a distance."""

    def __init__(
        self, pair: Pair, fixed: float | None, noise: Noise, *, num_before: int | None = None
    ) -> None:
        self._pair = pair
        self._fixed = fixed
        self._noise = noise
        self.num_calls = pair.one.num_inside if num_before is None else num_before
        self._least = 0.0

    def allow(self, distance: float) -> None:
        """Allow a distance at least."""
        self._least = distance

    def of(self, port: str) -> float:
        """Return the tolerance at a port."""
        if self._fixed is not None:
            return self._fixed
        one, terms = self._pair.one, num_terms_of(self._pair)
        own = rounding(dtypes_of_pair(self._pair), terms, num_calls=self.num_calls)
        return max(own, self._least, 4 * self._noise.get((one.path, port, one.number), 0.0))


def kinks_of(found: Sequence[Compared], pairs: Sequence[Pair]) -> float:
    """Return the distance that gradients of parameters may have: 0 where all outputs are equal."""
    if all(one.is_equal for one in found if one.row.port == "output"):
        return 0.0
    dtypes = [dtype for pair in pairs for dtype in dtypes_of_pair(pair)]
    return kinks(dtypes, sum(pair.one.is_leaf for pair in pairs))


def dtypes_of_pair(pair: Pair) -> list[str]:
    """Dtypes of inputs, outputs and parameters on both sides."""
    dtypes: list[str] = []
    for call in (pair.one, pair.two):
        dtypes += call.traits.dtypes
        for values in call.values.values():
            dtypes += dtypes_of(values)
    return dtypes


def num_terms_of(pair: Pair) -> int:
    """Terms of the longest sum, from the parameters; else from the last dims of what is known."""
    num_terms = max(pair.one.traits.terms, pair.two.traits.terms)
    if num_terms:
        return num_terms
    shapes = [
        shape
        for call in (pair.one, pair.two)
        for port in ("input", "output")
        for shape in shapes_of(call.port(port))
    ]
    return max((shape[-1] for shape in shapes if len(shape)), default=0)


def _of_port(pair: Pair, port: str, source: str, step: int, terms: _Terms) -> Compared:
    one, two = pair.one, pair.two
    total = distance(one.port(port), two.port(port))
    inherited = _inherited(pair, source)
    phase = one.phase if port in ("input", "output") else "backward"
    row = _row(one.name, two.name, port, one.number, phase, step, total, inherited, terms.of(port))
    return Compared(row, pair, None, total, inherited)


def _inherited(pair: Pair, source: str) -> Distance | None:
    """The distance of what went in, of the values that both sides have in the same number."""
    if not source:
        return None
    one, two = pair.one.port(source), pair.two.port(source)
    if not one or not two:
        return None
    inherited = distance(one, two)
    return None if math.isinf(inherited.error) and len(one) != len(two) else inherited


def _row(
    path: str,
    other: str,
    port: str,
    call: int,
    phase: str,
    step: int,
    total: Distance,
    inherited: Distance | None,
    tolerance: float,
) -> Row:
    came = math.nan if inherited is None else inherited.relative
    added = total.relative if came <= tolerance else math.nan
    return Row(path, other, port, call, phase, total.relative, came, added, tolerance, step=step)


def _with_largest(found: Sequence[Compared], fixed: float | None) -> list[Compared]:
    """Raise the tolerance of small gradients to the rounding of the largest of their port."""
    if fixed is not None:
        return list(found)
    largest: dict[str, float] = {}
    for one in found:
        if one.row.phase == "backward" and math.isfinite(one.total.scale):
            largest[one.row.port] = max(largest.get(one.row.port, 0.0), one.total.scale)
    return [_raised(one, largest.get(one.row.port, 0.0)) for one in found]


def _raised(one: Compared, largest: float) -> Compared:
    row, scale = one.row, one.total.scale
    if row.phase != "backward" or scale <= 0 or scale >= _SHARE * largest:
        return one
    tolerance = row.tolerance * _SHARE * largest / scale
    added = row.total if row.inherited <= tolerance else row.added
    return replace(one, row=replace(row, tolerance=tolerance, added=added))


# ---------------------------------------------------------------------- parameters and the like


def compared_states(
    one: StepCalls, two: StepCalls, renaming: Renaming, homes: Mapping[str, str], *,
    fixed: float | None, least: float = 0.0, drift: float = 0.0,
) -> tuple[list[Compared], list[State], list[State]]:  # fmt: skip
    """Parameters, buffers, their gradients and updates.

    Args:
        one: of the reference.
        two: of the candidate.
        renaming: ``map``.
        homes: path -> path in the candidate, as the calls were aligned.
        fixed: the tolerance for all, if one was asked for.
        least: distance that gradients and updates may have at least.
        drift: likewise, of all, since earlier steps were rounded otherwise.

    Returns:
        what both have, and what only one has.
    """
    known = {(state.path, state.port, state.number): state for state in two.states}
    have_gradients = all(any(s.port == _GRADIENT for s in each.states) for each in (one, two))
    found, only = [], []
    for state in one.states:
        path = homes.get(state.path, renaming.of(state.path))
        other = known.pop((path, state.port, state.number), None)
        if other is None and have_gradients and state.port == _GRADIENT and state.path in homes:
            other = State(path, state.port, state.number, {})
        if other is None:
            only.append(state)
            continue
        found.append(_of_states(state, other, one.step, fixed, (drift, max(least, drift))))
    back = {home: path for path, home in homes.items()}
    for key, state in list(known.items()):
        if have_gradients and state.port == _GRADIENT and state.path in back:
            own = State(back[state.path], state.port, state.number, {})
            found.append(
                _of_states(own, known.pop(key), one.step, fixed, (drift, max(least, drift)))
            )
    found.sort(key=lambda each: ("parameter", "backward", "optimizer").index(each.row.phase))
    return _with_largest(found, fixed), only, list(known.values())


def _of_states(
    one: State, two: State, step: int, fixed: float | None, least: tuple[float, float]
) -> Compared:
    lack = lacking(one, two)
    total = Distance(math.inf, 1.0, why=lack) if lack else _of_named(one.values, two.values)
    # Parameters and buffers are what they were set to; their gradients and updates are computed.
    dtypes = [*dtypes_of(one.values), *dtypes_of(two.values)]
    exact = epsilon(coarsest(dtypes) or "int64") if len(set(dtypes)) > 1 else 0.0
    computed = rounding(dtypes, max(map(_last, shapes_of(one.values)), default=0))
    tolerance = max(exact, least[0]) if one.phase == "parameter" else max(computed, least[1])
    tolerance = tolerance if fixed is None else fixed
    path, other = (str(Site(each.path)).rpartition(":")[0] for each in (one, two))
    row = _row(path, other, one.port, one.number, one.phase, step, total, None, tolerance)
    return Compared(row, None, (one, two), total, None)


def lacking(one: State, two: State) -> str:
    """Say which gradient one side has not got, where the other has one; empty if that is none."""
    mine, theirs = one.values.keys(), two.values.keys()
    is_renamed = len(mine) == len(theirs) and not mine & theirs
    if one.port != _GRADIENT or mine == theirs or is_renamed:
        return ""
    lacks = [(name, "candidate") for name in mine - theirs]
    name, side = (lacks or [(name, "reference") for name in theirs - mine])[0]
    return f"there is no gradient of {name} in the {side}"


def _last(shape: Sequence[int]) -> int:
    return shape[-1] if len(shape) else 0


def _of_named(one: Values, two: Values) -> Distance:
    """The distance of the values that have one name, and of the others if they are as many."""
    common = one.keys() & two.keys()
    if common and one.keys() != two.keys():
        one, two = ({name: each[name] for name in common} for each in (one, two))
    return distance(one, two) if one and two else EQUAL
