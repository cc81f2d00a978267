"""The source of a run in a folder, which several ranks may have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.merging.merged_notes import merged_notes
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.source import Source
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.disk import DATA_SET
from torchtap.runs.store.layout import RUN_FILE, attempts_in, is_attempt, ranks_in, read_json
from torchtap.runs.store.rank_source import RankSource
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.series import Series

if TYPE_CHECKING:
    from torchtap.runs.merging.rank_numbers import RankNumbers
    from torchtap.runs.run import Run


def open_folder(
    path: Path, *, verify: bool = True, own: Sequence[Statistic] = ()
) -> FolderSource | RankSource:
    """Return the source of the run in a folder, of one rank in it, or of one attempt of that.

    Raises:
        RunError: it is no run, or of another format.
    """
    if is_attempt(path) or attempts_in(path):
        return RankSource(path, verify=verify, own=own)
    if (path / RUN_FILE).exists():
        read_json(path / RUN_FILE)  # Refuses another format, and a damaged one.
    ranks = ranks_in(path)
    if not ranks:
        raise RunError(
            f"{path} is a folder and no run: it has none of the folders rank-00000, ... that "
            f"tt.Disk makes{_files_in(path)}"
        )
    if len(ranks) == 1 and attempts_in(first := next(iter(ranks.values()))):
        only = RankSource(first, verify=verify, own=own)
        if only.meta.world_size == 1:
            return only  # There was one process, and nothing is to be merged.
    return FolderSource(path, verify=verify, own=own)


def _files_in(path: Path) -> str:
    """The end of a sentence: runs in files that may have been meant."""
    names = sorted(one.name for one in path.glob("*.safetensors") if one.is_file())[:3]
    return (
        f"; did you mean {', '.join(repr(str(path / name)) for name in names)}?" if names else "."
    )


class FolderSource:
    """The source of a run whose ranks wrote into one folder, merged if there are several.

    Args:
        path: of the folder.
        verify: compare values with their checksums when they are first read.
        own: user-defined statistics, needed to unpack their saved states.

    Raises:
        RunError: no rank has begun to write.
    """

    def __init__(self, path: Path, *, verify: bool, own: Sequence[Statistic] = ()) -> None:
        self._path = path
        self._verify = verify
        self._own = own
        self._ranks: dict[int, RankSource] = {}
        self._find_ranks()

    def _find_ranks(self) -> bool:
        is_news = False
        for number, folder in ranks_in(self._path).items():
            if number not in self._ranks and attempts_in(folder):
                self._ranks[number] = RankSource(folder, verify=self._verify, own=self._own)
                is_news = True
        if not self._ranks:
            raise RunError(f"{self._path} is empty so far: no rank has begun to write.")
        return is_news

    def refresh(self) -> bool:
        """Read what was committed since the last call. Return whether anything was new."""
        news = [rank.refresh() for rank in list(self._ranks.values())]
        is_news = any([self._find_ranks(), *news])
        if is_news:
            self.__dict__.pop("_merged_source", None)
            self.__dict__.pop("_left_out", None)
        return is_news

    def rank(self, number: int) -> RankSource:
        """Return the source of one rank."""
        if number not in self._ranks:
            there = ", ".join(map(str, sorted(self._ranks)))
            raise RunError(f"{self._path} has nothing of rank {number}; there is {there}.")
        return self._ranks[number]

    @property
    def reopen(self) -> Callable[[], Run]:
        """Return a function that opens the run again."""
        from torchtap.runs.open_run import open_run

        return partial(open_run, self._path, verify=self._verify)

    # ------------------------------------------------------------------ together

    @property
    def records(self) -> Records:
        """Records of all ranks."""
        return self._merged_source.records

    @property
    def meta(self) -> Meta:
        """Return the metadata of the model."""
        return self._merged_source.meta

    @property
    def series(self) -> Series:
        """Return the series of all ranks."""
        return self._merged_source.series

    @property
    def statistics(self) -> Sequence[Statistic] | None:
        """The further statistics of all ranks; ``None`` if one does not say them, or not yet."""
        own: list[Statistic] = []
        for rank in self._ranks.values():
            if rank.statistics is None:
                return None
            own += rank.statistics
        return own

    @property
    def absent(self) -> Sequence[Absence]:
        """Return the absences of all ranks, and the ranks that cannot be merged."""
        return [*self._merged_source.absent, *self._left_out]

    @property
    def expected(self) -> Sequence[Site]:
        """Sites in the order in which calls have them."""
        return list(dict.fromkeys(site for rank in self._ranks.values() for site in rank.expected))

    @property
    def scalars(self) -> Scalars:
        """Numbers that were logged."""
        return self._merged_source.scalars

    @property
    def notes(self) -> StepNotes:
        """Notes on the steps of all ranks, also of steps that not all of them have."""
        return merged_notes(rank.notes for rank in self._merged_ranks.values())

    @property
    def ranks(self) -> RankNumbers | None:
        """Return the numbers of each rank."""
        return self._merged_source.ranks

    @cached_property
    def _merged_source(self) -> Source:
        """Return the source of all ranks merged."""
        from torchtap.runs.merging.merged_source import merge_sources

        named = [(f"rank {number}", one) for number, one in self._merged_ranks.items()]
        if not named:
            said = "; ".join(entry.reason for entry in self._left_out)
            raise RunError(f"No rank of {self._path} can be merged: {said}.")
        return merge_sources(
            named, allow_missing=True, every_step=_are_of_a_data_set(self._ranks.values())
        )

    @property
    def _merged_ranks(self) -> dict[int, RankSource]:
        return {n: one for n, one in self._ranks.items() if not self._why_left_out(one)}

    @cached_property
    def _left_out(self) -> list[Absence]:
        """Ranks that cannot be merged with the others; what they have is read by ``run.rank``."""
        reasons = {number: self._why_left_out(one) for number, one in self._ranks.items()}
        return [
            Absence(WHOLE_RUN, f"rank {number} is left out: {why}; run.rank({number}) reads it")
            for number, why in reasons.items()
            if why
        ]

    def _why_left_out(self, one: RankSource) -> str:
        if not one.is_described:
            return "what its attempt.json says of it, such as its rank, is missing or damaged"
        if len(one.records) or one.series.steps or _are_of_a_data_set(self._ranks.values()):
            return ""
        lost = [entry.reason for entry in one.absent if entry.site == WHOLE_RUN]
        return "; ".join(lost) or "it committed nothing so far"


def _are_of_a_data_set(ranks: Iterable[RankSource]) -> bool:
    return any(rank.meta.labels.get("kind") == DATA_SET for rank in ranks)
