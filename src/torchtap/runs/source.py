"""The source of a run: where it is read from.

``tt.Run`` reads four sources alike: a watch that records (``capture/watch_source.py``), a file
(``single_file/file_source.py``), a folder (``store/folder_source.py``, of ranks as
``store/rank_source.py``) and several runs merged (``merging/merged_source.py``). A further one,
such as a database, has the parts of :class:`Source` and is read by ``tt.Run(source)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes

if TYPE_CHECKING:
    from torchtap.runs.merging.rank_numbers import RankNumbers
    from torchtap.runs.meta import Meta
    from torchtap.runs.records import Records
    from torchtap.runs.run import Run
    from torchtap.stats.series import Series


class Source(Protocol):
    """Interface of the data behind a :class:`~torchtap.runs.run.Run`.

    Each property returns the current state. ``Run`` reuses its cached ``Contents`` while
    ``records`` is the same object with the same length and ``series.revision`` is unchanged.
    """

    @property
    def records(self) -> Records:
        """Records in the order of their arrival."""

    @property
    def meta(self) -> Meta:
        """Return the metadata of the model and of how the run was made."""

    @property
    def series(self) -> Series:
        """Return the series that ``tt.Stats`` measured."""

    @property
    def absent(self) -> Sequence[Absence]:
        """Return the sites that were selected and not seen, with reasons."""

    @property
    def expected(self) -> Sequence[Site]:
        """Sites in call order: arguments, then returned values; may be incomplete."""

    @property
    def scalars(self) -> Scalars:
        """Numbers that were logged."""

    @property
    def notes(self) -> StepNotes:
        """Times, sample ids and labels of the steps."""

    @property
    def ranks(self) -> RankNumbers | None:
        """Return the statistics of each rank of a merged run, or ``None`` for other runs."""

    def refresh(self) -> bool:
        """Read what was committed since the last call. Return whether anything was new."""

    def rank(self, number: int) -> Source:
        """Return the source of one rank.

        Raises:
            RunError: there is no such rank.
        """

    @property
    def reopen(self) -> Callable[[], Run] | None:
        """A picklable function that reopens the run in another process, such as a worker of a
        ``DataLoader``; ``None`` if the run itself is pickled.
        """


class SourceDefaults:
    """Default ``refresh``, ``rank`` and ``reopen`` of a source that holds one run."""

    def refresh(self) -> bool:
        """Return ``False``: there is nothing to read again."""
        return False

    def rank(self, number: int) -> Source:
        """Raise: this source holds one run."""
        raise RunError(
            f"This run is in no folder of several ranks. Open that: tt.open(FOLDER).rank({number})."
        )

    @property
    def reopen(self) -> Callable[[], Run] | None:
        """``None``: the run itself is pickled."""
        return None


def no_series() -> Series:
    """Return the series of a source in which nothing was measured."""
    from torchtap.stats.series import Series

    return Series()


@dataclass(eq=False)
class HeldSource(SourceDefaults):
    """A source whose parts are at hand. See :class:`Source` for each."""

    records: Records
    meta: Meta
    series: Series = field(default_factory=no_series)
    absent: Sequence[Absence] = ()
    expected: Sequence[Site] = ()
    scalars: Scalars = field(default_factory=Scalars)
    notes: StepNotes = field(default_factory=StepNotes)
    ranks: RankNumbers | None = None


def as_records(rows: Iterable[Record]) -> Records:
    """Return records as columns."""
    from torchtap.runs.records import Records

    if isinstance(rows, Records):
        return rows
    gathered = Records()
    gathered.extend(list(rows))
    return gathered
