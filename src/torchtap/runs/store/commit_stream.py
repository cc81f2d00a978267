"""Reads the commits that an attempt goes on writing: what is new, and keeps none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torchtap.core.errors import RunError
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.layout import JOURNAL


class CommitStream:
    """The commits of an attempt, read from where the journal ended the last time.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._end = 0

    def read(self) -> Iterator[Commit]:
        """Yield what was committed since the last call; what is damaged is passed over."""
        from torchtap.runs.store.journal import read_journal
        from torchtap.runs.store.streams import Found

        with suppress(FileNotFoundError):
            for one in read_journal(self._path, self._end):
                if isinstance(one, Found):
                    self._end = one.end
                    with suppress(RunError):
                        yield Commit.of_json(one.info)
