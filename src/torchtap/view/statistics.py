"""Statistics as text: one line for a tensor or for its slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchtap.core.text import count, nonfinite, number, plural, size, typed
from torchtap.stats.statistics import NOT_AN_UPDATE
from torchtap.view.columns import sparkline

if TYPE_CHECKING:
    from torchtap.stats.slices import Slices
    from torchtap.stats.statistics import Statistics


def show_statistics(stats: Statistics) -> str:
    """One line: what it is, range, histogram, mean, std, and what is not finite."""
    kind = typed(stats.dtype, stats.shape) if stats.shape is not None else stats.dtype
    tensors = plural(stats.num_tensors, "tensor") if stats.num_tensors != 1 else ""
    head = " ".join(part for part in (kind, tensors, size(stats.nbytes)) if part)
    notes = "".join(f", {note}" for note in stats.notes)
    if not stats.numel:
        return f"{head}{notes}: empty"
    bad = nonfinite(stats.nan, stats.posinf, stats.neginf).text
    said = f", {bad}" if stats.nonfinite else ""
    if not stats.num_finite:
        return f"{head}{notes}: nothing finite{said}"
    bars = f" {sparkline(stats)} " if stats.histogram is not None else " .. "
    return (
        f"{head}{notes}: [{number(stats.min)}{bars}{number(stats.max)}] "
        f"mean {number(stats.mean)}, std {number(stats.std)}{said}{_ratio(stats)}"
    )


def _ratio(stats: Statistics) -> str:
    """Of an update its ratio to the parameter, or why there is none."""
    if not stats.why_no_ratio:
        return f", update_ratio {number(stats.update_ratio)}"
    is_update = stats.why_no_ratio != NOT_AN_UPDATE
    return f", no update_ratio: {stats.why_no_ratio}" if is_update else ""


def show_slices(slices: Slices) -> str:
    """One line: how many slices, their largest magnitudes, and how many are dead or saturated."""
    num = len(slices.rows)
    if not num:
        return "no slices"
    most = max(int(one) for one in slices.numel.tolist())
    absmax = [one for one in slices.absmax.tolist() if not math.isnan(one)]
    ends = f"[{number(min(absmax))} .. {number(max(absmax))}]" if absmax else "nothing finite"
    dead, saturated = len(slices.dead_slices()), len(slices.saturated_slices())
    said = [f"{plural(num, 'slice')} of {plural(most, 'element')}: absmax {ends}"]
    said += [f"{count(dead)} dead"] if dead else []
    said += [f"{count(saturated)} saturated"] if saturated else []
    return ", ".join([*said, *slices.notes])
