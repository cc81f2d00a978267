"""Finds a loss of the running step that is not finite: logged, or what a backward began from."""

from __future__ import annotations

import math

from torch import nn

from torchtap.capture.training.scalers import Scalers
from torchtap.capture.watch_handle import numbers_of, watches_of
from torchtap.diagnosis.origins.guarded_steps import GuardedStep
from torchtap.diagnosis.origins.suspects import first_bad_loss

_OF_BACKWARD = "number from which the backward began"


def bad_loss(
    model: nn.Module, step: GuardedStep, scalers: Scalers, *, num_back: int, is_scaled: bool = False
) -> str:
    """Name the first loss that is not finite; empty where there is none.

    Args:
        model: whose watches may have logged it.
        step: that runs.
        scalers: of the training.
        num_back: steps before, whose numbers of watches count too.
        is_scaled: a scaler left the step out: the Inf that it makes is none of the training's.
    """
    numbers = dict(step.numbers)
    for watch in watches_of(model):
        numbers.update(numbers_of(watch, num_back=num_back))
    own = scalers.own() if is_scaled else []
    scale = max((one.get_scale() for one in own), default=None)
    logged = first_bad_loss(numbers, scale=scale)
    if logged is not None:
        return f"logged {logged}"
    return bad_root(step, may_be_scaled=bool(own)) if is_scaled else ""


def bad_root(step: GuardedStep, *, may_be_scaled: bool) -> str:
    """Look at the numbers from which backwards began; an Inf there may be by a scaler."""
    roots = {f"loss {at}": call.loss for at, call in enumerate(step.calls)}
    scale = math.inf if may_be_scaled else None
    return _OF_BACKWARD if first_bad_loss(roots, scale=scale) else ""
