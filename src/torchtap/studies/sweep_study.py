"""The subject of a sweep: it runs the model with one or several of its edits, and measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace as replaced
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.batch_rows import other_rows
from torchtap.core.errors import EditError, InputError
from torchtap.core.module_paths import Where, modules_of
from torchtap.core.plan import Plan, make_plan
from torchtap.core.preserved import preserved
from torchtap.core.rebuild import replace
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.core.tree import leaves
from torchtap.core.user_functions import Function
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.edit_engine import EditEngine
from torchtap.edits.edit_request import refuse_asked, refuse_ports
from torchtap.hooks.dynamo_hooks import DynamoHookSetting
from torchtap.studies.sweep_rows import (
    MixedRowsError,
    RowsEdit,
    other_rows_edit,
    rows_of,
)
from torchtap.studies.sweep_table import Values

Metric = Callable[[Any], Any]
_PORTS = ("input", "output")
_VALUE = "metric"
_ONE = "one forward per edit, since "


@dataclass(frozen=True, slots=True)
class EditTrial:
    """One edit at one site."""

    site: Site
    name: str
    plan: Plan
    function: Function

    @property
    def key(self) -> tuple[str, str]:
        return str(self.site), self.name


class Study:
    """The subject of a sweep: a model, its inputs, its edits and a metric.

    Attributes:
        modules: the modules of the model, by path.
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
        self.modules, _ = modules_of(model)
        self._rewind: Callable[[], None] = lambda: None
        self._changes: dict[int, CheckedEdit] = {}
        self.args: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else (inputs,)
        self.kwargs: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            self.args, self.kwargs = (), dict(inputs)
        self.num_rows = self._count_rows()
        self.trials = [
            EditTrial(site, name, plan, function)
            for site, plan in _one_by_one(make_plan(model, sites))
            for name, function in edits.items()
        ]

    def _count_rows(self) -> int | None:
        tensors = leaves((self.args, self.kwargs))
        lengths = {tensor.shape[0] if tensor.dim() else None for _, tensor in tensors}
        return lengths.pop() if len(lengths) == 1 else None

    # ------------------------------------------------------------------ running

    def measure(self, trials: Sequence[EditTrial]) -> list[Values]:
        """Return the metrics of some edits in one forward; of the unedited model for none."""
        if len(trials) < 2:
            functions = [trial.function for trial in trials]
            return [self._metrics(self._run(trials, functions, self.args, self.kwargs))]
        assert self.num_rows is not None
        try:
            return self._together(trials, self.num_rows)
        except MixedRowsError:  # At one of these sites; each by itself, then.
            return [self.measure([trial])[0] for trial in trials]

    def _together(self, trials: Sequence[EditTrial], num: int) -> list[Values]:
        whole = len(trials) * num
        functions = [
            RowsEdit(trial.function, place * num, num, whole) for place, trial in enumerate(trials)
        ]
        output = self._run(trials, functions, *self._repeated(len(trials)))
        return [
            self._metrics(rows_of(output, place * num, num, whole)) for place in range(len(trials))
        ]

    def _change_of(self, function: Function) -> CheckedEdit:
        """Return one for all sites: to look at a function's signature takes longer than to edit."""
        if isinstance(function, RowsEdit):
            return CheckedEdit(function)
        if id(function) not in self._changes:
            self._changes[id(function)] = CheckedEdit(function)  # Which holds the function.
        return self._changes[id(function)]

    def _run(
        self,
        trials: Sequence[EditTrial],
        functions: Sequence[Function],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        editors = [
            EditEngine(trial.plan, self._change_of(function), wants_call=None, follows_model=False)
            for trial, function in zip(trials, functions, strict=True)
        ]
        try:
            self._rewind()
            for editor in editors:
                editor.attach(self.modules)
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
        """Return how many edits fit in one forward, and why not more."""
        if batch == 1:
            return 1, ""
        if self.num_rows is None:
            return 1, f"{_ONE}the inputs do not share their dimension 0, so they cannot be repeated"
        try:
            twin = self._beside_another(self.num_rows)
        except MixedRowsError:
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
        """Return the metrics of the inputs where they stand behind others, which are edited too.

        A copy would not do: the statistics of a batch twice are those of the batch once.
        """
        first = {trial.site: trial for trial in self.trials}
        functions = [other_rows_edit(num) for _ in first]
        args, kwargs = replace(self._repeated(2), lambda _, tensor: other_rows(tensor, num))
        output = self._run(list(first.values()), functions, args, kwargs)
        return self._metrics(rows_of(output, num, num, 2 * num))

    def _repeated(self, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def again(_: str, tensor: Tensor) -> Tensor:
            return tensor.repeat(times, *[1] * (tensor.dim() - 1))

        args, kwargs = replace((self.args, self.kwargs), again)
        return args, kwargs

    # ------------------------------------------------------------------ leaving no trace

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Buffers and random state are put back in the end, and for each forward inside."""
        setting = DynamoHookSetting()
        setting.hold()  # Once, and not for each trial.
        try:
            with preserved(self.modules, self.args, self.kwargs) as self._rewind:
                yield
        finally:
            setting.release()


def _number(name: str, value: Any) -> float:
    """Return one value of a metric.

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
