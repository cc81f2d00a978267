"""Find the parts of an edit that did not happen, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torchtap.capture.missing import why_not_called
from torchtap.core.absence import Absence
from torchtap.core.plan import Plan
from torchtap.core.ports import BY_NAME, STATE_PORTS
from torchtap.core.site import Pattern, Site
from torchtap.edits.clipping import Clipping
from torchtap.edits.edit_engine import EditEngine
from torchtap.hooks.tap import SiteState, Tap

OneEdit = EditEngine | Clipping


def requests_of(plan: Plan) -> Iterator[tuple[str, Callable[[Site], bool]]]:
    """Yield each thing that was asked for, and which sites are of it."""
    adding = [pattern for pattern in plan.patterns if not pattern.negate]
    for pattern in adding:

        def fits(site: Site, pattern: Pattern = pattern) -> bool:
            names = [site.path, *(a for a, first in plan.aliases.items() if first == site.path)]
            types = plan.types.get(site.path)
            return any(pattern.matches(replace(site, path=name), types) for name in names)

        yield str(pattern), fits
    if not adding:
        yield ", ".join(plan.where), lambda site: True


def why_never(name: str, wanted: str, editor: OneEdit, absent: Sequence[Absence]) -> str:
    """Say that nothing of a request came by, with the reasons and a way out."""
    reasons = [f"{entry.site}: {entry.reason}" for entry in absent[:3]]
    pattern = next((one for one in editor.plan.unmatched if str(one) == wanted), None)
    if pattern is not None:
        hint = editor.plan.hint(pattern, editor.marks)
        reasons = [f"There is no such module, and no tt.mark of that name was reached{hint}"]
    why = ("; ".join(reasons) or "no value of it was seen").rstrip(".")
    return (
        f"Edit {name!r} at {wanted!r} never happened. {why}{'' if why.endswith('?') else '.'} "
        f"If that is meant, pass missing='ignore'."
    )


def absent_at(editor: OneEdit, tap: Tap, port: str) -> list[Absence]:
    """Return the absences of a module's port, each with the reason."""
    states = [state for (one, _), state in tap.states.items() if one == port and state is not None]
    come = [state for state in states if state in editor.reached]
    unseen = list(tap.why_unseen(port))
    if come or unseen:
        return unseen
    told = [state for state in states if state.reason is not None]
    if told:
        return [Absence(state.site, str(state.reason)) for state in told]
    return [Absence(Site(tap.path, port), _why_not_there(editor, tap, port, states))]


def _why_not_there(editor: OneEdit, tap: Tap, port: str, states: Sequence[SiteState]) -> str:
    if tap.reason is not None:
        return tap.reason
    if editor.why_silent is not None:
        return editor.why_silent
    if BY_NAME[port].holder:
        return BY_NAME[port].why_never
    if any(state.expected for state in states):
        return "no gradient arrived: no backward was run, or the loss does not depend on it"
    if tap.raised and port not in STATE_PORTS and port != "input":
        return "; ".join(tap.why_raised())
    if tap.has_run:
        side = "took" if port.endswith("input") else "returned"
        return f"it {side} no tensor that fits, in no call that was chosen{tap.instead(port)}"
    ran = editor.num_entries > 0
    return why_not_called(editor.plan, tap.path, model_ran=ran, verb="edit")
