"""Two modules on one batch: both run, and the candidate is given what the reference was given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from torchtap.core.distributed import num_ranks
from torchtap.core.text import plural
from torchtap.diagnosis.comparison.alignment import Pair, align
from torchtap.diagnosis.comparison.compared_step import ComparedStep, alone_of, result_of
from torchtap.diagnosis.comparison.containers import Alone, between
from torchtap.diagnosis.comparison.distance import Values, distance, matched
from torchtap.diagnosis.comparison.experiments import Found, experiment
from torchtap.diagnosis.comparison.feeding import Feeder, Lent, floating, relative
from torchtap.diagnosis.comparison.first_divergence import adds, first_divergence
from torchtap.diagnosis.comparison.live_side import LiveSide, Seen, live_side
from torchtap.diagnosis.comparison.notes import noted
from torchtap.diagnosis.comparison.parameter_pairs import parameter_pairs
from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.result import Comparison
from torchtap.diagnosis.comparison.rounding import coarsest
from torchtap.diagnosis.comparison.run_rows import (
    Compared,
    Noise,
    compared_calls,
    compared_states,
    dtypes_of_pair,
    kinks_of,
    lacking,
)
from torchtap.diagnosis.comparison.settings import other_settings
from torchtap.diagnosis.comparison.step_calls import StepCalls, is_below

_TIMES = 4.0
NAMES = ("the reference", "the candidate")


def compare_modules(
    a: nn.Module,
    b: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    renaming: Renaming,
    *,
    tolerance: float | None,
) -> Comparison:
    """Run both on the same inputs from the same random state, and compare call by call."""
    sides = live_side(a, args, kwargs), live_side(b, args, kwargs)
    renaming = renaming.fitted(list(sides[0].modules), list(sides[1].modules))
    outputs = sides[0].outputs(), sides[1].outputs()
    wanted = _wanted(*outputs)
    seen = sides[0].see(wanted[0]), sides[1].see(wanted[1])
    noise = _noise(sides[0], seen[0], wanted[0])
    live = _Live(sides, seen, renaming, tolerance, noise)
    step = live.compare()
    ones, _ = live.tied({pair.one.path: pair.two.path for pair in step.pairs})
    tied = (
        [
            f"{', '.join(sorted(ones))}: their parameter is one in one model and two in the "
            "other, so gradients of it are not compared."
        ]
        if ones
        else []
    )
    notes = [
        _summary(step),
        *tied,
        *_notes(sides, seen, noise),
        *_compiled(sides, outputs),
        *noted(step),
    ]
    return result_of(step, notes, NAMES)


def _wanted(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor]
) -> tuple[list[str] | None, list[str] | None]:
    """The outputs that the loss is made of: those that both have, with as many elements."""
    floating = [
        {leaf: value for leaf, value in side.items() if value.is_floating_point()}
        for side in (one, two)
    ]
    pairs = [
        (leaf, other)
        for leaf, other in matched(floating[0], floating[1])
        if floating[0][leaf].numel() == floating[1][other].numel()
    ]
    return ([leaf for leaf, _ in pairs], [other for _, other in pairs]) if pairs else (None, None)


def _noise(side: LiveSide, seen: Seen, wanted: Sequence[str] | None) -> Noise:
    """Distances of two runs of the reference, of those values that differ."""
    again = side.see(wanted, capture=False)
    pairs = align(seen.calls.calls, again.calls.calls, Renaming({}))
    found = compared_calls(pairs, 0, fixed=0.0, noise={}, is_live=True)
    return {
        ("" if one.row.path == "." else one.row.path, one.row.port, one.row.call): one.row.total
        for one in found
        if one.row.total > 0
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
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

    def compare(self) -> ComparedStep:
        """Compare forward, then backward, then parameters."""
        calls = self.seen[0].calls, self.seen[1].calls
        pairs = align(calls[0].calls, calls[1].calls, self.renaming)
        homes = {pair.one.path: pair.two.path for pair in reversed(pairs)}
        found = compared_calls(pairs, 0, fixed=self.tolerance, noise=self.noise, is_live=True)
        found = [self._fed(one, homes) for one in found]
        states, *only = compared_states(
            *self._like(calls, homes),
            self.renaming,
            homes,
            fixed=self.tolerance,
            least=kinks_of(found, pairs),
        )
        alone = alone_of(calls, pairs)
        causes = _LiveCauses(self, [*found, *states], alone, homes)
        first = first_divergence([*found, *states], causes.why)
        if first is None or first.row.phase == "backward":
            found = [self._fed_backward(one, homes) for one in found]
            causes = _LiveCauses(self, [*found, *states], alone, homes)
            first = first_divergence([*found, *states], causes.why)
        return ComparedStep(calls, pairs, [*found, *states], alone, (only[0], only[1]), first)

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
                one
                for one in each.states
                if one.path not in out and not (one.port == "param_grad" and one.path in ties)
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
        """What gives one pair's inputs to the candidate; ``None`` where they are not held."""
        one = self.seen[0].captured.get((pair.one.path, pair.one.number))
        two = self.seen[1].captured.get((pair.two.path, pair.two.number))
        if one is None or two is None or not (one.has_returned and two.has_returned):
            return None
        modules = self.sides[0].modules[pair.one.path], self.sides[1].modules[pair.two.path]
        inside = _inside(homes, pair)
        return Feeder(modules[1], one, two, parameter_pairs(*modules, inside), inside)

    def _fed(self, one: Compared, homes: Mapping[str, str]) -> Compared:
        """The row of an output with what the call adds."""
        row = one.row
        if one.pair is None or row.port != "output" or not row.is_beyond:
            return one
        feeder = self.feeder(one.pair, homes)
        added = math.nan if feeder is None else relative(feeder.added())
        if feeder is None or math.isnan(added):
            return one
        return self._raised(replace(one, row=replace(row, added=added)), feeder, None)

    def _fed_backward(self, one: Compared, homes: Mapping[str, str]) -> Compared:
        """The row of a gradient with what the call adds in the backward."""
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
        again = Feeder(own, feeder.one, feeder.one, (), {"": ""})
        result = again.result(Lent(rounded=coarsest(dtypes_of_pair(one.pair))), arriving)
        if result is None:
            return one
        values = floating(result.output) if arriving is None else result.inputs
        moved = distance(one.pair.one.port(one.row.port), values).relative
        tolerance = max(one.row.tolerance, _TIMES * moved)
        return replace(one, row=replace(one.row, tolerance=tolerance))


