"""Reads the attempts of a rank as one history."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.gaps import kept_in_vain, unmeasured
from torchtap.runs.store.history import WHOLE_RUN, absences, counted, counts, limits_of
from torchtap.runs.store.index import CODED, Index, joined
from torchtap.runs.store.layout import (
    attempts_in,
    value_path,
)
from torchtap.runs.store.mapped import MappedFiles, MappedValues
from torchtap.runs.store.measured_history import Attempt, joined as joined_series
from torchtap.runs.store.site_text import site_of
from torchtap.runs.store.statistics import MeasuredReader
from torchtap.stats.series import Series


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
        self._measured: dict[int, MeasuredReader] = {}
        self.attempts: dict[int, AttemptReader] = {}
        for number, folder in folders.items():
            self._add(number, folder)
        self._build()

    def _add(self, number: int, folder: Path) -> None:
        # In this order: see RowsReader.look.
        self._measured[number] = MeasuredReader(folder)
        self.attempts[number] = AttemptReader(folder)

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
        for measured in self._measured.values():
            measured.rows.look()
        news = [one.refresh() for one in self.attempts.values()]
        news += [one.refresh(self.attempts[number].facts) for number, one in self._measured.items()]
        is_news = any(news)
        if folder is not None:
            for number, path in attempts_in(folder).items():
                if number not in self.attempts:
                    self._add(number, path)
                    is_news = True
        if is_news:
            self._build()
        return is_news

    def _build(self) -> None:
        self._limits = limits_of(self.attempts)
        parts, paths = [], []
        for number, one in self.attempts.items():
            index = counted(one.index, self._limits[number])
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

    # ------------------------------------------------------------------ what is known

    @property
    def meta(self) -> Meta:
        """The metadata of the model, as the last attempt has it."""
        for one in reversed(self.attempts.values()):
            body = one.facts.get("meta")
            if body is not None:
                return meta_of(body)
        return Meta()

    @property
    def is_described(self) -> bool:
        """Return whether an attempt says which rank and model it is of."""
        return any(one.facts.get("meta") is not None for one in self.attempts.values())

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
            for commit in one.commits_with("scalars"):
                if counts(commit.step, self._limits[number]):
                    found.log(commit.step, commit.scalars)
        return found

    @cached_property
    def notes(self) -> StepNotes:
        """Times, ids and labels of the steps."""
        found = StepNotes()
        for number, one in self.attempts.items():
            for commit in one.commits:
                # The last step of a watch that ends within it is committed, and not closed.
                if commit.is_closed and counts(commit.step, self._limits[number]):
                    found.note(commit.step, commit.time, commit.ids, commit.labels)
        return found

    @cached_property
    def series(self) -> Series:
        """The series that was measured."""
        for number, one in self._measured.items():
            one.refresh(self.attempts[number].facts)
        if len(self._measured) == 1:
            (only,) = self._measured.values()
            if only.sealed is not None:
                return only.sealed
        limits = self._limits
        return joined_series(
            [
                Attempt(one.sealed or one.rows, limits[number])
                for number, one in self._measured.items()
            ]
        )

    @property
    def absent(self) -> list[Absence]:
        """The absences: what was selected and not seen, and what is lost."""
        for number, one in self._measured.items():
            one.refresh(self.attempts[number].facts)
        lost = [why for one in self._measured.values() for why in (*one.lost, *one.rows.lost)]
        spans = {number: one.rows.span for number, one in self._measured.items()}
        for missing in (unmeasured, kept_in_vain):
            lost += [gap.reason for gap in missing(self.attempts, self._limits, spans)]
        return [*absences(self.attempts), *(Absence(WHOLE_RUN, why) for why in lost)]


def _renamed(index: Index, number: int) -> Index:
    """Return the index with its files told apart by their attempt."""
    tables = {name: found for name, found in index.tables.items() if name in CODED}
    tables["file"] = [f"{number}/{name}" for name in index.tables.file]
    return Index(index.columns, type(index.tables)(**tables))
