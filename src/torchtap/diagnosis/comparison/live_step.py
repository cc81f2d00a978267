"""Two modules that have run: their calls compared, and what each adds found by feeding it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from torchtap.diagnosis.comparison.alignment import Pair, align
from torchtap.diagnosis.comparison.compared_step import ComparedStep, alone_of
from torchtap.diagnosis.comparison.distance import Values, distance
from torchtap.diagnosis.comparison.feeding import Feeder, Lent, floating, relative
from torchtap.diagnosis.comparison.first_divergence import adds, first_divergence
from torchtap.diagnosis.comparison.live_causes import LiveCauses
from torchtap.diagnosis.comparison.live_side import LiveSide, Seen
from torchtap.diagnosis.comparison.parameter_pairs import parameter_pairs
from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.rounding import coarsest
from torchtap.diagnosis.comparison.run_rows import (
    Compared,
    Noise,
    compared_calls,
    compared_states,
    dtypes_of_pair,
    kinks_of,
)
from torchtap.diagnosis.comparison.step_calls import StepCalls, is_below

_TIMES = 4.0
"""Times the distance that rounding of its inputs makes, which a call may add."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveStep:
    """Two sides that have run.

    Attributes:
        sides: both.
        seen: what they showed.
        renaming: ``map``.
        tolerance: for all, if one was asked for.
        noise: of the reference against itself.
    """

    sides: tuple[LiveSide, LiveSide]
    seen: tuple[Seen, Seen]
    renaming: Renaming
    tolerance: float | None
    noise: Noise

    def with_given(self, wanted: tuple[Sequence[str] | None, Sequence[str] | None]) -> LiveStep:
        """Run both again, and hold what each call is given.

        Args:
            wanted: leaves of both outputs that the loss is made of.
        """
        one, two = self.sides
        seen = one.with_given(self.seen[0], wanted[0]), two.with_given(self.seen[1], wanted[1])
        return replace(self, seen=seen)

    def compare(self) -> ComparedStep:
        """Compare forward, then backward, then parameters."""
        calls = self.seen[0].calls, self.seen[1].calls
        metas = self.seen[0].meta, self.seen[1].meta
        pairs = align(calls[0].calls, calls[1].calls, self.renaming)
        homes = {pair.one.path: pair.two.path for pair in reversed(pairs)}
        compared = compared_calls(pairs, 0, fixed=self.tolerance, noise=self.noise, is_live=True)
        compared = [self._fed(one, homes) for one in compared]
        states, *only = compared_states(
            *self._like(calls, homes),
            self.renaming,
            homes,
            fixed=self.tolerance,
            least=kinks_of(compared, pairs),
        )
        alone = alone_of(calls, pairs)
        causes = LiveCauses(self.feeder, metas, [*compared, *states], alone, homes)
        first = first_divergence([*compared, *states], causes.why)
        if first is None or first.row.phase == "backward":
            compared = [self._fed_backward(one, homes) for one in compared]
            causes = LiveCauses(self.feeder, metas, [*compared, *states], alone, homes)
            first = first_divergence([*compared, *states], causes.why)
        return ComparedStep(calls, pairs, [*compared, *states], alone, (only[0], only[1]), first)

    def _like(
        self, calls: tuple[StepCalls, StepCalls], homes: Mapping[str, str]
    ) -> tuple[StepCalls, StepCalls]:
        """Without the parameters of modules that keep them in another form, or tied to others."""
        ones, twos = self.sides[0].traits, self.sides[1].traits
        others = [
            (path, home)
            for path, home in homes.items()
            if path in ones and home in twos and ones[path].type != twos[home].type
        ]
        left_out = [{path for path, _ in others}, {home for _, home in others}]
        tied = self.tied(homes)
        kept = [
            [
                state
                for state in each.states
                if state.path not in out and not (state.port == "param_grad" and state.path in ties)
            ]
            for each, out, ties in zip(calls, left_out, tied, strict=True)
        ]
        return replace(calls[0], states=kept[0]), replace(calls[1], states=kept[1])

    def tied(self, homes: Mapping[str, str]) -> tuple[set[str], set[str]]:
        """Paths whose parameter is that of other modules too, on one side alone."""
        mine, theirs = (_ties(side.modules) for side in self.sides)
        ones, twos = set[str](), set[str]()
        for path, home in homes.items():
            expected = {homes.get(one, one) for one in mine.get(path, set())}
            if expected != theirs.get(home, set()):
                ones.add(path)
                twos.add(home)
        return ones, twos

    def feeder(self, pair: Pair, homes: Mapping[str, str]) -> Feeder | None:
        """Return the feeder of one pair's inputs; ``None`` where they are not held."""
        one = self.seen[0].captured.get((pair.one.path, pair.one.number))
        two = self.seen[1].captured.get((pair.two.path, pair.two.number))
        if one is None or two is None or not (one.has_returned and two.has_returned):
            return None
        modules = self.sides[0].modules[pair.one.path], self.sides[1].modules[pair.two.path]
        inside = _inside(homes, pair)
        return Feeder(modules[1], modules[0], one, two, parameter_pairs(*modules, inside), inside)

    def _fed(self, one: Compared, homes: Mapping[str, str]) -> Compared:
        """Return the row of an output with what the call adds."""
        row = one.row
        if one.pair is None or row.port != "output" or not row.is_beyond:
            return one
        feeder = self.feeder(one.pair, homes)
        added = math.nan if feeder is None else relative(feeder.added())
        if feeder is None or math.isnan(added):
            return one
        return self._raised(replace(one, row=replace(row, added=added)), feeder, None)

    def _fed_backward(self, one: Compared, homes: Mapping[str, str]) -> Compared:
        """Return the row of a gradient with what the call adds in the backward."""
        row = one.row
        if one.pair is None or row.port != "grad_input" or not row.is_beyond:
            return one
        feeder = self.feeder(one.pair, homes)
        arriving = one.pair.one.port("grad_output")
        result = feeder.result(arriving=arriving) if feeder is not None and arriving else None
        if feeder is None or result is None:
            return one
        given = distance(one.pair.one.port("grad_input"), result.inputs)
        return self._raised(replace(one, row=replace(row, added=given.relative)), feeder, arriving)

    def _raised(self, one: Compared, feeder: Feeder, arriving: Values | None) -> Compared:
        """Allow what the reference itself makes of its inputs when these are rounded."""
        if self.tolerance is not None or one.pair is None or not adds(one):
            return one
        own = self.sides[0].modules[one.pair.one.path]
        again = Feeder(own, own, feeder.one, feeder.one, (), {"": ""})
        result = again.result(Lent(rounded=coarsest(dtypes_of_pair(one.pair))), arriving)
        if result is None:
            return one
        values = floating(result.output) if arriving is None else result.inputs
        moved = distance(one.pair.one.port(one.row.port), values).relative
        tolerance = max(one.row.tolerance, _TIMES * moved)
        return replace(one, row=replace(one.row, tolerance=tolerance))


def _ties(modules: Mapping[str, nn.Module]) -> dict[str, set[str]]:
    """Path -> paths of other modules that have one of its parameters."""
    owners: dict[int, set[str]] = {}
    for path, module in modules.items():
        for param in module._parameters.values():
            if param is not None:
                owners.setdefault(id(param), set()).add(path)
    ties: dict[str, set[str]] = {}
    for paths in owners.values():
        for path in paths if len(paths) > 1 else ():
            ties[path] = ties.get(path, set()) | paths - {path}
    return ties


def _inside(homes: Mapping[str, str], pair: Pair) -> dict[str, str]:
    """Paths below both modules of a pair, relative to them."""
    one, two = pair.one.path, pair.two.path
    owners = {"": ""}
    for path, home in homes.items():
        if is_below(path, one) and is_below(home, two):
            owners[_relative(path, one)] = _relative(home, two)
    return owners


def _relative(path: str, above: str) -> str:
    return path[len(above) + 1 :] if above else path
