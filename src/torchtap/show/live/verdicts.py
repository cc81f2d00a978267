"""Judges the sites of a window: which are the worst, and why.

Worst is what is not finite, the first of it first. Then come sites whose magnitude (the root of the
mean square of the finite elements) has left its own past, or stands far from its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchtap.core.ports import FLOW_PORTS
from torchtap.core.site import Site
from torchtap.core.text import count, number, percent
from torchtap.show.live.window import (
    NEVER,
    Floats,
    Window,
    is_infinite_alone,
    magnitude_of,
    zeros_of,
)
from torchtap.stats.rows import NAN, NEGINF, NUMEL, POSINF

_LEAST_PAST = 8
"""Steps without which a past is none."""
_OWN, _OF_GROUP, _OF_NEXT = 1.0, 4.0, 3.0
"""Powers of ten by which a magnitude leaves its own past, that of all sites of its port, or that of
those beside it."""
_NOISES = 6.0
"""How far beyond the usual spread of its own past, too."""
_BESIDE = 4
"""Sites before and after that are beside one."""
_GOES_INTO = {
    "output": ("input",),
    "grad_input": ("grad_output",),
    "param_grad": ("grad_output", "input"),
    "update": ("param_grad", "step_grad", "param"),
}
"""Port -> the ports of the same module that it is computed of."""


ORIGIN = "finite in, bad out"


class Rank(IntEnum):
    """Kinds of verdicts, the worst first."""

    NOT_FINITE = 0
    WAS_NOT_FINITE = 1
    LEFT_PAST = 2
    FAR = 3
    FINE = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one site.

    Attributes:
        place: of the site in the window.
        rank: its kind.
        weight: how bad it is among those of its kind, the largest first.
        reason: why, in a few words; empty where all is well.
        is_origin: whether all that goes into its module was finite, and this is not.
    """

    place: int
    rank: Rank
    weight: float
    reason: str
    is_origin: bool = False

    @property
    def is_bad(self) -> bool:
        """Return whether it is not finite now."""
        return self.rank is Rank.NOT_FINITE


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first site that was not finite, of the forward or of the backward.

    Attributes:
        way: ``forward``, ``backward``, or ``optimizer``.
        place: of the site.
        step: in which it was not.
        reason: what is known of where it comes from, in a few words.
    """

    way: str
    place: int
    step: int
    reason: str


def way_of(site: Site) -> str:
    """Return the part of a step in which a site has its value: ``forward backward optimizer``.

    A parameter, or a buffer, has it before the forward.
    """
    if site.port in ("update", "step_grad"):
        return "optimizer"
    return "backward" if site.is_gradient else "forward"


class Judge:
    """Judges what a window shows at one moment.

    Args:
        window: which.
        order: the place of the module of a site in the model; for neighbours.
    """

    def __init__(self, window: Window, order: Sequence[int]) -> None:
        self._window = window
        self._table = window.table
        self._order = order
        self._origins: dict[int, bool | None] = {}

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each site, the worst first."""
        verdicts = []
        past = self._against_past()
        far = self._against_others()
        for place in range(len(self._table)):
            verdicts.append(
                self._not_finite(place) or past.get(place) or far.get(place) or self._fine(place)
            )
        return sorted(verdicts, key=self._key)

    def first_bad(self) -> Sequence[FirstBad]:
        """Return the first site of each way that was not finite, in the order of the steps."""
        return self._firsts

    @cached_property
    def _firsts(self) -> Sequence[FirstBad]:
        firsts: dict[str, FirstBad] = {}
        bad = [n for n in range(len(self._table)) if self._table.first_bad[n] != NEVER]
        bad = [n for n in bad if not self._is_meant(n)] or bad
        for place in sorted(bad, key=self._when):
            way = way_of(self._table.sites[place])
            step = int(self._table.first_bad[place])
            if way not in firsts:
                firsts[way] = FirstBad(way, place, step, self._comes_from(place, step, firsts))
        return sorted(firsts.values(), key=lambda one: one.step)

    def _comes_from(self, place: int, step: int, found: Mapping[str, FirstBad]) -> str:
        """Say where the first site of its way comes from that is not finite."""
        site, origin = self._table.sites[place], self._is_origin(place)
        if origin:
            return ORIGIN
        if any(one.step <= step for one in found.values()):
            return f"follows the {next(iter(found))}"
        if origin is False:
            return "what goes in was not finite either"
        if site.port == "input":
            return self._made_between(site, step)
        return "what goes in is not watched"

    def _made_between(self, site: Site, step: int) -> str:
        """Say of an input which module made it, in its own forward."""
        parent = site.path
        while parent:
            parent = parent.rpartition(".")[0]
            own = [n for n in self._by_path.get(parent, ()) if self._table.sites[n].port == "input"]
            first = [int(self._table.first_bad[n]) for n in own]
            if first and all(one == NEVER or one > step for one in first):
                return f"{ORIGIN}: made in the forward of {parent or 'the model'} itself"
        return "what goes in is not watched" if site.path else "it came so into the model"

    @property
    def is_bad(self) -> bool:
        """Return whether anything is not finite now, or was in a forward or an update.

        A gradient that was infinite in a step that a ``GradScaler`` skipped is nothing bad.
        """
        table = self._table
        for place in np.flatnonzero(table.first_bad != NEVER).tolist():
            is_now = table.last_bad[place] == table.last_step[place]
            is_passing = not is_now and way_of(table.sites[place]) == "backward"
            if not is_passing and not self._is_meant(place):
                return True
        return False

    # ------------------------------------------------------------------ not finite

    def _key(self, one: Verdict) -> tuple[float, ...]:
        if one.rank in (Rank.NOT_FINITE, Rank.WAS_NOT_FINITE):
            return (one.rank, *self._when(one.place))
        return (one.rank, -one.weight, one.place)

    def _when(self, place: int) -> tuple[float, ...]:
        """When a site was not finite for the first time: step, way, order of execution."""
        ways = ("forward", "backward", "optimizer")
        site = self._table.sites[place]
        is_state = site.kind.holder and site.port in ("param", "buffer")
        way = -1 if is_state else ways.index(way_of(site))
        return (self._is_meant(place), float(self._table.first_bad[place]), way, place)

    def _is_meant(self, place: int) -> bool:
        """Return whether it is infinite in one direction in every step, as a mask is."""
        table = self._table
        always = table.bad_phases[place] > 1 and table.first_bad[place] == table.first_step[place]
        always = always and table.last_bad[place] == table.last_step[place]
        is_alone = is_infinite_alone(table.first_bad_row[place])
        return bool(always and is_alone and is_infinite_alone(table.last[place]))

    def _not_finite(self, place: int) -> Verdict | None:
        first, last = int(self._table.first_bad[place]), int(self._table.last_bad[place])
        if first == NEVER:
            return None
        if last != self._table.last_step[place]:
            said = said_bad(self._table.first_bad_row[place])
            when = f"in step {count(first)}" if first == last else f"up to step {count(last)}"
            reason = f"{said} {when}, finite since"
            return Verdict(place, Rank.WAS_NOT_FINITE, 0.0, reason)
        said = said_bad(self._table.last[place])
        if self._is_meant(place):
            return Verdict(place, Rank.NOT_FINITE, 0.0, f"{said} in every step: a mask?")
        known = {one.place: one.reason for one in self._firsts}.get(place, "")
        is_origin = bool(self._is_origin(place)) or known.startswith(ORIGIN)
        source = f": {known or ORIGIN}" if known or is_origin else ""
        since = f"since step {count(first)}" if first != last else f"in step {count(first)}"
        return Verdict(place, Rank.NOT_FINITE, 0.0, f"{said} {since}{source}", is_origin)

    def _is_origin(self, place: int) -> bool | None:
        """Return whether all that goes into the module was finite when this first was not.

        ``None`` where what goes in is not watched. A module in which another one is an origin is
        none itself.
        """
        if place not in self._origins:
            self._origins[place] = self._find_origin(place)
        return self._origins[place]

    def _find_origin(self, place: int) -> bool | None:
        table, site = self._table, self._table.sites[place]
        step = int(table.first_bad[place])
        own = self._by_path[site.path]
        inputs = [n for n in own if table.sites[n].port in _GOES_INTO.get(site.port, ())]
        if not inputs:
            return None
        if site.port == "output":  # What the module computes with goes in, too.
            inputs += [n for n in own if table.sites[n].port in ("param", "buffer")]
        if any(table.first_bad[n] != NEVER and table.first_bad[n] <= step for n in inputs):
            return False
        within = self._within.get((site.path, site.port, step), ())
        return not any(self._is_origin(n) is not False for n in within)

    @cached_property
    def _by_path(self) -> dict[str, list[int]]:
        """Path -> places of its sites."""
        by_path: dict[str, list[int]] = {}
        for place, site in enumerate(self._table.sites):
            by_path.setdefault(site.path, []).append(place)
        return by_path

    @cached_property
    def _within(self) -> dict[tuple[str, str, int], list[int]]:
        """Path, port and step -> the sites within that module that were first bad then."""
        groups: dict[tuple[str, str, int], list[int]] = {}
        for place in np.flatnonzero(self._table.first_bad != NEVER).tolist():
            site, step = self._table.sites[place], int(self._table.first_bad[place])
            parent = site.path
            while parent:
                parent = parent.rpartition(".")[0]
                groups.setdefault((parent, site.port, step), []).append(place)
        return groups

    # ------------------------------------------------------------------ magnitudes

    def _fine(self, place: int) -> Verdict:
        return Verdict(place, Rank.FINE, 0.0, "")

    def _against_past(self) -> dict[int, Verdict]:
        """Sites whose magnitude has left its own past."""
        past = self._window.past
        now = magnitude_of(self._table.last)
        with np.errstate(all="ignore"):
            logs = np.log10(past)
        logs[~np.isfinite(logs)] = np.nan
        enough = np.isfinite(logs).sum(axis=0) >= _LEAST_PAST
        verdicts = {}
        if not enough.any():
            return {}
        usual = np.full(past.shape[1], np.nan)
        spread = usual.copy()
        usual[enough] = np.nanmedian(logs[:, enough], axis=0)
        spread[enough] = 1.4826 * np.nanmedian(abs(logs[:, enough] - usual[enough]), axis=0)
        zero = now == 0
        with np.errstate(all="ignore"):
            change = np.log10(now) - usual
        left = enough & (zero | ((abs(change) >= _OWN) & (abs(change) >= _NOISES * spread)))
        for place in np.flatnonzero(left).tolist():
            if zero[place]:
                reason, weight = f"all zero; its past is {number(10 ** usual[place])}", 99.0
            else:
                weight = abs(float(change[place]))
                how = "exploding" if change[place] > 0 else "vanishing"
                reason = f"{how}: {times(float(change[place]))} its own past"
            verdicts[place] = Verdict(place, Rank.LEFT_PAST, weight, reason)
        return verdicts

    def _against_others(self) -> dict[int, Verdict]:
        """Sites whose magnitude is far from that of the others of its port."""
        verdicts = {}
        with np.errstate(all="ignore"):
            logs = np.log10(magnitude_of(self._table.last))
        for port in FLOW_PORTS:
            own = [n for n, site in enumerate(self._table.sites) if site.port == port]
            own = sorted((n for n in own if np.isfinite(logs[n])), key=self._order.__getitem__)
            if len(own) < 2 * _BESIDE:
                continue
            values = logs[own]
            padded = np.pad(values, _BESIDE, mode="reflect")
            beside = np.median(sliding_window_view(padded, 2 * _BESIDE + 1), axis=1)
            near, wide = values - beside, values - np.median(values)
            is_near = abs(near) >= _OF_NEXT
            far = np.where(is_near, near, wide)
            for at in np.flatnonzero(is_near | (abs(wide) >= _OF_GROUP)).tolist():
                what = "nearby" if is_near[at] else "most"
                reason = f"{times(float(far[at]))} {what}"
                verdicts[own[at]] = Verdict(own[at], Rank.FAR, abs(float(far[at])), reason)
        return verdicts


def times(power: float) -> str:
    """Return a ratio as a factor, or a part: of 10 to a power.

    Example:
        >>> times(2.0), times(-3.0)
        ('100x', '1/1,000 of')
    """
    factor = 10 ** abs(power)
    said = count(round(factor)) if factor < 1e6 else number(float(f"{factor:.2g}"))
    said = f"{factor:.2g}" if factor < 10 else said
    return f"{said}x" if power > 0 else f"1/{said} of"


def said_bad(row: Floats) -> str:
    """Counts of what is not finite in a row: ``3 NaN 1 Inf``, ``all NaN``."""
    counts = {"NaN": row[NAN], "Inf": row[POSINF], "-Inf": row[NEGINF]}
    for name, many in counts.items():
        if many and many == row[NUMEL]:
            return f"all {name}"
    return " ".join(f"{count(int(many))} {name}" for name, many in counts.items() if many)


def said_zeros(row: Floats) -> str:
    """Return the share of zeros, as a percentage; ``-`` of an empty tensor."""
    share = float(zeros_of(row[None])[0])
    return "-" if math.isnan(share) else "0" if not share else percent(share)
