"""One stretch of memory that autograd keeps, wherever it is now."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from torchtap.moving.form import Form, nothing
from torchtap.moving.streams import Ticket
from torchtap.moving.tiers import Tier
from torchtap.packing import overwritten

HERE, LEAVING, AWAY = "here", "leaving", "away"
AHEAD = "ahead"
"""What is away, and fetched before it is asked for."""

Identity = tuple[int, int, int, tuple[Any, ...]]
"""What saved tensors share exactly if they are the same numbers in the same memory: the memory's
object, its version, where they begin in it, and marks of their form."""


class Parcel:
    """Owned by the graph, through what ``pack`` returned; everybody else holds it weakly.

    It holds an alias of the tensor, and with it its version: what was overwritten is never handed
    out. Once it is away, the alias has no memory any more, but still the version: a write that was
    under way while the tensor left is only counted when it ends.

    Attributes:
        storage: weakly, the memory it was packed from: an address is used again once that is gone.
        identity: under which it is known.
        number: which it was of those that are fetched ahead; -1 if it is not.
        state: ``here``, ``leaving`` or ``away``.
        ticket: of the copy that takes it away.
        ahead: what was fetched of it before it was asked for.
    """

    __slots__ = (
        "__weakref__",
        "_freed",
        "ahead",
        "alias",
        "form",
        "handle",
        "identity",
        "nbytes",
        "number",
        "small",
        "state",
        "storage",
        "ticket",
        "tier",
        "version",
    )

    def __init__(
        self,
        tensor: Tensor,
        form: Form,
        storage: weakref.ref[torch.UntypedStorage],
        identity: Identity,
        freed: deque[tuple[str, int, Any]],
    ) -> None:
        self.alias = tensor.detach()
        self.version = identity[1]
        self.form = form
        self.nbytes = form.nbytes
        self.storage = storage
        self.identity = identity
        self.number = -1
        self.state = HERE
        self.ticket: Ticket | None = None
        self.tier: Tier | None = None
        self.handle: Any = None
        self.small = 0
        self.ahead: Any = None
        self._freed = freed

    @property
    def is_overwritten(self) -> bool:
        """Whether anything wrote into the tensor since it was saved."""
        return bool(self.alias._version != self.version)

    def check(self) -> None:
        """Do what autograd does before it hands out a tensor.

        Raises:
            RuntimeError: it was overwritten, in autograd's own words.
        """
        if self.alias._version != self.version:
            raise overwritten(self.alias, self.form.size, self.version)

    def let_go(self) -> None:
        """It is away: its memory is needed no more."""
        self.state = AWAY
        self.alias.data = nothing(self.form.dtype, self.form.device)

    def __del__(self) -> None:
        # The collector may call this at any moment: it takes no lock.
        self._freed.append((self.state, self.nbytes, self.identity))
        if self.ahead is not None:
            self._freed.append((AHEAD, self.nbytes, self.number))
        if self.tier is not None:
            self.tier.drop(self.handle, self.small)


class Packed:
    """What autograd holds in place of a tensor that shares a parcel with others."""

    __slots__ = ("form", "parcel")

    def __init__(self, parcel: Parcel, form: Form) -> None:
        self.parcel = parcel
        self.form = form
