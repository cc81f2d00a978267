"""The front door of edits: change what flows, and get exactly that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from torchtap.core.absence import Absence
from torchtap.core.closable import Closable
from torchtap.core.doors import require
from torchtap.core.errors import EditError, InputError
from torchtap.core.module_paths import Where, modules_of
from torchtap.core.plan import Plan, make_plan
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Grid, Line, Listed, Page
from torchtap.core.site import Site
from torchtap.core.text import plural
from torchtap.core.user_functions import Function, name_of
from torchtap.edits.catalogue.ready import Ready
from torchtap.edits.checked_edit import CheckedEdit, Scaler
from torchtap.edits.edit_engine import EditEngine
from torchtap.edits.edit_request import (
    Chosen,
    Functions,
    Missing,
    check_missing,
    chooser,
    pairs_of,
    refuse_asked,
    refuse_ports,
)
from torchtap.edits.missed_edits import OneEdit, absent_at, requests_of, why_never


class Edit(Closable, Printed):
    """The result of ``tt.edit``: a context manager and a handle, safe to close twice.

    Attributes:
        plans: what is edited, one for each function, in the order in which they work.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> edit = tt.edit(model, "1", tt.edits.scale(2.0))
        >>> _ = model(torch.ones(1, 2))
        >>> edit.close()
        >>> edit
        Edit scale(factor=2.0) (closed, step 0)
          1:output  once
    """

    def __init__(
        self, editors: Sequence[tuple[str, OneEdit]], *, steps: Chosen, missing: Missing
    ) -> None:
        self.plans = tuple(editor.plan for _, editor in editors)
        self._editors = editors
        self._wants_step = chooser(steps, "steps")
        self._missing = missing
        self._step = 0
        self._had_step = False

    def _attach(self, modules: Mapping[str, nn.Module]) -> None:
        try:
            for _, editor in self._editors:
                editor.attach(modules)
            self._begin_step(0)
        except BaseException:  # An interrupt, too, leaves no hook behind.
            self._detach()
            raise

    # ------------------------------------------------------------------ stepping

    @property
    def current_step(self) -> int:
        """Return the step that is running, from 0."""
        return self._step

    def step(self) -> None:
        """Begin the next step: calls are numbered anew.

        Raises:
            EditError: a gradient went by without being changed.
        """
        self._refuse_closed()
        self._begin_step(self._step + 1)
        self._raise_lost()

    def _closed(self) -> EditError:
        return EditError("This edit is closed; call tt.edit again to go on.")

    def _begin_step(self, step: int) -> None:
        self._step = step
        is_on = self._wants_step(step)
        self._had_step = self._had_step or is_on
        for _, editor in self._editors:
            editor.begin_step(step, is_on=is_on)

    def close(self) -> None:
        """Take everything off the model; the report stays.

        Raises:
            EditError: something that was asked for never happened. Not with ``missing="ignore"``.
        """
        super().close()

    def _finish(self, *, raising: bool) -> None:
        self._detach()
        if raising:
            self._raise_lost()
            self._raise_missing()

    def _detach(self) -> None:
        for _, editor in self._editors:
            editor.detach()

    # ------------------------------------------------------------------ report

    @property
    def fired(self) -> dict[str, int]:
        """Site text -> how often the edit replaced the tensor there; 0 where it chose not to.

        A call that an activation checkpoint runs again is edited again and counted once.
        """
        return {site: sum(calls.values()) for site, calls in self.calls.items()}

    @property
    def calls(self) -> dict[str, dict[int, int]]:
        """Site text -> number of the call within its step -> how often it was replaced.

        For ``param_grad``, the number of the backward. Calls inside a backward that are no
        recomputation are counted together as call -1, and those beyond the 65,536th of a step as
        one.
        """
        by_site: dict[str, dict[int, int]] = {}
        for _, editor in self._editors:
            for state, replaced in editor.fired.items():
                counts = by_site.setdefault(str(state.site), {})
                for call in sorted(editor.reached[state]):
                    counts[call] = counts.get(call, 0) + replaced[call]
        return by_site

    @property
    def absent(self) -> list[Absence]:
        """Return the sites that were selected and never came by, with reasons."""
        absences = []
        for _, editor in self._editors:
            absences += [Absence(state.site, why) for state, why in editor.lost.items()]
            for planned in editor.plan.taps:
                tap = editor.taps[planned.path]
                for port in planned.ports:
                    if self._had_step:
                        absences += absent_at(editor, tap, port)
                    else:
                        absences.append(Absence(Site(tap.path, port), self._no_step()))
        return absences

    def _no_step(self) -> str:
        last = f"the last was step {self._step}" if self._step else "Edit.step() was never called"
        return f"none of the steps that were chosen came: {last}"

    def _raise_lost(self) -> None:
        for name, editor in self._editors:
            for state, why in editor.lost.items():
                raise EditError(f"Edit {name!r} at {state.site} did not happen: {why}.")

    def _raise_missing(self) -> None:
        if self._missing == "ignore":
            return
        for name, editor in self._editors:
            for wanted, fits in requests_of(editor.plan):
                if not any(fits(state.site) for state in editor.reached):
                    raise EditError(why_never(name, wanted, editor, self.absent))

    def _page(self) -> Page:
        return show_edit(self)

    @property
    def is_open(self) -> bool:
        """Return whether it is on the model."""
        return self._is_open

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the functions, in the order in which they work."""
        return tuple(name for name, _ in self._editors)


