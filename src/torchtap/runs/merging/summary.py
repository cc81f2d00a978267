"""Facts about a site in all steps, of several ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.placement import Axis
from torchtap.runs.merging.rules import Rule, Whole, fold
from torchtap.stats.series import SiteSummary

_LEFT_OUT = "ranks have steps that are left out of the merged run, and it is kept over all only"
_UNLIKE = "its samples on the ranks do not fit together"

Shape = tuple[int, ...] | None
Mean = tuple[NDArray[Any] | None, int]


def describe(
    merged: SiteSummary, there: Mapping[int, SiteSummary], rule: Rule, *, is_whole: bool
) -> None:
    """Fill in what is known of a merged site.

    Args:
        merged: the one to fill.
        there: rank -> what is known there.
        rule: how the parts make up the whole.
        is_whole: whether every step of every rank is in it.
    """
    first = next(iter(there.values()))
    merged.dtype = first.dtype if len({one.dtype for one in there.values()}) == 1 else "mixed"
    merged.itemsize = first.itemsize
    merged.notes = tuple(dict.fromkeys((*rule.labels, *rule.notes, *rule.together)))
    shapes = {_shape(whole, there) for whole in rule.wholes}
    merged.shape = shapes.pop() if len(shapes) == 1 else None
    lost = [one.why_no_mean for one in there.values() if one.mean_sum is None]
    if lost or not is_whole:
        merged.why_no_mean = lost[0] if lost else _LEFT_OUT
        return
    merged.mean_sum, merged.num_samples = _mean(rule, there)
    merged.why_no_mean = "" if merged.mean_sum is not None else _UNLIKE


def _shape(whole: Whole, there: Mapping[int, SiteSummary]) -> Shape:
    parts = {
        place: there[ranks[0]].shape if ranks[0] in there else None
        for place, ranks in whole.parts.items()
    }
    return fold(parts, whole.axes, _joined_shape)


def _joined_shape(parts: list[Shape], axis: Axis) -> Shape:
    shapes = [shape for shape in parts if shape]
    if len(shapes) < len(parts) or axis.dim is None:
        return None
    joined = list(shapes[0])
    joined[axis.dim] = sum(shape[axis.dim] for shape in shapes)
    return tuple(joined)


def _mean(rule: Rule, there: Mapping[int, SiteSummary]) -> Mean:
    wholes = []
    for whole in rule.wholes:
        parts = {
            place: (there[ranks[0]].mean_sum, there[ranks[0]].num_samples)
            for place, ranks in whole.parts.items()
            if ranks[0] in there
        }
        if parts:
            wholes.append(fold(parts, whole.axes, _joined_mean))
    return _added(wholes)


def _joined_mean(parts: list[Mean], axis: Axis) -> Mean:
    """Sums over the samples of shards, which are cut along the samples or along a dim of each."""
    sums = [total for total, _ in parts if total is not None]
    if len(sums) < len(parts) or axis.dim is None:
        return None, 0
    dim = axis.dim % (sums[0].ndim + 1)
    return _added(parts) if dim == 0 else (np.concatenate(sums, dim - 1), parts[0][1])


def _added(parts: list[Mean]) -> Mean:
    sums = [total for total, _ in parts if total is not None]
    if len(sums) < len(parts) or len({total.shape for total in sums}) > 1:
        return None, 0
    return np.sum(sums, axis=0), sum(number for _, number in parts)
