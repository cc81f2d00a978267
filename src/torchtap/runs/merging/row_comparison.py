"""Rows of numbers of several ranks: whether they are alike, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchtap.runs.merging.placement_rules import MergeRule
from torchtap.stats.algebra import Rows
from torchtap.stats.rows import (
    L1,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGINF,
    NUM_FINITE,
    NUM_TENSORS,
    NUMEL,
    POSINF,
    SUBNORMAL,
    SUM_SQUARES,
    ZEROS,
    blank_rows,
)
from torchtap.stats.series import Series

Mask = NDArray[np.bool_]

_COUNTS = [NUMEL, NUM_FINITE, ZEROS, NAN, POSINF, NEGINF, SUBNORMAL, NUM_TENSORS, MIN, MAX]
"""Equal to the last digit where values are."""
_ROUNDING = 1e-11
"""Relative, of sums in float64: an accelerator adds in another order each time."""

ONE_OF_EQUAL = "equal on the ranks of one batch, so taken once"
PARTS_THAT_DIFFER = "not equal on the ranks of one batch, so taken for parts of one value"
SAME_BATCH = "equal for all parts of the batch: a constant, or the same samples on each"


def same_rows(one: Rows, two: Rows) -> Mask:
    """Return which rows have equal values, as far as numbers can tell."""
    counts = (one[..., _COUNTS] == two[..., _COUNTS]).all(-1)
    size = one[..., L1] / np.maximum(one[..., NUM_FINITE], 1)
    scales = {L1: one[..., L1], SUM_SQUARES: one[..., SUM_SQUARES], MEAN: size}
    scales[M2] = one[..., SUM_SQUARES]
    near: Mask = counts
    with np.errstate(invalid="ignore"):
        for number, scale in scales.items():
            a, b = one[..., number], two[..., number]
            is_lost = np.isnan(a) & np.isnan(b)  # What overflows even float64.
            near = near & (is_lost | (a == b) | (np.abs(a - b) <= _ROUNDING * np.abs(scale)))
    return near


def aligned(series: Series, steps: Sequence[int]) -> Rows:
    """Return rows of some steps, ``float64[steps, sites, 16]``; blank where the series has none."""
    own, rows = series.rows.as_array()
    places = {step: number for number, step in enumerate(own)}
    all_rows: Rows = blank_rows(len(steps), len(series.measured))
    for number, step in enumerate(steps):
        if step in places:
            all_rows[number] = rows[places[step]]
    return all_rows


def told_by_values(rule: MergeRule, rows: Mapping[int, Rows]) -> MergeRule:
    """Return the rule; where labels do not tell replicas from parts, the rows of the ranks do.

    Replicas are equal in every step.
    """
    wholes, notes = [], list(rule.together)
    for whole in rule.wholes:
        if not whole.is_told:
            first, *others = (rows[rank] for rank in whole.ranks)
            is_same = all(same_rows(first, other).all() for other in others)
            whole = whole if is_same else whole.cut_by_values()
            notes.append(ONE_OF_EQUAL if is_same else PARTS_THAT_DIFFER)
        wholes.append(whole)
    if len(wholes) > 1:
        first, *others = (rows[whole.ranks[0]] for whole in wholes)
        is_same = all(same_rows(first, other).all() for other in others)
        notes += [SAME_BATCH] if is_same else []
    return replace(rule, wholes=tuple(wholes), together=tuple(dict.fromkeys(notes)))
