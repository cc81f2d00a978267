"""``Watch``, the handle of ``tt.watch``: steps, pauses, what came out, and the end."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

from torch import nn

from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.evaluation import Evaluations
from torchtap.capture.missing import Missing, is_compiled
from torchtap.capture.start import Start
from torchtap.capture.training_facts import TrainingFacts
from torchtap.capture.watch_engine import WatchEngine
from torchtap.capture.watch_source import WatchSource
from torchtap.capture.watched_calls import WatchOptions
from torchtap.core.absence import Absences
from torchtap.core.closable import Closable, is_open
from torchtap.core.errors import CaptureError, InputError
from torchtap.core.model_layout import Look
from torchtap.core.module_paths import unwrapped
from torchtap.core.plan import Plan
from torchtap.core.printed import Printed
from torchtap.core.shared_state import members
from torchtap.runs.about import About
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes, checked_ids, checked_labels

if TYPE_CHECKING:
    from torchtap.core.printed_page import Page
    from torchtap.runs.meta import Meta
    from torchtap.runs.rules.diagnose import Rule
    from torchtap.runs.run import Run

Every = int | Callable[[int], bool]


class Pause:
    """The result of :meth:`Watch.pause`: a context manager that ends the pause."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        """The pause has begun."""

    def __exit__(self, *_: object) -> None:
        self._watch.resume()


class Evaluating:
    """The result of :meth:`Watch.evaluating`: forwards inside its block are evaluation."""

    __slots__ = ("_evaluations",)

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations

    def __enter__(self) -> None:
        self._evaluations.begin_told()

    def __exit__(self, *_: object) -> None:
        self._evaluations.end_told()


class Watch(Closable, Printed):
    """The result of ``tt.watch``: a context manager and a handle, safe to close twice.

    Printing it shows what it taps, what was kept, how much that is, how long closing a step took,
    and what is absent.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> w = tt.watch(model)
        >>> for step in range(3):
        ...     _ = model(torch.ones(4, 2))
        ...     w.step()
        >>> w.close()
        >>> len(list(w.run.records(".")))
        3
    """

    def __init__(
        self,
        look: Look,
        plan: Plan,
        delivery: SinkDispatch,
        options: WatchOptions,
        *,
        every: Every,
        rules: Sequence[Rule] = (),
    ) -> None:
        self._planned = plan
        self._delivery = delivery
        self._every = every
        self._num_pauses = 0
        self._num_closed, self._seconds = 0, 0.0
        self._facts = TrainingFacts(look)
        self._engine = WatchEngine(look, plan, delivery, options, self._facts)
        was_compiled = is_compiled(look.every)
        self._missing = Missing(plan, self._engine, delivery, was_compiled=was_compiled)
        self._kept = delivery.kept
        self._model = weakref.ref(look.modules[""])
        self._scalars = Scalars()
        self._notes = StepNotes()
        self._start = Start(plan, look.modules[""], self._facts.num_parameters)
        self._source = WatchSource(
            self._engine, delivery, self._missing, self._start, self._scalars, self._notes
        )
        self._keeps_notes = self._source.is_kept or delivery.tells
        try:
            if delivery.tells:
                delivery.begin(self._about())
            self._engine.attach(look)
            self._engine.begin_step(0, recording=_is_chosen(0, every))
            if rules:
                from torchtap.capture.live_rules import LiveRules

                self._source.live_rules = LiveRules(self.run, rules)
                delivery.after_step(self._source.live_rules.after_step)
        except (
            BaseException
        ):  # Whatever a sink raises, or an interrupt: no hook may stay. It goes on.
            self._engine.detach()
            delivery.close(raising=False)
            raise
        _made.add(self)

    @property
    def plan(self) -> Plan:
        """Return what is tapped, what fits and cannot be tapped, and how large it will be on disk.

        Its ``sizes`` are asked of the sinks that write when they are read. Before the first step
        the size of parameters, buffers and their gradients is known, and from then on that of all
        that was written; that of the whole, where ``tt.Disk(num_steps=...)`` says how many steps
        there will be.

        Example:
            >>> import tempfile, torch, torchtap as tt
            >>> model = torch.nn.Linear(512, 256)
            >>> disk = tt.Disk(tempfile.mkdtemp() + "/run", num_steps=1000)
            >>> with tt.watch(model, "*:param,output", to=disk) as w:
            ...     print(w.plan.sizes[0])
            513.4 KiB a step, and output, of a size that is known once a step ran
        """
        return self._plan

    @cached_property
    def _plan(self) -> Plan:
        return replace(self._planned, measure=self._delivery.sizes)

    # ------------------------------------------------------------------ stepping

    @property
    def current_step(self) -> int:
        """Return the step that is running, from 0."""
        return self._engine.step

    def step(
        self, number: int | None = None, *, ids: Iterable[int | str] | None = None, **labels: Any
    ) -> None:
        """Close the running step and begin the next.

        Args:
            number: of the step that begins, such as the trainer's own, also after a resume. One
                more than the last by default. Where nothing of the running step was seen yet, the
                running step may be named by it (``step(1000)`` before the first forward).
            ids: of the samples of the step that ends, such as their places in the data set, one
                number or text each: ``run.ids(step)`` has them.
            labels: what else is to be known of the step that ends (``epoch=3``,
                ``split="train"``), plain values by name: ``run.labels(step)`` has them.

        Raises:
            InputError: the number is not larger than that of a step that has begun, or an id or
                label is no plain value.
            SiteError: a pattern turned out to fit nothing, neither a module nor a mark.
            Exception: whatever a sink raised since the last time, with a note.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.watch(model) as w:
            ...     w.step(1000)
            ...     _ = model(torch.ones(1, 2))
            >>> w.run.steps
            [1000]
        """
        if not self._is_open:
            self._refuse_closed()
        # Asked here already: code that runs once a step has left the processor's caches when it
        # runs again, and there is as little of it as can be, in few calls.
        engine, missing, delivery = self._engine, self._missing, self._delivery
        is_bare = engine.is_resting and number is None and ids is None and not labels
        if is_bare and self._passes_over():
            return
        if delivery.steps_before:
            missing.note_mixed()
        done, entries = engine.step, engine.calls.num_entries
        has_begun = entries > missing.entries
        following = done + 1 if number is None else _following(done, number, has_begun=has_begun)
        own_ids = [] if ids is None else checked_ids(ids)
        own_labels = checked_labels(labels) if labels else {}
        if following == done:
            return
        began = time.perf_counter()
        every = self._every
        is_chosen = every == 1 or _is_chosen(following, every)
        engine.begin_step(following, recording=is_chosen and not self._num_pauses)
        missing.entries = entries
        if self._kept is not None:
            from torchtap.runs.records import overwritten

            for row in overwritten(self._kept.read(), done):
                engine.overwritten(row.site)
        if self._planned.unmatched:
            missing.check_marks()
        if self._keeps_notes and (has_begun or own_ids or own_labels):
            self._notes.note(done, time.time(), own_ids, own_labels)
        try:
            delivery.close_recorded(done)
        finally:
            self._num_closed += 1
            self._seconds += time.perf_counter() - began

    def _passes_over(self) -> bool:
        """Go on in short from a step that is not recorded, if the next one is not either."""
        engine = self._engine
        done = engine.step
        if not self._num_pauses and _is_chosen(done + 1, self._every):
            return False
        engine.step = done + 1
        self._num_closed += 1
        self._delivery.close_empty(done)
        return True

    def sync(self) -> None:
        """Have all that came so far written, before a training saves a checkpoint.

        When it returns, what was recorded is committed in the folder of a ``tt.Disk``, with its
        statistics: of all steps that were closed, and of the running step what has come of it.
        ``tt.Disk`` writes beside the training, so a process that is killed loses the last steps; a
        training that goes on from a checkpoint would never record them again. Does nothing for
        sinks that do not write, and once the watch is closed.

        Raises:
            Exception: what a sink raised since the last time, with a note.

        Example:
            >>> import tempfile, torch, torchtap as tt
            >>> model, path = torch.nn.Linear(2, 2), tempfile.mkdtemp() + "/run"
            >>> w = tt.watch(model, to=tt.Disk(path))
            >>> for _ in range(3):
            ...     _ = model(torch.ones(1, 2))
            ...     w.step()
            >>> w.sync()  # And now torch.save(...).
            >>> tt.open(path).steps
            [0, 1, 2]
            >>> w.close()
        """
        if self._is_open:
            self._delivery.sync()

    def log(self, **numbers: Any) -> None:
        """Keep numbers of the running step with the run, such as its loss.

        The last number counts where a name is logged twice in a step. Steps that ``every`` leaves
        out are logged too. A tensor is read later, so a training does not wait for its device.

        Args:
            numbers: a name and a number (or a tensor of one element) each.

        Raises:
            InputError: a value is no number.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.watch(model) as w:
            ...     for _ in range(2):
            ...         loss = model(torch.ones(1, 2)).square().sum()
            ...         w.log(loss=loss, lr=0.1)
            ...         w.step()
            >>> w.run.scalars("lr")
            ([0, 1], [0.1, 0.1])
        """
        self._refuse_closed()
        self._scalars.log(self.current_step, numbers)

    def after_step(self, function: Callable[[int], object]) -> Callable[[], None]:
        """Have a function called with the number of each step that was closed.

        It is called where :meth:`step` is, after the sinks. As of a sink, an exception of it never
        stops the training: ``step()`` raises it once, and the function is called no more.

        Args:
            function: takes the number of the step; ``w.run`` has it by then.

        Returns:
            a function that ends it.

        Example:
            >>> import torch, torchtap as tt
            >>> model, seen = torch.nn.Linear(2, 2), []
            >>> with tt.watch(model) as w:
            ...     stop = w.after_step(seen.append)
            ...     for _ in range(3):
            ...         _ = model(torch.ones(1, 2))
            ...         w.step()
            ...     stop()
            >>> seen
            [0, 1, 2]
        """
        self._refuse_closed()
        return self._delivery.after_step(function)

    # ------------------------------------------------------------------ pauses

    def pause(self) -> Pause:
        """Record nothing until :meth:`resume`; the step goes on. Also a context manager.

        Calls, parameter gradients and optimizer steps meanwhile are not recorded, and calls are
        not numbered. Gradients of calls that were recorded before still arrive. Pauses nest: each
        needs its own :meth:`resume`. A training's evaluation forwards need no pause: they have a
        phase of their own (``eval``).

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.watch(model) as w:
            ...     with w.pause():
            ...         _ = model(torch.zeros(1, 2))
            ...     _ = model(torch.ones(1, 2))
            >>> len(w.run)
            1
        """
        self._refuse_closed()
        self._num_pauses += 1
        self._missing.was_paused = True
        self._engine.pause()
        return Pause(self)

    def resume(self) -> None:
        """End a pause.

        Raises:
            CaptureError: it is not paused.
        """
        if not self._num_pauses:
            raise CaptureError("This watch is not paused; pause() comes before resume().")
        self._num_pauses -= 1
        if self._is_open and not self._num_pauses and _is_chosen(self.current_step, self._every):
            self._engine.resume()

    def evaluating(self) -> Evaluating:
        """Return a context manager: whatever is called inside has the phase ``eval``.

        For evaluations that look like training, such as those of a frozen part alone, those with
        gradients, and those before the first training forward. Others are told apart without it.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.watch(model) as w:
            ...     with w.evaluating():
            ...         _ = model(torch.zeros(1, 2))
            ...     _ = model(torch.ones(1, 2))
            >>> [record.phase for record in w.run.records(phase="eval")]
            ['eval']
        """
        self._refuse_closed()
        return Evaluating(self._engine.evaluations)

    def _closed(self) -> CaptureError:
        return CaptureError("This watch is closed; call tt.watch again to go on.")

    def close(self) -> None:
        """Take everything off the model. All that was recorded stays readable.

        Raises:
            SiteError: a pattern turned out to fit nothing, neither a module nor a mark.
            Exception: the first exception that a sink raised, with a note.
        """
        super().close()

    def _finish(self, *, raising: bool) -> None:
        self._engine.detach()
        try:
            if self._source.live_rules is not None:
                self._source.live_rules.check()
        finally:
            self._delivery.close(raising=raising)
        if raising:
            self._missing.check_marks()

    # ------------------------------------------------------------------ what came out

    @property
    def run(self) -> Run:
        """Return all that was kept so far; by a sink that writes, all steps that were closed.

        Raises:
            CaptureError: none of the sinks can be read again (see :class:`torchtap.Sink`).
        """
        run = self._run
        if run is None:
            raise CaptureError(
                "This watch hands its records on and keeps none. Add tt.Memory() or tt.Stats() to "
                "its sinks: to=[tt.Memory(), your_function]."
            )
        return run

    @cached_property
    def _run(self) -> Run | None:
        from torchtap.runs.run import Run

        return Run(self._source) if self._source.is_kept else None

    @property
    def absent(self) -> Absences:
        """Return what was selected and not seen, with reasons: a list that prints as a table."""
        return self._source.absent

    def _about(self) -> About:
        """Return the facts for sinks. Nothing here refers to the watch: a sink may outlive it."""
        own, source, start = weakref.ref(self), weakref.ref(self._source), self._start

        def meta() -> Meta:
            alive = source()
            return start.meta if alive is None else alive.meta

        def running() -> int | None:
            watch = own()
            return None if watch is None else watch.current_step

        def ask(part: str, otherwise: Any) -> Callable[[], Any]:
            return lambda: otherwise if source() is None else getattr(source(), part)

        every = None if callable(self._every) else self._every
        return About(
            meta=meta,
            absent=ask("absent", ()),
            expected=ask("expected", ()),
            series=self._delivery.measured,
            ended=self._delivery.ended,
            scalars=self._scalars,
            notes=self._notes,
            plan=self._planned,
            every=every,
            running=running,
        )

    def _page(self) -> Page:
        from torchtap.capture.show_watch import WatchState, show_watch

        return show_watch(
            WatchState(
                plan=self._plan,
                step=self.current_step if self._is_open else None,
                is_paused=self._num_pauses > 0,
                sinks=self._delivery.names,
                run=self._run,
                num_closed=self._num_closed,
                num_calls=self._engine.calls.num_entries,
                num_made=self._facts.num_made,
                seconds=self._seconds,
                absent=self.absent,
            )
        )


_made: weakref.WeakSet[Watch] = weakref.WeakSet()


def watches_of(model: nn.Module) -> list[Watch]:
    """Return the watches of a model that are open."""
    if not len(_made):  # Guards ask at every step.
        return []
    root = unwrapped(model)
    return [one for one in members(_made) if is_open(one) and one._model() is root]


def numbers_of(watch: Watch, *, num_back: int) -> dict[str, Any]:
    """Return what was logged in the running step and some before, by name; tensors as such."""
    numbers: dict[str, Any] = {}
    for step in range(watch.current_step - num_back, watch.current_step + 1):
        numbers.update(watch._scalars.at(step))
    return numbers


def note_of_step(watch: Watch, labels: dict[str, Any]) -> None:
    """Keep labels of the step that runs, as ``w.step(**labels)`` does at its end."""
    watch._notes.note(watch.current_step, time.time(), (), labels)


def _is_chosen(step: int, every: Every) -> bool:
    """Return whether ``every`` has a step recorded."""
    return bool(every(step)) if callable(every) else step % every == 0


def _following(done: int, number: int, *, has_begun: bool) -> int:
    """Return the number of the step that begins.

    Args:
        done: the running step.
        number: as given to :meth:`Watch.step`.
        has_begun: whether anything of the running step was seen.
    """
    try:
        following = index(number)
    except TypeError:
        raise InputError(f"step() got the number {number!r}; expected a whole number.") from None
    if following < done or (following == done and has_begun):
        raise InputError(
            f"step() got the number {following}, and step {done} has begun; expected a larger "
            f"one, since steps are kept in ascending order. For a training that goes back to a "
            f"checkpoint, close this watch and open another."
        )
    return following
