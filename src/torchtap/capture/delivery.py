"""Brings records to sinks. A sink that fails is disabled; the training goes on.

This room knows a sink by :class:`~torchtap.core.record.Sink` alone, and no class of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.record import Record, Sink
from torchtap.core.shared_state import new_lock
from torchtap.core.site import Site
from torchtap.core.torch_private import is_any_autocast_enabled, set_grad_enabled, without_autocast
from torchtap.hooks.module_hook import run_as_it_is
from torchtap.hooks.tap import Meter
from torchtap.runs.about import About

if TYPE_CHECKING:
    from torchtap.core.planned_size import PlannedSize
    from torchtap.runs.records import LiveRecords
    from torchtap.stats.series import Series

_used: weakref.WeakSet[Any] = weakref.WeakSet()


def _note_use(sink: Sink) -> bool:
    """Note a use of this sink, and return whether a watch had it before."""
    try:
        was_used = sink in _used
        _used.add(sink)
    except TypeError:  # It has no hash, or takes no weak reference.
        return False
    return was_used


class _Function:
    """A plain callable as a sink."""

    skips_steps = True

    def __init__(self, function: Callable[[Record], object]) -> None:
        self.function = function
        self.take: Callable[..., Any] = function

    def close_step(self, step: int) -> None:
        """A function has no steps."""

    def close(self) -> None:
        """A function has no end."""


class _AfterStep:
    """A function that is called after each step, as a sink."""

    keeps = takes = reads_backward = False

    def __init__(self, function: Callable[[int], object]) -> None:
        self.function = function

    def take(self, record: Record) -> None:
        """It takes no records."""

    def close_step(self, step: int) -> None:
        """Call the function."""
        self.function(step)

    def close(self) -> None:
        """A function has no end."""


class SinkCaller:
    """Calls sinks inside a training, which goes on when one fails: that sink gets nothing more.

    Args:
        sinks: all of them.

    Attributes:
        busy: threads that are inside a sink now; models that a sink runs are not recorded.
        failure: the first exception that a sink raised.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.busy: set[int] = set()
        self.failure: Exception | None = None
        self._alive = list(sinks)
        self._takers = takers_of(sinks)
        self._unraised: Exception | None = None
        self._lock = new_lock()

    def take(self, record: Record) -> None:
        """Give a record to each sink."""
        if torch.is_inference_mode_enabled():
            with outside_inference_mode():  # What a sink makes of it lasts longer than the mode.
                self.take(record)
            return
        thread = threading.get_ident()
        # What a sink computes must not become part of the training's graph.
        had_grad = torch.is_grad_enabled()
        with self._lock:
            # A sink may run a watched model for itself: by its thread the engine knows that the
            # call is the sink's.
            self.busy.add(thread)
            if had_grad:
                set_grad_enabled(False)  # torch.no_grad() at a third of its price.
            try:
                for sink in self._takers:
                    try:
                        if is_any_autocast_enabled():
                            with without_autocast():
                                sink.take(record)
                        else:
                            sink.take(record)
                    except Exception as error:  # noqa: BLE001 - it never stops the training
                        where = f"at {record.site} (step {record.step}, call {record.call})"
                        self._disable(sink, error, where)
            finally:
                if had_grad:
                    set_grad_enabled(True)
                self.busy.discard(thread)

    def meters(self, sink: Sink, make: Callable[[Site], Meter]) -> Callable[[Site], Meter]:
        """Guard the meters that a sink makes, which may raise; :meth:`take` has what they decline.

        Args:
            sink: their sink.
            make: makes them.
        """

        def contained(site: Site) -> Meter:
            meter = make(site)

            def take(tensor: Tensor, step: int) -> bool:
                if sink not in self._alive:
                    return False
                thread = threading.get_ident()
                self.busy.add(thread)
                try:
                    with outside_inference_mode(), torch.no_grad(), without_autocast():
                        return meter(tensor.detach(), step)
                except Exception as error:  # noqa: BLE001 - as in take
                    self._disable(sink, error, f"in the meter of {site} (step {step})")
                    return False
                finally:
                    self.busy.discard(thread)

            return take

        return contained

    def each(self, action: Callable[[Sink], object], where: str) -> None:
        """Do something with each sink; ``where`` says in its error when that was."""
        with outside_inference_mode():
            for sink in list(self._alive):
                try:
                    action(sink)
                except Exception as error:  # noqa: BLE001 - as in take
                    self._disable(sink, error, where)

    def close_step(self, step: int) -> None:
        """Tell the sinks that a step ends, then raise what one raised since the last time."""
        # As ``each``, in few calls: what runs once in a step finds nothing of it in the caches.
        if torch.is_inference_mode_enabled():
            with outside_inference_mode():
                self.close_step(step)
            return
        for sink in tuple(self._alive):
            try:
                sink.close_step(step)
            except Exception as error:  # noqa: BLE001 - as in take
                self._disable(sink, error, f"at the end of step {step}")
        if self._unraised is not None:
            self.raise_new()

    def add(self, sink: Sink) -> Callable[[], None]:
        """Add a sink that takes no records, behind the others; call the result to take it off."""
        self._alive.append(sink)

        def remove() -> None:
            self._alive = [other for other in self._alive if other is not sink]

        return remove

    @property
    def skips_steps(self) -> bool:
        """Return whether no sink need be told of a step of which nothing was recorded."""
        # A loop takes half of the time of all(), in each step that is not recorded.
        for sink in self._alive:
            if not getattr(sink, "skips_steps", False):
                return False
        return self._unraised is None

    def raise_new(self) -> None:
        """Raise what a sink raised since the last time."""
        failure, self._unraised = self._unraised, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the sinks, and give them nothing more."""
        self.each(lambda sink: sink.close(), "on closing")
        self._alive.clear()
        self._takers = []

    def _disable(self, sink: Sink, error: Exception, where: str) -> None:
        error.add_note(
            f"Raised by the torchtap sink {_name(sink)} {where}. The training went on; the "
            f"sink got nothing more."
        )
        self._alive = [other for other in self._alive if other is not sink]
        self._takers = [other for other in self._takers if other is not sink]
        # The first one: what follows is often its consequence.
        self._unraised = self._unraised or error
        self.failure = self.failure or error


class SinkDispatch:
    """All sinks of one watch.

    Attributes:
        busy: threads that are inside a sink now; models that a sink runs are not recorded.
        names: of the sinks, as errors have them.
        close_recorded: tells the sinks that a step ends, see :meth:`SinkCaller.close_step`.
        steps_before: of which the sinks hold values already, of another watch.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)
        self._takers = takers_of(sinks)
        self._caller = SinkCaller(sinks)
        self.busy, self.close_recorded = self._caller.busy, self._caller.close_step
        was_used = [_note_use(sink) for sink in sinks]
        self.names = [_name(sink) for sink in sinks]
        self.steps_before = _held_steps(self) if any(was_used) else set()

    @property
    def tells(self) -> bool:
        """Return whether any sink is told about the run that it is given records of."""
        return any(getattr(sink, "begin", None) is not None for sink in self.sinks)

    def begin(self, about: About) -> None:
        """Tell the sinks that want to know of what they are given records."""
        for sink in self.sinks:
            begin = getattr(sink, "begin", None)
            if begin is not None:
                begin(about)

    @property
    def emit(self) -> Callable[[Record], None]:
        """Return the function that takes each record: a lone sink's own where it may be."""
        return self._takers[0].take if _calls_directly(self._takers, "take") else self._caller.take

    @property
    def reads_at_once(self) -> bool:
        """Return whether no sink keeps a value beyond :meth:`Sink.take`."""
        return not any(getattr(sink, "keeps", True) for sink in self.sinks)

    @property
    def reads_backward(self) -> bool:
        """Return whether any sink reads which backward a gradient is of."""
        return any(getattr(sink, "reads_backward", True) for sink in self.sinks)

    @property
    def meter(self) -> Callable[[Site], Meter] | None:
        """Return the maker of meters that hooks may call in place of the sink, if it is alone."""
        make = getattr(self._takers[0], "meter", None) if len(self._takers) == 1 else None
        if make is None or _calls_directly(self._takers, "meter"):
            return make
        return self._caller.meters(self._takers[0], make)

    def meters(self, sites: Sequence[Site]) -> Sequence[Meter] | None:
        """Return a meter for each of sites that differ, as :attr:`meter` makes them."""
        make = self.meter
        if make is None:
            return None
        made = getattr(self._takers[0], "meters", None)
        if made is None or not _calls_directly(self._takers, "meter"):
            return list(map(make, sites))
        meters: Sequence[Meter] = made(sites)
        return meters

    @property
    def records(self) -> LiveRecords | None:
        """Return the records of the first sink that can be read again, if there is one."""
        return _live(self._first("contents"))

    @property
    def kept(self) -> LiveRecords | None:
        """Return the records of the first sink that holds what flowed itself: it may change."""
        keeping = [sink for sink in self.sinks if getattr(sink, "keeps", True)]
        return _live(next((one.contents for one in keeping if hasattr(one, "contents")), None))

    @property
    def measured(self) -> Callable[[], Series] | None:
        """Return the function that gives the first measuring sink's series, if there is one."""
        found: Callable[[], Series] | None = self._first("measured")
        return found

    @property
    def ended(self) -> Callable[[], Series | None] | None:
        """Return the function by which any thread has that series of steps that have ended."""
        sink = next((one for one in self.sinks if hasattr(one, "measured")), None)
        found: Callable[[], Series | None] | None = getattr(sink, "ended", None)
        return found

    @property
    def absent(self) -> Iterator[Absence]:
        """Yield the absences of all sinks: values that they were given and do not have."""
        for sink in self.sinks:
            yield from getattr(sink, "absent", ())

    def sizes(self) -> tuple[PlannedSize, ...]:
        """Return the planned size of each sink's output, of the sinks that say one."""
        return tuple(sink.planned_size() for sink in self.sinks if hasattr(sink, "planned_size"))

    def _first(self, part: str) -> Any:
        return next((getattr(sink, part) for sink in self.sinks if hasattr(sink, part)), None)

    def after_step(self, function: Callable[[int], object]) -> Callable[[], None]:
        """Call a function after the sinks at the end of each step, until the result is called."""
        return self._caller.add(_AfterStep(function))

    def close_empty(self, step: int) -> None:
        """Tell the sinks that want to know of a step that is recorded no more than the next."""
        if not self._caller.skips_steps:
            self._caller.close_step(step)

    def sync(self) -> None:
        """Have the sinks that write do it, then raise what one of them raised."""
        self._caller.each(_sync, "in sync()")
        self._caller.raise_new()

    def close(self, *, raising: bool) -> None:
        """Close the sinks; with ``raising``, raise the first failure of all."""
        self._caller.close()
        if raising and self._caller.failure is not None:
            raise self._caller.failure


