"""One anonymous file for the bytes of tensors. The system frees it when the process ends."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from torchtap.core.errors import InputError
from torchtap.core.shared_state import new_lock
from torchtap.saved.free_list import FreeList

Data = memoryview | ctypes.Array[ctypes.c_char]
ALIGNMENT = 4096
GROWTH = 64 << 20
"""Least bytes by which the file grows, so that the file system can allocate them in one piece."""
WINDOW = 1 << 20
"""Bytes that the system is asked to read ahead at one time."""

_IN_MEMORY = ("tmpfs", "ramfs")

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that say that the disk, or the quota, is full."""


def aligned(nbytes: int) -> int:
    """Return the bytes that ``nbytes`` take in the file."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Extent(tuple[int, int]):
    """A range of the file: offset and bytes, both aligned."""

    __slots__ = ()

    @property
    def offset(self) -> int:
        return self[0]

    @property
    def nbytes(self) -> int:
        return self[1]

    def after(self, nbytes: int) -> Extent:
        """Return the range without its first bytes."""
        return Extent((self[0] + nbytes, self[1] - nbytes))


class SpillFile:
    """A file without a name, with free lists.

    Args:
        folder: whose file system holds it; the file has no name there.

    A dropped extent is reused for the next tensor of the same length, without a search, since every
    step of a training saves the same lengths. Neighbours are joined only before the file grows.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._file = -1
        self._file = _anonymous(folder)
        self._end = 0
        self._window = -1
        self._lock = new_lock()
        self._free = FreeList()
        # Finalisers may run at any moment, also while the lock is held, so they only append here.
        self._spare: dict[int, list[Extent]] = {}

    @property
    def used(self) -> int:
        """Return bytes that are in use."""
        with self._lock:
            spare = sum(length * len(extents) for length, extents in self._spare.items())
            return self._end - self._free.free - spare

    def reserve(self, nbytes: int) -> Extent:
        """Find a free extent.

        Raises:
            OSError: the disk is full.
        """
        wanted = aligned(nbytes)
        try:
            return self._spare[wanted].pop()  # list.pop is atomic, so it needs no lock.
        except (KeyError, IndexError):
            with self._lock:
                return self._cut(wanted)

    def spare(self, nbytes: int) -> tuple[int, list[Extent]]:
        """Return the number of the file, and the list of dropped extents of one length."""
        with self._lock:
            return self._file, self._spare.setdefault(aligned(nbytes), [])

    def _cut(self, wanted: int) -> Extent:
        offset = self._free.take(wanted)
        if offset is None:
            self._join()
            offset = self._free.take(wanted)
        if offset is None:
            self._grow(wanted)
            offset = self._free.take(wanted)
            assert offset is not None
        # Here, under the lock: a finaliser that drops the extent must find the list.
        self._spare.setdefault(wanted, [])
        return Extent((offset, wanted))

    def _join(self) -> None:
        """Return the dropped extents to the free list, which joins neighbours."""
        for extents in self._spare.values():
            with suppress(IndexError):  # Other threads may pop meanwhile.
                while True:
                    self._free.give(*extents.pop())

    def _grow(self, wanted: int) -> None:
        # Grown in large pieces: each call of posix_fallocate waits for the file system.
        by = max(wanted, GROWTH)
        try:
            # Allocated now: in a sparse file a full disk shows only at a write, and one extent's
            # blocks lie apart.
            os.posix_fallocate(self._file, self._end, by)
        except OSError as error:
            if by == wanted or error.errno not in FULL:
                raise
            by = wanted  # The disk may still have space for this tensor alone.
            os.posix_fallocate(self._file, self._end, by)
        self._free.give(self._end, by)
        self._end += by

    def drop(self, extent: Extent) -> None:
        """Free an extent. Takes no lock, since finalisers call it."""
        # list.append is atomic under the GIL, and the key is there since the extent was cut.
        self._spare[extent[1]].append(extent)

    def write(self, extent: Extent, data: Data) -> None:
        """Write bytes to the start of an extent."""
        done = os.pwrite(self._file, data, extent[0])
        if done < len(data):
            self.write(extent.after(done), memoryview(data)[done:])

    def read(self, extent: Extent, data: Data) -> None:
        """Read bytes from the start of an extent."""
        # Positions in the call and not in the file: worker threads share the descriptor.
        done = os.preadv(self._file, (data,), extent[0])
        if not done:
            raise OSError(errno.EIO, "the spill file ended early")
        if done < len(data):
            self.read(extent.after(done), memoryview(data)[done:])

    def expect(self, extent: Extent) -> None:
        """Ask the system to read the window of an extent, and the one before, into its page cache.

        Backward asks for the latest first, and later tensors lie at higher offsets. It costs one
        system call per window, and the page cache is not memory of the process.
        """
        window = extent[0] // WINDOW
        if window == self._window or not hasattr(os, "posix_fadvise"):  # Not on macOS.
            return
        # This window and the one before, since backward reads downwards, which the kernel's own
        # readahead does not foresee. Of the next window below, this one was asked for already: the
        # call looks at each page, also at those that are in memory.
        start = max(window - 1, 0) * WINDOW
        stop = (window if window == self._window - 1 else window + 1) * WINDOW
        self._window = window
        if start < stop:
            os.posix_fadvise(self._file, start, stop - start, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fsync(self._file)

    def forget(self) -> None:
        """Ask the system to drop the file from its page cache, except pages not yet synced."""
        if hasattr(os, "posix_fadvise"):  # Not on macOS.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file, which frees its space on the disk."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def folder_for(wanted: str | os.PathLike[str] | None, *, allow_memory: bool) -> Path:
    """Return the folder in which the spill file is made.

    Args:
        wanted: the ``dir`` of the user; ``None`` for the first that is on a disk, of the system's
            folder for temporary files, ``/var/tmp`` and the working directory.
        allow_memory: accept a file system that lives in memory.

    Raises:
        InputError: it is no folder, cannot be written, or lives in memory.
    """
    if wanted is None:
        candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
        disks = [
            candidate
            for candidate in candidates
            if candidate.is_dir() and os.access(candidate, os.W_OK)
        ]
        found = [disk for disk in disks if allow_memory or not is_in_memory(disk)]
        if found:
            return found[0]
        raise InputError("No folder on a disk was found to offload to. Give one: dir='...'.")
    folder = Path(wanted)
    if not folder.is_dir():
        raise InputError(f"dir is {str(folder)!r}, which is no folder. Make it first.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"dir is {str(folder)!r}, which cannot be written. Give another folder.")
    if is_in_memory(folder) and not allow_memory:
        raise InputError(
            f"dir is {str(folder)!r}, which is in memory (tmpfs): nothing would be gained. Give "
            f"a folder on a disk, or pass allow_tmpfs=True."
        )
    return folder


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder is on a file system that lives in memory."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:  # Not Linux.
        return False
    real = folder.resolve()
    best, kind = "", ""
    for line in mounts:
        _, place, found, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        # The mount point with the longest path is the one that holds the folder; of equals the
        # later mount covers the earlier.
        if real.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, found
    return kind in _IN_MEMORY


def _anonymous(folder: Path) -> int:
    flags = getattr(os, "O_TMPFILE", None)
    if flags is not None:
        try:
            # Never linked into the folder: a process that is killed leaves nothing to be cleaned
            # up.
            return os.open(folder, flags | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            # The file system, or the kernel (EISDIR: open(2)), knows no files without a name.
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    file, name = tempfile.mkstemp(dir=folder, prefix=".torchtap-")
    os.unlink(name)
    return file
