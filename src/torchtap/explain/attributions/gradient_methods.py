"""Methods by gradients: at the value, and along the way from a baseline (integrated gradients)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import count, number, percent
from torchtap.explain.attributions.attribution_result import AttributionResult, wide
from torchtap.explain.attributions.many_runs import (
    Batching,
    Many,
    check_count,
    single,
    spread_order,
)
from torchtap.explain.attributions.score_rounding import slack_of
from torchtap.explain.attributions.variable import Variable

_RULES = (
    "gausslegendre",
    "riemann_middle",
    "riemann_trapezoid",
    "riemann_left",
    "riemann_right",
)
_POINTS = 4
"""In each panel, where steps are added."""
_LEVELS = 40
_MOST_EVALS = 20_000
_MUCH = 0.05
"""Share of the rise of the score from which a gap is said in words."""


def gradient(variable: Variable) -> AttributionResult:
    """Simonyan et al., "Deep Inside Convolutional Networks" (2014), section 3, with its sign."""
    return AttributionResult(wide(variable.gradient(variable.value)))


def input_x_gradient(variable: Variable) -> AttributionResult:
    """Shrikumar et al., "Not Just a Black Box" (2016): each element times its gradient."""
    return AttributionResult(wide(variable.value) * wide(variable.gradient(variable.value)))


def integrated_gradients(
    variable: Variable,
    *,
    batching: Batching,
    baselines: float | Tensor | None = None,
    n_steps: int = 50,
    rule: str = "gausslegendre",
    tolerance: float | None = None,
) -> AttributionResult:
    """Sundararajan et al., "Axiomatic Attribution for Deep Networks" (2017), section 3.

    Args:
        variable: what it is made of.
        batching: how the steps are run.
        baselines: where the way begins: a number, or a tensor that broadcasts to the value; 0.
        n_steps: points on the way; with a tolerance, of the first round.
        rule: of the quadrature, named as ``method`` of captum's.
        tolerance: steps are added until no row's completeness gap is larger.
    """
    check_count("n_steps", n_steps)
    if rule not in _RULES:
        raise InputError(f"rule is {rule!r}; expected one of {', '.join(_RULES)}.")
    way = _Way(variable, variable.spread(baselines, "baselines"))
    if tolerance is None:
        return _by_rule(way, *_points(rule, n_steps), batching)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or tolerance <= 0:
        raise InputError(f"tolerance is {tolerance!r}; expected a number above 0.")
    return _Refined(way, float(tolerance), batching).found(n_steps)


def _points(rule: str, num: int) -> tuple[list[float], list[float]]:
    """Return places and weights on the way from 0 to 1; the weights sum to 1."""
    if rule == "gausslegendre":
        places, weights = np.polynomial.legendre.leggauss(num)
        return list((places + 1) / 2), list(weights / 2)
    if rule == "riemann_trapezoid" and num > 1:
        weights = np.full(num, 1 / (num - 1))
        weights[[0, -1]] /= 2
        return list(np.linspace(0, 1, num)), list(weights)
    offset = {"riemann_left": 0.0, "riemann_right": 1.0}.get(rule, 0.5)
    return [(place + offset) / num for place in range(num)], [1 / num] * num


class _Way:
    """The straight way from the baseline to the value."""

    def __init__(self, variable: Variable, baseline: Tensor) -> None:
        self.variable = variable
        self._baseline = baseline
        self._difference = wide(variable.value) - wide(baseline)
        self._rise: Tensor | None = None

    def gradients(self, places: Sequence[float]) -> Tensor:
        """Return gradients at some places, ``[len(places), *value.shape]``, in float32 at least."""
        gradients = self.variable.gradient(self._at(places), len(places))
        return wide(gradients).view(len(places), *self._difference.shape)

    def scores(self, places: Sequence[float]) -> Tensor:
        """Return scores at some places, ``float64[len(places), scores]``."""
        return self.variable.scores(self._at(places), len(places)).double().view(len(places), -1)

    def attributions(self, integral: Tensor) -> Tensor:
        """Return the integral of the gradient along the way, times the way."""
        return integral * self._difference

    def rise(self) -> Tensor:
        """Return the score at the value less that at the baseline, ``float64[scores]``."""
        if self._rise is None:
            start = self.variable.scores(self._baseline)
            self._rise = self.variable.base_scores.double() - start.double()
        return self._rise

    def _at(self, places: Sequence[float]) -> Tensor:
        start, step = wide(self._baseline), self._difference
        along = torch.tensor(places, dtype=step.dtype, device=step.device)
        steps = start + along.view(-1, *[1] * step.dim()) * step
        values = steps.to(self.variable.value.dtype)
        # One tensor without rows stays one; of several the rows stand one after the other.
        return values.flatten(0, 1) if step.dim() else values[0]


def _by_rule(
    way: _Way, places: list[float], weights: list[float], batching: Batching
) -> AttributionResult:
    rise = way.rise()
    total, done = torch.zeros(()), 0.0
    order = spread_order(len(places))
    with Many(way.variable, len(places), batching, "integrating gradients") as many:
        for part in many:
            chosen = [order[one] for one in part]
            gradients = way.gradients([places[one] for one in chosen])
            share = [weights[one] for one in chosen]
            total, done = total + weighted_sum(gradients, share), done + sum(share)
    values = way.attributions(total if many.is_complete else total / done)
    gap = way.variable.gap(values, rise)
    return AttributionResult(
        values, gap, (*_much(gap, rise, way.variable.base_scores), *many.notes)
    )


def _much(gap: Tensor, rise: Tensor, scores: Tensor) -> tuple[str, ...]:
    """Return the note that the map is far from complete, by more than rounding."""
    share = float(gap.abs().max()) / max(float(rise.abs().max()), 1e-30)
    if not share > _MUCH or not float(gap.abs().max()) > float(slack_of(scores).max()):
        return ()
    return (
        f"the completeness gap is {percent(share)} of what the score rises from the baseline: "
        f"give tolerance=, or more n_steps",
    )


def weighted_sum(tensors: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the sum over dimension 0, each with its weight."""
    factors = torch.tensor(weights, dtype=tensors.dtype, device=tensors.device)
    total: Tensor = torch.tensordot(factors, tensors, 1)
    return total


