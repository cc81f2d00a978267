"""Facts that a watch tells its sinks about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtap.core.absence import Absence
from torchtap.core.plan import Plan
from torchtap.core.site import Site
from torchtap.runs.scalars import Scalars
from torchtap.runs.step_notes import StepNotes

if TYPE_CHECKING:
    from torchtap.runs.meta import Meta
    from torchtap.stats.series import Series


def _no_meta() -> Meta:
    from torchtap.runs.meta import Meta

    return Meta()


@dataclass(frozen=True, slots=True)
class About:
    """The facts about a watch; its functions are asked again when they are needed.

    Attributes:
        meta: of the model and of how the run is made.
        absent: what was selected and not seen.
        expected: sites in the order in which calls have them.
        series: what ``tt.Stats`` beside the sink measured, if there is one.
        ended: the same of steps that have ended, which any thread may ask for; see
            :class:`torchtap.Sink`.
        scalars: numbers that are logged.
        notes: sample ids and labels of steps.
        plan: what is tapped.
        every: every n-th step is recorded; ``None`` where a function decides.
        running: the step that runs; ``None`` where no watch counts steps.
    """

    meta: Callable[[], Meta] = _no_meta
    absent: Callable[[], Sequence[Absence]] = tuple
    expected: Callable[[], Sequence[Site]] = tuple
    series: Callable[[], Series] | None = None
    ended: Callable[[], Series | None] | None = None
    scalars: Scalars = field(default_factory=Scalars)
    notes: StepNotes = field(default_factory=StepNotes)
    plan: Plan | None = None
    every: int | None = 1
    running: Callable[[], int | None] = lambda: None
