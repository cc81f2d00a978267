"""Feeds of a live view: what is new of a run since it was asked last, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchtap.core.absence import WHOLE_RUN
from torchtap.core.errors import InputError, RunError
from torchtap.core.record import FORWARD
from torchtap.core.site import Site
from torchtap.runs.file_name import ENDING
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run
from torchtap.runs.store.commit import CommitStream
from torchtap.runs.store.layout import (
    ATTEMPT,
    SEALED_STATISTICS,
    attempts_in,
    has_statistics,
    is_attempt,
    ranks_in,
    read_json,
)
from torchtap.runs.store.rows_stream import NewRows, RowsStream, read_sealed_rows
from torchtap.runs.store.site_text import site_of
from torchtap.stats.measure import measure_all
from torchtap.stats.rows import NUM_TENSORS, ROW_WIDTH
from torchtap.stats.statistics import row_of

_DAMAGE = ("damaged", "lost", "missing")
"""Words in what a run says of itself where a part of it is not there."""


class StepRows(NamedTuple):
    """The statistics of some sites in one step.

    Attributes:
        step: its number.
        sites: which, in the order in which they were measured.
        rows: of each, ``float64[sites, 16]``.
    """

    step: int
    sites: Sequence[Site]
    rows: NDArray[np.float64]


class Ended(NamedTuple):
    """The end of a step: when, in seconds since 1970, and what was logged in it."""

    step: int
    time: float | None
    scalars: Mapping[str, float]


class Feed(Protocol):
    """Interface of a feed.

    Attributes:
        meta: what is known of the model.
        folder: of the attempt that is written; ``None`` of a file.
    """

    meta: Meta
    folder: Path | None

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what of the run cannot be read."""

    def read(self) -> Iterator[StepRows | Ended]:
        """Yield what has come since the last call; steps in their order."""


class AttemptFeed:
    """Feeds the statistics of one attempt of a rank from its folder. Keeps none of them.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Path | None = folder
        self._rows = RowsStream(folder)
        self._last, self._is_sealed = -1, False
        self._commits = CommitStream(folder)
        self._sites: dict[str, Site] = {}
        self.meta = meta_in(folder)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what of its statistics is damaged."""
        return self._rows.lost

    def read(self) -> Iterator[StepRows | Ended]:
        """Yield what was written since the last call."""
        assert self.folder is not None
        is_closed = not self._is_sealed and (self.folder / SEALED_STATISTICS).exists()
        self._rows.look()
        for commit in self._commits.read():
            yield Ended(commit.step, commit.time if commit.is_closed else None, commit.scalars)
        yield from self._steps(self._rows.read())
        if is_closed:  # The last steps stand in the table alone.
            self._is_sealed = True
            with suppress(RunError):
                yield from self._steps(read_sealed_rows(self.folder, self._last))

    def _steps(self, rows: Iterable[NewRows]) -> Iterator[StepRows]:
        for new in rows:
            if new.phase != FORWARD:
                continue
            known = [self._site_of(text) for text in new.sites]
            bounds = [0, *(np.flatnonzero(np.diff(new.steps)) + 1).tolist(), len(new.steps)]
            for start, end in pairwise(bounds):
                sites = [known[code] for code in new.codes[start:end].tolist()]
                self._last = int(new.steps[start])
                yield StepRows(int(new.steps[start]), sites, new.rows[start:end])

    def _site_of(self, text: str) -> Site:
        if text not in self._sites:
            self._sites[text] = site_of(text)
        return self._sites[text]


