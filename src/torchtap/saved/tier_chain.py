"""Chooses the tier for a tensor, and remembers which tiers are full."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchtap.saved.offload_report import IN_HOST
from torchtap.saved.spill_file import FULL, Extent, SpillFile
from torchtap.saved.tensor_layout import TensorLayout
from torchtap.saved.tiers import Tier

Plan = tuple[Tier, bool, bool, SpillFile | None, int, list[Extent] | None]
"""A tier, whether blocks are prefetched from it, whether its ``put`` always takes them and at once,
and its :data:`~torchtap.saved.tiers.Direct`."""


class TierChain:
    """The tiers of one ``tt.offload``, in order of preference.

    Not thread-safe: the engine calls it with its lock held, except ``of`` and ``why_none``, which
    only read.

    Attributes:
        tiers: all of them.
        notes: why tensors were not moved although a tier accepts them.
        plans: plain layout -> facts by which the native code packs such tensors; of others, and
            once a tier is full, Python asks the chain.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tiers
        self.notes: dict[str, None] = {}
        self.plans: dict[TensorLayout, Plan] = {}
        self._of: dict[tuple[torch.dtype, torch.device], tuple[Tier, ...]] = {}
        self._full: set[str] = set()

    def of(self, layout: TensorLayout) -> tuple[Tier, ...]:
        """Return the tiers that accept tensors of this dtype and device."""
        tiers = self._of.get(layout.kind)
        if tiers is None:
            tiers = tuple(tier for tier in self.tiers if tier.accepts(*layout.kind))
            self._of[layout.kind] = tiers
        return tiers

    def why_none(self, layout: TensorLayout) -> str | None:
        """Return why no tier takes such a tensor; ``None`` if one may."""
        tiers = self._of.get(layout.kind) or self.of(layout)
        if tiers and not self._full:
            return None
        if not tiers:
            is_in_host = layout.device.type == "cpu"
            for_host = any(tier.name == "cpu" for tier in self.tiers)
            return IN_HOST if is_in_host and for_host else "no tier takes it"
        if all(tier.name in self._full for tier in tiers):
            return f"{tiers[0].name} full"
        return None

    def plan(self, layout: TensorLayout) -> None:
        """Note how tensors of a layout are packed, which a tier accepts."""
        if layout.is_plain and not self._full:
            tier = self.of(layout)[0]
            can_prefetch = not (layout.is_small and tier.is_slow)
            takes_all = tier.capacity is None and not tier.is_slow
            self.plans[layout] = (tier, can_prefetch, takes_all, *tier.direct(layout))

    def claim(self, layout: TensorLayout) -> Tier | None:
        """Return the first tier that has space for such a tensor; the space is counted as used."""
        for tier in self._of.get(layout.kind, ()):  # Known since the tensor was packed.
            used = tier.used + tier.space_of(layout)
            if tier.name not in self._full and (tier.capacity is None or used <= tier.capacity):
                tier.used = used
                return tier
        return None

    def failed(self, tier: Tier, layout: TensorLayout, error: BaseException) -> None:
        """Count a tier as full that raised instead of taking a tensor."""
        if tier.is_slow and isinstance(error, OSError):
            self._full.add(tier.name)
            self.plans.clear()
            what = "is full" if error.errno in FULL else "cannot be written"
            self.notes[f"{tier.name} {what} ({error.strerror}): kept in memory"] = None
        # Not an error of the disk: later tensors may fit, so the tier is not counted as full.
        elif tier.is_slow:
            self.notes[f"moving to {tier.name} failed: {error!r}; kept in memory"] = None
        tier.used -= tier.space_of(layout)

    def close(self) -> None:
        """Hold the tiers no more.

        An evicted block holds its tier: a file or pinned memory is freed with the last block in it,
        so the engine, which a user may keep for its report, must not hold it too.
        """
        self.tiers = ()
        self._of.clear()
        self.plans.clear()
