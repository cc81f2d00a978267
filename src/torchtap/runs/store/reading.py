"""Reads what attempts wrote: of one attempt, or of all attempts of a rank as one history."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.merging.findings import said_steps
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.index import CODED, Index, checked, joined
from torchtap.runs.store.index_file import read_index
from torchtap.runs.store.layout import (
    ATTEMPT,
    INDEX,
    JOURNAL,
    attempts_in,
    read_json,
    value_path,
)
from torchtap.runs.store.lock import is_being_written
from torchtap.runs.store.mapped import MappedFiles, MappedValues
from torchtap.runs.store.site_text import site_of
from torchtap.runs.store.statistics import RowsReader, joined as joined_series, read_sealed
from torchtap.stats.series import Series

WHOLE_RUN = Site("", "output")


class AttemptReader:
    """What one attempt has committed so far.

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
        self._series: Series | None = None
        self.index = Index.empty()
        self.lost: list[str] = []
        self._lines: list[bytes | str] = []
        self._end = 0
        self._num_damaged = 0
        self._is_sealed = False
        self.rows = RowsReader(folder)
        self.refresh()

    def refresh(self) -> bool:
        """Read what was committed since the last time; whether there was anything."""
        facts = self._read_facts()
        is_news, self.facts = facts != self.facts, facts
        if self.series is None:
            is_news = self.rows.refresh() or is_news
        if self._is_sealed:
            return is_news
        sealed = None if self._end else read_index(self.folder / INDEX, facts.get("index"))
        if sealed is not None:
            self._is_sealed = True
            index, lines = sealed
            self._lines = list(lines)
            self._take(index)
            return True
        return self._follow() or is_news

    @property
    def state(self) -> str:
        """``open``, ``closed``, ``failed``, or ``damaged`` where that is not known."""
        return str(self.facts.get("state", "damaged"))

    @property
    def is_growing(self) -> bool:
        """Whether a living process writes it."""
        return self.state == "open" and is_being_written(self.folder)

    @cached_property
    def _commits(self) -> tuple[int, list[Commit]]:
        return 0, []

    @property
    def commits(self) -> list[Commit]:
        """What is known of each commit."""
        done, found = self._commits
        if done < len(self._lines):
            found += [Commit.of_json(line) for line in self._lines[done:]]
            self.__dict__["_commits"] = len(self._lines), found
        return found

    @property
    def dropped(self) -> dict[str, tuple[int, int, list[int]]]:
        """Site -> how many of its values were dropped, how many bytes they had, in which steps."""
        found: dict[str, tuple[int, int, list[int]]] = {}
        marked = [line for line in self._lines if _mentions_dropped(line)]
        for commit in map(Commit.of_json, marked):
            for site, (number, nbytes) in commit.dropped.items():
                many, total, steps = found.get(site, (0, 0, []))
                found[site] = (many + number, total + nbytes, [*steps, commit.step])
        return found

    @property
    def series(self) -> Series | None:
        """All that was measured, once the attempt was closed."""
        expected = self.facts.get("series")
        if self._series is None and expected is not None:
            self._series = read_sealed(self.folder, expected)
            if self._series is None:
                lost = "series.safetensors is damaged: histograms are lost"
                self.lost = [*dict.fromkeys([*self.lost, lost])]
        return self._series

    @property
    def first_step(self) -> int | None:
        """The first step that it has, if any."""
        steps = self.index.columns["step"]
        return int(steps.min()) if len(steps) else None

    def paths(self, index: Index) -> list[Path]:
        """The files that an index of this attempt names."""
        return [value_path(self.folder, name) for name in index.tables.file]

    # ------------------------------------------------------------------ reading

    def _read_facts(self) -> dict[str, Any]:
        self.lost = [one for one in self.lost if not one.startswith(ATTEMPT)]
        try:
            return read_json(self.folder / ATTEMPT)
        except FileNotFoundError:
            self.lost.append(f"{ATTEMPT} is missing: model, patterns and versions are not known")
        except RunError as error:
            if "format" in str(error):
                raise
            self.lost.append(f"{ATTEMPT} is damaged: model, patterns and versions are not known")
        return {}

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
            missing = f"{JOURNAL} is missing: which values were written is not known"
            self.lost = [*dict.fromkeys([*self.lost, missing])]
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

    def _take(self, index: Index) -> None:
        sizes = {name: _size(value_path(self.folder, name)) for name in index.tables.file}
        index, lost = checked(index, sizes)
        for name, many in lost.items():
            self.lost.append(
                f"{name} has {sizes[name]:,} bytes, and {many:,} of its values lie behind them or "
                f"have no such size: they are lost"
            )
        self.index = joined([self.index, index]) if len(self.index) else index


def _mentions_dropped(line: bytes | str) -> bool:
    return (b'"dropped"' in line) if isinstance(line, bytes) else ('"dropped"' in line)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


