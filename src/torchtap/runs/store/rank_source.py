"""The source of the run of one rank in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.commit_facts import CommitFacts
from torchtap.runs.store.gaps import ValidUntil, partial_statistics, unmeasured
from torchtap.runs.store.history import absences, current_values, is_current, valid_until_of
from torchtap.runs.store.index import CODED, EMPTY, Index, joined_indices
from torchtap.runs.store.layout import attempts_in, has_statistics, is_attempt, value_path
from torchtap.runs.store.mapped import MappedFiles, MappedValues
from torchtap.runs.store.measured_history import Attempt, joined_attempts
from torchtap.runs.store.site_text import site_of
from torchtap.runs.store.statistics_files import MeasuredReader
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.series import Series

if TYPE_CHECKING:
    from torchtap.runs.run import Run

_NOTHING_MEASURED = Series(1)
"""The series of a run without statistics. Nobody adds to a series that was read."""


class RankSource:
    """The source of the run of one rank: its attempts as one history.

    Which steps of an attempt count: :func:`~torchtap.runs.store.history.valid_until_of`.

    Args:
        folder: of the rank, or of one attempt.
        verify: compare values with their checksums when they are first read.
        own: user-defined statistics, needed to unpack their saved states.

    Raises:
        RunError: the folder has no attempt in it.
    """

    ranks = None

    def __init__(self, folder: Path, *, verify: bool, own: Sequence[Statistic] = ()) -> None:
        self._folder = folder
        self._verify = verify
        self._own = own
        self._is_attempt = is_attempt(folder)
        self._files = MappedFiles()
        self._measured: dict[int, MeasuredReader] = {}
        self.attempts: dict[int, AttemptReader] = {}
        if not self._find_attempts():
            raise RunError(f"{folder} has no attempt in it, and so nothing was recorded there.")
        self._build()

    def _find_attempts(self) -> bool:
        """Add the attempts that began since the last time; return whether there are any."""
        there = {0: self._folder} if self._is_attempt else attempts_in(self._folder)
        new = {number: path for number, path in there.items() if number not in self.attempts}
        for number, path in new.items():
            self._look(number, path)
            self.attempts[number] = AttemptReader(path)
        return bool(new)

    def _look(self, number: int, folder: Path) -> None:
        """See how far statistics go, before the journal is read: see :meth:`RowsReader.look`."""
        if number in self._measured:
            self._measured[number].rows.look()
        elif has_statistics(folder):
            self._measured[number] = MeasuredReader(folder, self._own)

    def refresh(self) -> bool:
        """Read what was committed since the last call. Return whether anything was new."""
        for number, one in self.attempts.items():
            self._look(number, one.folder)
        news = [attempt.refresh() for attempt in self.attempts.values()]
        news += self._read_measured()
        is_news = any([self._find_attempts(), *news])
        if is_news:
            self._build()
        return is_news

    def rank(self, number: int) -> RankSource:
        """Return the source itself, if it is of that rank."""
        own = self.meta.rank
        if number != own:
            raise RunError(f"This run is of rank {own}, and not of rank {number}.")
        return self

    @property
    def reopen(self) -> Callable[[], Run]:
        """A function that opens the run again."""
        from torchtap.runs.open_run import open_run

        return partial(open_run, self._folder, verify=self._verify)

    def _build(self) -> None:
        if len(self.attempts) == 1:
            ((number, one),) = self.attempts.items()
            self._valid_until: ValidUntil = {number: None}
            whole = one.index
            paths = [value_path(one.folder, name) for name in whole.tables.file]
        else:
            whole, paths = self._joined_attempts()
        values = MappedValues(whole, paths, self._files, verify=self._verify)
        self.records = Records.from_index(values, whole)
        # These are cached_property: without the entry they are computed again.
        self.__dict__.pop("scalars", None)
        self.__dict__.pop("notes", None)
        self.__dict__.pop("series", None)

    def _joined_attempts(self) -> tuple[Index, list[Path]]:
        """Return the values that count of all attempts, and the files that they are in."""
        self._valid_until = valid_until_of(self.attempts)
        parts = [
            _renamed(current_values(one.index, self._valid_until[number]), number)
            for number, one in self.attempts.items()
        ]
        whole = joined_indices([part for part in parts if len(part)] or [EMPTY])
        paths = []
        for name in whole.tables.file:
            # As _renamed() put them together.
            number, _, own = name.rpartition("/")
            paths.append(value_path(self.attempts[int(number)].folder, own))
        return whole, paths

    # ------------------------------------------------------------------ what is known

    @property
    def meta(self) -> Meta:
        """The metadata of the model, as the last attempt has it."""
        for attempt in reversed(self.attempts.values()):
            body = attempt.facts.get("meta")
            if body is not None:
                return meta_of(body)
        return Meta()

    @property
    def is_described(self) -> bool:
        """Return whether an attempt says which rank and model it is of."""
        return any(attempt.facts.get("meta") is not None for attempt in self.attempts.values())

    @property
    def expected(self) -> list[Site]:
        """Sites in the order in which calls have them."""
        return [
            site_of(text)
            for attempt in self.attempts.values()
            for text in attempt.facts.get("expected", ())
        ]

    @cached_property
    def _told(self) -> CommitFacts:
        """Reads what the commits say beside their values, when it is first asked for."""
        return CommitFacts()

    @cached_property
    def scalars(self) -> Scalars:
        """Numbers that were logged."""
        return self._told.scalars(self.attempts, self._valid_until)

    @cached_property
    def notes(self) -> StepNotes:
        """Times, ids and labels of the steps."""
        return self._told.notes(self.attempts, self._valid_until)

    def _read_measured(self) -> list[bool]:
        """Read the statistics of the attempts that have any; whether anything of each was new."""
        for number, attempt in self.attempts.items():
            if "series" in attempt.facts and number not in self._measured:  # Its files are gone.
                self._measured[number] = MeasuredReader(attempt.folder, self._own)
        # Attempts are joined in their order.
        self._measured = dict(sorted(self._measured.items()))
        return [one.refresh(self.attempts[n].facts) for n, one in self._measured.items()]

    @cached_property
    def series(self) -> Series:
        """The series that was measured."""
        self._read_measured()
        if len(self.attempts) == len(self._measured) == 1:
            (only,) = self._measured.values()
            if only.sealed is not None:
                return only.sealed
            return only.rows.series  # It grows with what is read: nothing is joined again.
        if all(one.sealed is None and one.rows.span is None for one in self._measured.values()):
            return _NOTHING_MEASURED
        valid_until = self._valid_until
        return joined_attempts(
            [
                Attempt(one.sealed or one.rows, valid_until[number])
                for number, one in self._measured.items()
            ]
        )

    @property
    def statistics(self) -> list[Statistic] | None:
        """The further statistics of all attempts; ``None`` if one does not say them, or not yet."""
        self._read_measured()
        every = [one.sealed for one in self._measured.values()]
        known = [one for one in every if one is not None and one.measured]
        if len(known) < len(self.attempts):
            return None
        return [statistic for one in known for statistic in one.statistics]

    @property
    def absent(self) -> list[Absence]:
        """The absences: what was selected and not seen, and what is lost."""
        self._read_measured()
        lost = [why for one in self._measured.values() for why in (*one.lost, *one.rows.lost)]
        spans = {number: one.rows.span for number, one in self._measured.items()}
        for missing in (unmeasured, partial_statistics):
            lost += [gap.reason for gap in missing(self.attempts, self._valid_until, spans)]
        unwritten = [
            entry
            for number, one in self._measured.items()
            if one.sealed is not None
            and any(is_current(step, self._valid_until[number]) for step in one.sealed.steps[:1])
            for entry in one.unwritten
        ]
        absent = [*absences(self.attempts), *(Absence(WHOLE_RUN, why) for why in lost)]
        return [*absent, *dict.fromkeys(unwritten)]


def _renamed(index: Index, number: int) -> Index:
    """Return the index with its files told apart by their attempt."""
    tables = {name: found for name, found in index.tables.items() if name in CODED}
    tables["file"] = [f"{number}/{name}" for name in index.tables.file]
    return Index(index.columns, type(index.tables)(**tables))
