"""One stretch of memory that autograd keeps, wherever it is now."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.moving.form import Form
from torchtap.moving.streams import Ticket
from torchtap.moving.tiers import Tier
from torchtap.packing import overwritten

HERE, LEAVING, AWAY = "here", "leaving", "away"


class Parcel:
    """Owned by the graph, through what ``pack`` returned; everybody else holds it weakly.

    While it is here or leaving, it holds an alias of the tensor with its version: what was
    overwritten before it left is never handed out.

    Attributes:
        number: in which order it was packed within its step.
        storage: weakly, the memory it was packed from.
        state: ``here``, ``leaving`` or ``away``.
        ticket: of the copy that takes it away.
    """

    __slots__ = (
        "__weakref__",
        "_freed",
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
        self.alias: Tensor | None = tensor.detach()
        self.version = self.alias._version
        self.form = form
        self.storage = storage
        self.number = number
        self.state = HERE
        self.ticket: Ticket | None = None
        self.tier: Tier | None = None
        self.handle: Any = None
        self.small = 0
        self._freed = freed

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.form.nbytes

    def unspoiled(self) -> Tensor:
        """The tensor while it is here.

        Raises:
            RuntimeError: it was overwritten, in autograd's own words.
        """
        alias = self.alias
        assert alias is not None
        if alias._version != self.version:
            raise overwritten(alias, self.version)
        return alias

    def __del__(self) -> None:
        # The collector may call this at any moment: it takes no lock.
        self._freed.append((self.state, self.nbytes))
        if self.tier is not None:
            self.tier.drop(self.handle, self.small)


class Packed:
    """What autograd holds in a tensor's place: a parcel, and how this tensor lies in it."""

    __slots__ = ("form", "parcel")

    def __init__(self, parcel: Parcel, form: Form) -> None:
        self.parcel = parcel
        self.form = form
