"""Writes the folder of one attempt: values, commits, and what is known of the run.

Everything here happens in the order of the calls, in one thread. Large values are written at once.
Small ones and commits wait in memory for others, to be written together: small values first, then
the journal, whose batches count as soon as they are whole.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.dtypes import is_sparse_dtype
from torchtap.runs.store.index_file import write_index
from torchtap.runs.store.journal import (
    Head,
    JournalWriter,
    Template,
    Templates,
    index_of,
)
from torchtap.runs.store.lane import FULL, Lane, OpenFiles
from torchtap.runs.store.layout import (
    ATTEMPT,
    FORMAT,
    INDEX,
    JOURNAL,
    LANES,
    MOST_SMALL,
    SMALL,
    lane_name,
    write_json,
)
from torchtap.runs.store.lock import hold_lock
from torchtap.runs.store.site_text import site_text
from torchtap.runs.store.small import SmallWriter, joined, stacked
from torchtap.runs.store.staging import CLONED
from torchtap.runs.store.statistics import Measured, StatisticsWriter

_MOST_WAITING = 1 << 20
"""Bytes of small values and of the journal that wait to be written together."""


_Entry = tuple[int, Head, int, int, int, int, int]
"""Place in the commit, head, step, bytes, row, offset and checksum of a value."""
Column = NDArray[np.int64]
_Block = tuple[list[int], Template, Column, Column, list[int]]
"""Small values that came together: places in the commit, template, steps, offsets, checksums."""
Key = tuple[Site, int, int, str, int, tuple[str, ...]]
"""Site, step, call, phase, backward and labels of a value."""
SmallValue = tuple[int, Key, Tensor]


class Value(NamedTuple):
    """One value to be written.

    Attributes:
        site: where.
        step: the user's counter.
        call: within the step.
        phase: of the call.
        backward: which backward of the step, -1 for forward values.
        labels: what else is to be known of it.
        dtype: of its elements, without ``torch.``.
        shape: of the tensor.
        data: its bytes, in the order of the elements.
    """

    site: Site
    step: int
    call: int
    phase: str
    backward: int
    labels: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Written(NamedTuple):
    """Bytes of the commits.

    Attributes:
        grown: of values and of the journal, of commits that have values.
        empty: of the journal, of those that have none.
        headers: of the files of values, which do not grow.
    """

    grown: int
    empty: int
    headers: int


class AttemptWriter:
    """Writes one attempt.

    Args:
        folder: where; an empty folder that this makes its own.
        facts: what is known of the run, as JSON can hold it.
        durability: when what was written is also on the disk: ``step`` by step, on ``close``, or
            left to the system (``none``).

    Attributes:
        written: bytes of all commits.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, durability: str) -> None:
        self.folder = folder
        self._durability = durability
        self._facts = {"format": FORMAT, "id": uuid.uuid4().hex, **facts}
        self._files = OpenFiles()
        self._lanes: dict[tuple[Site, str, tuple[int, ...] | None], Lane] = {}
        self._kinds: dict[tuple[Site, str], tuple[int, ...]] = {}
        self._committed: dict[Lane, tuple[int, int]] = {}
        self._entries: list[_Entry] = []
        self._pending: list[tuple[int, Tensor | memoryview]] = []
        self._templates = Templates()
        self._blocks: list[_Block] = []
        self._last_facts: list[Any] = []
        self._last_template = self._templates.of([], [])
        self._small: SmallWriter | None = None
        self._small_end = 0
        self._ends_then: tuple[dict[Lane, tuple[int, int]], int] = {}, 0
        self._has_new_files = True
        self._num_made = self._num_commits = 0
        self._header_bytes = self._empty_bytes = 0
        self.written = Written(0, 0, 0)
        self._statistics: StatisticsWriter | None = None
        (folder / LANES).mkdir()
        self._journal = JournalWriter(folder / JOURNAL, self._facts["id"])
        self._lock = hold_lock(self._journal.stream.file)
        self._write_facts({"state": "open"})
        self._tells_links = bool(os.fstat(self._journal.stream.file).st_nlink)

    # ------------------------------------------------------------------ one value after the other

    def append(self, value: Value, order: int | None = None) -> None:
        """Write one value; it counts once it is committed.

        Args:
            value: what.
            order: where among the values of the commit it comes; the order of the calls by default.
        """
        nbytes, site, dtype = len(value.data), value.site, value.dtype
        head = (site, value.call, value.phase, value.backward, value.labels, dtype, value.shape)
        number = len(self._entries) if order is None else order
        if nbytes <= MOST_SMALL and (site, dtype) not in self._kinds:
            self._pending.append((len(self._entries), value.data))
            self._entries.append((number, (*head, SMALL), value.step, nbytes, 0, 0, 0))
            return
        checksum = crc32(value.data)
        lane, num_rows = self._lane_of(value)
        offset, row = self._append_to(lane, value.data, num_rows)
        if self._durability == "step":  # So that the disk has it when the step is synced.
            lane.begin_sync(offset)
        where = (row, offset, checksum)
        self._entries.append((number, (*head, lane.path.name), value.step, nbytes, *where))

    def append_small(self, values: Sequence[SmallValue]) -> None:
        """Take small values of plain tensors on the CPU, which nobody changes any more.

        Args:
            values: where among those of the commit each comes, its key, and the tensor.
        """
        if self._kinds and any(
            (key[0], CLONED[one.dtype]) in self._kinds for _, key, one in values
        ):
            for order, key, tensor in values:
                data = memoryview(joined([tensor]))
                self.append(Value(*key, CLONED[tensor.dtype], tuple(tensor.shape), data), order)
            return
        facts = [(key[0], *key[2:], one.dtype, one.shape) for _, key, one in values]
        if facts != self._last_facts:
            heads = [(*fact[:5], CLONED[fact[5]], tuple(fact[6]), SMALL) for fact in facts]
            self._last_template = self._templates.of(heads, [one.nbytes for _, _, one in values])
            self._last_facts = facts
        template = self._last_template
        steps = np.array([key[1] for _, key, _ in values], dtype=np.int64)
        tensors = [one for _, _, one in values]
        data = stacked(tensors) if template.are_alike else memoryview(joined(tensors))
        offsets, sums = self._add_small(template, steps, data)
        self._blocks.append(([order for order, _, _ in values], template, steps, offsets, sums))

    def write_small(self) -> None:
        """Have the small values that came stand together; their bytes are needed no longer."""
        if not self._pending:
            return
        entries, numbers = self._entries, [number for number, _ in self._pending]
        chosen = [entries[number] for number in numbers]
        template = self._templates.of([one[1] for one in chosen], [one[3] for one in chosen])
        steps = np.array([one[2] for one in chosen], dtype=np.int64)
        data = memoryview(joined([value for _, value in self._pending]))
        offsets, sums = self._add_small(template, steps, data)
        self._pending.clear()
        for row, (number, place) in enumerate(zip(numbers, offsets.tolist(), strict=True)):
            entries[number] = (*entries[number][:4], row, place, sums[row])

    def _add_small(
        self, template: Template, steps: Column, data: memoryview
    ) -> tuple[Column, list[int]]:
        """Have small values stand together; where each begins in the file, and its checksum."""
        if self._small is None:
            self._small = SmallWriter(self.folder / SMALL)
            self._has_new_files = True
        place = self._small.add(template, steps, data)
        sums = [crc32(data[begin:end]) for begin, end in template.starts]
        return place + template.ends[:-1], sums

    def commit(self, commit: Commit) -> None:
        """Have what was appended since the last commit count, all or none of it, once written."""
        self._refuse_deleted()
        self.write_small()
        template, numbers = self._committing()
        before = self._journal.nbytes
        self._journal.add(template, numbers, commit)
        if not template.heads:
            self._empty_bytes += self._journal.nbytes - before
        self._num_made += 1
        self._note_ends()
        waiting = self._journal.stream.num_waiting
        waiting += 0 if self._small is None else self._small.stream.num_waiting
        if self._durability == "step" or waiting > _MOST_WAITING:
            self.write()

    def _committing(self) -> tuple[Template, Mapping[str, Any]]:
        """Take out the values that are to be committed, in their order."""
        blocks, entries = self._blocks, self._entries
        self._blocks, self._entries = [], []
        if len(blocks) == 1 and not entries:
            _, template, steps, offsets, sums = blocks[0]
            rows = template.rows
            return template, {"step": steps, "row": rows, "offset": offsets, "crc32": sums}
        for orders, template, steps, offsets, sums in blocks:
            columns = (steps.tolist(), template.nbytes.tolist(), template.rows.tolist())
            own = zip(orders, template.heads, *columns, offsets.tolist(), sums, strict=True)
            entries += own
        entries.sort(key=itemgetter(0))
        template = self._templates.of([one[1] for one in entries], [one[3] for one in entries])
        places = {"step": 2, "row": 4, "offset": 5, "crc32": 6}
        return template, {name: [one[at] for one in entries] for name, at in places.items()}

    def write(self) -> None:
        """Write the commits that wait: they hold as soon as this returns."""
        if self._num_made == self._num_commits:
            return
        ends, small_end = self._ends_then
        self._num_made, made = self._num_commits, self._num_made  # Until they are there.
        if self._small is not None:
            self._small.write()
        if self._durability == "step":
            self._sync_values()
        self._journal.stream.write()
        if self._durability == "step":
            self._journal.stream.sync()
            self._sync_names()
        self._num_made = self._num_commits = made
        self._small_end = small_end
        self._committed.update(ends)

    def append_statistics(self, measured: Measured) -> None:
        """Write rows of statistics; they count at once."""
        self._refuse_deleted()
        self.write()
        if self._statistics is None:
            self._statistics = StatisticsWriter(self.folder, self._facts["id"])
        self._statistics.append(measured)

    def _refuse_deleted(self) -> None:
        """Notice it when the folder is gone: files that are open would take all that comes.

        Raises:
            FileNotFoundError: the journal has no name any more.
        """
        if self._tells_links and not os.fstat(self._journal.stream.file).st_nlink:
            said = "the journal of the run was deleted while it was written to"
            raise FileNotFoundError(errno.ENOENT, said, str(self.folder / JOURNAL))

    @property
    def num_commits(self) -> int:
        """The number of commits that were written."""
        return self._num_commits

    @property
    def num_made(self) -> int:
        """The number of commits that were made, with those that wait."""
        return self._num_made

    def flush(self) -> None:
        """Make the files of values readable for others, and see that all is on the disk."""
        self.write()
        for lane in self._lanes.values():
            lane.write_header()
        if self._durability != "none":
            self._sync_values(every=True)
            self._journal.stream.sync()

    # ------------------------------------------------------------------ the end

    def close(
        self,
        facts: Mapping[str, Any] | None = None,
        seal: Callable[[Path], dict[str, Any]] | None = None,
    ) -> None:
        """Write the index, and say that the attempt is complete; what is not committed is cut off.

        Args:
            facts: what is known now, as JSON can hold it.
            seal: writes what else is to stand in the folder, and returns what is to be noted of it.
        """
        try:
            self.write()
            self._cut()
            for stream in self._streams():
                stream.finish()
            sealed = {"index": self._write_index(), **(seal(self.folder) if seal else {})}
            if self._durability != "none":
                self._sync_values(every=True)
                self._journal.stream.sync()
            self._write_facts({"state": "closed", **sealed, **(facts or {})})
            self._has_new_files = True
            if self._durability != "none":
                self._sync_names()
        finally:
            self._release()

    def abandon(self, why: str, facts: Mapping[str, Any] | None = None) -> None:
        """After an error: keep what was committed, and let go of everything.

        Nothing here raises: the disk may be full.
        """
        try:
            with suppress(OSError, RunError):
                self._make_room()
                self.write()
            with suppress(OSError):
                self._cut()
            with suppress(OSError):
                self._write_facts({"state": "failed", "why": why, **(facts or {})})
        finally:
            self._release()

    # ------------------------------------------------------------------ where values go

    def _append_to(self, lane: Lane, data: memoryview, num_rows: int) -> tuple[int, int]:
        try:
            return lane.append(data, num_rows)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for one in self._lanes.values():  # What is reserved for others may be enough.
                one.stop_reserving()
            return lane.append(data, num_rows)

    def _lane_of(self, value: Value) -> tuple[Lane, int]:
        """The lane of a value, and how many rows of it the value takes."""
        kind, trailing = (value.site, value.dtype), value.shape[1:]
        if is_sparse_dtype(value.dtype):
            self._kinds.setdefault(kind, trailing)
            return self._lane(*kind, None), len(value.data)
        if trailing == self._kinds.setdefault(kind, trailing):
            num_rows = value.shape[0] if value.shape else 1
            return self._lane(*kind, trailing), num_rows
        return self._lane(*kind, None), _numel(value.shape)

    def _lane(self, site: Site, dtype: str, trailing: tuple[int, ...] | None) -> Lane:
        known = self._lanes.get((site, dtype, trailing))
        if known is None:
            text = site_text(site)
            path = self.folder / LANES / lane_name(len(self._lanes), text)
            known = Lane(path, text, dtype, trailing, self._files)
            self._lanes[site, dtype, trailing] = known
            self._has_new_files = True
            self._committed[known] = known.end, 0
            self._header_bytes += known.end
        return known

    def _note_ends(self) -> None:
        """Note where the files end when the commits that wait are written."""
        ends = {lane: (lane.end, lane.num_rows) for lane in self._lanes.values()}
        small = 0 if self._small is None else self._small.stream.next
        self._ends_then = ends, small
        rows = sum(end for end, _ in ends.values()) - self._header_bytes
        grown = rows + small + self._journal.nbytes - self._empty_bytes
        self.written = Written(grown, self._empty_bytes, self._header_bytes)

    def _make_room(self) -> None:
        """Give back what no commit names, so that those that wait find room on a full disk."""
        for lane, (end, num_rows) in self._ends_then[0].items():
            lane.back_to(end, num_rows)
            lane.stop_reserving()

    def _cut(self) -> None:
        """Leave in the files what was committed, and say so in their headers."""
        self._entries.clear()
        self._blocks.clear()
        self._pending.clear()
        for lane in self._lanes.values():
            lane.back_to(*self._committed[lane])
        self._files.each([(one.path, one.cut) for one in self._lanes.values() if one.has_more])
        for lane in self._lanes.values():
            lane.write_header()
        if self._small is not None:
            self._small.forget()
            self._small.stream.back_to(self._small_end)
        self._journal.stream.forget()
        self._journal.stream.back_to(self._journal.stream.end)

    # ------------------------------------------------------------------ what stands beside them

    def _write_index(self) -> dict[str, int]:
        found = self._journal.stream.batches(self.folder / JOURNAL)
        index = index_of([batch for batch, _ in found])
        return write_index(self.folder / INDEX, index, [info for _, info in found])

    def _write_facts(self, more: Mapping[str, Any]) -> None:
        self._facts |= more
        self._facts["changed"] = time.time()
        write_json(self.folder / ATTEMPT, self._facts, sync=self._durability == "step")

    def _streams(self) -> Iterator[Any]:
        yield self._journal.stream
        if self._small is not None:
            yield self._small.stream
        if self._statistics is not None:
            yield self._statistics.stream

    def _sync_values(self, *, every: bool = False) -> None:
        changed = [lane for lane, (end, _) in self._committed.items() if every or lane.end != end]
        self._files.each([(lane.path, os.fdatasync) for lane in changed])
        for stream in (self._small, self._statistics):
            if stream is not None:
                stream.stream.sync()

    def _sync_names(self) -> None:
        """See that the names of new files are on the disk, too."""
        if self._has_new_files:
            rank = self.folder.parent
            _sync_folders(self.folder / LANES, self.folder, rank, rank.parent)
            self._has_new_files = False

    def _release(self) -> None:
        self._files.close()
        for stream in self._streams():
            stream.close()


def _numel(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def _sync_folders(*folders: Path) -> None:
    """See that the names of files are on the disk."""
    for folder in folders:
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
