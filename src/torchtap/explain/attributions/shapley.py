"""Shapley values: what a feature adds to the score, over the orders in which features come."""

from __future__ import annotations

from itertools import permutations
from math import factorial

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.core.text import count
from torchtap.explain.attributions.attribution_result import AttributionResult
from torchtap.explain.attributions.feature_mask import Features, features_of
from torchtap.explain.attributions.many_runs import Batching, Many, check_count
from torchtap.explain.attributions.noise import Seed, generator_of
from torchtap.explain.attributions.perturbation import per_batch, row_scores
from torchtap.explain.attributions.variable import Variable


def shapley(
    variable: Variable,
    *,
    batching: Batching,
    baselines: float | Tensor | None = None,
    feature_mask: Tensor | None = None,
    n_samples: int = 25,
    seed: Seed = 0,
) -> AttributionResult:
    """Castro et al., "Polynomial calculation of the Shapley value based on sampling" (2009).

    In each order the features take their place in the baseline one by one, and each gets what the
    score gains by it. The gains of one order sum to the score less that of the baseline.

    Args:
        variable: what it is made of.
        batching: how the steps are run.
        baselines: the value without any feature: a number, or a tensor that broadcasts; 0.
        feature_mask: integers that broadcast to the value: elements of one number are one feature;
            by default each element of a row is one.
        n_samples: how many orders are drawn. All of them are taken where there are no more, and
            the values are exact then.
        seed: of the orders.
    """
    check_count("n_samples", n_samples)
    if not variable.value.dim():
        raise InputError(f"The value is {kind_of(variable.value)}; expected rows with features.")
    features = features_of(variable.value, feature_mask)
    orders = _orders(features.num, n_samples, seed)
    walk = _Walk(variable, variable.spread(baselines, "baselines"), features, orders)
    state = features.nothing(walk.first.dtype)
    if features.num == 1:
        state = features.added(*state, [0], (walk.last - walk.first)[None])
    with Many(variable, walk.num_steps, batching, "sampling Shapley values") as many:
        for part in many:
            state = features.added(*state, *walk.gains(part))
    each = features.means(*state)
    sums = each.sum(1) if variable.is_per_row else each.sum(1)[:1]
    drawn = f"{count(len(orders))} orders of {count(features.num)} features"
    if len(orders) == _num_orders(features.num, n_samples):
        drawn += ", all that there are: the values are exact"
    notes = (drawn, *per_batch(variable), *many.notes)
    return AttributionResult(
        features.at_elements(each), (sums - (walk.last - walk.first)).double(), notes
    )


def _num_orders(num: int, most: int) -> int:
    """Return the number of orders; one more than ``most`` where there are more."""
    return factorial(num) if num <= 8 and factorial(num) <= most else most + 1


def _orders(num: int, n_samples: int, seed: Seed) -> list[list[int]]:
    if _num_orders(num, n_samples) <= n_samples:
        return [list(order) for order in permutations(range(num))]
    own = generator_of(seed)
    return [
        torch.randperm(num, generator=own, device=own.device).tolist() for _ in range(n_samples)
    ]


class _Walk:
    """The way from the baseline to the value, feature by feature, in each of several orders.

    Attributes:
        first: score of each row without any feature.
        last: with all of them.
        num_steps: how many there are between the two, of all orders.
    """

    def __init__(
        self, variable: Variable, baseline: Tensor, features: Features, orders: list[list[int]]
    ) -> None:
        self._variable = variable
        self._baseline = baseline
        self._features = features
        self._orders = orders
        self._each = features.num - 1
        self.num_steps = len(orders) * self._each
        self.first = row_scores(variable, variable.scores(baseline), 1)[0]
        self.last = row_scores(variable, variable.base_scores, 1)[0]
        self._before = self.first

    def gains(self, part: range) -> tuple[list[int], Tensor]:
        """Features, and what each row gains by them; parts come one after the other."""
        scores = row_scores(self._variable, self._scores(part), len(part))
        chosen: list[int] = []
        gains: list[Tensor] = []
        for step, after in zip(part, scores, strict=True):
            number, place = divmod(step, self._each)
            order = self._orders[number]
            chosen.append(order[place])
            gains.append(after - (self._before if place else self.first))
            if place == self._each - 1:
                chosen.append(order[-1])
                gains.append(self.last - after)
            self._before = after
        return chosen, torch.stack(gains)

    def _scores(self, part: range) -> Tensor:
        values = []
        for step in part:
            number, place = divmod(step, self._each)
            order = torch.tensor(self._orders[number], device=self._baseline.device)
            rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)).to(order))
            is_in = rank[self._features.of] <= place
            values.append(torch.where(is_in, self._variable.value, self._baseline))
        return self._variable.scores(torch.cat(values), len(part))