@dataclass(frozen=True, slots=True, eq=False)
class _LiveCauses:
    """Finds causes by experiment."""

    live: _Live
    found: Sequence[Compared]
    alone: Alone
    homes: Mapping[str, str]

    def why(self, one: Compared) -> tuple[str, str]:
        """Return the cause of a row that adds a difference, and a sentence."""
        if one.states is not None:
            return self._of_state(one)
        assert one.pair is not None
        name = one.row.name
        if one.row.phase == "backward":
            return "computation", (
                f"The forward agrees; {name} gets the same gradient and gives another one back."
            )
        feeder = self.live.feeder(one.pair, self.homes)
        shown = None if feeder is None else experiment(feeder, one.row.tolerance)
        head = f"{name} is given the same and returns something else"
        if shown is not None and shown.cause:
            return shown.cause, f"{head} (by {one.row.added:.2g}): {shown.text}."
        if one.pair.one.is_leaf:
            return self._of_leaf(one, one.pair, shown)
        cause, text = between(one, self.found, self.alone)
        return cause, f"{name}:{one.row.port} is {one.total.why}. {text}" if one.total.why else text

    def _of_leaf(self, one: Compared, pair: Pair, shown: Found | None) -> tuple[str, str]:
        name = one.row.name
        head = f"{name}:{one.row.port} is {one.total.why}. " if one.total.why else ""
        mine, theirs = pair.one.traits, pair.two.traits
        if mine.type == theirs.type and mine.sizes != theirs.sizes:
            sizes = (", ".join(map(str, each.sizes)) for each in (mine, theirs))
            return "weights", f"{head}Its weights have {next(sizes)} elements, and {next(sizes)}."
        metas = self.live.seen[0].meta, self.live.seen[1].meta
        settings = other_settings(metas, pair.one.path, pair.two.path)
        types = f" ({mine.type} against {theirs.type})" if mine.type != theirs.type else ""
        same = f" from {shown.text}" if shown is not None else ""
        why = f" ({settings})" if settings and not types else ""
        return "computation", f"{head}{name}{types} computes something else{same}{why}."

    def _of_state(self, one: Compared) -> tuple[str, str]:
        leaf, name = one.total.leaf, one.row.name
        if one.states is not None and (lack := lacking(*one.states)):
            return "missing", f"{name}: {lack}. It is frozen, or cut off from the output."
        much = one.total.why or f"differs by {one.row.total:.2g}"
        if one.row.port in ("param", "buffer"):
            cause = "weights" if one.row.port == "param" else "buffers"
            return cause, f"{one.row.port} {leaf} of {name} {much}; no output shows it."
        return "computation", (
            f"The forward agrees, and the gradient of {leaf} of {name} {much}; the calls agree "
            f"when they are given the same, so what stands between them has another backward."
        )


