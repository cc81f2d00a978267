"""``tt.open`` of a folder: of a whole run, of one rank in it, or of one attempt of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.merging.notes import merged_notes
from torchtap.runs.run import Run
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.disk import DATA_SET
from torchtap.runs.store.history import WHOLE_RUN
from torchtap.runs.store.layout import (
    ATTEMPT,
    JOURNAL,
    RUN,
    attempts_in,
    ranks_in,
    read_json,
)
from torchtap.runs.store.reading import RankReader

T = TypeVar("T")


def open_folder(path: Path, *, verify: bool = True) -> Run:
    """See :func:`~torchtap.runs.run.open_run`.

    Raises:
        RunError: it is no run, or of another format.
    """
    if (path / JOURNAL).is_file() or (path / ATTEMPT).is_file():
        return OneRank(RankReader({0: path}, verify=verify), path, verify=verify).run
    if attempts_in(path):
        return OneRank(RankReader.of_folder(path, verify=verify), path, verify=verify).run
    if (path / RUN).exists():
        read_json(path / RUN)  # Refuses another format, and a damaged one.
    ranks = ranks_in(path)
    if not ranks:
        raise RunError(
            f"{path} is a folder and no run: it has none of the folders rank-00000, ... that "
            f"tt.Disk makes{_files_in(path)}"
        )
    folder = Folder(path, verify=verify)
    return folder.run


def _files_in(path: Path) -> str:
    """The end of a sentence: runs in files that may have been meant."""
    found = sorted(one.name for one in path.glob("*.safetensors") if one.is_file())[:3]
    return f"; did you mean {', '.join(repr(str(path / one)) for one in found)}?" if found else "."


class OneRank:
    """The run of one rank.

    Args:
        reader: of its attempts.
        path: of the rank, or of one attempt.
        verify: compare values with their checksums when they are first read.
    """

    def __init__(self, reader: RankReader, path: Path, *, verify: bool) -> None:
        self.reader = reader
        self._path = path
        self._verify = verify
        # Further attempts may come, but not of one attempt.
        self._folder = path if attempts_in(path) else None
        self.run = Run(
            lambda: reader.records,
            lambda: reader.meta,
            lambda: reader.absent,
            lambda: reader.series,
            lambda: reader.expected,
            lambda: reader.scalars,
            notes=lambda: reader.notes,
            growing=self,
        )

    def refresh(self) -> bool:
        """Read what was committed since the last time."""
        return self.reader.refresh(self._folder)

    @property
    def opened(self) -> Callable[[], Run]:
        """A function that opens it again."""
        return partial(open_folder, self._path, verify=self._verify)

    def rank(self, number: int) -> Run:
        """The run itself, if it is of that rank."""
        own = self.reader.meta.rank
        if number != own:
            raise RunError(f"This run is of rank {own}, and not of rank {number}.")
        return self.run


class Folder:
    """The run of a folder that several ranks may have written.

    Args:
        path: of the folder.
        verify: compare values with their checksums when they are first read.
    """

    def __init__(self, path: Path, *, verify: bool) -> None:
        self._path = path
        self._verify = verify
        self._ranks: dict[int, OneRank] = {}
        self._find_ranks()

    def _find_ranks(self) -> bool:
        is_news = False
        for number, folder in ranks_in(self._path).items():
            if number not in self._ranks and attempts_in(folder):
                reader = RankReader.of_folder(folder, verify=self._verify)
                self._ranks[number] = OneRank(reader, folder, verify=self._verify)
                is_news = True
        if not self._ranks:
            raise RunError(f"{self._path} is empty so far: no rank has begun to write.")
        return is_news

    @property
    def _is_alone(self) -> bool:
        """Return whether there was one process, and so nothing to merge."""
        metas = [one.reader.meta for one in self._ranks.values()]
        return len(metas) == 1 and metas[0].world_size == 1

    @property
    def run(self) -> Run:
        """All ranks together."""
        if self._is_alone:
            only = next(iter(self._ranks.values()))
            only.run._growing = self
            return only.run
        return Run(
            self._ask(lambda run: run._records()),
            self._ask(lambda run: run.meta),
            lambda: [*self._merged.absent, *self._left_out],
            self._ask(lambda run: run.series),
            self._expected,
            self._ask(lambda run: run._find_scalars()),
            self._ask(lambda run: run._find_ranks()),
            self._notes,
            self,
        )

    def refresh(self) -> bool:
        """Read what was committed since the last time, also by ranks that were not there."""
        news = [one.refresh() for one in list(self._ranks.values())]
        is_news = any([self._find_ranks(), *news])
        if is_news:
            for known in ("_merged", "_left_out"):
                self.__dict__.pop(known, None)
        return is_news

    @property
    def opened(self) -> Callable[[], Run]:
        """A function that opens it again."""
        return partial(open_folder, self._path, verify=self._verify)

    def rank(self, number: int) -> Run:
        """The run of one rank."""
        if number not in self._ranks:
            there = ", ".join(map(str, sorted(self._ranks)))
            raise RunError(f"{self._path} has nothing of rank {number}; there is {there}.")
        return self._ranks[number].run

    # ------------------------------------------------------------------ together

    @cached_property
    def _merged(self) -> Run:
        from torchtap.runs.merging.whole import merge_runs

        runs = [(f"rank {number}", one.run) for number, one in self._merged_ranks.items()]
        if not runs:
            said = "; ".join(entry.reason for entry in self._left_out)
            raise RunError(f"No rank of {self._path} can be merged: {said}.")
        return merge_runs(runs, allow_missing=True, every_step=self._is_data_set).run

    @property
    def _merged_ranks(self) -> dict[int, OneRank]:
        return {n: one for n, one in self._ranks.items() if not self._why_left_out(one)}

    @property
    def _is_data_set(self) -> bool:
        return any(one.reader.meta.labels.get("kind") == DATA_SET for one in self._ranks.values())

    @cached_property
    def _left_out(self) -> list[Absence]:
        """Ranks that cannot be merged with the others; what they have is read by ``run.rank``."""
        found = {number: self._why_left_out(one) for number, one in self._ranks.items()}
        return [
            Absence(WHOLE_RUN, f"rank {number} is left out: {why}; run.rank({number}) reads it")
            for number, why in found.items()
            if why
        ]

    def _why_left_out(self, one: OneRank) -> str:
        if not one.reader.is_described:
            return "what its attempt.json says of it, such as its rank, is missing or damaged"
        is_empty = not len(one.reader.records) and not one.reader.series.steps
        if not is_empty or self._is_data_set:
            return ""
        lost = [entry.reason for entry in one.reader.absent if entry.site == WHOLE_RUN]
        return "; ".join(lost) or "it committed nothing so far"

    def _ask(self, question: Callable[[Run], T]) -> Callable[[], T]:
        return lambda: question(self._merged)

    def _expected(self) -> Sequence[Site]:
        return list(dict.fromkeys(s for one in self._ranks.values() for s in one.reader.expected))

    def _notes(self) -> StepNotes:
        return merged_notes(one.reader.notes for one in self._merged_ranks.values())
