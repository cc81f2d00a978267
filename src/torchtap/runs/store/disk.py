"""``tt.Disk``: the sink that writes what flows into a folder, beside the training."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchtap.core.absence import Absence
from torchtap.core.errors import CaptureError, InputError, RunError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.core.tensors import obstacle
from torchtap.core.version import __version__
from torchtap.runs.about import About
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.select import Where
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.dtypes import STORED
from torchtap.runs.store.layout import (
    FORMAT,
    MOST_SMALL,
    RUN,
    attempt_folder,
    attempts_in,
    is_run_folder,
    rank_folder,
    read_json,
    write_json,
)
from torchtap.runs.store.lock import is_being_written
from torchtap.runs.store.queue import ByteQueue, EndOfStep, Staged, Statistics, Values
from torchtap.runs.store.reading import RankReader
from torchtap.runs.store.selecting import Pick, WriteSelection
from torchtap.runs.store.site_text import site_text
from torchtap.runs.store.staging import Buffers, Stager, rounded
from torchtap.runs.store.statistics import EVERY, measured_since, seal
from torchtap.runs.strided import copyable, strided

if TYPE_CHECKING:
    import torch

    from torchtap.runs.store.worker import Worker

OnFull = Literal["wait", "drop", "raise"]
Durability = Literal["step", "close", "none"]
DATA_SET = "data set"
"""The label ``kind`` of runs of which each step is a batch, also if not all ranks have a part."""
_MOST_GATHERED = 4 << 20
"""Bytes of small values that are handed to the thread together."""


class Disk:
    """A sink that writes every record into a folder, beside the training.

    ``tt.open(path)`` reads it, also while it grows. A step is committed when ``w.step()`` closes
    it; after a crash every committed step is there, whole. docs/format.md says what stands in the
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
        on_error: what an error of writing does, such as a full disk. ``raise``: the next
            ``w.step()`` raises it. ``warn``: it warns, and the training goes on unrecorded. What
            was committed stays readable in both cases, and ``absent`` says that the rest is lost.

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
        on_error: Literal["raise", "warn"] = "raise",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        _refuse_other("on_full", on_full, ("wait", "drop", "raise"))
        _refuse_other("durability", durability, ("step", "close", "none"))
        _refuse_other("on_error", on_error, ("raise", "warn"))
        if queue_bytes < 1:
            raise InputError(f"queue_bytes is {queue_bytes}; expected a number of bytes from 1.")
        self._selection = WriteSelection(values, every, dtype, pick)
        self._selection.check()
        if max_bytes is not None and max_bytes < 1:
            raise InputError(
                f"max_bytes is {max_bytes}; expected a number of bytes from 1, or None."
            )
        import torchtap.runs.store.streams  # noqa: F401 - says at once what is to be installed

        self.path = Path(path)
        self.num_dropped = 0
        self.dropped_bytes = 0
        self.folder: Path | None = None
        self._on_full, self._on_error, self._durability = on_full, on_error, durability
        self._resume = resume
        self._about = About()
        self._queue = queue = ByteQueue(queue_bytes)
        self._buffers = Buffers(queue_bytes, lambda: queue.num_bytes)
        self._stager = Stager()
        self._worker: Worker | None = None
        self._reader: RankReader | None = None
        self._labels = dict(labels or {})
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._meta = Meta()
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._order = 0
        self._gathered: list[Staged] = []
        self._gathered_bytes = 0
        self._dropped: dict[str, tuple[int, int]] = {}
        self._unreadable: dict[Absence, None] = {}
        self._has_uncommitted = False
        self._is_closed = False
        self._has_warned = False
        self._last_step = 0
        self._last_closed: int | None = None
        self._num_closed = 0
        self._closed_step: int | None = None
        self._written: set[int] = set()
        _refuse_path(self.path)

    @property
    def resumes(self) -> bool:
        """Whether it goes on with a run that is there."""
        return self._resume

    def describe(self, labels: Mapping[str, str]) -> None:
        """Write down more of the run, before it begins."""
        self._labels |= labels

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
        folder, number = self._new_folder(meta.rank or 0, meta.model)
        facts = {
            "rank": meta.rank or 0,
            "world_size": meta.world_size,
            "attempt": number,
            "measures": about.series is not None,
            "meta": asdict(meta),
        }
        writer = AttemptWriter(folder, facts, durability=self._durability)
        self.folder = folder
        self._worker = Worker(writer, self._queue, self._buffers)
        # One that is forgotten is closed all the same, and at the latest when Python ends.
        weakref.finalize(self, _end, self._worker, os.getpid())

    def take(self, record: Record) -> None:
        """Copy one value, and hand it to the thread.

        Raises:
            CaptureError: the queue is full, with ``on_full="raise"``.
        """
        worker = self._ready()
        if worker is None or worker.failure is not None:
            return
        if not self._selection.wants(record, self._meta):
            return
        why = _why_unwritable(record)
        if why is not None:
            self._unreadable[Absence(record.site, why)] = None
            return
        value = record.value
        try:
            whole, labels = strided(value, record.labels)
        except RunError as error:
            self._unreadable[Absence(record.site, str(error))] = None
            return
        tensor, labels = self._selection.of(whole, labels, record)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in STORED:
            self._unreadable[
                Absence(record.site, f"{dtype} without a scale, which no file can hold")
            ] = None
            return
        tensor = copyable(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        room = rounded(nbytes)
        if self._max_bytes is not None and self._num_bytes + nbytes > self._max_bytes:
            self._drop(record, nbytes)
            return
        with self._lock:
            is_roomy = self._queue.reserve(room, wait=False)
            if not is_roomy and not self._make_room(record, room, nbytes):
                return
            buffer = self._buffers.take(nbytes, pinned=tensor.device.type == "cuda")
            try:
                arrived = self._stager.copy(tensor, buffer)
            except BaseException:
                self._queue.release(room)
                raise
            key = (*record[:5], tuple(labels))
            size = (nbytes, room)
            staged = Staged(self._order, key, dtype, tuple(tensor.shape), buffer, *size, arrived)
            self._order += 1
            self._num_bytes += nbytes
            self._has_uncommitted = True
            self._last_step = record.step
            self._hand_over(staged)

    def close_step(self, step: int) -> None:
        """Commit the step.

        Raises:
            Exception: what the thread raised since the last time.
        """
        worker = self._ready()
        if worker is None:
            return
        is_noted = any(self._about.notes.of(step)) or self._about.scalars.at(step)
        if self._has_uncommitted or is_noted:
            self._commit(step, is_closed=True)
        self._num_closed += 1
        self._closed_step = step
        if self._num_closed % EVERY == 0:
            self._write_statistics()
        self._raise_failure(worker)

    def flush(self) -> None:
        """Wait until every step that was closed is written and can be read.

        Raises:
            Exception: what the thread raised since the last time.
        """
        if self._worker is not None:
            self._write_statistics()
            self._worker.ask("flush")
            self._raise_failure(self._worker)

    def close(self) -> None:
        """Commit what is there, write the index and end the thread.

        Raises:
            Exception: what the thread raised since the last time.
        """
        worker = self._worker
        if worker is None or self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        logged = self._about.scalars.newest
        if self._has_uncommitted:
            self._commit(self._last_step, is_closed=False)
        elif logged is not None and (self._last_closed is None or logged > self._last_closed):
            self._commit(logged, is_closed=False)
        worker.ask("close", (self._closing_facts(), self._seal))
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

    @property
    def absent(self) -> tuple[Absence, ...]:
        """What was given to it and could not be written."""
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
                f"writing to {self.path} ended with {type(error).__name__}: {error}; what was "
                f"committed before is there"
            )
            found.append(Absence(Site("", "output"), reason))
        return tuple(found)

    # ------------------------------------------------------------------ the folder

    def _new_folder(self, rank: int, model: str) -> tuple[Path, int]:
        home = rank_folder(self.path, rank)
        home.mkdir(parents=True, exist_ok=True)
        before = attempts_in(home)
        if before and not self._resume:
            raise RunError(
                f"{self.path} holds a run already, with {len(before)} attempts of rank {rank}. "
                f"tt.Disk(..., resume=True) goes on with it; else give another folder."
            )
        for number, folder in before.items():
            if is_being_written(folder):
                raise RunError(
                    f"Attempt {number} of rank {rank} in {self.path} is being written by a process "
                    f"that lives. Close its watch first, or give another folder."
                )
        if before:
            _refuse_other_model(AttemptReader(before[max(before)]), model)
        self._write_run(model)
        number = max(before, default=-1) + 1
        folder = attempt_folder(home, number)
        folder.mkdir()  # Fails where another process was faster: no two write one folder.
        return folder, number

    def _write_run(self, model: str) -> None:
        path = self.path / RUN
        if path.exists():
            read_json(path)  # Refuses another format.
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        body = {"format": FORMAT, "model": model, "created": now, "torchtap": __version__}
        write_json(path, body)

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
        return {"series": seal(folder, series, self._about.meta())}

    def _write_statistics(self) -> None:
        """Hand over the rows of the steps that were closed since the last time."""
        if self._about.series is None:
            return
        series = self._about.series()
        closed = -1 if self._closed_step is None else self._closed_step
        running = {step for step in series.steps if step > closed}
        for measured in measured_since(series, self._written | running):
            self._queue.put(Statistics(measured))
            self._written.update(measured.steps)

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

    def _make_room(self, record: Record, room: int, nbytes: int) -> bool:
        """What to do with a value that finds no room at once; whether it has some now."""
        self._hand_gathered()
        if self._on_full == "wait":
            return self._queue.reserve(room, wait=True)
        if self._on_full == "raise":
            raise CaptureError(
                f"The queue of {self!r} is full: {self._queue.num_bytes:,} of "
                f"{self._queue.max_bytes:,} bytes wait, and {record.site} has {nbytes:,} more. "
                f"Record less, give more queue_bytes, or let the training wait (on_full='wait')."
            )
        self._drop(record, nbytes)
        return False

    def _drop(self, record: Record, nbytes: int) -> None:
        """Leave a value out, and count it."""
        site = site_text(record.site)
        with self._lock:
            number, total = self._dropped.get(site, (0, 0))
            self._dropped[site] = number + 1, total + nbytes
            self.num_dropped += 1
            self.dropped_bytes += nbytes
            self._has_uncommitted = True
            self._last_step = record.step

    def _hand_over(self, staged: Staged) -> None:
        """Large values at once, so that they are written while the step goes on; small together."""
        if staged.nbytes > MOST_SMALL:
            self._queue.put(Values((staged,)))
            return
        self._gathered.append(staged)
        self._gathered_bytes += staged.room
        if self._gathered_bytes > min(_MOST_GATHERED, self._queue.max_bytes // 2):
            self._hand_gathered()

    def _hand_gathered(self) -> None:
        if self._gathered:
            self._queue.put(Values(tuple(self._gathered)))
            self._gathered.clear()
            self._gathered_bytes = 0

    def _commit(self, step: int, *, is_closed: bool) -> None:
        with self._lock:  # Gradients may arrive in another thread meanwhile.
            self._hand_gathered()
            ids, labels = self._about.notes.of(step)
            scalars = self._about.scalars.at(step)
            dropped, self._dropped = self._dropped, {}
            end = EndOfStep(step, time.time(), is_closed, ids, labels, scalars, dropped)
            self._queue.put(end)
            self._has_uncommitted = False
            self._last_closed = step

    def _raise_failure(self, worker: Worker) -> None:
        error = worker.failure
        if error is None:
            return
        if self._on_error == "raise":
            raise error
        if not self._has_warned:
            self._has_warned = True
            said = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"tt.Disk({str(self.path)!r}) writes no more: {said}. The training goes on "
                f"unrecorded; what was committed before is there.",
                RuntimeWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<Disk {str(self.path)!r}>"


def _end(worker: Worker, process: int) -> None:
    if os.getpid() == process and worker.is_running:
        worker.ask("close")


def _why_unwritable(record: Record) -> str | None:
    tensor = record.kept
    if tensor.is_meta:
        return "a meta tensor, which has no values to write"
    return obstacle(tensor)


def _refuse_other(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}.")


def _refuse_path(path: Path) -> None:
    if path.is_dir():
        if any(path.iterdir()) and not is_run_folder(path):
            raise RunError(f"{path} holds something else than a run. Give a new folder.")
    elif path.exists() or path.is_symlink():
        raise RunError(f"{path} is a file; expected a folder, which tt.Disk makes.")


def _refuse_other_model(before: AttemptReader, model: str) -> None:
    known = before.facts.get("meta", {}).get("model", model)
    if known != model:
        raise RunError(
            f"{before.folder} is of the model {known}, and this one is {model}. Give another "
            f"folder."
        )