def _live(contents: Callable[[], Sequence[Record]] | None) -> LiveRecords | None:
    if contents is None:
        return None
    from torchtap.runs.records import LiveRecords

    return LiveRecords(contents)


def _calls_directly(takers: Sequence[Sink], part: str) -> bool:
    """Return whether a lone sink may be called at that part directly: its errors are its own."""
    return len(takers) == 1 and part in getattr(takers[0], "unguarded", ())


def _held_steps(sinks: SinkDispatch) -> set[int]:
    """Return the steps of which the sinks hold something."""
    records, measured = sinks.records, sinks.measured
    steps = set() if measured is None else set(measured().steps)
    return steps if records is None else steps | set(records.read().column("step").tolist())


def as_sinks(to: Any) -> list[Sink]:
    """Read the ``to`` argument of ``watch``: nothing, a sink, a callable, or several.

    Raises:
        InputError: something is neither a sink nor a callable.
    """
    if to is None:
        from torchtap.runs.memory import Memory

        return [Memory()]
    if isinstance(to, str | os.PathLike):
        raise _no_path(to)
    items = list(to) if isinstance(to, Iterable) and not _is_sink(to) else [to]
    if not items:
        raise InputError("to is empty; expected a sink, a callable, or a list of them.")
    sinks: list[Sink] = []
    for item in items:
        if isinstance(item, type):
            raise InputError(f"{item.__name__} is a class, not a sink; write {item.__name__}(...).")
        if isinstance(item, str | os.PathLike):
            raise _no_path(item)
        if _is_sink(item):
            sinks.append(item)
        elif callable(item):
            sinks.append(_Function(item))
        else:
            raise InputError(
                f"{type(item).__name__} is no sink: expected tt.Memory(), a callable that takes a "
                f"record, or an object with take, close_step and close."
            )
    return sinks


