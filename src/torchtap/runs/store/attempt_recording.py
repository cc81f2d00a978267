"""The recording of one attempt: its steps are committed, noted, and closed."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtap.runs.about import About
from torchtap.runs.meta import Meta
from torchtap.runs.store.disk_settings import Settings
from torchtap.runs.store.intake import Intake
from torchtap.runs.store.layout import JOURNAL, PROGRESS
from torchtap.runs.store.new_attempt import new_attempt
from torchtap.runs.store.rows_feed import RowsFeed
from torchtap.runs.store.site_text import site_text
from torchtap.runs.store.statistics_files import seal
from torchtap.runs.store.training_progress import ProgressWriter, TrainingProgress

if TYPE_CHECKING:
    from torchtap.runs.store.worker import Worker


class Recording:
    """One attempt of a run on disk while it is written.

    Args:
        path: of the run; the attempt gets a folder in it.
        about: what a watch says of itself.
        labels: what else is written down of the run.
        values_every: write the values of every n-th recorded step; ``None`` for no values.
        settings: of the sink.
        intake: takes the values.
        on_failure: is called when it is noticed that the thread has failed.

    Attributes:
        folder: of the attempt.
        worker: the thread that writes.

    Raises:
        RunError: there is a run already, or another process writes it.
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        path: Path,
        about: About,
        *,
        labels: Mapping[str, str],
        values_every: int | None,
        settings: Settings,
        intake: Intake,
        on_failure: Callable[[], None],
    ) -> None:
        from torchtap.runs.store.attempt import AttemptWriter
        from torchtap.runs.store.worker import Worker

        self._path = path
        self._about = about
        self._labels = labels
        self._settings = settings
        self._intake = intake
        self._on_failure = on_failure
        self._num_commits = 0
        self._is_partly = False
        self._has_warned = False
        self.meta = meta = self._labelled(about.meta())
        self.folder, number = new_attempt(path, meta.rank or 0, meta.model, resume=settings.resume)
        facts = {
            "rank": meta.rank or 0,
            "world_size": meta.world_size,
            "attempt": number,
            "measures": about.series is not None,
            "until_the_end": [] if about.series is None else about.series().kept_until_the_end,
            "every": about.every,
            "values_every": values_every,
            "meta": asdict(meta),
        }
        _import_for_closing(measures=about.series is not None)
        writer = AttemptWriter(self.folder, facts, durability=settings.durability)
        self._progress = ProgressWriter(self.folder / PROGRESS)
        self._rows = RowsFeed(about.series, about.ended, intake.queue, self.folder)
        rows = None if about.ended is None else self._rows
        self.worker: Worker = Worker(writer, intake.queue, intake.buffers, rows)

    def close_step(self, step: int) -> None:
        """Commit a step."""
        if step % (self._about.every or 1) == 0:
            self._intake.count_recorded()
        is_noted = any(self._about.notes.of(step)) or self._about.scalars.at(step)
        has_more = bool(self._intake.has_uncommitted or is_noted)
        was_partly = self._is_partly
        if has_more:
            self._commit(step, is_closed=True)
        if was_partly:  # Else a step that is whole would look as if a part of it were lost.
            self.worker.ask("drain")
        self._rows.close_step(step)
        self._note_step(step, has_more=has_more)

    def flush(self, *, is_closed: bool) -> None:
        """Wait until every step that was closed is written and can be read."""
        self._rows.hand_over()
        self.worker.ask("flush")
        if not is_closed:
            self._note_progress(*self._progress.last[:2])

    def commit_running(self) -> None:
        """Commit what has come, also of the running step."""
        self._commit_running()
        self._rows.hand_over(self._about.running())

    def close(self) -> None:
        """Commit what is there, write the index and end the thread."""
        self._commit_running()
        self.worker.ask("close", (self._closing_facts(), self._seal))
        self._progress.close()

    def close_when_collected(self, sink: object) -> None:
        """Close the attempt when ``sink`` is collected, at the latest at interpreter exit."""
        # The arguments hold no sink, or it would never be collected. The process is noted, since a
        # forked child runs finalizers too.
        weakref.finalize(sink, _end, self.worker, self._progress, os.getpid())

    @property
    def what_is_left(self) -> str:
        """Return the end of a sentence: what an error of the thread leaves."""
        is_there = (self.folder / JOURNAL).exists()
        return "what was committed before is there" if is_there else "what was committed is gone"

    def raise_failure(self) -> None:
        """Raise what ended the thread, or warn of it, as was asked for."""
        error = self.worker.failure
        if error is None:
            return
        self._on_failure()
        if self._settings.on_error == "raise":
            raise error
        if not self._has_warned:
            self._has_warned = True
            said = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"tt.Disk({str(self._path)!r}) writes no more: {said}. The training goes on "
                f"unrecorded; {self.what_is_left}.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _labelled(self, meta: Meta) -> Meta:
        return replace(meta, labels={**meta.labels, **self._labels})

    def _closing_facts(self) -> dict[str, Any]:
        about = self._about
        return {
            "meta": asdict(self._labelled(about.meta())),
            "absent": [[site_text(site), why] for site, why in about.absent()],
            "expected": [site_text(site) for site in about.expected()],
        }

    def _seal(self, folder: Path) -> dict[str, Any]:
        """Write all that was measured."""
        series = None if self._about.series is None else self._about.series()
        if series is None or not series.sites:
            return {}
        sealed = seal(folder, series, self._about.meta())
        steps = series.steps
        return {
            **sealed,
            "first_measured": min(steps, default=None),
            "last_measured": max(steps, default=None),
        }

    def _commit(self, step: int, *, is_closed: bool) -> None:
        notes, scalars = self._about.notes.of(step), self._about.scalars.at(step)
        self._intake.commit(step, is_closed=is_closed, notes=notes, scalars=scalars)
        self._num_commits += 1
        self._is_partly = not is_closed

    def _commit_running(self) -> None:
        """Commit what has come since the last step was closed."""
        taken, logged = self._intake, self._about.scalars.newest
        last = -1 if taken.last_committed is None else taken.last_committed
        if taken.has_uncommitted:
            self._commit(taken.last_step, is_closed=False)
        elif logged is not None and (logged > last or (logged == last and self._is_partly)):
            self._commit(logged, is_closed=False)

    def _note_step(self, step: int, *, has_more: bool) -> None:
        """Write down that a step was closed, for those who read a run that was killed."""
        found, began = self._about.running(), self._progress.last.began
        running = step + 1 if found is None else found
        # step(1000) before the first forward names the running step 0, and closes none.
        is_named = not step or running != step + 1
        if began < 0 and (has_more or not is_named or self._about.notes.has(step)):
            began = step
        self._note_progress(began, running)

    def _note_progress(self, began: int, running: int) -> None:
        worker, progress = self.worker, self._progress
        try:
            # Read here and not in the thread: what it wrote since only makes the number too small.
            progress.write(TrainingProgress(began, running, self._num_commits, worker.num_commits))
        except OSError as error:
            if worker.failure is None:
                worker.give_up(error)


def _import_for_closing(*, measures: bool) -> None:
    """Import now what closing needs, which may come when Python ends.

    After an interrupt that nothing caught, Python ends by that signal, unless a module that is
    imported meanwhile makes a class from text, as ``namedtuple`` and ``dataclass`` do: then the
    exit code is 1.
    """
    import pyarrow.compute

    if measures:
        import pyarrow.parquet  # noqa: F401

        import torchtap.runs.single_file.write_run  # noqa: F401


def _end(worker: Worker, progress: ProgressWriter, process: int) -> None:
    if os.getpid() == process:
        if worker.is_running:
            worker.ask("close")
        progress.close()