# ---------------------------------------------------------------------- until it is complete


@dataclass(frozen=True, slots=True)
class _Panel:
    """A part of the way, with the scores at its ends."""

    first: float
    last: float
    before: Tensor
    after: Tensor

    @property
    def places(self) -> list[float]:
        places, _ = np.polynomial.legendre.leggauss(_POINTS)
        return list(self.first + (self.last - self.first) * (places + 1) / 2)

    @property
    def weights(self) -> list[float]:
        _, weights = np.polynomial.legendre.leggauss(_POINTS)
        return list((self.last - self.first) * weights / 2)


class _Refined:
    """Halves the parts of the way that are not complete, until the whole is.

    Each part has a completeness gap of its own: its share of the map less the rise of the score
    over it. At the kinks of rectifiers the gap of a part shrinks with its length and no faster,
    so halving all parts would take as many steps as the gap is to be small; halving those that
    have a kink takes only as many more for each halving of the gap.

    Args:
        way: what is integrated along.
        tolerance: for the gap of each row.
        batching: how the steps are run.
    """

    def __init__(self, way: _Way, tolerance: float, batching: Batching) -> None:
        self._way = way
        self._tolerance = tolerance
        self._batching = batching
        self._num_evals = 0
        self._most = batching.max_evals or _MOST_EVALS

    def found(self, n_steps: int) -> AttributionResult:
        """Return the map, with at least so many steps."""
        num = max(1, -(-n_steps // _POINTS))
        ends = [place / num for place in range(num + 1)]
        panels = self._panels(list(pairwise(ends)))
        kept = integral = torch.zeros(())
        worst: list[_Panel] = []
        why = ""
        for level in range(_LEVELS):
            try:
                if level:
                    panels = self._halves(worst)
                done, left, worst = self._round(panels, level)
            except KeyboardInterrupt:
                if not level:
                    raise
                why = "interrupted"
                break
            kept, integral = kept + done, kept + done + left
            if self._is_complete(integral) or not worst:
                break
            if self._num_evals + 2 * _POINTS * len(worst) > self._most:
                why = f"stopped after {count(self._num_evals)} steps"
                break
        return self._result(integral, why)

    def _result(self, integral: Tensor, why: str) -> AttributionResult:
        way = self._way
        values = way.attributions(integral)
        gap = way.variable.gap(values, way.rise())
        notes = single(way.variable)
        if not self._is_complete(integral):
            reached = f"the completeness gap is {number(float(gap.abs().max()))}, more than asked"
            notes = (f"{reached}{f' ({why})' if why else ''}", *notes)
        return AttributionResult(values, gap, (f"{count(self._num_evals)} steps", *notes))

    def _is_complete(self, integral: Tensor) -> bool:
        gap = self._way.variable.gap(self._way.attributions(integral), self._way.rise())
        return bool((gap.abs() <= self._tolerance).all())

    def _panels(self, spans: list[tuple[float, float]]) -> list[_Panel]:
        ends = sorted({end for span in spans for end in span})
        scores: dict[float, Tensor] = {}
        times = self._batching.times(self._way.variable)
        for first in range(0, len(ends), times):
            part = ends[first : first + times]
            scores |= dict(zip(part, self._way.scores(part), strict=True))
        return [_Panel(a, b, scores[a], scores[b]) for a, b in spans]

    def _halves(self, panels: list[_Panel]) -> list[_Panel]:
        middles = [(panel.first + panel.last) / 2 for panel in panels]
        spans = [
            span
            for one, middle in zip(panels, middles, strict=True)
            for span in ((one.first, middle), (middle, one.last))
        ]
        return self._panels(spans)

    def _round(self, panels: list[_Panel], level: int) -> tuple[Tensor, Tensor, list[_Panel]]:
        """Return the integrals over the parts that are complete, over the others, and these."""
        # Over all levels the shares sum to less than the tolerance, and shrink slower than parts.
        share = 0.6 * self._tolerance / (level + 1) ** 2 / len(panels)
        done = left = torch.zeros(())
        worst: list[_Panel] = []
        whole = replace(self._batching, max_evals=None)
        many = Many(self._way.variable, len(panels), whole, "adding steps", each=_POINTS)
        with many:
            for part in many:
                chosen = panels[part.start : part.stop]
                places = [place for one in chosen for place in one.places]
                gradients = self._gradients(places)
                for place, one in enumerate(chosen):
                    own = gradients[place * _POINTS : (place + 1) * _POINTS]
                    integral = weighted_sum(own, one.weights)
                    if self._is_fine(one, integral, share):
                        done = done + integral
                    else:
                        left = left + integral
                        worst.append(one)
        if many.was_interrupted:
            raise KeyboardInterrupt
        self._num_evals += _POINTS * len(panels)
        return done, left, worst

    def _gradients(self, places: list[float]) -> Tensor:
        times = self._batching.times(self._way.variable)
        parts = [
            self._way.gradients(places[first : first + times])
            for first in range(0, len(places), times)
        ]
        return torch.cat(parts)

    def _is_fine(self, panel: _Panel, integral: Tensor, share: float) -> bool:
        values = self._way.attributions(integral)
        gap = self._way.variable.gap(values, panel.after - panel.before)
        return bool((gap.abs() <= share).all()) or panel.last - panel.first < 2.0**-_LEVELS
