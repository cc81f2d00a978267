"""``tt.Disk``: the sink that writes what flows into a folder, beside the training."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.distributed import PLAIN
from torchtap.core.errors import CaptureError, RunError
from torchtap.core.planned_size import PlannedSize
from torchtap.core.record import UNVERSIONED, Record
from torchtap.core.site import Site
from torchtap.core.tensors import obstacle
from torchtap.core.torch_private import is_of_transform
from torchtap.runs.about import About
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.select import Where
from torchtap.runs.store.intake import Intake
from torchtap.runs.store.layout import JOURNAL, PROGRESS
from torchtap.runs.store.new_attempt import new_attempt, refuse_path
from torchtap.runs.store.planned import after_steps, before_a_step, size_of_statistics
from torchtap.runs.store.progress import Progress, ProgressWriter
from torchtap.runs.store.reading import RankReader
from torchtap.runs.store.rows_feed import RowsFeed
from torchtap.runs.store.selecting import Pick, WriteSelection
from torchtap.runs.store.settings import Durability, OnError, OnFull, Settings
from torchtap.runs.store.site_text import site_text
from torchtap.runs.store.staging import CLONED
from torchtap.runs.store.statistics import seal
from torchtap.runs.strided import storable

if TYPE_CHECKING:
    from torchtap.runs.store.worker import Worker

DATA_SET = "data set"
"""The label ``kind`` of runs of which each step is a batch, also if not all ranks have a part."""


class Disk:
    """A sink that writes every record into a folder, beside the training.

    ``tt.open(path)`` reads it, also while it grows. A step is committed within 20 ms after
    ``w.step()`` closes it, unless the disk is slower; after a crash every committed step is there,
    whole, and those that were not are named. docs/format.md says what stands in the
    folder. Each rank of ``torch.distributed`` writes a folder of its own in it.

    A value is copied inside of the hook, into memory that is used again, and written by a thread.

    Args:
        path: the folder of the run; made if it is not there.
        values: which of the values that are watched are written, as in :meth:`Run.records`; all by
            default, and for ``None`` none at all: with ``tt.Stats()`` beside it the run then has
            statistics alone.
        every: of how many steps the values of one are written: of those whose number it divides.
        dtype: a floating-point dtype to which wider values are rounded, which a label says.
        pick: a function of a tensor and its record that returns the part to be written, such as
            ``lambda x, record: x[:4]`` for a few rows, ``lambda x, record: x[mask]`` for tokens;
            ``None`` for nothing. It must not draw random numbers. A label says that it is a part.
        max_bytes: of all values together. What comes beyond is left out and counted as dropped.
        queue_bytes: how many bytes may wait to be written. One value that is larger waits alone.
        on_full: what happens to a value that finds no room: the training waits (``wait``), or the
            value is left out and counted (``drop``, see ``num_dropped``), or the sink ends with an
            error that the next ``w.step()`` raises (``raise``).
        durability: when what was written is also on the disk, should the machine lose power:
            after each ``step``, when the sink is flushed and on ``close``, or when the system sees
            fit (``none``). A process that is killed loses nothing that was committed in any case.
        resume: go on with a run that is there, as a training that starts again from a checkpoint
            does: steps from the first new one on supersede those that were there.
        on_error: what an error of the recording does, such as a full disk, a ``pick`` that raises,
            or a queue that is full with ``on_full="raise"``. ``raise``: the next ``w.step()``
            raises it. ``warn``: it warns, and the training goes on unrecorded. What was committed
            stays readable in both cases, and ``absent`` says that the rest is lost. A value that
            its own class does not give, as of a ``MaskedTensor``, is absent with the reason, and
            the others are recorded.
        num_steps: how many steps the training is planned to have: ``w.plan`` then says how large
            the run will be.
        labels: what else is to be written down of the run, text to text: ``run.meta.labels``.

    Attributes:
        num_dropped: how many values were left out because the queue, or ``max_bytes``, was full.
        dropped_bytes: how many bytes they had.
        folder: where this process writes; ``None`` before it does.

    Raises:
        InputError: an argument is none of those above.
        RunError: there is something else at ``path``, or a run and ``resume`` is false.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> model, path = torch.nn.Linear(2, 3), tempfile.mkdtemp() + "/run"
        >>> with tt.watch(model, to=tt.Disk(path)) as w:
        ...     for _ in range(4):
        ...         _ = model(torch.ones(5, 2))
        ...         w.step()
        >>> run = tt.open(path)
        >>> run.steps, run.cat(".:output").shape
        ([0, 1, 2, 3], torch.Size([20, 3]))
    """

    keeps = False

    def __init__(
        self,
        path: str | Path,
        *,
        values: Where = "*:*,param,param_grad,step_grad,update,buffer,saved",
        every: int = 1,
        dtype: torch.dtype | None = None,
        pick: Pick | None = None,
        max_bytes: int | None = None,
        queue_bytes: int = 256 << 20,
        on_full: OnFull = "wait",
        durability: Durability = "close",
        resume: bool = False,
        on_error: OnError = "raise",
        num_steps: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = Settings(
            queue_bytes, max_bytes, num_steps, on_full, durability, on_error, resume
        )
        self._settings.check()
        self._selection = WriteSelection(values, every, dtype, pick)
        self._selection.check()
        import torchtap.runs.store.streams  # noqa: F401 - says at once what is to be installed

        self.path = Path(path)
        refuse_path(self.path)
        self.folder: Path | None = None
        self._labels = dict(labels or {})
        self._about = About()
        self._meta = Meta()
        self._intake = Intake(repr(self), self._settings)
        self._worker: Worker | None = None
        self._progress: ProgressWriter | None = None
        self._num_commits = 0
        self._is_partly = False
        self._reader: RankReader | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unreadable: dict[Absence, None] = {}
        self._is_closed = False
        self._has_warned = False
        self._quick: dict[int, Site] = {}
        self._rows = RowsFeed(None, self._intake.queue, None)

    @property
    def num_dropped(self) -> int:
        """The number of values left out because the queue, or ``max_bytes``, was full."""
        return self._intake.num_dropped

    @property
    def dropped_bytes(self) -> int:
        """The number of bytes of the values that were left out."""
        return self._intake.dropped_bytes

    @property
    def resumes(self) -> bool:
        """Return whether the sink goes on with a run that is there."""
        return self._settings.resume

    def describe(self, labels: Mapping[str, str], num_steps: int | None = None) -> None:
        """Write down more of the run, before it begins, and how many steps it will have."""
        self._labels |= labels
        if self._settings.num_steps is None:
            self._settings = replace(self._settings, num_steps=num_steps)

    def _labelled(self, meta: Meta) -> Meta:
        return replace(meta, labels={**meta.labels, **self._labels})

    # ------------------------------------------------------------------ as a sink

    def begin(self, about: About) -> None:
        """A watch begins; make the folder.

        Raises:
            RunError: there is a run already, or another process writes it.
            OSError: the folder cannot be made.
        """
        if self._worker is not None:
            raise CaptureError(
                f"{self!r} belongs to another watch. Give each watch a tt.Disk of its own, the "
                f"second one with resume=True."
            )
        from torchtap.runs.store.attempt import AttemptWriter
        from torchtap.runs.store.worker import Worker

        self._about = about
        self._meta = meta = self._labelled(about.meta())
        rank, how = meta.rank or 0, self._settings
        self.folder, number = new_attempt(self.path, rank, meta.model, resume=how.resume)
        facts = {
            "rank": rank,
            "world_size": meta.world_size,
            "attempt": number,
            "measures": about.series is not None,
            "until_the_end": [] if about.series is None else about.series().kept_until_the_end,
            "every": about.every,
            "values_every": None if self._selection.values is None else self._selection.every,
            "meta": asdict(meta),
        }
        _import_for_closing(measures=about.series is not None)
        writer = AttemptWriter(self.folder, facts, durability=how.durability)
        self._progress = ProgressWriter(self.folder / PROGRESS)
        self._rows = RowsFeed(about.series, self._intake.queue, self.folder)
        self._worker = Worker(writer, self._intake.queue, self._intake.buffers)
        # One that is forgotten is closed all the same, and at the latest when Python ends.
        weakref.finalize(self, _end, self._worker, self._progress, os.getpid())

    def take(self, record: Record) -> None:
        """Copy one value, and hand it to the thread.

        Raises:
            CaptureError: the queue is full, with ``on_full="raise"``.
        """
        tensor, site, version = record[6], record[0], record[7]
        # Most values are small plain tensors of sites that were looked at: that must be quick.
        if (
            self._quick.get(id(site)) is site
            and type(tensor) is Tensor
            and tensor.dtype in CLONED
            and tensor.is_cpu
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and (version == UNVERSIONED or tensor._version == version)
            and not is_of_transform(tensor)
            and self._intake.take_small(record, tensor)
        ):
            return
        worker = self._ready()
        if worker is None or worker.failure is not None:
            self._quick.clear()
            return
        if not self._selection.wants(record, self._meta):
            return
        if self._selection.takes_whole:
            self._quick[id(site)] = site
        try:
            self._take(record)
        except Exception as error:  # noqa: BLE001 - raised again where it is to be
            self._refuse(record, worker, error)

    def _refuse(self, record: Record, worker: Worker, error: Exception) -> None:
        """Deal with a value that could not be taken: where its class does not give it, say so.

        Raises:
            Exception: the error, with ``on_error="raise"``.
        """
        if type(record.kept) not in PLAIN:  # The class of the tensor may raise anything.
            first = str(error).partition("\n")[0]
            why = f"{type(error).__name__}: {first}" if first else type(error).__name__
            kind = type(record.kept).__name__
            reason = f"a {kind} whose values its class does not give ({why})"
            self._unreadable[Absence(record.site, reason)] = None
        elif self._settings.on_error == "raise":
            raise error
        else:
            worker.give_up(error)

    def _take(self, record: Record) -> None:
        why = _why_unwritable(record)
        if why is not None:
            self._unreadable[Absence(record.site, why)] = None
            return
        value = record.value
        try:
            is_dense = self._selection.pick is not None  # It is given what it was written for.
            whole, said = storable(value, record.labels, dense=is_dense)
        except RunError as error:
            self._unreadable[Absence(record.site, str(error))] = None
            return
        tensor, labels = self._selection.of(whole, said, record)
        self._intake.take(record, tensor, labels)

    def close_step(self, step: int) -> None:
        """Commit the step.

        Raises:
            Exception: what the thread raised since the last time.
        """
        worker = self._ready()
        if worker is None:
            return
        if step % (self._about.every or 1) == 0:
            self._intake.count_recorded()
        is_noted = any(self._about.notes.of(step)) or self._about.scalars.at(step)
        has_more = bool(self._intake.has_uncommitted or is_noted)
        was_partly = self._is_partly
        if has_more:
            self._commit(step, is_closed=True)
        if was_partly:  # Else a step that is whole would look as if a part of it were lost.
            worker.ask("drain")
        self._rows.close_step(step)
        self._note_step(step, has_more=has_more)
        self._raise_failure(worker)

    def flush(self) -> None:
        """Wait until every step that was closed is written and can be read.

        Raises:
            Exception: what the thread raised since the last time.
        """
        if self._worker is not None:
            self._rows.hand_over()
            self._worker.ask("flush")
            if self._progress is not None and not self._is_closed:
                self._note_progress(*self._progress.last[:2])
            self._raise_failure(self._worker)

    def sync(self) -> None:
        """Commit what has come, also of the running step, and wait as :meth:`flush` does.

        ``w.sync()`` calls it, before a training saves a checkpoint.

        Raises:
            Exception: what the thread raised since the last time.
        """
        worker = self._ready()
        if worker is not None:
            self._commit_running()
            self._rows.hand_over(self._about.running())
            self.flush()

    def close(self) -> None:
        """Commit what is there, write the index and end the thread.

        Raises:
            Exception: what the thread raised since the last time.
        """
        worker = self._worker
        if worker is None or self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self._quick.clear()
        self._commit_running()
        worker.ask("close", (self._closing_facts(), self._seal))
        if self._progress is not None:
            self._progress.close()
        self._raise_failure(worker)

    def contents(self) -> Records:
        """The records of the steps that were committed, in the order of their arrival."""
        if self._worker is None or self.folder is None:
            return Records()
        if self._worker.is_running and self._worker.failure is None:
            self._worker.ask("drain")
        if self._reader is None:
            self._reader = RankReader({0: self.folder}, verify=True)
        else:
            self._reader.refresh()
        return self._reader.records

    def planned_size(self) -> PlannedSize:
        """Estimate how large the run will be, from the plan or from the steps that were written."""
        about, how = self._about, self._settings
        series = None if about.series is None else about.series()
        measured, fixed = size_of_statistics(series, how.num_steps)
        size = PlannedSize(
            str(self.path),
            measured_per_step=measured,
            fixed_bytes=fixed,
            unknown=() if measured or series is None else ("statistics",),
            every=about.every or 1,
            num_steps=how.num_steps,
            max_bytes=how.max_bytes,
        )
        done, selection = self._intake.committed, self._selection
        has_run = done.num_steps or (selection.values is None and done.num_recorded)
        if has_run and self._worker is not None:
            return after_steps(size, done, self._worker.written, selection.every)
        return before_a_step(size, about.plan, selection, self._meta)

    @property
    def absent(self) -> tuple[Absence, ...]:
        """The values that were given to the sink and could not be written, with reasons."""
        found = [*self._unreadable]
        if self.num_dropped:
            reason = (
                f"{self.num_dropped:,} values ({self.dropped_bytes:,} bytes) were dropped, because "
                f"the queue to the disk or its max_bytes were full; the run says where"
            )
            found.append(Absence(Site("", "output"), reason))
        if self._worker is not None and self._worker.failure is not None:
            error = self._worker.failure
            reason = (
                f"writing to {self.path} ended with {type(error).__name__}: {error}; "
                f"{self._what_is_left}"
            )
            found.append(Absence(Site("", "output"), reason))
        return tuple(found)

    # ------------------------------------------------------------------ the end

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

    # ------------------------------------------------------------------ to the thread

    def _ready(self) -> Worker | None:
        """The thread, which is made where no watch began it; ``None`` when all is over."""
        if os.getpid() != self._process:
            raise CaptureError(
                "tt.Disk was taken along into a process that was forked, which has no thread to "
                "write. Make the watch and its sink in that process."
            )
        if self._is_closed:
            return None
        with self._lock:  # Several threads may bring the first value.
            if self._worker is None:
                self.begin(self._about)
            return self._worker

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
        assert self._progress is not None
        found, began = self._about.running(), self._progress.last.began
        running = step + 1 if found is None else found
        # step(1000) before the first forward names the running step 0, and closes none.
        is_named = not step or running != step + 1
        if began < 0 and (has_more or not is_named or self._about.notes.has(step)):
            began = step
        self._note_progress(began, running)

    def _note_progress(self, began: int, running: int) -> None:
        worker, progress = self._worker, self._progress
        assert worker is not None and progress is not None
        try:
            progress.write(Progress(began, running, self._num_commits, worker.num_commits))
        except OSError as error:
            if worker.failure is None:
                worker.give_up(error)

    @property
    def _what_is_left(self) -> str:
        is_there = self.folder is not None and (self.folder / JOURNAL).exists()
        return "what was committed before is there" if is_there else "what was committed is gone"

    def _raise_failure(self, worker: Worker) -> None:
        error = worker.failure
        if error is None:
            return
        self._quick.clear()
        if self._settings.on_error == "raise":
            raise error
        if not self._has_warned:
            self._has_warned = True
            said = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"tt.Disk({str(self.path)!r}) writes no more: {said}. The training goes on "
                f"unrecorded; {self._what_is_left}.",
                RuntimeWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<Disk {str(self.path)!r}>"


def _import_for_closing(*, measures: bool) -> None:
    """Import now what closing needs, which may come when Python ends.

    After an interrupt that nothing caught, Python ends by that signal, unless a module that is
    imported meanwhile makes a class from text, as ``namedtuple`` and ``dataclass`` do: then the
    exit code is 1.
    """
    import pyarrow.compute

    if measures:
        import pyarrow.parquet  # noqa: F401

        import torchtap.runs.single_file.file  # noqa: F401


def _end(worker: Worker, progress: ProgressWriter, process: int) -> None:
    if os.getpid() == process:
        if worker.is_running:
            worker.ask("close")
        progress.close()


def _why_unwritable(record: Record) -> str | None:
    tensor = record.kept
    if tensor.is_meta:
        return "a meta tensor, which has no values to write"
    return obstacle(tensor)
