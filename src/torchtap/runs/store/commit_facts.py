"""Numbers that were logged, and times, ids and labels of steps: of the commits of some attempts.

What is read again costs what is new, however many commits there are.
"""

from __future__ import annotations

from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.gaps import Attempts, ValidUntil
from torchtap.runs.store.history import is_current


class CommitFacts:
    """Scalars and notes of the commits that count."""

    def __init__(self) -> None:
        self._scalars, self._notes = Scalars(), StepNotes()
        self._valid_until: tuple[ValidUntil, ValidUntil] = {}, {}
        self._num_logged: dict[int, int] = {}
        self._num_noted: dict[int, int] = {}

    def scalars(self, attempts: Attempts, valid_until: ValidUntil) -> Scalars:
        """Numbers that were logged; the same object as before while nothing counts no longer."""
        known, others = self._valid_until
        if not _only_grew(known, valid_until):
            self._scalars, self._num_logged = Scalars(), {}
        self._valid_until = dict(valid_until), others
        for number, one in attempts.items():
            for commit in one.commits_with("scalars", self._num_logged.get(number, 0)):
                if is_current(commit.step, valid_until[number]):
                    self._scalars.log(commit.step, commit.scalars)
            self._num_logged[number] = one.num_commits
        return self._scalars

    def notes(self, attempts: Attempts, valid_until: ValidUntil) -> StepNotes:
        """Times, ids and labels of the steps; the same object as before, as above."""
        others, known = self._valid_until
        if not _only_grew(known, valid_until):
            self._notes, self._num_noted = StepNotes(), {}
        self._valid_until = others, dict(valid_until)
        for number, one in attempts.items():
            for commit in one.commits[self._num_noted.get(number, 0) :]:
                # The last step of a watch that ends within it is committed, and not closed.
                if commit.is_closed and is_current(commit.step, valid_until[number]):
                    self._notes.note(commit.step, commit.time, commit.ids, commit.labels)
            self._num_noted[number] = one.num_commits
        return self._notes


def _only_grew(known: ValidUntil, valid_until: ValidUntil) -> bool:
    """Return whether what counted before still does, so that more can be added to it."""
    return all(valid_until.get(number, 0) == until for number, until in known.items())
