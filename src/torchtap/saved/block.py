"""One stretch of memory that autograd keeps, wherever it is now."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from torchtap.hooks.saved_pairs import overwritten
from torchtap.saved.layout import TensorLayout
from torchtap.saved.streams import Ticket
from torchtap.saved.tiers import Tier

RESIDENT, EVICTING, EVICTED = "here", "leaving", "away"
PREFETCHED = "ahead"
"""What is away, and fetched before it is asked for."""

Identity = tuple[int, int, int, tuple[Any, ...]]
"""What saved tensors share exactly if they are the same numbers in the same memory: the memory's
object, its version, where they begin in it, and marks of their form."""
Freed = tuple[str, int, Any, Tier | None, int]
"""What a parcel leaves behind: its state, bytes, identity, tier, and bytes there."""


class SavedBlock:
    """Owned by the graph, through what ``pack`` returned.

    It holds an alias of the tensor, and with it its version: what was overwritten is never handed
    out. Once it is away, the alias has no memory any more, but still the version: a write that was
    under way while the tensor left is only counted when it ends.

    Attributes:
        alias: shares memory with the tensor, and has no graph.
        storage: weakly, the memory it was packed from: an address is used again once that is gone.
        identity: under which it is known.
        number: which it was of those that are fetched ahead; -1 if it is not.
        state: ``here``, ``leaving`` or ``away``.
        ticket: of the copy that takes it away.
        ahead: what was fetched of it before it was asked for.
    """

    __slots__ = (
        "_freed",
        "ahead",
        "alias",
        "form",
        "handle",
        "identity",
        "number",
        "small",
        "state",
        "storage",
        "ticket",
        "tier",
    )

    def __init__(
        self,
        alias: Tensor,
        form: TensorLayout,
        storage: weakref.ref[torch.UntypedStorage],
        identity: Identity,
        freed: deque[Freed],
    ) -> None:
        self.alias = alias
        self.form = form
        self.storage = storage
        self.identity = identity
        self.number = -1
        self.state = RESIDENT
        self.ticket: Ticket | None = None
        self.tier: Tier | None = None
        self.handle: Any = None
        self.small = 0
        self.ahead: Any = None
        self._freed = freed

    def check(self) -> None:
        """Do what autograd does before it hands out a tensor.

        Raises:
            RuntimeError: it was overwritten, in autograd's own words.
        """
        if self.alias._version != self.identity[1]:
            raise overwritten(self.alias, self.form.size, self.identity[1])

    def let_go(self) -> None:
        """It is away: its memory is needed no more."""
        self.state = EVICTED
        self.alias.data = self.form.nothing

    def __del__(self) -> None:
        # The collector may call this at any moment: it takes no lock.
        nbytes, tier = self.form.nbytes, self.tier
        self._freed.append((self.state, nbytes, self.identity, tier, self.small))
        if self.ahead is not None:
            self._freed.append((PREFETCHED, nbytes, self.number, None, 0))
        if tier is not None:
            tier.drop(self.handle)


class BlockRef:
    """What autograd holds: as long as one lives, its parcel does; everybody else holds it weakly.

    It is not the parcel itself, because that has a finaliser: until that has run, a weak reference
    brings back what is dying. One to an owner is empty before.
    """

    __slots__ = ("__weakref__", "parcel")

    def __init__(self, parcel: SavedBlock) -> None:
        self.parcel = parcel


class SharedView:
    """What autograd holds for a tensor that shares a parcel with others."""

    __slots__ = ("form", "owner")

    def __init__(self, owner: BlockRef, form: TensorLayout) -> None:
        self.owner = owner
        self.form = form