def _ties(modules: Mapping[str, nn.Module]) -> dict[str, set[str]]:
    """Path -> paths of other modules that have one of its parameters."""
    owners: dict[int, set[str]] = {}
    for path, module in modules.items():
        for param in module._parameters.values():
            if param is not None:
                owners.setdefault(id(param), set()).add(path)
    found: dict[str, set[str]] = {}
    for paths in owners.values():
        for path in paths if len(paths) > 1 else ():
            found[path] = found.get(path, set()) | paths - {path}
    return found


def _inside(homes: Mapping[str, str], pair: Pair) -> dict[str, str]:
    """Paths below both modules of a pair, relative to them."""
    one, two = pair.one.path, pair.two.path
    found = {"": ""}
    for path, home in homes.items():
        if is_below(path, one) and is_below(home, two):
            found[_relative(path, one)] = _relative(home, two)
    return found


def _relative(path: str, above: str) -> str:
    return path[len(above) + 1 :] if above else path


# ---------------------------------------------------------------------- what is said


def _summary(step: ComparedStep) -> str:
    forward = sum(one.row.phase in ("forward", "eval") for one in step.found)
    backward = sum(one.row.phase == "backward" for one in step.found)
    said = f"Compared {plural(len(step.pairs), 'call')}: {plural(forward, 'output')}"
    if backward:
        return f"{said}, and {plural(backward, 'gradient')} of a fixed loss over all outputs."
    return f"{said}, and no gradient: nothing that both return requires grad."


def _notes(sides: tuple[LiveSide, LiveSide], seen: tuple[Seen, Seen], noise: Noise) -> list[str]:
    found = []
    for side, name in zip(sides, NAMES, strict=True):
        if side.cast:
            found.append(f"The inputs of {name} were converted to {side.cast}.")
    why = next((one.why_not for one in seen if one.why_not), "")
    if why:
        found.append(f"What a call adds is told by its inputs and outputs alone: {why}")
    if noise:
        (path, port, _), worst = max(noise.items(), key=lambda each: each[1])
        found.append(
            f"Two runs of the reference differ by up to {worst:.2g} ({path or '.'}:{port}); "
            f"differences below four times that are not seen."
        )
    return found


def _compiled(
    sides: tuple[LiveSide, LiveSide], outputs: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
) -> list[str]:
    """Say of a compiled model how far its compiled output is from the other side's."""
    compiled = [name for side, name in zip(sides, NAMES, strict=True) if side.is_compiled]
    if not compiled or num_ranks() > 1:
        return []
    apart = distance(outputs[0], outputs[1]).relative
    return [
        f"Compiled modules ran uncompiled, call by call ({' and '.join(compiled)}). As compiled, "
        f"the outputs differ by {apart:.2g}."
    ]