class RunFeed:
    """Feeds a run that is opened: a file, or a folder of values, which are measured as they come.

    Args:
        run: which.
        folder: of the attempt that is written.
    """

    def __init__(self, run: Run, folder: Path | None = None) -> None:
        self.folder = folder
        self.meta = run.meta
        self._run = run
        self._last_ended = self._last_step = -1
        self._is_first = True
        self._notes: Sequence[str] = ()

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what is lost of the run."""
        return self._notes

    def read(self) -> Iterator[StepRows | Ended]:
        """Yield what has come since the last call."""
        if not self._run.refresh() and not self._is_first:
            return
        self._is_first = False
        reasons = [absence.reason for absence in self._run.absent if absence.site == WHOLE_RUN]
        self._notes = [reason for reason in reasons if any(word in reason for word in _DAMAGE)]
        yield from self._ended()
        series = self._run.series
        measured = set(series.steps)
        for step in self._run.steps:
            if step <= self._last_step:
                continue
            self._last_step = step
            if step in measured:
                _, rows = series.rows.as_array([step])
                there = np.flatnonzero(rows[0, :, NUM_TENSORS])
                sites = [series.measured[place].site for place in there.tolist()]
                yield StepRows(step, sites, rows[0, there])
            else:
                yield self._of_values(step)

    def _ended(self) -> Iterator[Ended]:
        times = dict(zip(*self._run.times, strict=True))
        logged: dict[int, dict[str, float]] = {}
        for name in self._run.scalar_names:
            for step, value in zip(*self._run.scalars(name), strict=True):
                logged.setdefault(step, {})[name] = value
        for step in sorted({*times, *logged}):
            if step > self._last_ended:
                self._last_ended = step
                yield Ended(step, times.get(step), logged.get(step, {}))

    def _of_values(self, step: int) -> StepRows:
        """Measure the values of a step."""
        values: dict[Site, list[Any]] = {}
        for record in self._run.records(steps=step):
            values.setdefault(record.site, []).append(record.value)
        rows: dict[Site, list[float]] = {}
        for site, own in values.items():
            with suppress(InputError):  # Tensors without values, which `absent` names.
                rows[site] = row_of(measure_all(own, histogram=False))
        return StepRows(step, list(rows), np.array([*rows.values()]).reshape(-1, ROW_WIDTH))


@dataclass(frozen=True, slots=True)
class Followed:
    """A feed and what it is called beside others: ``rank 1``; empty where it is alone."""

    name: str
    feed: Feed


def follow(path: Path) -> list[Followed]:
    """Return the feeds of a run: one for each rank in its folder, of the last attempt of each.

    Args:
        path: a file, a folder of ``tt.Disk``, one of a rank or an attempt in it, or a folder with
            the files of several ranks.

    Raises:
        FileNotFoundError: there is nothing.
        RunError: there is something else than a run, or no process has begun to write.
    """
    if not path.is_dir():
        path.stat()
        return [Followed("", RunFeed(open_run(path)))]
    if is_attempt(path) or attempts_in(path):
        return [Followed("", feed_of(path))]
    ranks = {n: one for n, one in ranks_in(path).items() if attempts_in(one)}
    if ranks:
        alone = len(ranks) == 1
        return [Followed("" if alone else f"rank {n}", feed_of(one)) for n, one in ranks.items()]
    files = sorted(path.glob(f"*{ENDING}"))
    if not files:
        open_run(path)  # Says what is wrong with it.
        raise RunError(f"{path} is empty so far: no process has begun to write.")
    opened = [open_run(one) for one in files]
    return [
        Followed(f"rank {run.meta.rank}" if run.meta.rank is not None else file.stem, RunFeed(run))
        for file, run in zip(files, opened, strict=True)
    ]


def feed_of(folder: Path) -> Feed:
    """Return the feed of a rank or an attempt: of its statistics, else of its values."""
    if not is_attempt(folder):
        attempts = attempts_in(folder)
        folder = attempts[max(attempts)]
    if has_statistics(folder) or _facts(folder).get("measures"):
        return AttemptFeed(folder)
    return RunFeed(open_run(folder), folder)


def meta_in(folder: Path) -> Meta:
    """Return the metadata of the model, as its attempt says it; empty where that is damaged."""
    body = _facts(folder).get("meta")
    return Meta() if body is None else meta_of(body)


def _facts(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / ATTEMPT)
    except (OSError, RunError, InputError):
        return {}
