"""Notes the facts that only the beginning of a watch can tell; metadata is made of them later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from torchtap.core.distributed import own_rank, ranks_of_one_batch
from torchtap.core.plan import Plan
from torchtap.core.version import __version__

if TYPE_CHECKING:
    from torchtap.runs.meta import Meta


class Start:
    """The facts that only the beginning of a watch can tell.

    Args:
        plan: of the watch.
        model: that is watched. Not kept.
        num_parameters: path -> elements of the parameters that the module itself has.
    """

    def __init__(self, plan: Plan, model: nn.Module, num_parameters: Mapping[str, int]) -> None:
        self._plan = plan
        self._seconds = time.time()
        self._num_parameters = dict(num_parameters)
        self._rank, self._world_size = own_rank()
        self._batch_ranks = ranks_of_one_batch(model)

    @cached_property
    def meta(self) -> Meta:
        """The metadata of the run, as far as it was known then."""
        from torchtap.runs.meta import Meta

        plan = self._plan
        return Meta(
            model=plan.model,
            modules=dict(plan.types),
            aliases=dict(plan.aliases),
            where=plan.where,
            torch=torch.__version__,
            torchtap=__version__,
            created=datetime.fromtimestamp(self._seconds, UTC).isoformat(timespec="seconds"),
            rank=self._rank,
            world_size=self._world_size,
            batch_ranks=self._batch_ranks,
            num_parameters=self._num_parameters,
        )
