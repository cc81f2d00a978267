"""The run of one model of a script, in the words of the last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.core.text import plural

if TYPE_CHECKING:
    from torchtap.capture.training.trained_model import TrainedModel


def described(model: TrainedModel) -> str:
    """Describe how many steps and sites of a model were recorded, and how many are absent."""
    assert model.watch is not None
    run, state, first = model.watch.run, model.state, model.first_step
    total = model.num_steps + state.is_complete
    recorded = sum(1 for step in run.steps if step < first + total)
    steps = plural(total, "step") if recorded == total else f"{recorded} of {plural(total, 'step')}"
    if first:
        steps += f" from {first} on"
    if state.has_run and not state.is_complete:
        steps += " and part of one"
    num_absent = len(model.watch.absent)
    return f"{model.kind}, {steps}, {plural(len(run.sites), 'site')}, {num_absent} absent"


def why_empty(model: TrainedModel) -> str:
    """Why nothing was recorded of a model whose training was seen; empty where something was."""
    assert model.watch is not None
    if model.watch.run.sites:
        return ""
    absent = model.watch.absent
    first = f": {absent[0].site}: {absent[0].reason}" if absent else ""
    return f"{model.kind} was trained, and nothing came at what was watched{first}"
