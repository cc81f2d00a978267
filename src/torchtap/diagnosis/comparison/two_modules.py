"""Two modules on one batch: both run, and the candidate is given what the reference was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torchtap.core.distributed import num_ranks
from torchtap.core.text import plural
from torchtap.diagnosis.comparison.alignment import align
from torchtap.diagnosis.comparison.compared_step import ComparedStep, result_of
from torchtap.diagnosis.comparison.distance import distance, matched
from torchtap.diagnosis.comparison.live_side import LiveSide, Seen, live_side
from torchtap.diagnosis.comparison.live_step import LiveStep
from torchtap.diagnosis.comparison.notes import noted
from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.result import Comparison
from torchtap.diagnosis.comparison.run_rows import Noise, compared_calls

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
    outputs = _outputs_of(sides[0], NAMES[0]), _outputs_of(sides[1], NAMES[1])
    wanted = _wanted(*outputs)
    one = sides[0].see(wanted[0])
    noise = _noise(sides[0], one, wanted[0])  # Before the candidate's values are held as well.
    seen = one, sides[1].see(wanted[1])
    live = LiveStep(sides, seen, renaming, tolerance, noise)
    step = live.compare()
    if any(found.row.is_beyond for found in step.found) or step.first is not None:
        live = live.with_given(wanted)
        step = live.compare()
        seen = live.seen
    notes = [_summary(step), *_outputs(*outputs), *_tied(live, step), *_notes(sides, seen, noise)]
    notes += [*_compiled(sides, outputs), *noted(step)]
    return result_of(step, notes, NAMES)


def _outputs_of(side: LiveSide, name: str) -> dict[str, Tensor]:
    try:
        return side.outputs()
    except BaseException as error:
        error.add_note(f"torchtap: raised by {name}, {type(side.model).__name__}, on the batch.")
        raise


def _wanted(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor]
) -> tuple[list[str] | None, list[str] | None]:
    """Return the outputs that the loss is made of: those that both have, with as many elements."""
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
    again = side.see(wanted)
    pairs = align(seen.calls.calls, again.calls.calls, Renaming({}))
    compared = compared_calls(pairs, 0, fixed=0.0, noise={}, is_live=True)
    return {
        ("" if one.row.path == "." else one.row.path, one.row.port, one.row.call): one.row.total
        for one in compared
        if one.row.total > 0
    }


# ---------------------------------------------------------------------- what is said


def _summary(step: ComparedStep) -> str:
    forward = sum(one.row.phase in ("forward", "eval") for one in step.found)
    backward = sum(one.row.phase == "backward" for one in step.found)
    said = f"Compared {plural(len(step.pairs), 'call')}: {plural(forward, 'output')}"
    if backward:
        return f"{said}, and {plural(backward, 'gradient')} of a fixed loss over all outputs."
    return f"{said}, and no gradient: nothing that both return requires grad."


def _outputs(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> list[str]:
    """Say which tensors of the output only one side has."""
    pairs = matched(one, two)
    others = [
        ("reference", [leaf for leaf in one if leaf not in {own for own, _ in pairs}]),
        ("candidate", [leaf for leaf in two if leaf not in {other for _, other in pairs}]),
    ]
    return [
        f"Only the {name} returns {', '.join(leaves[:3])}{' and more' if len(leaves) > 3 else ''}."
        for name, leaves in others
        if leaves and pairs
    ]


def _tied(live: LiveStep, step: ComparedStep) -> list[str]:
    ones, _ = live.tied({pair.one.path: pair.two.path for pair in step.pairs})
    if not ones:
        return []
    return [
        f"{', '.join(sorted(ones))}: their parameter is one in one model and two in the other, so "
        f"gradients of it are not compared."
    ]


def _notes(sides: tuple[LiveSide, LiveSide], seen: tuple[Seen, Seen], noise: Noise) -> list[str]:
    notes = []
    for side, name in zip(sides, NAMES, strict=True):
        if side.cast:
            notes.append(f"The inputs of {name} were converted to {side.cast}.")
    why = next((one.why_not for one in seen if one.why_not), "")
    if why:
        notes.append(f"What a call adds is told by its inputs and outputs alone: {why}")
    if noise:
        (path, port, _), worst = max(noise.items(), key=lambda each: each[1])
        notes.append(
            f"Two runs of the reference differ by up to {worst:.2g} ({path or '.'}:{port}); "
            f"differences below four times that are not seen."
        )
    return notes


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