def edit(
    model: nn.Module,
    where: Where | Mapping[str, Functions],
    fn: Functions | None = None,
    *,
    steps: Chosen = None,
    calls: Chosen = None,
    scaler: Scaler | None = None,
    missing: Missing = "error",
    name: str | None = None,
) -> Edit:
    """Change what flows through a model, forward and backward.

    Args:
        model: any module, also wrapped (DDP, FSDP, torch.compile).
        where: what to change, as for ``tt.watch``: ``[!]PATH[@TYPE][:PORTS[[LEAF]]]``, a module, a
            class, a function ``(site, module) -> bool``, or a list. PORTS are of ``input output
            grad_input grad_output param_grad``; none means ``output``. Names of ``tt.mark`` too.
            Or a mapping from patterns to functions.
        fn: ``fn(tensor, record)`` or ``fn(tensor)``, which returns the tensor to go on with (same
            shape, dtype, device) or ``None`` to leave it; one of ``tt.edits``; or a list of them,
            which work one after the other. A forward edit is part of the graph, so gradients
            through it are exact. It must not write into the tensor; writes past autograd
            (``.data``, numpy) are noticed at the first call of each site.
        steps: only in these steps (a number, several, or a function of the step); see
            :meth:`Edit.step`.
        calls: only at these calls of a module within the step, from 0. Calls inside a backward
            (phase ``backward``: adjoint solvers, reversible blocks, hooks) are edited if it is not
            given.
        scaler: the ``GradScaler`` in use: functions then see gradients in true units.
        missing: what to do when closing, if nothing of a pattern ever came by: ``error``, or
            ``ignore``.
        name: what reports and messages call it; by default what the function is called.

    Returns:
        a context manager and handle; ``.fired`` tells where and how often it happened.

    Edits of one site work in the order in which they are made, each on what the former left; of a
    tensor that several modules return as it is, the gradient comes by the outermost first. At
    ``grad_input`` only what flows through this module is changed; ``grad_output`` is the gradient
    of the returned tensor over all its uses; ``param_grad`` is what one backward adds to ``.grad``
    (under DDP, of this rank, before the ranks are averaged). An edit at ``grad_input`` that changes
    nothing may still change the last bits of other gradients where the tensor is used twice inside
    of the module and outside of it too: autograd adds in another order
    (``docs/guides/editing.md``).

    Raises:
        SiteError: a pattern fits nothing.
        InputError: an argument is of the wrong kind.
        EditError: (while the model runs) the function returned something that does not fit, or
            wrote into what it was given; (when closing) an edit never happened.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with tt.edit(model, "0:grad_output", tt.edits.scale(2.0)) as e:
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> e.fired
        {'0:grad_output': 1}
    """
    require("tt.edit", model)
    pairs = pairs_of(where, fn)
    check_missing(missing)
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise InputError(f"scaler is {type(scaler).__name__}; expected a torch.amp.GradScaler.")
    wants_call = None if calls is None else chooser(calls, "calls")
    editors = []
    for one, function in pairs:
        refuse_asked(one)
        plan = make_plan(model, one)
        refuse_ports(plan)
        editor = _editor(model, plan, function, wants_call, scaler, name)
        editors.append((name or name_of(function), editor))
    done = Edit(editors, steps=steps, missing=missing)
    done._attach(modules_of(model)[0])
    return done


def _editor(
    model: nn.Module,
    plan: Plan,
    function: Function,
    wants_call: Callable[[int], bool] | None,
    scaler: Scaler | None,
    name: str | None,
) -> OneEdit:
    make: Callable[..., OneEdit] = EditEngine
    if isinstance(function, Ready):  # It says itself how it is attached.
        function = function.prepared(model, plan)
        make = function.editor
    return make(plan, CheckedEdit(function, scaler, name), wants_call=wants_call)


_MOST_LINES = 30


def show_edit(edit: Edit) -> Page:
    """Show what the edit is, and where it happened how often."""
    state = "on" if edit.is_open else "closed"
    head = f"Edit {', '.join(edit.names)} ({state}, step {edit.current_step})"
    rows = [(site, _times(sum(calls.values()), len(calls))) for site, calls in edit.calls.items()]
    absent = [(f"not {entry.site}", entry.reason) for entry in edit.absent[:5]]
    return Page(
        Line(head),
        Grid(rows or [("nothing yet",)], limit=_MOST_LINES, noun="site", indent="  "),
        Listed(absent),
    )


def _times(fired: int, calls: int) -> str:
    times = "once" if fired == 1 else f"{fired:,} times" if fired else "never"
    return times if fired == calls == 1 else f"{times} in {plural(calls, 'call')}"
