"""Tell whether a living process writes an attempt: it holds a lock, which ends with the process.

Nothing relies on it but messages and the refusal of a second writer: not every file system has
locks, and no two writers make the same folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from torchtap.runs.store.layout import JOURNAL


def hold_lock(file: int) -> bool:
    """Hold a lock as long as the process lives, so that others can tell that it does."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # Not every file system has locks.
        return False
    return True


def is_being_written(attempt: Path) -> bool:
    """Return whether a living process writes this attempt, as far as the file system can tell."""
    import fcntl

    try:
        file = os.open(attempt / JOURNAL, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
