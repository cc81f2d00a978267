"""Writes the folder of one attempt: values, commits, and what is known of the run.

Everything here happens in the order of the calls, in one thread; nothing waits in memory but the
small values of the running commit.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from torchtap.core.site import Site
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index_file import write_index
from torchtap.runs.store.journal import Entry, JournalWriter, index_of, read_journal
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
from torchtap.runs.store.small import SmallWriter
from torchtap.runs.store.statistics import Measured, StatisticsWriter
from torchtap.runs.store.streams import Found

_Small = tuple[str, int, str, str, bytes | memoryview]


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
        self._entries: list[tuple[int, Entry]] = []
        self._pending: list[tuple[int, _Small]] = []
        self._small: SmallWriter | None = None
        self._small_end = 0
        self._has_new_files = True
        self._num_commits = 0
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
        checksum = crc32(value.data)
        nbytes, shape, site = len(value.data), json.dumps(value.shape), _text(value.site)
        name, row, offset = SMALL, len(self._pending), 0
        if nbytes <= MOST_SMALL and (value.site, value.dtype) not in self._kinds:
            small = (site, value.step, value.dtype, shape, value.data)
            self._pending.append((len(self._entries), small))
        else:
            lane, num_rows = self._lane_of(value)
            offset, row = self._append_to(lane, value.data, num_rows)
            if self._durability == "step":  # So that the disk has it when the step is synced.
                lane.begin_sync(offset)
            name = lane.path.name
        key = (site, value.step, value.call, value.phase, value.backward, json.dumps(value.labels))
        entry = Entry(*key, value.dtype, shape, name, row, offset, nbytes, checksum)
        self._entries.append((len(self._entries) if order is None else order, entry))

    def write_small(self) -> None:
        """Write the small values that wait in memory for others to stand with."""
        if not self._pending:
            return
        if self._small is None:
            self._small = SmallWriter(self.folder / SMALL)
            self._has_new_files = True
        places = self._small.append([row for _, row in self._pending])
        for (number, _), offset in zip(self._pending, places, strict=True):
            order, entry = self._entries[number]
            self._entries[number] = order, entry._replace(offset=offset)
        self._pending.clear()

    def commit(self, commit: Commit) -> None:
        """Make what was appended since the last commit count, all or none of it."""
        self._refuse_deleted()
        self.write_small()
        if self._durability == "step":
            self._sync_values()
        self._entries.sort(key=itemgetter(0))
        before = self._journal.nbytes
        self._journal.append([entry for _, entry in self._entries], commit)
        if not self._entries:
            self._empty_bytes += self._journal.nbytes - before
        if self._durability == "step":
            self._journal.stream.sync()
            self._sync_names()
        self._entries.clear()
        self._num_commits += 1
        self._note_ends()

    def append_statistics(self, measured: Measured) -> None:
        """Write rows of statistics; they count at once."""
        self._refuse_deleted()
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
        """How many there are."""
        return self._num_commits

    def flush(self) -> None:
        """Make the files of values readable for others, and see that all is on the disk."""
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
        for lane in self._lanes.values():
            self._committed[lane] = lane.end, lane.num_rows
        self._small_end = 0 if self._small is None else self._small.stream.end
        rows = sum(lane.end for lane in self._lanes.values()) - self._header_bytes
        grown = rows + self._small_end + self._journal.nbytes - self._empty_bytes
        self.written = Written(grown, self._empty_bytes, self._header_bytes)

    def _cut(self) -> None:
        """Leave in the files what was committed, and say so in their headers."""
        self._entries.clear()
        self._pending.clear()
        for lane in self._lanes.values():
            lane.back_to(*self._committed[lane])
        self._files.each([(one.path, one.cut) for one in self._lanes.values() if one.has_more])
        for lane in self._lanes.values():
            lane.write_header()
        if self._small is not None:
            self._small.stream.back_to(self._small_end)
        self._journal.stream.back_to(self._journal.stream.end)

    # ------------------------------------------------------------------ what stands beside them

    def _write_index(self) -> dict[str, int]:
        found = [one for one in read_journal(self.folder / JOURNAL) if isinstance(one, Found)]
        index = index_of([one.batch for one in found])
        return write_index(self.folder / INDEX, index, [one.info for one in found])

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


@lru_cache(maxsize=65536)
def _text(site: Site) -> str:
    return site_text(site)


def _sync_folders(*folders: Path) -> None:
    """See that the names of files are on the disk."""
    for folder in folders:
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
