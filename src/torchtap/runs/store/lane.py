"""One append-only file of values: a safetensors file with one tensor, which grows along dim 0.

The header has room to spare, so that it can be written again in place. It is right whenever the
file was flushed or closed; while the file grows, and after a crash, the journal says what counts.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from torchtap.runs.store.dtypes import STORED

ROWS, FLAT = "rows", "flat"
"""Names of the tensor: all values one after the other along dim 0, or all of their elements."""
PAGE = 4096
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say that the disk, or the quota, is full."""
_KEEP_SIZE = 1
_LEAST_GROWTH, _MOST_GROWTH = 1 << 20, 64 << 20
_MOST_OPEN = 128
_START_WRITING = 2
"""A flag of ``sync_file_range``: begin to write to the disk, and do not wait for it."""
_MOST_WAITING = 8
"""Threads that wait for the disk together."""


class OpenFiles:
    """File descriptors of many files, of which the last ones that were used are open."""

    def __init__(self, most: int = _MOST_OPEN) -> None:
        self._most = most
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        """Return a descriptor to write to a file that is there."""
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= self._most:
                _, oldest = self._open.popitem(last=False)
                os.close(oldest)
            # No link is followed: a folder that another user can write into could lead elsewhere.
            descriptor = self._open[path] = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        else:
            self._open.move_to_end(path)
        return descriptor

    def each(self, tasks: Sequence[tuple[Path, Callable[[int], object]]]) -> None:
        """Call functions that wait for the disk with the descriptors of files, several at once.

        One ``fdatasync`` after the other waits for a flush of the disk each; at once they share it.

        Raises:
            OSError: what the first of them raised that failed; all have ended by then.
        """
        for start in range(0, len(tasks), self._most):
            part = [(do, self.get(path)) for path, do in tasks[start : start + self._most]]
            try:
                with ThreadPoolExecutor(_MOST_WAITING) as threads:
                    list(threads.map(_call, part))
            except RuntimeError:  # The interpreter ends, and starts no thread any more.
                for one in part:
                    _call(one)

    def close(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.popitem()[1])


def _call(task: tuple[Callable[[int], object], int]) -> None:
    do, file = task
    do(file)


class Lane:
    """One file, made empty.

    Args:
        path: where; nothing may be there.
        site: of its values, as text.
        dtype: of its values, without ``torch.``.
        trailing: dims after the first, which all its values have in common; ``None`` for a file
            of elements, whose values may have any shape.
        files: opens it.

    Attributes:
        end: where the next value goes, in bytes from the start of the file.
        num_rows: along dim 0, so far.
    """

    def __init__(
        self, path: Path, site: str, dtype: str, trailing: Sequence[int] | None, files: OpenFiles
    ) -> None:
        self.path = path
        self.num_rows = 0
        self._site = site
        self._dtype = dtype
        self._files = files
        self._name = FLAT if trailing is None else ROWS
        self._trailing = list(trailing or ())
        stored = STORED[dtype]
        self._dims = [*self._trailing, *([stored.width] if stored.width else [])]
        self._row_bytes = math.prod(self._trailing) * stored.itemsize
        # The header is written again in its place, with longer numbers in it: hence 64 characters.
        # The values begin at a page, so that those of any dtype are aligned where they are mapped.
        self._start = -(-(len(self._header()) + 64) // PAGE) * PAGE
        self.end = self._start
        self._reserved = self._start
        self._furthest = self._start
        self._can_reserve = True
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        self.write_header()

    def append(self, data: memoryview, num_rows: int) -> tuple[int, int]:
        """Write one value behind the others.

        Returns:
            where it begins, in bytes, and which row that is.
        """
        file, nbytes = self._files.get(self.path), len(data)
        self._reserve(file, nbytes)
        self._furthest = max(self._furthest, self.end + nbytes)
        write_all(file, data, self.end)
        place = self.end, self.num_rows
        self.end += nbytes
        self.num_rows += num_rows
        return place

    def write_header(self) -> None:
        """Rewrite the header with the tensors that the file holds now."""
        # Padded with spaces, as the format of safetensors allows.
        text = self._header().ljust(self._start - 8)
        write_all(self._files.get(self.path), memoryview(struct.pack("<Q", len(text)) + text), 0)

    @property
    def has_more(self) -> bool:
        """Return whether something is reserved, or may be written, behind the last value."""
        return max(self._reserved, self._furthest) > self.end

    def cut(self, file: int) -> None:
        """Give that back.

        Args:
            file: a descriptor of its file.
        """
        os.ftruncate(file, self.end)
        self._reserved = self._furthest = self.end

    def stop_reserving(self) -> None:
        """Give back what was reserved, and reserve no more: the disk is nearly full."""
        self._can_reserve = False
        self.cut(self._files.get(self.path))

    def begin_sync(self, offset: int) -> None:
        """Have the system begin to write to the disk what stands from a place on."""
        with suppress(AttributeError):
            # Only begun: the sync at the commit then waits for little.
            _LIBC.sync_file_range(self._files.get(self.path), offset, 0, _START_WRITING)

    def back_to(self, end: int, num_rows: int) -> None:
        """Forget the values behind a place."""
        self.end, self.num_rows = end, num_rows

    def _header(self) -> bytes:
        body = {
            "__metadata__": {"site": self._site, "dtype": self._dtype, "torchtap": "lane"},
            self._name: {
                "dtype": STORED[self._dtype].code,
                "shape": [self.num_rows, *self._dims],
                "data_offsets": [0, self._nbytes()],
            },
        }
        return json.dumps(body).encode("ascii")

    def _nbytes(self) -> int:
        return self.num_rows * self._row_bytes

    def _reserve(self, file: int, nbytes: int) -> None:
        """Have the file system find room in large pieces, without making the file longer."""
        if self.end + nbytes <= self._reserved or not self._can_reserve:
            return
        # As much again as there is: a lane that grows by its own size lies in few pieces on the
        # disk.
        by = max(nbytes, min(max(self.end, _LEAST_GROWTH), _MOST_GROWTH))
        self._can_reserve = _allocate(file, self.end, by)
        if self._can_reserve:
            self._reserved = self.end + by


def write_all(file: int, data: memoryview, offset: int) -> None:
    """Write at a place; a system call may write less than it was given."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)


def _allocate(file: int, offset: int, nbytes: int) -> bool:
    """Reserve room on the disk behind the end of a file; ``False`` where that cannot be done."""
    with suppress(AttributeError):
        # Not os.posix_fallocate, which raises the size of the file (readers would see zeros as
        # values) and writes every block where the file system cannot allocate.
        return bool(_LIBC.fallocate(file, _KEEP_SIZE, offset, nbytes) == 0)
    return False


_LIBC = ctypes.CDLL(None, use_errno=True)
with suppress(AttributeError):
    _LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
with suppress(AttributeError):
    _LIBC.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
