"""Progress of a training, as it says itself at each step. Knows nothing of torch.

The thread that writes is behind the training. This file is written by the training, into memory of
the system that outlives a process that is killed: it tells what was handed over and is not there.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from torchtap.runs.store.checksum import crc32

_NUMBERS = struct.Struct("<qqqq")
_WHOLE = struct.Struct("<qqqqI")


class TrainingProgress(NamedTuple):
    """The progress of a training.

    Attributes:
        began: the first step that was closed; -1 where none was.
        running: the step that runs.
        num_handed: how many commits were handed to the thread that writes.
        num_committed: how many of them it had written by then, at least.
    """

    began: int = -1
    running: int = 0
    num_handed: int = 0
    num_committed: int = 0


class ProgressWriter:
    """Writes it.

    Args:
        path: of the file, which it makes.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.last = TrainingProgress()
        self.write(self.last)

    def write(self, progress: TrainingProgress) -> None:
        """Replace what stands there, by one call."""
        self.last = progress
        numbers = _NUMBERS.pack(*progress)
        os.pwrite(self._file, numbers + crc32(numbers).to_bytes(4, "little"), 0)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_progress(path: Path) -> TrainingProgress | None:
    """Read the progress of a training; return ``None`` where it is missing or damaged."""
    try:
        body = path.read_bytes()
    except OSError:
        return None
    if len(body) != _WHOLE.size or crc32(body[: _NUMBERS.size]) != _WHOLE.unpack(body)[-1]:
        return None
    return TrainingProgress(*_NUMBERS.unpack(body[: _NUMBERS.size]))
