"""Reads what one attempt wrote. Knows nothing of torch; it needs pyarrow if that was not closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchtap.core.errors import RunError
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index import EMPTY, Index, checked, joined_indices
from torchtap.runs.store.index_file import Sealed, read_index
from torchtap.runs.store.layout import (
    ATTEMPT,
    INDEX,
    JOURNAL,
    PROGRESS,
    OtherFormatError,
    read_json,
    value_path,
)
from torchtap.runs.store.lock import is_being_written
from torchtap.runs.store.training_progress import TrainingProgress, read_progress

_NO_JOURNAL = f"{JOURNAL} is missing"


class AttemptReader:
    """Reader of what one attempt has committed so far.

    Args:
        folder: of the attempt.

    Attributes:
        facts: what the writer said of the run; empty if that is damaged.
        index: of the values that can be read.
        lost: what cannot be read, and why.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}
        self.index = EMPTY
        self.lost: list[str] = []
        self._progress: TrainingProgress | None = None
        self._lines: list[bytes | str] = []
        self._commits: list[Commit] = []
        self._end = 0
        self._num_damaged = 0
        self._is_sealed = self._is_misplaced = False
        self._facts_read: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Read what was committed since the last call. Return whether anything was new."""
        facts = self._read_facts()
        facts = {} if self._is_misplaced else facts
        is_news, self.facts = facts != self.facts, facts
        if self._is_sealed:
            return is_news
        # The index says all that the journal says; once the journal was begun it is read to its
        # end.
        sealed = None if self._end else read_index(self.folder / INDEX, facts.get("index"))
        if sealed is not None:
            self._is_sealed = True
            self._lines = list(sealed.lines)
            self._take(sealed.entries, sealed)
            return True
        if not self._end and not self._is_misplaced:
            self._refuse_misplaced()
        self._progress = read_progress(self.folder / PROGRESS)  # Before the journal, which grows.
        return self._follow() or is_news

    @property
    def state(self) -> str:
        """``open``, ``closed``, ``failed``, or ``damaged`` where that is not known.

        ``empty``, where its process ended before it wrote anything.
        """
        if not self.facts and _is_blank(self.folder):
            return "empty"
        return str(self.facts.get("state", "damaged"))

    @property
    def is_growing(self) -> bool:
        """Return whether a living process writes the attempt."""
        return self.state == "open" and is_being_written(self.folder)

    @property
    def commits(self) -> list[Commit]:
        """The commits, each with what is known of it beside its values."""
        # Lines are parsed when they are asked for: most readers want values and no commits.
        self._commits += [Commit.of_json(line) for line in self._lines[len(self._commits) :]]
        return self._commits

    @property
    def num_commits(self) -> int:
        """The number of commits that were read."""
        return len(self._lines)

    def commits_with(self, name: str, start: int = 0) -> Iterator[Commit]:
        """Iterate over commits that have a part that is left out where it is empty, as ``scalars``.

        The others are not parsed: of a million steps that takes ten seconds.

        Args:
            name: of the part.
            start: the number of commits at the beginning that are passed over.
        """
        mark = json.dumps(name)
        for line in self._lines[start:]:
            if mark in (line if isinstance(line, str) else line.decode("ascii", "replace")):
                yield Commit.of_json(line)

    @property
    def dropped(self) -> dict[str, tuple[int, int, list[int]]]:
        """Site -> how many of its values were dropped, how many bytes they had, in which steps."""
        by_site: dict[str, tuple[int, int, list[int]]] = {}
        for commit in self.commits_with("dropped"):
            for site, (number, nbytes) in commit.dropped.items():
                many, total, steps = by_site.get(site, (0, 0, []))
                by_site[site] = (many + number, total + nbytes, [*steps, commit.step])
        return by_site

    @property
    def first_step(self) -> int | None:
        """The first step that it has, with values, statistics or notes alone, if any.

        A number that is logged before a resumed step is named (``w.log(...); w.step(1000)``) is
        committed as of step 0: numbers alone in the first commit do not make it the first step.
        """
        values = self.index.columns["step"]
        steps = [int(values.min())] if len(values) else []
        if isinstance(measured := self.facts.get("first_measured"), int):
            steps.append(measured)
        # The first commit may hold numbers alone, and only then the second says which step came
        # first.
        for line in self._lines[:2]:
            one = Commit.of_json(line)
            if one.number or one.ids or one.labels:
                steps.append(one.step)
        return min(steps, default=None)

    @property
    def progress(self) -> TrainingProgress | None:
        """The progress of its training; ``None`` where that is not known."""
        if self._is_sealed and self._progress is None:
            self._progress = read_progress(self.folder / PROGRESS)
        return self._progress

    def last_commits(self, before: int | None, most: int) -> list[Commit]:
        """The last commits of steps before one, or of all steps, the last one first."""
        commits: list[Commit] = []
        for line in reversed(self._lines):
            one = Commit.of_json(line)
            if before is None or one.step < before:
                commits.append(one)
                if len(commits) == most:
                    break
        return commits

    def steps_from(self, first: int) -> list[int]:
        """The steps from one on that it has, with values or with notes alone, ascending."""
        values = np.unique(self.index.columns["step"])
        steps = set(values[values >= first].tolist())
        for line in reversed(self._lines):
            step = Commit.of_json(line).step
            # Steps ascend within an attempt.
            if step < first:
                break
            steps.add(step)
        return sorted(steps)

    # ------------------------------------------------------------------ reading

    def _read_facts(self) -> dict[str, Any]:
        # A writer that has just begun may have come to neither when they were looked for.
        self.lost = [one for one in self.lost if not one.startswith((ATTEMPT, _NO_JOURNAL))]
        try:
            stat = (self.folder / ATTEMPT).stat()
            mark = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if mark == self._facts_read:  # It is replaced by another file, and never changed.
                return self.facts
            facts = read_json(self.folder / ATTEMPT)
            if "state" in facts:  # Else it is another file of a run, under this name.
                self._facts_read = mark
                return facts
            self.lost.append(f"{ATTEMPT} describes no attempt: model and patterns are unknown")
        except FileNotFoundError:
            if not _is_blank(self.folder):
                self.lost.append(f"{ATTEMPT} is missing: model, patterns and versions are unknown")
        except OtherFormatError:
            raise
        except RunError:
            self.lost.append(f"{ATTEMPT} is damaged: model, patterns and versions are unknown")
        return {}

    def _refuse_misplaced(self) -> None:
        """Believe the journal, and no description that is of another attempt."""
        from torchtap.runs.store.owner import are_of_one, owner_of

        if not are_of_one(owner_of(self.folder / JOURNAL), str(self.facts.get("id", ""))):
            self._is_misplaced, self.facts = True, {}
            self.lost.append(
                f"{JOURNAL} and {ATTEMPT} are of different attempts: the journal is believed, and "
                f"model, patterns and versions are unknown"
            )

    def _follow(self) -> bool:
        """Read the journal from where it ended the last time."""
        from torchtap.runs.store.journal import index_of, read_journal
        from torchtap.runs.store.streams import Damage

        batches = []
        try:
            for one in read_journal(self.folder / JOURNAL, self._end):
                if isinstance(one, Damage):
                    self._note_damage(one)
                    continue
                batches.append(one.batch)
                self._lines.append(one.info)
                self._end = one.end
        except FileNotFoundError:
            if not _is_blank(self.folder):
                self.lost.append(f"{_NO_JOURNAL}: which values were written is not known")
        if batches:
            self._take(index_of(batches))
        return bool(batches)

    def _note_damage(self, damage: Any) -> None:
        """A torn tail is what a crash leaves, and was never committed; anything else is a loss."""
        if not damage.is_tail:
            self.lost.append(
                f"{JOURNAL} is damaged from byte {damage.start:,} to {damage.end:,}: the commits "
                f"that stood there are lost"
            )

    def _take(self, index: Index, sealed: Sealed | None = None) -> None:
        """Add values to the index, but for those that their files are too short for.

        Args:
            index: of the values.
            sealed: where it is of a file: of that ten million values are checked at once.
        """
        sizes = {name: _size(value_path(self.folder, name)) for name in index.tables.file}
        is_there = sealed is not None and sealed.fits(sizes)
        index, lost = (index, dict[str, int]()) if is_there else checked(index, sizes)
        for name, many in lost.items():
            self.lost.append(
                f"{name} has {sizes[name]:,} bytes, and {many:,} of its values lie behind them or "
                f"have no such size: they are lost"
            )
        self.index = joined_indices([self.index, index]) if len(self.index) else index


def _is_blank(folder: Path) -> bool:
    """Return whether a folder is empty still, as after a kill before its writer had begun."""
    files = [one for one in folder.rglob("[!.]*") if not one.is_dir()]
    return all(file.name == JOURNAL and not _size(file) for file in files)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
