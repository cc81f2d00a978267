"""Find the first NaN or Inf: at which call, and before or after which other tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchtap.stats.catalogue.kinds import named_statistic, named_value


@named_value
class Occurrence(NamedTuple):
    """The first tensor of a site with a NaN or an Inf.

    Attributes:
        call: which of the site's tensors it was, from 0: in one step, its call.
        order: which of all tensors, of all sites, in the order in which they flowed.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, to=tt.Stats(statistics=[tt.stats.first_nonfinite()])) as w:
        ...     for number in (1.0, float("nan")):
        ...         _ = relu(torch.tensor([number]))
        >>> w.run.stats(".").extra["first_nonfinite"].call
        1
    """

    call: int
    order: int


@named_value
@dataclass(frozen=True, slots=True)
class Search:
    """The call and the order of the first, -1 where there is none; on the tensors' device, so
    that nothing waits for it."""

    num_tensors: int = 0
    found: Tensor | None = None


@named_statistic
@dataclass(frozen=True, slots=True)
class FirstNonfinite:
    """See :func:`first_nonfinite`."""

    name: str
    needs_places: ClassVar[bool] = False
    _order: Iterator[int] = field(default_factory=count, compare=False, repr=False)

    def init(self) -> Search:
        """Return a search that has seen nothing."""
        return Search()

    def update(self, state: Search, tensor: Tensor) -> Search:
        """Look at one more tensor."""
        is_bad = ~tensor.isfinite().all()
        here = torch.stack([torch.where(is_bad, 0, -1), torch.where(is_bad, next(self._order), -1)])
        return self.merge(state, Search(1, here))

    def merge(self, one: Search, two: Search) -> Search:
        """Take the first of both, the earlier stretch first."""
        total = one.num_tensors + two.num_tensors
        if one.found is None or two.found is None:
            return Search(total, two.found if one.found is None else one.found)
        later = two.found.to(one.found.device)
        moved = torch.stack([later[0] + one.num_tensors, later[1]])
        later = torch.where(later[1] < 0, later, moved)
        return Search(total, torch.where(one.found[1] < 0, later, one.found))

    def merge_ranks(self, one: Search, two: Search) -> Search:
        """Take the one that came first: ranks run the same program, so orders are comparable."""
        if one.found is None or two.found is None:
            return two if one.found is None else one
        orders = [int(state.found[1]) for state in (one, two) if state.found is not None]
        is_second = orders[0] < 0 or 0 <= orders[1] < orders[0]
        return Search(max(one.num_tensors, two.num_tensors), two.found if is_second else one.found)

    def finish(self, state: Search) -> Occurrence | None:
        """Return the first, or ``None``."""
        if state.found is None:
            return None
        call, order = state.found.tolist()
        return Occurrence(call, order) if order >= 0 else None


def first_nonfinite(*, name: str | None = None) -> FirstNonfinite:
    """The first tensor of a site with a NaN or an Inf, and when it came.

    ``order`` counts the tensors of all sites that one such statistic sees, in the order in which
    they flow, so the smallest one tells where it began. A parent returns after its children: where
    outputs are watched, the innermost module comes first. Reads the tensor once more; on an
    accelerator nothing waits for it.

    Args:
        name: under which the result stands in ``extra``; ``first_nonfinite`` by default.

    Returns:
        a statistic whose result is an :class:`Occurrence`, or ``None`` where all is finite.

    Example:
        >>> import torch, torchtap as tt
        >>> root = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.LogSigmoid(), torch.nn.Tanh())
        >>> first = tt.stats.first_nonfinite()
        >>> with tt.watch(root, to=tt.Stats(statistics=[first])) as w:
        ...     _ = root(torch.tensor([1.0]))
        ...     _ = root(torch.tensor([float("nan")]))
        >>> w.run.stats("1:output").extra["first_nonfinite"]
        Occurrence(call=1, order=5)
    """
    return FirstNonfinite(name or "first_nonfinite")
