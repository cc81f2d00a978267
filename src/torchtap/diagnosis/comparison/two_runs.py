"""Two runs: which steps are compared, and what is found in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchtap.core.errors import CompareError
from torchtap.core.record import said_steps
from torchtap.core.text import plural
from torchtap.diagnosis.comparison.alignment import align
from torchtap.diagnosis.comparison.compared_step import ComparedStep, alone_of, result_of
from torchtap.diagnosis.comparison.first_divergence import first_divergence
from torchtap.diagnosis.comparison.notes import noted
from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.result import Comparison
from torchtap.diagnosis.comparison.run_causes import RunCauses
from torchtap.diagnosis.comparison.run_rows import (
    Compared,
    compared_calls,
    compared_states,
    kinks_of,
)
from torchtap.diagnosis.comparison.step_calls import step_calls
from torchtap.runs.run import Run

_LEAST_DRIFT = 2.0**-20
"""Allowed in later steps where something but no output was rounded otherwise in an earlier one."""


def compare_runs(
    a: Run, b: Run, renaming: Renaming, *, tolerance: float | None, names: tuple[str, str]
) -> Comparison:
    """Compare two runs, step by step, up to the first step that differs.

    Raises:
        CompareError: a run holds nothing, or both have nothing in common.
    """
    for run, name in ((a, names[0]), (b, names[1])):
        if not run.sites:
            raise CompareError(
                f"Nothing was recorded in {name}. Watch a forward: with tt.watch(model) as w: ..."
            )
    steps, said = _steps(a, b)
    renaming = _fitted(a, b, renaming)
    number, drift = 0, 0.0
    for one, two in steps:
        last = compare_step(a, b, (one, two), renaming, tolerance, drift=drift)
        number += 1
        if last.first is not None:
            break
        if any(not each.is_equal for each in last.found):
            drift = math.hypot(drift, kinks_of(last.found, last.pairs) or _LEAST_DRIFT)
    if not last.found:
        raise CompareError(_nothing_in_common(a, b, names))
    notes = [*said, *_progress(steps[:number], len(steps), last), *_ranks(a, b), *noted(last)]
    if drift and number > 1 and tolerance is None:
        notes.append(
            f"Rounding of earlier steps goes on in the weights: up to {drift:.2g} is allowed in "
            f"{'step' if last.first is not None else 'the last step,'} {last.sides[0].step}."
        )
    compared = [step for step, _ in steps[:number]]
    alone = len(a.steps) - len(steps), len(b.steps) - len(steps)
    return replace(result_of(last, notes, names), steps=compared, steps_alone=alone)


def compare_step(
    a: Run,
    b: Run,
    steps: tuple[int, int],
    renaming: Renaming,
    tolerance: float | None,
    *,
    drift: float = 0.0,
) -> ComparedStep:
    """Compare one step of a run with one of another.

    Args:
        a: the reference.
        b: the candidate.
        steps: of both.
        renaming: ``map``.
        tolerance: for all, if one was asked for.
        drift: distance that rounding of earlier steps may have made.
    """
    one, two = steps
    measured = not (len(a) and len(b))
    sides = step_calls(a, one, by_statistics=measured), step_calls(b, two, by_statistics=measured)
    pairs = align(sides[0].calls, sides[1].calls, renaming)
    compared = compared_calls(pairs, one, fixed=tolerance, noise={}, is_live=False, least=drift)
    compared = _without_inputs(compared)
    homes = {pair.one.path: pair.two.path for pair in reversed(pairs)}
    states, only_a, only_b = compared_states(
        *sides, renaming, homes, fixed=tolerance, least=kinks_of(compared, pairs), drift=drift
    )
    alone = alone_of(sides, pairs)
    every = [*compared, *states]
    causes = RunCauses(every, alone, (a, b))
    first = first_divergence(every, causes.why)
    return ComparedStep(sides, pairs, every, alone, (only_a, only_b), first)


def _without_inputs(found: Sequence[Compared]) -> list[Compared]:
    """Take the first output that departs for the one that adds, without recorded inputs."""
    made, is_clean = [], True
    for one in found:
        row = one.row
        if is_clean and math.isnan(row.inherited) and row.port in ("output", "grad_output"):
            one = replace(one, row=replace(row, added=row.total))
        is_clean = is_clean and not row.is_beyond
        made.append(one)
    return made


# ---------------------------------------------------------------------- what is said


def _steps(a: Run, b: Run) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the steps that are compared with each other, and what is to be known of the others."""
    common = sorted(set(a.steps) & set(b.steps))
    if common:
        others = [set(run.steps) - set(common) for run in (a, b)]
        said = [
            f"The {name} alone has {said_steps(sorted(other))}."
            for name, other in zip(("reference", "candidate"), others, strict=True)
            if other
        ]
        return [(step, step) for step in common], said
    steps = list(zip(a.steps, b.steps, strict=False))
    if not steps:
        raise CompareError("A run has no step in which anything was recorded.")
    text = (
        f"No step has one number in both: {said_steps(a.steps)} of the reference, "
        f"{said_steps(b.steps)} of the candidate. They are compared in their order."
    )
    return steps, [text]


def _progress(done: Sequence[tuple[int, int]], total: int, last: ComparedStep) -> list[str]:
    steps = [one for one, _ in done]
    said = f"Compared {plural(len(last.found), 'value')} of {said_steps(steps)}."
    if last.first is not None and len(done) < total:
        left = total - len(done)
        was = "was" if left == 1 else "were"
        said += f" The first difference is in step {steps[-1]}; {plural(left, 'later step')} {was} "
        said += "not compared."
    return [said]


def _ranks(a: Run, b: Run) -> list[str]:
    one, two = a.meta, b.meta
    if (one.rank, one.world_size) == (two.rank, two.world_size):
        return []
    names = [
        f"rank {meta.rank} of {meta.world_size}"
        if meta.rank is not None
        else f"all {meta.world_size} ranks, merged"
        for meta in (one, two)
    ]
    return [f"The reference is {names[0]}, the candidate {names[1]}."]


def _fitted(a: Run, b: Run, renaming: Renaming) -> Renaming:
    known, others = ([*run.meta.modules, *{site.path for site in run.sites}] for run in (a, b))
    return renaming.fitted(known, others)


def _nothing_in_common(a: Run, b: Run, names: tuple[str, str]) -> str:
    shown = [", ".join(map(str, run.sites[:3])) for run in (a, b)]
    return (
        f"{names[0]} and {names[1]} have nothing in common: {shown[0]} against {shown[1]}. Say "
        f"which path is which: map={{'path in the first': 'path in the second'}}."
    )
