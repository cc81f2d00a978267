"""Deletion and insertion: what becomes of the score when the places of a map go, or come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtap.explain.attributions.variable import Variable
from torchtap.explain.checks.perturb import Ground
from torchtap.explain.checks.rank_agreement import importance_order


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """The number of each row over the share of places that were taken away, or put in.

    Attributes:
        shares: from 0 to 1, ``float64[S]``.
        scores: in the order of the map, ``float64[B, S]``.
        control: in the order of maps with the same values at random places, ``[N, B, S]``.
    """

    shares: Tensor
    scores: Tensor
    control: Tensor

    @property
    def area(self) -> Tensor:
        """Return the area below the curve of each row, by trapezoids, ``float64[B]``."""
        return torch.trapezoid(self.scores, self.shares)

    @property
    def control_areas(self) -> Tensor:
        """Return the area below the curve of each random map, ``float64[N, B]``."""
        return torch.trapezoid(self.control, self.shares)


@dataclass(frozen=True, eq=False, slots=True)
class Orders:
    """In which order the places of each row go, ``int64[1 + N, B, places]``; first the map's."""

    ranks: Tensor

    @staticmethod
    def of(weights: Tensor, controls: list[Tensor], generator: torch.Generator) -> Orders:
        """Return the largest value first; ties are drawn.

        Args:
            weights: of the map, ``[B, places]``.
            controls: of random maps.
            generator: of random numbers.
        """
        several = [importance_order(control, generator) for control in (weights, *controls)]
        return Orders(torch.stack(several))


def curve(
    variable: Variable,
    ground: Ground,
    orders: Orders,
    *,
    start: Tensor,
    end: Tensor,
    steps: int,
    batch_size: int,
    after_each: Callable[[], None],
) -> Curve:
    """Replace the places of ``start`` by those of ``end``, the most important first.

    Petsiuk et al. 2018, "RISE", section 4.3: deletion goes from the input to what holds nothing,
    insertion from a blurred input to the input. The first ``round(k / steps * places)`` places are
    replaced at point ``k``.

    Args:
        variable: gives the scores.
        ground: which dimensions are places.
        orders: of the places.
        start: ``[B, ...]``.
        end: likewise.
        steps: how many points follow the first.
        batch_size: most rows in one run of the model.
        after_each: is called after each run.
    """
    rows = len(start)
    num = ground.num_places
    counts = [round(step / steps * num) for step in range(steps + 1)]
    jobs = [(order, count) for order in range(len(orders.ranks)) for count in counts]
    at_once = variable.times_in(batch_size)
    points = []
    for first in range(0, len(jobs), at_once):
        part = jobs[first : first + at_once]
        values = torch.cat(
            [_mixed(ground, orders.ranks[order], count, start, end) for order, count in part]
        )
        points.append(variable.scores(values, len(part)).double().cpu())
        after_each()
    scores = torch.cat(points).reshape(len(orders.ranks), len(counts), rows).transpose(1, 2)
    shares = torch.tensor(counts, dtype=torch.float64) / num
    return Curve(shares, scores[0], scores[1:])


def num_runs(orders: int, steps: int) -> int:
    """Return how often the model runs for one curve; five runs at most test if it mixes rows."""
    return orders * (steps + 1) + 5


def _mixed(ground: Ground, ranks: Tensor, count: int, start: Tensor, end: Tensor) -> Tensor:
    is_replaced = ground.placed(ranks < count).to(start.device)
    return torch.where(is_replaced, end, start)