class RankReader:
    """The attempts of one rank as one history.

    An attempt goes on from its first step; what an earlier one has from there on is superseded.

    Args:
        folders: of the attempts, by number.
        verify: compare values with their checksums when they are first read.
    """

    def __init__(self, folders: dict[int, Path], *, verify: bool) -> None:
        self._verify = verify
        self._files = MappedFiles()
        self.attempts = {number: AttemptReader(folder) for number, folder in folders.items()}
        self._build()

    @staticmethod
    def of_folder(folder: Path, *, verify: bool) -> RankReader:
        """All attempts of a rank.

        Raises:
            RunError: there is none.
        """
        found = attempts_in(folder)
        if not found:
            raise RunError(f"{folder} has no attempt in it, and so nothing was recorded there.")
        return RankReader(found, verify=verify)

    def refresh(self, folder: Path | None = None) -> bool:
        """Read what came since the last time; whether there was anything."""
        news = [one.refresh() for one in self.attempts.values()]
        is_news = any(news)
        if folder is not None:
            for number, path in attempts_in(folder).items():
                if number not in self.attempts:
                    self.attempts[number] = AttemptReader(path)
                    is_news = True
        if is_news:
            self._build()
        return is_news

    def _build(self) -> None:
        self._limits = self._limits_of()
        parts, paths = [], []
        for number, one in self.attempts.items():
            index = _before(one.index, self._limits[number])
            parts.append(_renamed(index, number) if len(self.attempts) > 1 else index)
        whole = joined([part for part in parts if len(part)] or [Index.empty()])
        for name in whole.tables.file:
            home, _, own = name.rpartition("/")
            number = int(home) if home else next(iter(self.attempts))
            paths.append(value_path(self.attempts[number].folder, own))
        self.index = whole
        self.values = MappedValues(whole, paths, self._files, verify=self._verify)
        tables = whole.tables
        self.records = Records.of_columns(
            self.values, whole.columns, tables.site, tables.labels, tables.phase
        )
        self.__dict__.pop("scalars", None)
        self.__dict__.pop("notes", None)
        self.__dict__.pop("series", None)

    def _limits_of(self) -> dict[int, int | None]:
        """Attempt -> the first step in which a later one counts."""
        limits: dict[int, int | None] = {}
        limit: int | None = None
        for number in sorted(self.attempts, reverse=True):
            limits[number] = limit
            first = self.attempts[number].first_step
            if first is not None:
                limit = first if limit is None else min(limit, first)
        return limits

    # ------------------------------------------------------------------ what is known

    @property
    def meta(self) -> Meta:
        """What is known of the model, as the last attempt has it."""
        for one in reversed(self.attempts.values()):
            body = one.facts.get("meta")
            if body is not None:
                return meta_of(body)
        return Meta()

    @property
    def expected(self) -> list[Site]:
        """Sites in the order in which calls have them."""
        return [
            site_of(text)
            for one in self.attempts.values()
            for text in one.facts.get("expected", ())
        ]

    @cached_property
    def scalars(self) -> Scalars:
        """Numbers that were logged."""
        found = Scalars()
        for number, one in self.attempts.items():
            for commit in one.commits:
                if _counts(commit.step, self._limits[number]):
                    found.log(commit.step, commit.scalars)
        return found

    @cached_property
    def notes(self) -> StepNotes:
        """Times, ids and labels of the steps."""
        found = StepNotes()
        for number, one in self.attempts.items():
            for commit in one.commits:
                if _counts(commit.step, self._limits[number]):
                    found.note(commit.step, commit.time, commit.ids, commit.labels)
        return found

    @cached_property
    def series(self) -> Series:
        """What was measured."""
        if len(self.attempts) == 1:
            (only,) = self.attempts.values()
            if only.series is not None:
                return only.series
        limits = self._limits
        return joined_series(
            [(one.series or one.rows, limits[number]) for number, one in self.attempts.items()]
        )

    @property
    def absent(self) -> list[Absence]:
        """What was selected and not seen, and what is lost."""
        found: list[Absence] = []
        for number, one in self.attempts.items():
            where = f"attempt {number}: " if len(self.attempts) > 1 else ""
            found += [Absence(site_of(text), why) for text, why in one.facts.get("absent", ())]
            found += [Absence(WHOLE_RUN, f"{where}{why}") for why in one.lost]
            if one.facts.get("why"):
                found.append(Absence(WHOLE_RUN, f"{where}{one.facts['why']}"))
            for text, (many, nbytes, steps) in one.dropped.items():
                reason = (
                    f"{where}{many:,} values ({nbytes:,} bytes) were dropped in "
                    f"{said_steps(steps)}, because the queue to the disk or its max_bytes were full"
                )
                found.append(Absence(site_of(text), reason))
            found += self._superseded(number, one)
        return list(dict.fromkeys(found))

    def _superseded(self, number: int, one: AttemptReader) -> Sequence[Absence]:
        limit = self._limits[number]
        steps = np.unique(one.index.columns["step"])
        hidden = [] if limit is None else steps[steps >= limit].tolist()
        if not hidden:
            return ()
        reason = (
            f"attempt {number} has {said_steps(hidden)} too, and a later attempt began again at "
            f"step {limit}: those of the later one count. tt.open({one.folder.name!r}) in the "
            f"folder of the rank reads the earlier ones"
        )
        return (Absence(WHOLE_RUN, reason),)


def _counts(step: int, limit: int | None) -> bool:
    return limit is None or step < limit


def _before(index: Index, limit: int | None) -> Index:
    if limit is None:
        return index
    steps = index.columns["step"]
    return index if not len(steps) or steps.max() < limit else index.only(steps < limit)


def _renamed(index: Index, number: int) -> Index:
    """The same, with files told apart by their attempt."""
    tables = {name: found for name, found in index.tables.items() if name in CODED}
    tables["file"] = [f"{number}/{name}" for name in index.tables.file]
    return Index(index.columns, type(index.tables)(**tables))
