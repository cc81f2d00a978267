"""Ablation and patching studies: one edit after another over many sites, and what each does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import Where
from torchtap.core.plan import can_take
from torchtap.core.progress import Progress
from torchtap.core.user_functions import Function, name_of
from torchtap.edits import as_edit
from torchtap.studies.sweep_log import SweepLog, head_of
from torchtap.studies.sweep_study import EditTrial, Metric, Study
from torchtap.studies.sweep_table import Sweep, SweepRow, Values


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
            like, which cannot be identified again.
        RunError: the file is of another sweep.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> table = tt.sweep(model, torch.ones(1, 2), "*", tt.edits.zero(), lambda out: out.sum())
        >>> [str(row.site) for row in table]
        ['.:output', '0:output', '1:output']
    """
    require("tt.sweep", model)
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"batch is {batch!r}; expected a whole number from 1.")
    edits = _named(edit)
    _check_metric(metric)
    study = Study(model, inputs, sites, edits, metric)
    log = SweepLog(path, lambda: head_of(study))
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
    """Return how two runs of the unedited model differ, in words; empty where they do not."""
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


def _change(trial: EditTrial, values: Values, baseline: Values) -> Values:
    if values.keys() != baseline.keys():
        raise InputError(
            f"tt.sweep: the metric returned {_names(values)} with {trial.name!r} at {trial.site}, "
            f"and {_names(baseline)} for the unedited model. Return the same names each time, nan "
            f"for what there is not."
        )
    return {name: value - baseline[name] for name, value in values.items()}


def _names(values: Values) -> str:
    return ", ".join(map(repr, values)) or "nothing"


def _named(edit: Any) -> dict[str, Function]:
    """Return the edits by name."""
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
