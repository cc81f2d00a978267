"""The thread that writes. It refers to no sink, so that one that is forgotten can end it."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from torchtap.runs.store.attempt import AttemptWriter, Written
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.lanes import Value
from torchtap.runs.store.queue import (
    ByteQueue,
    EndOfStep,
    MeasuredRows,
    Request,
    SmallValues,
    Staged,
    Values,
)
from torchtap.runs.store.rows_feed import RowsFeed
from torchtap.runs.store.staging import Buffers

_LONGEST_WAIT = 0.02
"""Seconds for which a commit waits for those behind it."""
LATEST = 1.0
"""Seconds after which the statistics of a step that has ended are written, at the latest."""


class Worker:
    """Writes what comes out of a queue, one after the other.

    Args:
        writer: of the attempt; used by the thread alone.
        queue: of what is to be written.
        buffers: takes the memory back.
        rows: of statistics, which the thread asks for when a second has passed; it is referred to
            weakly, as what it asks may lead to a sink.

    Attributes:
        failure: what went wrong; nothing is written from then on.
        num_lost: values that were handed over and not written since.
    """

    def __init__(
        self,
        writer: AttemptWriter,
        queue: ByteQueue,
        buffers: Buffers,
        rows: RowsFeed | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self.num_lost = 0
        self._writer = writer
        self._queue = queue
        self._buffers = buffers
        # Weakly: the feed holds the statistics sink, which must go with its watch while this thread
        # runs.
        self._rows = None if rows is None else weakref.ref(rows)
        self._due = time.monotonic() + LATEST
        # A daemon: a program that ends without closing its watch must not wait for it for ever;
        # what is committed by then is whole.
        self._thread = threading.Thread(target=self._run, name="torchtap-disk", daemon=True)
        self._thread.start()

    def ask(self, what: str, body: Any = None) -> None:
        """Have something done once all before it is written, and wait for it.

        The thread itself asks where the collector runs in it and finishes a sink that was dropped:
        it cannot wait for itself, and sees to the request when it comes to it.
        """
        if not self._thread.is_alive():
            return
        request = Request(what, body)
        self._queue.put(request)
        if threading.current_thread() is self._thread:
            return
        # The worker sets it whatever happens, also where writing has failed.
        request.done.wait()
        if what in ("close", "abandon"):
            self._thread.join()

    def give_up(self, error: Exception) -> None:
        """Write no more, because of an error raised in the training thread."""
        self.ask("abandon", f"recording ended with {type(error).__name__}: {error}")
        self._queue.give_up()
        self.failure = error

    @property
    def num_commits(self) -> int:
        """Return the number of commits that were written so far; waits for none."""
        return self._writer.num_commits

    @property
    def written(self) -> Written:
        """Bytes of the commits, once all before is written."""
        self.ask("drain")
        return self._writer.written

    @property
    def is_running(self) -> bool:
        """Return whether the thread is running still."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while True:
            items = self._queue.get(None if self._rows is None else LATEST)
            late = time.monotonic() + _LONGEST_WAIT
            for item in items:
                self._try(item)
                if isinstance(item, EndOfStep) and time.monotonic() > late:
                    self._try(None)  # Commits do not wait for a disk that is slow.
                    late = time.monotonic() + _LONGEST_WAIT
                self._let_go(item)
                if isinstance(item, Request) and item.what in ("close", "abandon"):
                    return
            self._try(None)
            self._ask_for_rows()

    def _ask_for_rows(self) -> None:
        """Have the rows of the steps that have ended handed over, once a second."""
        now = time.monotonic()
        rows = None if self._rows is None or now < self._due else self._rows()
        if rows is None or self.failure is not None:
            return
        self._due = now + LATEST
        try:
            rows.hand_over_ended()
        except Exception as error:  # noqa: BLE001 - the training thread raises it
            self._fail(error)

    def _try(self, item: Any) -> None:
        """See to an item, or for ``None`` to what waits to be written."""
        try:
            if self.failure is None:
                self._do(item)
            elif isinstance(item, Values | SmallValues):
                self.num_lost += len(item.staged if isinstance(item, Values) else item.values)
        except Exception as error:  # noqa: BLE001 - the training thread raises it
            self._fail(error)

    def _do(self, item: Any) -> None:
        if isinstance(item, SmallValues):
            self._writer.append_small(item.values)
            self._writer.write_small()
        elif isinstance(item, Values):
            for staged in item.staged:
                self._append(staged)
            self._writer.write_small()
        elif isinstance(item, EndOfStep):
            self._writer.commit(_commit_of(item, self._writer.num_made))
        elif isinstance(item, MeasuredRows):
            self._writer.append_statistics(item.measured)
        elif item is None or item.what == "drain":
            self._writer.write()
        elif item.what == "flush":
            self._writer.flush()
        elif item.what == "close":
            self._buffers.clear()  # Making the index takes memory of its own.
            self._writer.close(*(item.body or ()))
        else:
            self._writer.abandon(item.body)

    def _append(self, staged: Staged) -> None:
        if staged.arrived is not None:
            staged.arrived.synchronize()
        whole: Any = staged.buffer.numpy()
        data = memoryview(whole)[: staged.nbytes]
        value = Value(*(*staged.key, staged.dtype, staged.shape, data))
        self._writer.append(value, staged.order)

    def _fail(self, error: Exception) -> None:
        # First: a training thread may wait for room in the queue, which nobody makes any more.
        self._queue.give_up()
        self._writer.abandon(f"writing ended with {type(error).__name__}: {error}")
        self.failure = error  # From here on the folder may be opened.

    def _let_go(self, item: Any) -> None:
        if isinstance(item, Values):
            for staged in item.staged:
                self._buffers.give_back(staged.buffer, pinned=staged.arrived is not None)
                self._queue.release(staged.room)
        elif isinstance(item, SmallValues):
            self._queue.release(item.room)
        elif isinstance(item, Request):
            item.done.set()


def _commit_of(item: EndOfStep, number: int) -> Commit:
    # A number on a device is read here: nothing but this thread waits for it.
    scalars = {name: float(value) for name, value in item.scalars.items()}
    return Commit(
        number=number,
        step=item.step,
        time=item.time,
        is_closed=item.is_closed,
        ids=item.ids,
        labels=item.labels,
        scalars=scalars,
        dropped=item.dropped,
    )
