"""Find out, as far as a look at the model can tell, which selected sites were not seen, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from torch import nn

from torchtap.capture.graph_reasons import NOT_IN_GRAPHS
from torchtap.core.absence import Absence, Absences
from torchtap.core.errors import SiteError
from torchtap.core.plan import Plan
from torchtap.core.ports import FLOW_PORTS, STATE_PORTS
from torchtap.core.site import Site
from torchtap.core.text import plural
from torchtap.core.torch_private import imported_dynamo, is_compiled_module
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.capture.delivery import SinkDispatch
    from torchtap.capture.watch_engine import WatchEngine

_REPLACED = (
    "the module that is watched was taken out of the model, or replaced by another one, which is "
    "not: close the watch and watch again"
)
_MOVED = "the module stands at {} now, and what is recorded under this path is still of it"


class Missing:
    """Says of all that a watch has selected what was not seen, and why.

    Args:
        plan: what was selected.
        engine: what saw the rest.
        delivery: what brought it to the sinks.
        was_compiled: whether the model was compiled before it was watched.

    Attributes:
        was_paused: whether the watch was paused at any time.
        entries: how often the model had been called as the running step began.
    """

    def __init__(
        self, plan: Plan, engine: WatchEngine, delivery: SinkDispatch, *, was_compiled: bool
    ) -> None:
        self.was_paused = False
        self._plan = plan
        self._engine = engine
        self._delivery = delivery
        self._was_compiled = was_compiled
        self.entries = 0
        self._mixed_steps: set[int] = set()

    # ------------------------------------------------------------------ while it watches

    @property
    def has_begun(self) -> bool:
        """Return whether the model was called in the step that is running."""
        return self._engine.calls.num_entries > self.entries

    def note_mixed(self) -> None:
        """Note it if a sink has values of another watch in the step that is running."""
        before = self._delivery.steps_before
        if before and self.has_begun and self._engine.step in before:
            self._mixed_steps.add(self._engine.step)

    def check_marks(self) -> None:
        """Refuse patterns that turned out to fit nothing, once the model has run.

        Raises:
            SiteError: a pattern fits neither a module nor a mark.
        """
        if not self._engine.calls.num_entries:
            return
        reached = list(self._engine.hooks.marks)
        for pattern in self._plan.unmatched:
            if not any(pattern.matches_module(name) for name in reached):
                hint = self._plan.hint(pattern, reached)
                raise SiteError(
                    f"{self._plan.model} has no module {pattern.path!r}, and no tt.mark of that "
                    f"name was reached{hint}"
                )

    # ------------------------------------------------------------------ what is absent

    def found(self) -> Absences:
        """Return the absences: all sites that were selected and not seen, with reasons."""
        # Copies of what the engine notes: calls in other threads may go on meanwhile.
        absences = [*self._plan.absent]
        # What the plan knows to be absent needs no second reason.
        known = {entry.site for entry in absences}
        for planned in self._plan.taps:
            tap = self._engine.hooks.taps[planned.path]
            for port in planned.ports:
                absences.extend(e for e in self._absent_at(tap, port) if e.site not in known)
        for marked in filter(None, list(self._engine.hooks.marks.values())):
            for port in marked.filters:
                absences.extend(self._absent_at(marked, port))
        parts = (
            self._namesakes(),
            self._moved(),
            self._unmarked(),
            self._lost(),
            self._mixed(),
            self._mixed_in_sinks(),
        )
        return Absences([*absences, *chain.from_iterable(parts)])

    def _namesakes(self) -> Iterator[Absence]:
        for name in sorted(self._engine.hooks.shadowed_marks):
            reason = "a tt.mark of this name was skipped: a module has it; name it otherwise"
            yield Absence(Site(name, "output"), reason)

    def _moved(self) -> Iterator[Absence]:
        for path, now in self._engine.moved.copy().items():
            is_known = now is not None and self._plan.aliases.get(now) == path
            reason = _REPLACED if now is None else _MOVED.format(now or ".")
            for port in () if is_known else self._engine.hooks.taps[path].filters:
                yield Absence(Site(path, port), reason)

    def _absent_at(self, tap: Tap, port: str) -> Iterator[Absence]:
        wanted = (state for (one, _), state in tap.states.copy().items() if state and one == port)
        states = [state for state in wanted if not _is_untouched(state)]
        for state in states:
            reason = _why_missing(state)
            if reason is not None:
                yield Absence(state.site, reason)
        unidentified = {} if port in STATE_PORTS else tap.unidentified.copy()
        unseen = list(tap.why_unseen(port))
        yield from unseen
        raised = [] if port in (*STATE_PORTS, "input") else list(tap.why_raised())
        for reason in raised:
            yield Absence(Site(tap.path, port), reason)
        if not states and not unseen and not unidentified and not raised:
            yield Absence(Site(tap.path, port), self._why_never(tap, port))
        for reason, number in unidentified.items():
            yield Absence(Site(tap.path, port), f"{reason} ({plural(number, 'call')})")

    def _why_never(self, tap: Tap, port: str) -> str:
        if tap.reason is not None:
            return tap.reason
        if tap.is_in_graph and port in NOT_IN_GRAPHS:
            return NOT_IN_GRAPHS[port]
        if port in STATE_PORTS and self._engine.state.was_taken:
            return "the module owns none that fits"
        if port in STATE_PORTS and any(one.has_run for one in self._engine.hooks.taps.values()):
            return (
                "it is taken when the model, or a part right below it, is called, and only parts "
                "further inside were"
            )
        if tap.has_run and port == "saved":
            return "nothing in it is kept for backward"
        if tap.has_run:
            side = "took" if port.endswith("input") else "returned"
            return f"it {side} no tensor that fits{tap.instead(port)}"
        # Guards on hook tables hold for code that is compiled from the watch on; older code never
        # looks.
        is_late = self._was_compiled and not self._engine.calls.num_entries
        if is_late and not is_container(self._plan, tap.path):
            return (
                "the model was compiled before it was watched, and a compiled model ignores hooks "
                "put on later: watch it before its first compiled call, or call "
                "torch.compiler.reset()"
            )
        ran = self._engine.calls.num_entries > 0
        if self.was_paused and not ran:
            return "the watch was paused whenever the model was called, or it was not called"
        return why_not_called(self._plan, tap.path, model_ran=ran, verb="watch")

    def _unmarked(self) -> Iterator[Absence]:
        for pattern in self._plan.unmatched:
            if not any(pattern.matches_module(name) for name in list(self._engine.hooks.marks)):
                for port in pattern.effective_ports:
                    yield Absence(Site(pattern.path, port), "no tt.mark of that name was reached")

    def _mixed(self) -> Iterator[Absence]:
        for path, (step, number) in self._engine.evaluations.mixed.copy().items():
            yield Absence(
                Site(path, "output"),
                f"the first training forward came after {number} evaluation forwards of the same "
                f"step ({step}), which are recorded with it. Call step() between them",
            )

    def _mixed_in_sinks(self) -> Iterator[Absence]:
        self.note_mixed()
        if self._mixed_steps:
            steps = sorted(self._mixed_steps)
            shown = ", ".join(map(str, steps[:6])) + (" and more" if len(steps) > 6 else "")
            yield Absence(
                Site("", "output"),
                f"the sink held values of another watch in step {shown}, and holds both now. Give "
                f"each watch a sink of its own, or its steps numbers that go on",
            )

    def _lost(self) -> Iterator[Absence]:
        from torchtap.runs.records import overwritten

        yield from self._delivery.absent
        records = self._delivery.kept
        for row in () if records is None else overwritten(records.read()):
            yield Absence(
                row.site,
                f"the value of step {row.step}, call {row.call} was overwritten after it had "
                f"been kept without a copy",
            )


def why_not_called(plan: Plan, path: str, *, model_ran: bool, verb: str) -> str:
    """Return a reason for a module without a call.

    Args:
        plan: what was selected.
        path: the module's.
        model_ran: whether the model itself was called.
        verb: what is done to it, ``watch`` or ``edit``.
    """
    if is_container(plan, path):
        return "it has no forward: a container is never called"
    compiled = imported_dynamo() is not None
    first = f"{verb} before the first compiled call, or call torch.compiler.reset()"
    if not model_ran:
        hint = f" (or it was compiled before: {first})" if compiled else ""
        return f"the model was not called in a step that was {verb}ed{hint}"
    hint = (
        f". Or it ran in a graph that was compiled without our hooks, before or for another model "
        f"of this class: {first}"
    )
    return (
        "the module was not called: its parent skipped it, or used its parameters without "
        "calling it (as nn.MultiheadAttention does with out_proj)" + (hint if compiled else "")
    )


def is_container(plan: Plan, path: str) -> bool:
    """Return whether the module cannot be called at all, such as ``nn.ModuleList``."""
    return any(tap.path == path and tap.is_container for tap in plan.taps)


def _is_untouched(state: SiteState) -> bool:
    """Return whether a state was made beforehand, for a bare tensor, and none ever came there."""
    return state.site.port in FLOW_PORTS and not (state.seen or state.expected or state.reason)


def _why_missing(state: SiteState) -> str | None:
    """Return why a site has nothing, or less than it should; ``None`` if all came."""
    missing = state.expected - state.received
    if state.seen and missing <= 0:
        return None
    if state.reason is not None:
        return state.reason
    if state.seen:
        return f"no gradient arrived for {missing} of {state.expected} calls"
    if missing > 0:
        compiled = imported_dynamo() is not None
        inside = ", is computed from it inside a compiled graph only" if compiled else ""
        return (
            f"no gradient arrived: no backward was run, the loss does not depend on it{inside}, or "
            f"it is a view that was overwritten later"
        )
    return state.site.kind.why_never


def is_compiled(modules: Iterable[nn.Module]) -> bool:
    """Return whether any of the modules of a model was compiled."""
    return imported_dynamo() is not None and any(map(is_compiled_module, modules))
