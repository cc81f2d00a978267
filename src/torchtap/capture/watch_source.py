"""The source of the run of a watch, which fills while it is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.missing import Missing
from torchtap.capture.start import Start
from torchtap.capture.watch_engine import WatchEngine
from torchtap.core.absence import Absences
from torchtap.core.site import Site
from torchtap.runs.scalars import Scalars
from torchtap.runs.source import SourceDefaults, no_series
from torchtap.runs.step_notes import StepNotes

if TYPE_CHECKING:
    from torchtap.capture.live_rules import LiveRules
    from torchtap.runs.meta import Meta
    from torchtap.runs.records import Records
    from torchtap.stats.series import Series


class WatchSource(SourceDefaults):
    """The parts of a watch that a run reads. See :class:`~torchtap.runs.source.Source`.

    Args:
        engine: that captures; it knows which sites are expected, and the stages that ran.
        delivery: to the sinks, the first of which that can be read again is read.
        missing: knows what was selected and not seen.
        start: knows the metadata as of when the watch began.
        scalars: numbers that are logged.
        notes: on the steps.

    Attributes:
        live_rules: look at the run while it grows, if any were asked for.
    """

    ranks = None

    def __init__(
        self,
        engine: WatchEngine,
        delivery: SinkDispatch,
        missing: Missing,
        start: Start,
        scalars: Scalars,
        notes: StepNotes,
    ) -> None:
        self.live_rules: LiveRules | None = None
        self.scalars = scalars
        self.notes = notes
        self._engine = engine
        self._missing = missing
        self._start = start
        self._live = delivery.records
        self._measured = delivery.measured

    @property
    def is_kept(self) -> bool:
        """Return whether a sink keeps anything that can be read."""
        return self._live is not None or self._measured is not None

    @property
    def records(self) -> Records:
        """Records of the steps that the sink has."""
        return self._none if self._live is None else self._live.read()

    @cached_property
    def _none(self) -> Records:
        """The records of a watch that keeps none: one object, by which a run knows them again."""
        from torchtap.runs.records import Records

        return Records()

    @property
    def series(self) -> Series:
        """The series that was measured, up to now."""
        return no_series() if self._measured is None else self._measured()

    @property
    def absent(self) -> Absences:
        """The sites that were selected and not seen, up to now."""
        return self._missing.found()

    @property
    def meta(self) -> Meta:
        """The metadata, with what was seen since the watch began: the training, the stages."""
        seen, facts = self._engine.evaluations.pipelining, self._engine.calls.facts
        losses = self._engine.calls.losses
        meta = replace(
            self._start.meta,
            modes=facts.modes,
            requires_grad=facts.requires_grad,
            settings=facts.settings,
            optimizers=facts.optimizers,
            foreign_steps=facts.has_foreign_steps,
            order=self._engine.order,
            loss={} if losses is None else losses.as_dict(),
            findings=() if self.live_rules is None else self.live_rules.findings,
        )
        if not seen.stages:
            return meta
        return replace(
            meta,
            stages=seen.stages,
            num_stages=seen.num_stages,
            num_microbatches=seen.num_microbatches,
        )

    @property
    def expected(self) -> list[Site]:
        """Every site at which a value was expected, in the order in which calls have them.

        A module's arguments are all known when it is entered; their gradients arrive in the order
        in which the backward happens to reach them.
        """
        taps = [*self._engine.hooks.taps.values(), *self._engine.hooks.marks.values()]
        states = [state for tap in taps if tap is not None for state in list(tap.states.values())]
        return [state.site for state in states if state is not None]
