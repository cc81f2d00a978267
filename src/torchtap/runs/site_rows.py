"""The rows of a site over all its values: which value each stands in, and some of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import InputError, RunError
from torchtap.core.site import Site
from torchtap.runs.records import Places, Records

if TYPE_CHECKING:
    from torch import Tensor

Numbers = NDArray[np.int64]


class SiteRows:
    """All rows of one site, numbered as ``run.cat(site)`` joins them.

    Args:
        records: of the run.
        places: of the values, in the order in which they are joined.
        site: for messages.

    Attributes:
        steps: of each value.
        starts: the number of the first row of each value, and at the end that of all rows.
    """

    def __init__(self, records: Records, places: Places, site: Site) -> None:
        self._records = records
        self._places = places
        self._site = site
        sizes = [_num_rows(records.values.fact(place).shape) for place in places.tolist()]
        self.starts: Numbers = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=self.starts[1:])
        self.steps: Numbers = records.column_at("step", places)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def gather(self, indices: Sequence[int] | NDArray[Any] | Tensor) -> Tensor:
        """Some rows as one tensor, in the order of the indices; negative ones count from the end.

        Raises:
            InputError: an index is no whole number, or beyond the last row.
            RunError: the rows differ in shape or dtype.
        """
        import torch

        wanted = self._checked(indices)
        owners = np.searchsorted(self.starts, wanted, side="right") - 1
        within = wanted - self.starts[owners]
        if not len(wanted):
            value = self._first_value()
            return value.new_empty((0, *value.shape[1:]), layout=torch.strided)
        stored = getattr(self._records.values, "gather", None)
        if stored is not None:
            gathered: Tensor | None = stored(self._places[owners], within)
            if gathered is not None:
                return gathered
        there, which = np.unique(owners, return_inverse=True)
        values = [self._value(owner) for owner in there.tolist()]
        kinds = {(value.dtype, value.shape[1:]) for value in values}
        if len(kinds) > 1:
            raise RunError(
                f"The rows of {self._site} that were asked for differ in shape or dtype: "
                f"{', '.join(sorted(str((str(d), list(s))) for d, s in kinds))}. Read them one by "
                f"one with run.records({str(self._site)!r})."
            )
        first = values[0]
        out = torch.empty((len(wanted), *first.shape[1:]), dtype=first.dtype, device=first.device)
        order = np.argsort(which, kind="stable")  # Of each value the rows that are asked of it.
        ends = np.cumsum(np.bincount(which, minlength=len(values)))
        for value, mine in zip(values, np.split(order, ends[:-1]), strict=True):
            chosen = torch.from_numpy(within[mine])
            if value.layout is torch.sparse_coo:
                value, chosen = value.index_select(0, chosen).to_dense(), torch.arange(len(mine))
            elif value.layout is not torch.strided:
                value = value.to_dense()
            out[torch.from_numpy(mine)] = value[chosen]
        return out

    def first(self, count: int) -> SiteRows:
        """Return the rows of the first values; of all, where there are not so many."""
        return SiteRows(self._records, self._places[:count], self._site)

    @property
    def mark(self) -> int:
        """A checksum of steps, numbers of rows and, of values on disk, of what is in them."""
        checksum = crc32(self.steps.astype(np.int64).tobytes(), crc32(self.starts.tobytes()))
        entries = self._records.values.entries
        if entries is not None and "crc32" in entries.columns:
            sums = np.asarray(entries.columns["crc32"][self._places])
            checksum = crc32(sums.astype(np.uint32).tobytes(), checksum)
        return checksum

    def step_of(self, row: int) -> int:
        """Return the step of a row."""
        return int(self.steps[np.searchsorted(self.starts, row, side="right") - 1])

    def _value(self, owner: int) -> Tensor:
        value = without_jags(self._records[int(self._places[owner])].value)
        if value.is_nested:
            raise RunError(
                f"{self._site} holds nested tensors of strided layout. Their parts may differ in "
                f"shape, so {self._site} has no rows. Read the values one by one with "
                f"run.records({str(self._site)!r})."
            )
        return value if value.dim() else value.reshape(1)

    def _first_value(self) -> Tensor:
        if not len(self._places):
            raise RunError(f"{self._site} has no value, and so no rows.")
        return self._value(0)

    def _checked(self, indices: Any) -> Numbers:
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
            raise InputError(
                f"rows() takes whole numbers in one dim, and got "
                f"{numbers.dtype}{list(numbers.shape)}."
            )
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        beyond = (numbers < 0) | (numbers >= len(self))
        if beyond.any():
            raise InputError(
                f"{self._site} has {len(self):,} rows, and row "
                f"{np.asarray(indices)[beyond][0]} was asked for."
            )
        return numbers


def without_jags(value: Tensor) -> Tensor:
    """The parts of a jagged tensor one after the other, as a file holds it; others as they are."""
    import torch

    from torchtap.runs.strided import joined_parts

    return joined_parts(value) if value.is_nested and value.layout is not torch.strided else value


def _num_rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1
