"""Selection of the values that are written, and of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.core.user_functions import takes_record
from torchtap.runs.meta import Meta
from torchtap.runs.select import Selection, Where

Pick = Callable[..., "Tensor | None"]
"""``f(tensor, record)`` or ``f(tensor)``."""
PICKED = "a part of the value, picked when it was written"


@dataclass(slots=True)
class WriteSelection:
    """The selection of the values that are written, and of their parts.

    Attributes:
        values: patterns, sites or functions of a site; ``None`` for no value at all.
        every: of how many steps one is written, those whose number it divides.
        dtype: to which floating-point values of more bytes are rounded; ``None`` for none.
        pick: takes a part of a value; ``None`` for all of it.
    """

    values: Where
    every: int = 1
    dtype: torch.dtype | None = None
    pick: Pick | None = None
    _known: dict[Site, bool] = field(default_factory=dict)
    _takes_record: bool = False

    def __post_init__(self) -> None:
        self._takes_record = callable(self.pick) and takes_record(self.pick)

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InputError: an argument is of the wrong kind.
        """
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"every is {self.every!r}; expected a whole number from 1.")
        if self.dtype is not None and not _can_round_to(self.dtype):
            raise InputError(
                f"dtype is {self.dtype!r}; expected a floating-point dtype of torch to which it "
                f"rounds numbers of both signs, such as torch.bfloat16."
            )
        if self.pick is not None and not callable(self.pick):
            raise InputError(
                f"pick is {self.pick!r}; expected a function of a tensor, or of it and a record."
            )

    @property
    def takes_whole(self) -> bool:
        """Return whether the values of all steps are written as they are."""
        return self.dtype is None and self.pick is None and self.every == 1

    def wants(self, record: Record, meta: Meta) -> bool:
        """Return whether a record is written."""
        if record.step % self.every:
            return False
        site = record.site
        known = self._known.get(site)
        if known is None:
            known = self._known[site] = self.wants_site(site, meta)
        return known

    def wants_site(self, site: Site, meta: Meta) -> bool:
        """Return whether the records of a site are written, of the steps that are."""
        if self.values is None:
            return False
        chosen = Selection([site], meta.modules, meta.aliases, tuple)
        return bool(chosen.fitting(self.values))

    def nbytes_of(self, tensor: Tensor) -> int:
        """Return the most bytes that a tensor can have when it is written."""
        own, wanted = tensor.dtype.itemsize, self.dtype
        if wanted is not None and tensor.is_floating_point():
            own = min(own, wanted.itemsize)
        return tensor.numel() * own

    def of(self, tensor: Tensor, labels: list[str], record: Record) -> tuple[Tensor, list[str]]:
        """The part of a value that is written, and its labels; an empty one where there is none."""
        if self.pick is not None:
            arguments = (tensor, record) if self._takes_record else (tensor,)
            picked: Any = self.pick(*arguments)
            if picked is None:
                picked = tensor[:0] if tensor.dim() else tensor.new_empty(0)
            if not isinstance(picked, Tensor):
                raise InputError(
                    f"pick returned a {type(picked).__name__} for {record.site}; expected a part "
                    f"of the tensor, or None."
                )
            if picked is not tensor:
                tensor, labels = picked.detach(), [*labels, PICKED]
        wanted = self.dtype
        is_wider = wanted is not None and tensor.dtype.itemsize > wanted.itemsize
        if wanted is not None and is_wider and tensor.is_floating_point():
            said = str(tensor.dtype).removeprefix("torch.")
            return tensor.to(wanted), [*labels, f"rounded from {said}"]
        return tensor, labels


def _can_round_to(dtype: object) -> bool:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return False
    try:
        return bool(torch.tensor(-1.0).to(dtype).float() == -1)
    except RuntimeError:  # Of packed halves of a byte, which PyTorch does not convert.
        return False
