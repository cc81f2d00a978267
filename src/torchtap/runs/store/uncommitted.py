"""The values that were appended since the last commit, and what the journal will say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.site import Site
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.journal import Head, Template, Templates
from torchtap.runs.store.lanes import Value
from torchtap.runs.store.layout import SMALL
from torchtap.runs.store.small_values import SmallWriter, joined_bytes, stacked
from torchtap.runs.store.staging import CLONED

_Entry = tuple[int, Head, int, int, int, int, int]
"""Place in the commit, head, step, bytes, row, offset and checksum of a value."""
Column = NDArray[np.int64]
_Block = tuple[list[int], Template, Column, Column, list[int]]
"""Small values that came together: places in the commit, template, steps, offsets, checksums."""
Key = tuple[Site, int, int, str, int, tuple[str, ...]]
"""Site, step, call, phase, backward and labels of a value."""
SmallValue = tuple[int, Key, Tensor]


class Uncommitted:
    """Values of the commit that comes next.

    Args:
        folder: of the attempt, in which the file of small values is made when the first comes.

    Attributes:
        small: writes that file.
        has_new_file: whether the file was made, and its name may not be on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self.small: SmallWriter | None = None
        self.has_new_file = False
        self._folder = folder
        self._entries: list[_Entry] = []
        self._pending: list[tuple[int, Tensor | memoryview]] = []
        self._templates = Templates()
        self._blocks: list[_Block] = []
        self._last_facts: list[Any] = []
        self._last_template = self._templates.of([], [])

    def add(
        self,
        value: Value,
        order: int | None,
        file: str = "",
        where: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Add a value that stands in a file, or one that will stand among the small ones.

        Args:
            value: what.
            order: where among the values of the commit it comes; the order of the calls by default.
            file: that it stands in; none for a small value.
            where: row, place and checksum.
        """
        number = len(self._entries) if order is None else order
        if not file:
            self._pending.append((len(self._entries), value.data))
        key = (value.site, value.call, value.phase, value.backward, value.labels)
        head = (*key, value.dtype, value.shape, file or SMALL)
        self._entries.append((number, head, value.step, len(value.data), *where))

    def add_small(self, values: Sequence[SmallValue]) -> None:
        """Add small values of plain tensors on the CPU, which nobody changes any more."""
        facts = [(key[0], *key[2:], one.dtype, one.shape) for _, key, one in values]
        # A step mostly brings what the step before it brought: then its columns are those as well.
        if facts != self._last_facts:
            heads = [(*fact[:5], CLONED[fact[5]], tuple(fact[6]), SMALL) for fact in facts]
            self._last_template = self._templates.of(heads, [one.nbytes for _, _, one in values])
            self._last_facts = facts
        template = self._last_template
        steps = np.array([key[1] for _, key, _ in values], dtype=np.int64)
        tensors = [one for _, _, one in values]
        data = stacked(tensors) if template.are_alike else memoryview(joined_bytes(tensors))
        offsets, sums = self._place(template, steps, data)
        self._blocks.append(([order for order, _, _ in values], template, steps, offsets, sums))

    def write_small(self) -> None:
        """Have the small values that came stand together; their bytes are needed no longer."""
        if not self._pending:
            return
        entries, numbers = self._entries, [number for number, _ in self._pending]
        chosen = [entries[number] for number in numbers]
        template = self._templates.of([one[1] for one in chosen], [one[3] for one in chosen])
        steps = np.array([one[2] for one in chosen], dtype=np.int64)
        data = memoryview(joined_bytes([value for _, value in self._pending]))
        offsets, sums = self._place(template, steps, data)
        self._pending.clear()
        for row, (number, place) in enumerate(zip(numbers, offsets.tolist(), strict=True)):
            entries[number] = (*entries[number][:4], row, place, sums[row])

    def _place(
        self, template: Template, steps: Column, data: memoryview
    ) -> tuple[Column, list[int]]:
        """Have small values stand together; where each begins in the file, and its checksum."""
        if self.small is None:
            self.small = SmallWriter(self._folder / SMALL)
            self.has_new_file = True
        place = self.small.add(template, steps, data)
        sums = [crc32(data[begin:end]) for begin, end in template.starts]
        return place + template.ends[:-1], sums

    def take(self) -> tuple[Template, Mapping[str, Any]]:
        """Take out the values that are to be committed, in their order."""
        blocks, entries = self._blocks, self._entries
        self._blocks, self._entries = [], []
        # So it is where all values of a step are small: its columns are there, and in order.
        if len(blocks) == 1 and not entries:
            _, template, steps, offsets, sums = blocks[0]
            rows = template.rows
            return template, {"step": steps, "row": rows, "offset": offsets, "crc32": sums}
        for orders, template, steps, offsets, sums in blocks:
            columns = (steps.tolist(), template.nbytes.tolist(), template.rows.tolist())
            own = zip(orders, template.heads, *columns, offsets.tolist(), sums, strict=True)
            entries += own
        entries.sort(key=itemgetter(0))
        template = self._templates.of(
            [entry[1] for entry in entries], [entry[3] for entry in entries]
        )
        places = {"step": 2, "row": 4, "offset": 5, "crc32": 6}
        return template, {name: [entry[at] for entry in entries] for name, at in places.items()}

    def forget(self) -> None:
        """Forget the values: they are of no commit."""
        self._entries.clear()
        self._blocks.clear()
        self._pending.clear()
        if self.small is not None:
            self.small.forget()
