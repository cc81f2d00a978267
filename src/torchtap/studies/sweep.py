"""Ablation and patching studies: one edit after another over many sites, and what each does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace as replaced
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.errors import EditError, InputError, MissingExtraError
from torchtap.core.functions import Function, name_of, takes_record
from torchtap.core.modules import Where, modules_of
from torchtap.core.page import Grid, Line, Page, Printed
from torchtap.core.plan import Plan, can_take, make_plan
from torchtap.core.preserved import mode_of, preserved
from torchtap.core.progress import Progress
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.core.text import number
from torchtap.core.tree import leaves, replace
from torchtap.edits import as_edit
from torchtap.edits.checked import CheckedEdit
from torchtap.edits.edit import refuse_asked, refuse_ports
from torchtap.edits.editor import EditEngine
from torchtap.hooks.guards import HookGuards
from torchtap.studies.fingerprint import NoFingerprintError, fingerprint
from torchtap.studies.sweep_log import SweepLog, Values

Metric = Callable[[Any], Any]

_PORTS = ("input", "output")
_VALUE = "metric"
_ONE = "one forward per edit, since "


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What one edit at one site does.

    Attributes:
        site: where.
        edit: what it is called.
        values: metric name -> value with the edit on.
        change: metric name -> difference to the unedited model.
    """

    site: Site
    edit: str
    values: Values
    change: Values


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Printed):
    """The result of ``tt.sweep``: iterate it, print it, or turn it into a data frame.

    Attributes:
        rows: one per site and edit, in the order of modules.
        baseline: the metrics of the unedited model.
        batched: how many sites ran in one forward.
        note: why fewer than was asked for, if so, or that the model itself is not steady.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
        >>> tt.sweep(model, torch.ones(1, 1), "0", tt.edits.scale(3.0), lambda out: out.sum())
        site        edit               metric  change
        (unedited)                          1
        0:output    scale(factor=3.0)       3      +2
    """

    rows: tuple[SweepRow, ...]
    baseline: Values
    batched: int = 1
    note: str = ""

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sorted(self, metric: str | None = None) -> Sweep:
        """The same rows, the largest change of a metric (the first one) first; NaN comes last."""
        name = next(iter(self.baseline)) if metric is None else metric
        if name not in self.baseline:
            raise InputError(f"There is no metric {name!r}; there are {', '.join(self.baseline)}.")

        def rank(row: SweepRow) -> tuple[bool, float]:
            change = row.change[name]
            return math.isnan(change), -abs(change)

        return replaced(self, rows=tuple(sorted(self.rows, key=rank)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain dictionaries of text and numbers, ready for JSON or a data frame."""
        return [
            {
                "site": str(row.site),
                "edit": row.edit,
                **row.values,
                **{f"{name}_change": change for name, change in row.change.items()},
            }
            for row in self.rows
        ]

    def to_frame(self) -> Any:
        """A pandas data frame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "A data frame needs pandas: pip install 'torchtap[frame]'."
            ) from error
        return pandas.DataFrame(self.as_dicts())

    def _page(self) -> Page:
        return show_sweep(self)


def sweep(
    model: nn.Module,
    inputs: Any,
    sites: Where,
    edit: Function | Mapping[str, Function],
    metric: Metric,
    *,
    batch: int = 1,
    path: str | Path | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Make one edit after the other, run the model each time, and measure what it does.

    Args:
        model: any module. It is left as it was found. Every forward finds the buffers and random
            state of the first, in either mode: of PyTorch on all devices, Python, NumPy, and
            generators that modules hold as attributes. If two runs of the unedited model differ
            all the same, ``note`` says so.
        inputs: a tensor, a tuple of arguments, or a dict of keywords.
        sites: patterns as for ``tt.watch``, ports ``output`` (default) and ``input``. Each site
            that they select is edited by itself.
        edit: one edit, as for ``tt.edit``, or several by name: each is tried at every site.
        metric: what to measure of the model's output: returns a number, or a dict of numbers.
        batch: how many edits to try in one forward, each on its own copy of the inputs along
            dimension 0. If the model mixes rows (as batch norm in training does), which is tried
            first, it falls back to 1 and says so in ``note``.
        path: a file that keeps what is done line by line; if it is there, the sweep goes on from
            it. Its head tells weights, inputs, modes, edits and metric, of functions their code
            and the values that they use.
        progress: show it on stderr, after two seconds; by default if that is a terminal.

    Returns:
        a table with one row per site and edit.

    Raises:
        SiteError: a pattern fits nothing.
        EditError: a site never came by, or an edit does not fit, or a port is none of a forward.
        InputError: an argument does not fit, the metric returned no number, or other names than for
            the unedited model; or, with ``path``, an edit or metric holds a file, a lock or the
            like, which cannot be told again.
        RunError: the file is of another sweep.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> table = tt.sweep(model, torch.ones(1, 2), "*", tt.edits.zero(), lambda out: out.sum())
        >>> [str(row.site) for row in table]
        ['.:output', '0:output', '1:output']
    """
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"batch is {batch!r}; expected a whole number from 1.")
    edits = _named(edit)
    _check_metric(metric)
    study = _Study(model, inputs, sites, edits, metric)
    log = SweepLog(path, study.fingerprint)
    left = len(study.trials) - len(log.done)
    with Progress("sweeping", left, wanted=progress) as shown, study.restored():
        baseline = study.measure([])[0]
        note = _unsteadiness(baseline, study.measure([])[0])
        width, note = (1, note) if note else study.width(batch, baseline)
        todo = [trial for trial in study.trials if trial.key not in log.done]
        for first in range(0, len(todo), width):
            group = todo[first : first + width]
            for trial, values in zip(group, study.measure(group), strict=True):
                log.write(trial.key[0], trial.name, values)
                shown.advance(str(trial.site))
    rows = [
        SweepRow(
            trial.site,
            trial.name,
            log.done[trial.key],
            _change(trial, log.done[trial.key], baseline),
        )
        for trial in study.trials
    ]
    return Sweep(tuple(rows), baseline, width, note)


def _unsteadiness(one: Values, two: Values) -> str:
    """What to say where two runs of the unedited model differ; empty where they do not."""
    for name in one.keys() & two.keys():
        first, second = one[name], two[name]
        if first != second and not (math.isnan(first) and math.isnan(second)):
            return (
                f"two runs of the unedited model already differ ({name} is {first:.6g} and "
                f"{second:.6g}), so changes of this size say nothing: it keeps state outside of "
                f"its buffers, draws from a generator of random numbers that torchtap does not "
                f"know (in a closure or a global variable), or is not deterministic"
            )
    return ""


def _change(trial: _Trial, values: Values, baseline: Values) -> Values:
    if values.keys() != baseline.keys():
        raise InputError(
            f"tt.sweep: the metric returned {_names(values)} with {trial.name!r} at {trial.site}, "
            f"and {_names(baseline)} for the unedited model. Return the same names each time, nan "
            f"for what there is not."
        )
    return {name: value - baseline[name] for name, value in values.items()}


def _names(values: Values) -> str:
    return ", ".join(map(repr, values)) or "nothing"


@dataclass(frozen=True, slots=True)
class _Trial:
    """One edit at one site."""

    site: Site
    name: str
    plan: Plan
    function: Function

    @property
    def key(self) -> tuple[str, str]:
        return str(self.site), self.name


class _Rows:
    """An edit that sees only some rows of the batch."""

    def __init__(self, function: Function, first: int, num: int, whole: int) -> None:
        self.__name__ = name_of(function)
        self._function = function
        self._takes_record = takes_record(function)
        self._first, self._num, self._whole = first, num, whole

    def __call__(self, tensor: Tensor, record: Record) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != self._whole:
            raise _MixedRowsError
        own = tensor.narrow(0, self._first, self._num)
        row = record._replace(kept=own)
        new = self._function(own, row) if self._takes_record else self._function(own)
        if new is None:
            return tensor
        if not isinstance(new, Tensor) or new.shape != own.shape or new.dtype != own.dtype:
            CheckedEdit(lambda _: new)(own, row)  # Raises what it raises without a batch.
        rest = self._first + self._num
        return torch.cat([tensor[: self._first], new, tensor[rest:]])


class _MixedRowsError(Exception):
    """Dimension 0 is not that of samples."""


class _Study:
    """What a sweep is about.

    Attributes:
        trials: all edits at all sites.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        sites: Where,
        edits: Mapping[str, Function],
        metric: Metric,
    ) -> None:
        refuse_asked(sites, _PORTS)
        self.model = model
        self.metric = metric
        self._modules, _ = modules_of(model)
        self._rewind: Callable[[], None] = lambda: None
        self._changes: dict[int, CheckedEdit] = {}
        self.args: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else (inputs,)
        self.kwargs: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            self.args, self.kwargs = (), dict(inputs)
        self.num_rows = self._count_rows()
        self.trials = [
            _Trial(site, name, plan, function)
            for site, plan in _one_by_one(make_plan(model, sites))
            for name, function in edits.items()
        ]

    def _count_rows(self) -> int | None:
        found = leaves((self.args, self.kwargs))
        lengths = {tensor.shape[0] if tensor.dim() else None for _, tensor in found}
        return lengths.pop() if len(lengths) == 1 else None

    # ------------------------------------------------------------------ running

    def measure(self, trials: Sequence[_Trial]) -> list[Values]:
        """The metrics of some edits in one forward; of the unedited model for none."""
        if len(trials) < 2:
            functions = [trial.function for trial in trials]
            return [self._metrics(self._run(trials, functions, self.args, self.kwargs))]
        assert self.num_rows is not None
        try:
            return self._together(trials, self.num_rows)
        except _MixedRowsError:  # At one of these sites; each by itself, then.
            return [self.measure([trial])[0] for trial in trials]

    def _together(self, trials: Sequence[_Trial], num: int) -> list[Values]:
        whole = len(trials) * num
        functions = [
            _Rows(trial.function, place * num, num, whole) for place, trial in enumerate(trials)
        ]
        output = self._run(trials, functions, *self._repeated(len(trials)))
        return [
            self._metrics(_rows(output, place * num, num, whole)) for place in range(len(trials))
        ]

    def _change_of(self, function: Function) -> CheckedEdit:
        """One for all sites: to look at a function's signature takes longer than to edit."""
        if isinstance(function, _Rows):
            return CheckedEdit(function)
        if id(function) not in self._changes:
            self._changes[id(function)] = CheckedEdit(function)  # Which holds the function.
        return self._changes[id(function)]

    def _run(
        self,
        trials: Sequence[_Trial],
        functions: Sequence[Function],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        editors = [
            EditEngine(trial.plan, self._change_of(function), wants_call=None)
            for trial, function in zip(trials, functions, strict=True)
        ]
        try:
            self._rewind()
            for editor in editors:
                editor.attach(self._modules)
                editor.begin_step(0, is_on=True)
            with torch.no_grad():
                output = self.model(*args, **kwargs)
        finally:
            for editor in editors:
                editor.detach()
        for trial, editor in zip(trials, editors, strict=True):
            if not editor.reached:
                raise EditError(
                    f"tt.sweep: {trial.site} never came by, so {trial.name!r} did nothing there. "
                    f"Leave it out with '!{trial.site.path or '.'}'."
                )
        return output

    def _metrics(self, output: Any) -> Values:
        with torch.no_grad():
            measured = self.metric(output)
        values = measured if isinstance(measured, Mapping) else {_VALUE: measured}
        if not values:
            raise InputError("The metric returned an empty dict; expected a number in it.")
        return {str(name): _number(name, value) for name, value in values.items()}

    # ------------------------------------------------------------------ several in one forward

    def width(self, batch: int, baseline: Values) -> tuple[int, str]:
        """How many edits fit in one forward, and why not more."""
        if batch == 1:
            return 1, ""
        if self.num_rows is None:
            return 1, f"{_ONE}the inputs do not share their dimension 0, so they cannot be repeated"
        try:
            twin = self._beside_another(self.num_rows)
        except _MixedRowsError:
            return 1, f"{_ONE}the model's output does not have the samples in dimension 0"
        except EditError as error:
            return 1, f"{_ONE}what it takes or returns cannot be repeated and cut: {error}"
        for name, value in baseline.items():
            if not math.isclose(twin[name], value, rel_tol=1e-3, abs_tol=1e-5):
                return 1, (
                    f"{_ONE}the model mixes the rows of a batch: {name} is {value:.6g} alone and "
                    f"{twin[name]:.6g} beside another"
                )
        return batch, ""

    def _beside_another(self, num: int) -> Values:
        """The metrics of the inputs where they stand behind others, which are edited too.

        A copy would not do: the statistics of a batch twice are those of the batch once.
        """
        first = {trial.site: trial for trial in self.trials}
        functions = [_bent_rows(num) for _ in first]
        args, kwargs = replace(self._repeated(2), lambda _, tensor: _bent(tensor, num))
        output = self._run(list(first.values()), functions, args, kwargs)
        return self._metrics(_rows(output, num, num, 2 * num))

    def _repeated(self, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def again(_: str, tensor: Tensor) -> Tensor:
            return tensor.repeat(times, *[1] * (tensor.dim() - 1))

        args, kwargs = replace((self.args, self.kwargs), again)
        return args, kwargs

    # ------------------------------------------------------------------ leaving no trace

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Buffers and random state are put back in the end, and for each forward inside."""
        guards = HookGuards()
        guards.hold()  # Once, and not for each trial.
        try:
            with preserved(self._modules, self.args, self.kwargs) as self._rewind:
                yield
        finally:
            guards.release()

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a sweep to go on from a file.

        Raises:
            InputError: of a part, that cannot be told.
        """
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        functions = {trial.name: trial.function for trial in self.trials}
        return {
            "torchtap": "sweep",
            "model": type(self._modules[""]).__name__,
            "trials": [list(trial.key) for trial in self.trials],
            "weights": _told("The model", state),
            "inputs": _told("The input", (self.args, self.kwargs)),
            "modes": _told("The model", [mode_of(module) for module in self._modules.values()]),
            "edits": {name: _told(f"Edit {name!r}", one) for name, one in functions.items()},
            "metric": _told("The metric", self.metric),
        }


def _named(edit: Any) -> dict[str, Function]:
    """The edits by name."""
    if isinstance(edit, list | tuple):
        raise InputError(
            "tt.sweep got a list of edits; expected one, or a dict from a name to each: "
            "{'zero': tt.edits.zero(), 'mean': tt.edits.mean_ablate()}."
        )
    if not isinstance(edit, Mapping):
        return {name_of(as_edit(edit)): edit}
    if not edit:
        raise InputError("tt.sweep got an empty dict of edits; expected a name -> edit.")
    return {str(name): as_edit(function) for name, function in edit.items()}


def _check_metric(metric: Any) -> None:
    if not callable(metric) or not can_take(metric, 1):
        raise InputError(
            f"metric is {name_of(metric)}; expected a function of the model's output alone, as in "
            f"lambda out: out.mean()."
        )


def _number(name: str, value: Any) -> float:
    """One value of a metric.

    Raises:
        InputError: it is no number.
    """
    where = "" if name == _VALUE else f" under {name!r}"
    if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex()):
        raise InputError(
            f"The metric returned {kind_of(value)}{where}; expected a number, or a dict of "
            f"numbers. Make one of it, as in .mean() or [0, 3]."
        )
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError):
        pass
    hint = " Does the function lack a return?" if value is None else ""
    raise InputError(
        f"The metric returned {'None' if value is None else kind_of(value)}{where}; expected a "
        f"number, or a dict of numbers.{hint}"
    )


def _told(what: str, value: Any) -> str:
    try:
        return fingerprint(value)
    except NoFingerprintError as error:
        raise InputError(
            f"tt.sweep(path=...): {what} holds {error}, so nobody could tell whether it is the "
            f"same when the sweep goes on from the file. Hand over tensors, plain values and "
            f"functions of them, or leave path= out."
        ) from error


def _one_by_one(plan: Plan) -> Iterator[tuple[Site, Plan]]:
    refuse_ports(plan, _PORTS)
    if plan.unmatched:
        raise InputError(
            f"tt.sweep edits modules; {str(plan.unmatched[0])!r} is none. A tt.mark is edited with "
            f"tt.edit."
        )
    for planned in plan.taps:
        module = planned.module()
        if module is None or type(module).forward is nn.Module.forward:
            continue  # A container is never called.
        for port, chosen in planned.filters.items():
            one = replaced(planned, filters={port: chosen})
            leaf = chosen.include[0] if len(chosen.include) == 1 else ""
            yield Site(planned.path, port, leaf), replaced(plan, taps=(one,), patterns=())


def _bent(tensor: Tensor, num: int) -> Tensor:
    """The first rows are others: turned round, and if they are no indices or flags, moved."""
    own = tensor[:num]
    other = own.flip(tuple(range(own.dim())))
    if tensor.is_floating_point() or tensor.is_complex():
        other = 2 * other + 1
    return torch.cat([other, tensor[num:]])


def _bent_rows(num: int) -> Function:
    """An edit of all that has the rows of two copies."""

    def bent(tensor: Tensor) -> Tensor | None:
        is_fit = tensor.dim() and tensor.shape[0] == 2 * num and tensor.is_floating_point()
        return _bent(tensor, num) if is_fit else None

    return bent


def _rows(output: Any, first: int, num: int, whole: int) -> Any:
    """The part of an output that belongs to one copy of the inputs."""

    def cut(_: str, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != whole:
            raise _MixedRowsError
        return tensor.narrow(0, first, num)

    return replace(output, cut)


_MOST_ROWS = 100


def show_sweep(sweep: Sweep) -> Page:
    """One line per site and edit, and above them the unedited model."""
    names = list(sweep.baseline)
    head = ["site", "edit", *(cell for name in names for cell in (name, "change"))]
    base = [
        "(unedited)",
        "",
        *(cell for name in names for cell in (number(sweep.baseline[name]), "")),
    ]
    rows = [
        [
            str(row.site),
            row.edit,
            *(
                cell
                for name in names
                for cell in (number(row.values[name]), f"{row.change[name]:+.4g}")
            ),
        ]
        for row in sweep.rows
    ]
    grid = Grid(
        [base, *rows],
        head,
        "ll" + "r" * (len(head) - 2),
        elastic={0: 20, 1: 12},
        limit=1 + _MOST_ROWS,
    )
    return Page(grid, *([Line(f"Note: {sweep.note}.")] if sweep.note else []))
