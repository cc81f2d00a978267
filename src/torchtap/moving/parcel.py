"""One stretch of memory that autograd keeps, wherever it is now."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.moving.form import Form
from torchtap.moving.streams import Ticket
from torchtap.moving.tiers import Tier
from torchtap.packing import overwritten

HERE, LEAVING, AWAY = "here", "leaving", "away"
AHEAD = "ahead"
"""What is away, and fetched before it is asked for."""


class Parcel:
    """Owned by the graph, through what ``pack`` returned; everybody else holds it weakly.

    It holds an alias of the tensor, and with it its version: what was overwritten is never handed
    out. Once it is away, the alias has no memory any more, but still the version: a write that was
    under way while the tensor left is only counted when it ends.

    Attributes:
        number: in which order it was packed within its step.
        storage: weakly, the memory it was packed from.
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
        storage: StorageWeakRef,
        number: int,
        freed: deque[tuple[str, int]],
    ) -> None:
        self.alias = tensor.detach()
        self.version = self.alias._version
        self.form = form
        self.storage = storage
        self.number = number
        self.state = HERE
        self.ticket: Ticket | None = None
        self.tier: Tier | None = None
        self.handle: Any = None
        self.small = 0
        self.ahead: Any = None
        self._freed = freed

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.form.nbytes

    @property
    def is_overwritten(self) -> bool:
        """Whether anything wrote into the tensor since it was saved."""
        return bool(self.alias._version != self.version)

    def check(self) -> None:
        """Do what autograd does before it hands out a tensor.

        Raises:
            RuntimeError: it was overwritten, in autograd's own words.
        """
        if self.is_overwritten:
            raise overwritten(self.alias, self.form.size, self.version)

    def let_go(self) -> None:
        """It is away: its memory is needed no more."""
        self.state = AWAY
        empty = self.alias.detach()  # Backward may just have been handed the alias itself.
        empty.data = torch.empty(0, dtype=self.form.dtype, device=self.form.device)
        self.alias = empty

    def __del__(self) -> None:
        # The collector may call this at any moment: it takes no lock.
        self._freed.append((self.state, self.nbytes))
        if self.ahead is not None:
            self._freed.append((AHEAD, self.nbytes))
        if self.tier is not None:
            self.tier.drop(self.handle, self.small)


class Packed:
    """What autograd holds in a tensor's place: a parcel, and how this tensor lies in it."""

    __slots__ = ("form", "parcel")

    def __init__(self, parcel: Parcel, form: Form) -> None:
        self.parcel = parcel
        self.form = form