def _is_sink(item: Any) -> bool:
    """Return whether an object has what :class:`Sink` asks for; ``isinstance`` takes 10 us."""
    return all(hasattr(item, part) for part in ("take", "close_step", "close"))


def _no_path(to: Any) -> InputError:
    """Return the error for a path in the place of a sink."""
    path = Path(to)
    is_file = path.suffix == ".safetensors"
    folder, file = (path.with_suffix(""), path) if is_file else (path, f"{path}.safetensors")
    return InputError(
        f"to is the path {str(to)!r}; expected a sink. to=tt.Disk({str(folder)!r}) writes into "
        f"that folder beside the training; for one file leave to= away, and call "
        f"w.run.save({str(file)!r}) at the end."
    )


def takers_of(sinks: Iterable[Sink]) -> list[Sink]:
    """Return the sinks that are given records."""
    return [sink for sink in sinks if getattr(sink, "takes", True)]


def _sync(sink: Sink) -> None:
    write = getattr(sink, "sync", None)
    if write is not None:
        write()


def _name(sink: Sink) -> str:
    inner = sink.function if isinstance(sink, _Function | _AfterStep) else type(sink)
    return getattr(inner, "__qualname__", repr(inner))


# Native hooks call it, and Dynamo looks at each frame of Python that they begin.
run_as_it_is(SinkCaller.take)
