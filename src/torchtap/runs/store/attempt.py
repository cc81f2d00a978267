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
from pathlib import Path
from typing import Any, NamedTuple

from torchtap.core.errors import RunError
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index_file import write_index
from torchtap.runs.store.journal import (
    JournalWriter,
    index_of,
)
from torchtap.runs.store.lanes import Ends, Lanes, Value
from torchtap.runs.store.layout import (
    ATTEMPT,
    FORMAT,
    INDEX,
    JOURNAL,
    MOST_SMALL,
    write_json,
)
from torchtap.runs.store.lock import hold_lock
from torchtap.runs.store.small_values import joined_bytes
from torchtap.runs.store.staging import CLONED
from torchtap.runs.store.statistics_files import Measured, StatisticsWriter
from torchtap.runs.store.uncommitted import SmallValue, Uncommitted

_MOST_WAITING = 1 << 20
"""Bytes of small values and of the journal that wait to be written together."""


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
        num_commits: how many commits were written.
        num_made: how many were made, with those that wait.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, durability: str) -> None:
        self.folder = folder
        self._durability = durability
        self._facts = {"format": FORMAT, "id": uuid.uuid4().hex, **facts}
        self._values = Uncommitted(folder)
        self._small_end = 0
        self._ends_then: tuple[Ends, int] = {}, 0
        self._has_new_names = True
        self.num_made = self.num_commits = 0
        self._empty_bytes = 0
        self.written = Written(0, 0, 0)
        self._statistics: StatisticsWriter | None = None
        self._lanes = Lanes(folder)
        self._journal = JournalWriter(folder / JOURNAL, self._facts["id"])
        self._lock = hold_lock(self._journal.stream.file)
        self._write_facts({"state": "open", "locked": self._lock})
        # Where the file system counts no links, 0 does not say that the file was deleted.
        self._tells_links = bool(os.fstat(self._journal.stream.file).st_nlink)

    # ------------------------------------------------------------------ one value after the other

    def append(self, value: Value, order: int | None = None) -> None:
        """Write one value; it counts once it is committed.

        Args:
            value: what.
            order: where among the values of the commit it comes; the order of the calls by default.
        """
        if len(value.data) <= MOST_SMALL and not self._lanes.has(value.site, value.dtype):
            self._values.add(value, order)
            return
        checksum = crc32(value.data)
        lane, offset, row = self._lanes.append(value)
        if self._durability == "step":  # So that the disk has it when the step is synced.
            lane.begin_sync(offset)
        self._values.add(value, order, lane.path.name, (row, offset, checksum))

    def append_small(self, values: Sequence[SmallValue]) -> None:
        """Take small values of plain tensors on the CPU, which nobody changes any more.

        Args:
            values: where among those of the commit each comes, its key, and the tensor.
        """
        has, lanes = self._lanes.has, self._lanes
        if lanes.is_empty or not any(has(key[0], CLONED[one.dtype]) for _, key, one in values):
            self._values.add_small(values)
            return
        for order, key, tensor in values:
            data = memoryview(joined_bytes([tensor]))
            self.append(Value(*key, CLONED[tensor.dtype], tuple(tensor.shape), data), order)

    def write_small(self) -> None:
        """Have the small values that came stand together; their bytes are needed no longer."""
        self._values.write_small()

    def commit(self, commit: Commit) -> None:
        """Have what was appended since the last commit count, all or none of it, once written."""
        self._refuse_deleted()
        self.write_small()
        template, numbers = self._values.take()
        before = self._journal.nbytes
        self._journal.add(template, numbers, commit)
        if not template.heads:
            self._empty_bytes += self._journal.nbytes - before
        self.num_made += 1
        self._note_ends()
        waiting = self._journal.stream.num_waiting
        waiting += 0 if self._values.small is None else self._values.small.stream.num_waiting
        if self._durability == "step" or waiting > _MOST_WAITING:
            self.write()

    def write(self) -> None:
        """Write the commits that wait: they hold as soon as this returns."""
        if self.num_made == self.num_commits:
            return
        # Values before the journal, here and on the disk: after a crash between the two, or a power
        # failure, the journal names no value that is not there.
        ends, small_end = self._ends_then
        self.num_made, made = self.num_commits, self.num_made  # Until they are there.
        if self._values.small is not None:
            self._values.small.write()
        if self._durability == "step":
            self._sync_values()
        self._journal.stream.write()
        if self._durability == "step":
            self._journal.stream.sync()
            self._sync_names()
        self.num_made = self.num_commits = made
        self._small_end = small_end
        self._lanes.commit(ends)

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
        # POSIX lets a process write on into a file that was deleted, and nothing would be left of
        # it.
        if self._tells_links and not os.fstat(self._journal.stream.file).st_nlink:
            said = "the journal of the run was deleted while it was written to"
            raise FileNotFoundError(errno.ENOENT, said, str(self.folder / JOURNAL))

    def flush(self) -> None:
        """Make the files of values readable for others, and see that all is on the disk."""
        self.write()
        self._lanes.write_headers()
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
            sealed = {
                "index": _write_index(self.folder, self._journal),
                **(seal(self.folder) if seal else {}),
            }
            if self._durability != "none":
                self._sync_values(every=True)
                self._journal.stream.sync()
            # Last, since it holds the checksum of the index: a crash before it leaves an open
            # attempt, of which the journal knows everything.
            self._write_facts({"state": "closed", **sealed, **(facts or {})})
            self._has_new_names = True
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
                # Give back what no commit names, so that those that wait find room.
                self._lanes.make_room(self._ends_then[0])
                self.write()
            with suppress(OSError):
                self._cut()
            with suppress(OSError):
                self._write_facts({"state": "failed", "why": why, **(facts or {})})
        finally:
            self._release()

    # ------------------------------------------------------------------ where values go

    def _note_ends(self) -> None:
        """Note where the files end when the commits that wait are written."""
        ends, small = self._lanes.ends(), self._values.small
        small_end = 0 if small is None else small.stream.next
        # Values of the next commit may be appended while these wait: until here the files belong to
        # the commits that were made.
        self._ends_then = ends, small_end
        rows = sum(end for end, _ in ends.values()) - self._lanes.header_bytes
        grown = rows + small_end + self._journal.nbytes - self._empty_bytes
        self.written = Written(grown, self._empty_bytes, self._lanes.header_bytes)

    def _cut(self) -> None:
        """Leave in the files what was committed."""
        self._values.forget()
        self._lanes.cut()
        if self._values.small is not None:
            self._values.small.stream.back_to(self._small_end)
        self._journal.stream.forget()
        self._journal.stream.back_to(self._journal.stream.end)

    # ------------------------------------------------------------------ what stands beside them

    def _write_facts(self, more: Mapping[str, Any]) -> None:
        self._facts |= more
        self._facts["changed"] = time.time()
        write_json(self.folder / ATTEMPT, self._facts, sync=self._durability == "step")

    def _streams(self) -> Iterator[Any]:
        yield self._journal.stream
        if self._values.small is not None:
            yield self._values.small.stream
        if self._statistics is not None:
            yield self._statistics.stream

    def _sync_values(self, *, every: bool = False) -> None:
        self._lanes.sync(every=every)
        for stream in (self._values.small, self._statistics):
            if stream is not None:
                stream.stream.sync()

    def _sync_names(self) -> None:
        """See that the names of new files are on the disk, too."""
        if self._has_new_names or self._lanes.has_new_files or self._values.has_new_file:
            rank = self.folder.parent
            _sync_folders(self._lanes.folder, self.folder, rank, rank.parent)
            self._has_new_names = self._lanes.has_new_files = self._values.has_new_file = False

    def _release(self) -> None:
        self._lanes.close()
        for stream in self._streams():
            stream.close()


def _write_index(folder: Path, journal: JournalWriter) -> dict[str, int]:
    batches = journal.stream.batches(folder / JOURNAL)
    index = index_of([batch for batch, _ in batches])
    return write_index(folder / INDEX, index, [info for _, info in batches])


def _sync_folders(*folders: Path) -> None:
    """See that the names of files are on the disk."""
    for folder in folders:
        file = os.open(folder, os.O_RDONLY)
        try:
            # fsync of a file does not write its name: that is an entry of the folder (man 2 fsync).
            os.fsync(file)
        finally:
            os.close(file)
