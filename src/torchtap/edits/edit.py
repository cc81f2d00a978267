"""The front door of edits: change what flows, and get exactly that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from torchtap.capture.missing import why_not_called
from torchtap.capture.watch import watch
from torchtap.core.absence import Absence
from torchtap.core.errors import EditError, InputError
from torchtap.core.functions import Function, name_of
from torchtap.core.modules import Where, modules_of, several
from torchtap.core.page import Grid, Line, Listed, Page, Printed
from torchtap.core.plan import Plan, make_plan
from torchtap.core.preserved import preserved
from torchtap.core.site import Pattern, Site
from torchtap.core.text import plural
from torchtap.edits import as_edit
from torchtap.edits.catalogue.elsewhere import Patch, patch
from torchtap.edits.catalogue.norms import ClipNorm, norm_of
from torchtap.edits.catalogue.rectifiers import GuidedRelu
from torchtap.edits.checked import CheckedEdit, Scaler
from torchtap.edits.clipping import Clipping
from torchtap.edits.editor import EDITABLE, EditEngine
from torchtap.hooks.spots import SiteState, Tap

Chosen = int | Iterable[int] | Callable[[int], bool] | None
Functions = Function | Sequence[Function]
Missing = Literal["error", "ignore"]
OneEdit = EditEngine | Clipping


class Edit(Printed):
    """What ``tt.edit`` returns: a context manager and a handle, safe to close twice.

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
        self._wants_step = _chooser(steps, "steps")
        self._missing = missing
        self._is_open = True
        self._step = 0
        self._had_step = False

    def _attach(self, modules: Mapping[str, nn.Module]) -> None:
        try:
            for _, editor in self._editors:
                editor.attach(modules)
            self._begin_step(0)
        except BaseException:
            self._detach()
            raise

    # ------------------------------------------------------------------ stepping

    @property
    def current_step(self) -> int:
        """The step that is running, from 0."""
        return self._step

    def step(self) -> None:
        """Begin the next step: calls are numbered anew.

        Raises:
            EditError: a gradient went by without being changed.
        """
        self._refuse_closed()
        self._begin_step(self._step + 1)
        self._raise_lost()

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise EditError("This edit is closed; call tt.edit again to go on.")

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
        self._close(raising=True)

    def _close(self, *, raising: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._detach()
        if raising:
            self._raise_lost()
            self._raise_missing()

    def _detach(self) -> None:
        for _, editor in self._editors:
            editor.detach()

    def __enter__(self) -> Edit:
        self._refuse_closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An exception of the user's is the one to see; ours would hide it.
        self._close(raising=error is None)

    # ------------------------------------------------------------------ report

    @property
    def fired(self) -> dict[str, int]:
        """Site text -> how often the edit replaced the tensor there; 0 where it chose not to.

        What an activation checkpoint runs again is edited again and counted once.
        """
        return {site: sum(calls.values()) for site, calls in self.calls.items()}

    @property
    def calls(self) -> dict[str, dict[int, int]]:
        """Site text -> number of the call within its step -> how often it was replaced.

        For ``param_grad``, the number of the backward. Calls inside a backward that are no
        recomputation are counted together as call -1, and those beyond the 65,536th of a step as
        one.
        """
        found: dict[str, dict[int, int]] = {}
        for _, editor in self._editors:
            for spot, replaced in editor.fired.items():
                counts = found.setdefault(str(spot.site), {})
                for call in sorted(editor.reached[spot]):
                    counts[call] = counts.get(call, 0) + replaced[call]
        return found

    @property
    def absent(self) -> list[Absence]:
        """What was selected and never came by, with site and reason."""
        found = []
        for _, editor in self._editors:
            found += [Absence(spot.site, why) for spot, why in editor.lost.items()]
            for planned in editor.plan.taps:
                tap = editor.taps[planned.path]
                for port in planned.ports:
                    if self._had_step:
                        found += _absent_at(editor, tap, port)
                    else:
                        found.append(Absence(Site(tap.path, port), self._no_step()))
        return found

    def _no_step(self) -> str:
        last = f"the last was step {self._step}" if self._step else "Edit.step() was never called"
        return f"none of the steps that were chosen came: {last}"

    def _raise_lost(self) -> None:
        for name, editor in self._editors:
            for spot, why in editor.lost.items():
                raise EditError(f"Edit {name!r} at {spot.site} did not happen: {why}.")

    def _raise_missing(self) -> None:
        if self._missing == "ignore":
            return
        for name, editor in self._editors:
            for wanted, fits in _requests(editor.plan):
                if not any(fits(spot.site) for spot in editor.reached):
                    raise EditError(_never(name, wanted, editor, self.absent))

    def _page(self) -> Page:
        return show_edit(self)

    @property
    def is_open(self) -> bool:
        """Whether it is on the model."""
        return self._is_open

    @property
    def names(self) -> tuple[str, ...]:
        """What the functions are called, in the order in which they work."""
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
    tensor that several modules return as it is, the gradient comes by the outermost first. Of
    ``grad_input`` only what flows through this module is changed; ``grad_output`` is the gradient
    of the returned tensor over all its uses; ``param_grad`` is what one backward adds to ``.grad``
    (under DDP, of this rank, before the ranks are averaged).

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
    pairs = _pairs(where, fn)
    _check_missing(missing)
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise InputError(f"scaler is {type(scaler).__name__}; expected a torch.amp.GradScaler.")
    wants_call = None if calls is None else _chooser(calls, "calls")
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


# ---------------------------------------------------------------------- the request


def _check_missing(missing: str) -> None:
    if missing not in ("error", "ignore"):
        raise InputError(f"missing is {missing!r}; expected 'error' or 'ignore'.")


def _pairs(where: Any, fn: Any) -> list[tuple[Where, Function]]:
    if isinstance(where, Mapping):
        if fn is not None:
            raise InputError("tt.edit got a mapping of patterns to functions, and fn beside it.")
        if not where:
            raise InputError("tt.edit got an empty mapping; expected pattern -> function.")
        items = list(where.items())
    else:
        items = [(where, fn)]
    return [(one, as_edit(each)) for one, functions in items for each in _several(functions)]


def _several(functions: Any) -> Sequence[Any]:
    if isinstance(functions, list | tuple):
        if not functions:
            raise InputError("tt.edit got an empty list of functions.")
        return functions
    return [functions]


def _chooser(chosen: Chosen, name: str) -> Callable[[int], bool]:
    if chosen is None:
        return lambda number: True
    if callable(chosen):
        return lambda number: bool(chosen(number))
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        return lambda number: number == chosen
    if isinstance(chosen, range):
        return chosen.__contains__
    try:
        numbers = frozenset(chosen)  # type: ignore[arg-type]
    except TypeError:
        numbers = frozenset({None})  # type: ignore[arg-type]
    if not all(isinstance(number, int) for number in numbers):
        raise InputError(
            f"{name} is {chosen!r}; expected a whole number, several, or a function of the number."
        )
    return numbers.__contains__


_INSTEAD = {
    "param": "A parameter is changed by writing into it under torch.no_grad(), and held still by "
    "tt.freeze; its gradient is edited at '{path}:param_grad'.",
    "buffer": "A buffer is changed by writing into it under torch.no_grad(), and held still by "
    "tt.freeze.",
    "update": "The optimizer makes its update of the gradient, which is edited at "
    "'{path}:param_grad'; tt.freeze holds a parameter still.",
    "saved": "Autograd keeps what flows, which is edited at '{path}:input' or '{path}:output'.",
}


def refuse_asked(where: Where, editable: Sequence[str] = EDITABLE) -> None:
    """Raises:
    EditError: a pattern names a port that cannot be edited, whether or not something is there.
    """
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and not pattern.negate:
            for port in pattern.effective_ports:
                _refuse_port(str(pattern), pattern.path, port, editable)


def refuse_ports(plan: Plan, editable: Sequence[str] = EDITABLE) -> None:
    """Raises:
    EditError: the plan holds a port that cannot be edited.
    """
    for planned in plan.taps:
        for port in planned.ports:
            _refuse_port(str(Site(planned.path, port)), planned.path or ".", port, editable)


def _refuse_port(where: str, path: str, port: str, editable: Sequence[str]) -> None:
    if port in editable:
        return
    instead = _INSTEAD.get(port, "").format(path=path)
    if port in EDITABLE:  # By tt.edit, but not by who asks.
        instead = "Gradients are edited by tt.edit, around a forward and a backward of your own."
    raise EditError(
        f"{where} cannot be edited{'' if editable is EDITABLE else ' here'}; ports that can are "
        f"{', '.join(editable)}. {instead}"
    )


def _editor(
    model: nn.Module,
    plan: Plan,
    function: Function,
    wants_call: Callable[[int], bool] | None,
    scaler: Scaler | None,
    name: str | None,
) -> OneEdit:
    if isinstance(function, ClipNorm) and function.over_all:
        others = {port for planned in plan.taps for port in planned.ports} - {"param_grad"}
        if others:
            raise EditError(
                f"{function!r} works on parameters at the optimizer step; it cannot edit "
                f"{', '.join(sorted(others))}. Select '*:param_grad'."
            )
        return Clipping(plan, function, norm_of)
    if isinstance(function, Patch) and function.where is not None:
        function = _prepared(model, plan, function)
    nodes = function.nodes if isinstance(function, GuidedRelu) else None
    change = CheckedEdit(function, scaler, name)
    return EditEngine(plan, change, wants_call=wants_call, nodes=nodes)


def _prepared(model: nn.Module, plan: Plan, asked: Patch) -> Patch:
    """Run a model on other inputs, and patch from that run."""
    assert asked.where is not None
    inputs, site = asked.inputs, asked.where["site"]
    source = model if asked.model is None else asked.model
    wanted = list(plan.patterns) or [
        Pattern(planned.path or ".", planned.ports) for planned in plan.taps
    ]
    if site is not None:
        wanted = ["*:input,output"]  # type: ignore[list-item]
    with ExitStack() as stack:
        stack.enter_context(preserved(modules_of(source)[0], inputs))
        stack.enter_context(torch.no_grad())
        seen = stack.enter_context(watch(source, wanted, copy="always"))
        if isinstance(inputs, Mapping):
            source(**inputs)
        else:
            source(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    return patch(seen.run, **asked.where)


# ---------------------------------------------------------------------- what did not happen


def _requests(plan: Plan) -> Iterator[tuple[str, Callable[[Site], bool]]]:
    """Each thing that was asked for, and which sites are of it."""
    adding = [pattern for pattern in plan.patterns if not pattern.negate]
    for pattern in adding:

        def fits(site: Site, pattern: Pattern = pattern) -> bool:
            names = [site.path, *(a for a, first in plan.aliases.items() if first == site.path)]
            types = plan.types.get(site.path)
            return any(pattern.matches(replace(site, path=name), types) for name in names)

        yield str(pattern), fits
    if not adding:
        yield ", ".join(plan.where), lambda site: True


def _never(name: str, wanted: str, editor: OneEdit, absent: Sequence[Absence]) -> str:
    reasons = [f"{entry.site}: {entry.reason}" for entry in absent[:3]]
    pattern = next((one for one in editor.plan.unmatched if str(one) == wanted), None)
    if pattern is not None:
        hint = editor.plan.hint(pattern, editor.marks)
        reasons = [f"There is no such module, and no tt.mark of that name was reached{hint}"]
    why = ("; ".join(reasons) or "nothing of it came by").rstrip(".")
    return (
        f"Edit {name!r} at {wanted!r} never happened. {why}{'' if why.endswith('?') else '.'} "
        f"If that is meant, pass missing='ignore'."
    )


def _absent_at(editor: OneEdit, tap: Tap, port: str) -> list[Absence]:
    spots = [spot for (one, _), spot in tap.spots.items() if one == port and spot is not None]
    come = [spot for spot in spots if spot in editor.reached]
    unseen = list(tap.why_unseen(port))
    if come or unseen:
        return unseen
    told = [spot for spot in spots if spot.reason is not None]
    if told:
        return [Absence(spot.site, str(spot.reason)) for spot in told]
    return [Absence(Site(tap.path, port), _why_never(editor, tap, port, spots))]


def _why_never(editor: OneEdit, tap: Tap, port: str, spots: Sequence[SiteState]) -> str:
    if tap.reason is not None:
        return tap.reason
    if isinstance(editor, Clipping):
        return (
            "no optimizer made a step with a gradient of it (a GradScaler "
            "skips the steps whose gradients hold inf or nan)"
        )
    if port == "param_grad":
        return "no backward reached the parameter"
    if any(spot.expected for spot in spots):
        return "no gradient arrived: no backward was run, or the loss does not depend on it"
    if tap.has_run:
        side = "took" if port.endswith("input") else "returned"
        return f"it {side} no tensor that fits, in no call that was chosen{tap.instead(port)}"
    ran = editor.num_entries > 0
    return why_not_called(editor.plan, tap.path, model_ran=ran, verb="edit")


_MOST_LINES = 30


def show_edit(edit: Edit) -> Page:
    """What it is, and where it happened how often."""
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
