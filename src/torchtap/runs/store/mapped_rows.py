"""Rows of statistics in a file without a name, mapped into memory.

Steps of a training of any length do not fit in the memory of a process. Mapped rows are read and
written as any array, and the system takes the memory back where it is needed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from torchtap.stats.algebra import Rows
from torchtap.stats.rows import ROW_WIDTH

_EXTENT = 8 << 20
"""Bytes that the file grows by, at least."""


class MappedRows:
    """Arrays in a file that is gone when nothing refers to them any more.

    Args:
        folder: on whose disk the file is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._end = 0
        self._extent = np.zeros(0, dtype=np.float64)
        self._used = 0

    def empty(self, num_steps: int, num_sites: int) -> Rows:
        """Rows of any content, ``float64[num_steps, num_sites, 16]``.

        In memory as any other where the disk is full, or the system cannot reserve room on it.
        """
        shape = (num_steps, num_sites, ROW_WIDTH)
        count = num_steps * num_sites * ROW_WIDTH
        if self._used + count > len(self._extent) and not self._grow(count * 8):
            return np.empty(shape)
        rows: Rows = self._extent[self._used : self._used + count].reshape(shape)
        self._used += count
        return rows

    def alone(self, num_steps: int, num_sites: int) -> Rows:
        """Return rows in a file of their own, which ends with them; few rows are in memory."""
        if num_steps * num_sites * ROW_WIDTH * 8 < _EXTENT:
            return np.empty((num_steps, num_sites, ROW_WIDTH))
        return MappedRows(self._folder).empty(num_steps, num_sites)

    def _grow(self, least: int) -> bool:
        if not hasattr(os, "posix_fallocate"):
            return False
        nbytes = -(-max(least, 1) // _EXTENT) * _EXTENT
        try:
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._folder) as opened:
                    self._file = os.dup(opened.fileno())
            # Room that is not there yet would end the process when it is written to.
            os.posix_fallocate(self._file, self._end, nbytes)
            mapped = mmap.mmap(self._file, nbytes, offset=self._end)
        except OSError:
            return False
        self._extent = np.frombuffer(mapped, dtype=np.float64)
        self._end += nbytes
        self._used = 0
        return True

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
