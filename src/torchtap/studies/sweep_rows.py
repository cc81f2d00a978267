"""Several edits in one forward, each on its own rows of the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtap.core.batch_rows import has_rows, other_rows
from torchtap.core.rebuild import replace
from torchtap.core.record import Record
from torchtap.core.user_functions import Function, name_of, takes_record
from torchtap.edits.checked_edit import CheckedEdit


class RowsEdit:
    """An edit that sees only some rows of the batch."""

    def __init__(self, function: Function, first: int, num: int, whole: int) -> None:
        self.__name__ = name_of(function)
        self._function = function
        self._takes_record = takes_record(function)
        self._first, self._num, self._whole = first, num, whole

    def __call__(self, tensor: Tensor, record: Record) -> Tensor:
        if not has_rows(tensor, self._whole):
            raise MixedRowsError
        own = tensor.narrow(0, self._first, self._num)
        row = record._replace(kept=own)
        new = self._function(own, row) if self._takes_record else self._function(own)
        if new is None:
            return tensor
        if not isinstance(new, Tensor) or new.shape != own.shape or new.dtype != own.dtype:
            CheckedEdit(lambda _: new)(own, row)  # Raises what it raises without a batch.
        rest = self._first + self._num
        return torch.cat([tensor[: self._first], new, tensor[rest:]])


class MixedRowsError(Exception):
    """Dimension 0 is not that of samples."""


def other_rows_edit(num: int) -> Function:
    """Return an edit of all that has the rows of two copies."""

    def bent(tensor: Tensor) -> Tensor | None:
        is_fit = has_rows(tensor, 2 * num) and tensor.is_floating_point()
        return other_rows(tensor, num) if is_fit else None

    return bent


def rows_of(output: Any, first: int, num: int, whole: int) -> Any:
    """Return the part of an output that belongs to one copy of the inputs."""

    def cut(_: str, tensor: Tensor) -> Tensor:
        if not has_rows(tensor, whole):
            raise MixedRowsError
        return tensor.narrow(0, first, num)

    return replace(output, cut)
