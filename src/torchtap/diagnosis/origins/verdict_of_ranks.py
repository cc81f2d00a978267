"""One verdict over all processes that train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch

from torchtap.core.distributed import num_ranks, own_rank
from torchtap.diagnosis.origins.origin import Origin, origin_of

_LONGEST = timedelta(minutes=30)
"""Longest time that a rank waits for the slowest one, whose replay may find more to do."""


class Ranks:
    """The processes that are guarded together. Made by all of them, or by none.

    They meet in a group of their own, at every optimizer step: each says whether it saw something
    that is not finite. So all of them replay, raise or leave a step out, or none does.
    """

    def __init__(self) -> None:
        self._group: Any = None
        distributed = torch.distributed
        if num_ranks() > 1 and distributed.get_backend() != "fake":
            backend = "gloo" if distributed.is_gloo_available() else None
            self._group = distributed.new_group(backend=backend, timeout=_LONGEST)

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None:
            torch.distributed.destroy_process_group(self._group)
            self._group = None

    @property
    def are_many(self) -> bool:
        """Return whether there is more than this process."""
        return self._group is not None

    def any(self, own: bool) -> bool:
        """Return whether any rank says so."""
        if self._group is None:
            return own
        said = torch.tensor([float(own)])
        torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX, self._group)
        return bool(said.item())

    def agree(self, own: int) -> bool:
        """Return whether all ranks have the same number."""
        if self._group is None:
            return True
        said = torch.tensor([own, -own])
        torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX, self._group)
        return int(said[0]) == -int(said[1])

    def verdict(self, own: Origin | None) -> Origin | None:
        """Return the origin of the first rank that has one of its own, the same on all ranks.

        Args:
            own: of this rank; ``None`` if its replay was clean.
        """
        if self._group is None:
            return own
        entries: list[Any] = [None] * num_ranks()
        said = None if own is None else own.as_dict()
        torch.distributed.all_gather_object(entries, said, self._group)
        return _first([None if entry is None else origin_of(entry) for entry in entries])


def _first(origins: Sequence[Origin | None]) -> Origin | None:
    by_rank = [(rank, one) for rank, one in enumerate(origins) if one is not None]
    if not by_rank:
        return None
    # An operation tells more than a gradient that came from outside of the model.
    by_rank = [pair for pair in by_rank if pair[1].operation] or by_rank
    rank, origin = by_rank[0]
    others = ", ".join(str(one) for one, _ in by_rank if one != rank)
    also = f" Ranks with origins of their own: {others}." if others else ""
    if rank != own_rank()[0]:
        also = f" It came to this rank from rank {rank}, through what the ranks share.{also}"
    return replace(origin, rank=rank, note=f"{origin.note}{also}".strip())
