"""Why a module adds a difference, by experiment: what makes it vanish is the cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchtap.diagnosis.comparison.distance import Distance, distance
from torchtap.diagnosis.comparison.feeding import Feeder, Lent, relative
from torchtap.diagnosis.comparison.parameter_pairs import ParameterPair


@dataclass(frozen=True, slots=True)
class Found:
    """The result of an experiment.

    Attributes:
        cause: what made the difference vanish; empty where nothing did.
        text: the end of a sentence.
    """

    cause: str
    text: str


def experiment(feeder: Feeder, tolerance: float) -> Found:
    """Lend parts of the reference's state to the candidate's module, and see what is left.

    One part after the other, then all together; of these the cause is the one without which the
    most is left. Random states are lent with every part, since they decide nothing else.

    Args:
        feeder: of the pair.
        tolerance: what rounding explains.
    """
    parts = dict(_parts(feeder))
    left: dict[str, float] = {}
    for cause, lent in parts.items():
        left[cause] = min((_left(feeder, one) for one in lent), default=float("inf"))
        if left[cause] <= tolerance:
            return Found(cause, _said(feeder, cause))
    several = [cause for cause in parts if cause != "random"]
    for way in (0, 1) if len(several) > 1 else ():
        whole = _together(several, way)
        if _left(feeder, whole) <= tolerance:
            without = {
                cause: _left(feeder, _together([one for one in several if one != cause], way))
                for cause in several
            }
            cause = max(without, key=lambda one: without[one])
            others = ", ".join(one for one in several if one != cause and without[one] > tolerance)
            more = f", and {others} as well" if others else ""
            return Found(cause, _said(feeder, cause) + more)
    return Found("", _unexplained(feeder))


def _parts(feeder: Feeder) -> Iterator[tuple[str, list[Lent]]]:
    if feeder.has_other_random():
        yield "random", [Lent(random=True)]
    if feeder.has_other_modes():
        yield "mode", [Lent(mode=True, random=True)]
    if feeder.has_other_buffers():
        yield "buffers", [Lent(buffers=True, random=True)]
    ways = {len(pair.values) for pair in feeder.params}
    if feeder.differing() or max(ways, default=1) > 1:
        yield "weights", [Lent(weights=way, random=True) for way in range(max(ways, default=1))]
    if feeder.has_other_dtypes():
        yield "dtype", [Lent(dtype=True, random=True)]


def _together(causes: list[str], way: int) -> Lent:
    return Lent(
        mode="mode" in causes,
        buffers="buffers" in causes,
        weights=way if "weights" in causes else None,
        random=True,
        dtype="dtype" in causes,
    )


def _left(feeder: Feeder, lent: Lent) -> float:
    value = relative(feeder.added(lent))
    return float("inf") if value != value else value


def _said(feeder: Feeder, cause: str) -> str:
    if cause == "weights":
        return _said_weights(feeder)
    if cause == "mode":
        one, two = ("training" if side else "eval" for side in _modes(feeder))
        return f"the reference is in {one} mode and the candidate in {two} mode"
    if cause == "buffers":
        return f"buffers differ: {_worst_buffer(feeder)}"
    if cause == "dtype":
        return "the candidate computes in another dtype, and in that of the reference it agrees"
    return "it draws random numbers, and the generators were in another state when it was called"


def _modes(feeder: Feeder) -> tuple[bool, bool]:
    for path, mode in feeder.two.modes.items():
        other = feeder.reference_mode(path)
        if other != mode:
            return bool(other), bool(mode)
    return bool(feeder.one.modes.get("")), bool(feeder.two.modes.get(""))


def _said_weights(feeder: Feeder) -> str:
    pairs = feeder.differing()
    if not pairs:
        square = [pair.name for pair in feeder.params if len(pair.values) > 1]
        return f"weights agree only when they are transposed: {', '.join(square[:3])}"
    worst = max(pairs, key=lambda pair: _apart(pair).relative)
    others = f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else ""
    return f"weights differ: {worst.name} by {_apart(worst).relative:.2g}{others}"


def _apart(pair: ParameterPair) -> Distance:
    ways = [distance({"": value}, {"": pair.own.detach()}) for value in pair.values]
    return min(ways, key=lambda one: one.relative)


def _worst_buffer(feeder: Feeder) -> str:
    apart = {
        name: distance({"": value}, {"": feeder.two.buffers[name]}).relative
        for name, value in feeder.lent_buffers().items()
    }
    worst = max(apart, key=lambda name: apart[name])
    return f"{worst} by {apart[worst]:.2g}"


def _unexplained(feeder: Feeder) -> str:
    pairs = feeder.differing()
    is_known = len(feeder.params) == sum(1 for _ in feeder.module.parameters())
    same = ["weights"] if feeder.params and is_known and not pairs else []
    said = f"the same {', '.join([*same, 'input'])} and mode"
    if pairs:
        said += f"; weights differ too ({_apart(pairs[0]).relative:.2g} at {pairs[0].name})"
    return said
