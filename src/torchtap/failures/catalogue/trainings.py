"""Optimizers, schedulers and gradient scalers that refuse a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _rate(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The text that stands for a number, by the name of the argument."""
    held = failure.frames[-1].frame.f_locals
    several = [name for name, one in held.items() if isinstance(one, list | tuple)]
    if not found["kind"].startswith("str"):
        lists = {"list": "a list", "tuple": "a tuple", "NoneType": "None", "dict": "a dict"}
        argument = next((one for one in several if one in ("lr", "eps", "weight_decay")), "lr")
        return {"argument": argument, "kind": lists[found["kind"]], "text": ""}
    texts = [(name, one) for name, one in held.items() if isinstance(one, str)]
    names = [one for one in texts if one[0] in ("lr", "eps", "weight_decay", "momentum")]
    name, text = next(iter(names or texts), ("lr", "0.001"))
    return {"argument": name, "text": text, "way": f"{name}=float({text!r})"}


def _value(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    what = found["what"]
    is_beta = what.startswith("beta")
    return {"is_beta": is_beta, "is_other": not is_beta, "name": what.removesuffix(" value")}


def _whole(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    try:
        number = float(found["given"])
    except ValueError:
        number = 0.0
    loader = _loader_of_no_batch(failure) if number == 0 else None
    return {
        "whole": int(number) if number >= 1 else "",
        "is_empty": number == 0 and loader is None,
        "size": "" if loader is None else loader.batch_size,
        "samples": "" if loader is None else len(loader.dataset),  # type: ignore[arg-type]
    }


def _loader_of_no_batch(failure: Failure) -> DataLoader[Any] | None:
    """The loader whose batches are counted in the call, if it gives none."""
    frame = failure.user
    node = None if frame is None else frame.expression
    for one in ast.walk(node) if node is not None else ():
        value: Any = frame.value_of(one) if isinstance(one, ast.Name | ast.Attribute) else None  # type: ignore[union-attr]
        is_cut = isinstance(value, DataLoader) and value.drop_last
        if is_cut and hasattr(value.dataset, "__len__"):
            return value if (value.batch_size or 0) > len(value.dataset) else None
    return None


def _schedulers(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"fitting": int(found["given"]) - 1}


def _scheduler(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    is_step = isinstance(called, ast.Attribute) and called.attr == "step"
    name = written(called.value, frame.file) if is_step and frame else "scheduler"  # type: ignore[union-attr]
    return {"name": name}


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"given": found["mode"] or found["other"]}


def _given(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    keywords: list[ast.expr] = []
    args: list[ast.expr] = []
    if isinstance(node, ast.Call):
        args, keywords = node.args, [one.value for one in node.keywords]
    values = [(one, frame.value_of(one)) for one in [*args, *keywords]] if frame is not None else []
    names = [
        written(one) for one, value in values for held in failure.frames
        if isinstance(value, Optimizer) and held is frame
    ]  # fmt: skip
    return {"name": names[0] if names else "optimizer"}


SITUATIONS: dict[str, Situation] = {
    "text as a rate": first_of(
        SituationRow(
            "{argument} is the text {text!r} and no number; YAML reads 1e-3, which has no point, "
            "as a text.",
            "Make a number of it: {way}; in YAML, write 1.0e-3.",
            when="text",
        ),
        SituationRow(
            "{argument} is {kind}, and an optimizer takes one number.",
            "Give one number: {argument}=1e-3.",
            "If each part is to have its own: groups of parameters, [{{'params': "
            "net.parameters(), {argument!r}: 1e-3}}, ...].",
        ),
        facts=_rate,
    ),
    "value of an optimizer": SituationRow(
        "The {name} of an optimizer cannot be {given}.",
        ("is_beta", "Give betas from 0 to below 1, such as betas=(0.9, 0.999)."),
        ("is_other", "Give a number that is not negative."),
        facts=_value,
    ),
    "nesterov without momentum": SituationRow(
        "nesterov=True changes how momentum is applied, and there is none, or it is damped.",
        "Give it: momentum=0.9, with dampening=0.",
        "Or leave nesterov=True out.",
    ),
    "no optimizer": SituationRow(
        "A scheduler changes the learning rate of an optimizer, and was given a {kind}.",
        "Give it the optimizer; of a wrapper, the one that it holds, such as wrapper.optimizer.",
        facts=_given,
    ),
    "groups of an LBFGS": SituationRow(
        "LBFGS trains all parameters together, in one group.",
        "Give it one list: [p for group in groups for p in group['params']].",
    ),
    "step without a metric": SituationRow(
        "ReduceLROnPlateau lowers the rate when a value stops to improve, and step() was not given "
        "that value.",
        "Give it the value, such as the loss of the validation: {name}.step(val_loss), once for "
        "each epoch.",
        facts=_scheduler,
    ),
    "mode of a scheduler": SituationRow(
        "{given!r} is no mode: 'min' waits for a value to fall, such as a loss, 'max' for one to "
        "rise, such as an accuracy.",
        "Give one of the two, and the value itself to step: scheduler.step(val_loss).",
        facts=_mode,
    ),
    "factor of a scheduler": SituationRow(
        "The factor of ReduceLROnPlateau lowers the rate, and is below 1.",
        "Give the number that the rate is multiplied with: factor=0.5 for half.",
    ),
    "momentum of a cycle": SituationRow(
        "{kind} changes the momentum against the rate, and {optimizer} has none that it knows.",
        "Leave the momentum as it is: cycle_momentum=False.",
        "Give the optimizer one, if its class has it: momentum=0.9 of SGD.",
        facts=lambda failure, found: {
            "kind": type(failure.frames[-1].owner).__name__,
            "optimizer": type(failure.operand("optimizer").value).__name__,
        },
    ),
    "functions of a scheduler": SituationRow(
        "The optimizer has {wanted} groups of parameters, and {given} functions were given.",
        "Give one function for all groups, not in a list, or one for each of the {wanted}.",
    ),
    "steps of a cycle": SituationRow(
        "OneCycleLR goes once through its cycle, and was not told its number of steps.",
        "Give total_steps=epochs * len(loader), for a step after each batch; or epochs and "
        "steps_per_epoch.",
    ),
    "whole number of a scheduler": SituationRow(
        "{name} counts steps, and is {given}.",
        ("whole", "Give a whole number of 1 or more: {name}={whole}, by int(...) or //."),
        (
            "size",
            "The loader gives no batch: its batch_size ({size}) is larger than its data "
            "({samples}), and drop_last=True leaves the last one out. Give a smaller batch_size, "
            "or drop_last=False.",
        ),
        (
            "is_empty",
            "Check what it was computed from: a length or a quotient that is 0, as of a data set "
            "whose folder was not found.",
        ),
        facts=_whole,
    ),
    "schedulers in a row": SituationRow(
        "A milestone is where one scheduler follows another: {given} schedulers have "
        "{fitting}, and "
        "{points} were given.",
        "Give {fitting}, without the end of the training.",
        facts=_schedulers,
    ),
    "gradients that are not finite": SituationRow(
        "The gradients hold NaN or Inf, and cannot be clipped.",
        "Find the operation that made the first: tt.locate(model, step, *batch), or "
        "tt.guard(model) around the training.",
        "Under float16, a GradScaler leaves such steps out: clip after scaler.unscale_(optimizer), "
        "without error_if_nonfinite.",
    ),
    "closure of a scaler": SituationRow(
        "A GradScaler takes optimizers whose step needs no closure.",
        "Train without a scaler, in bfloat16 or float32: optimizer.step(closure).",
    ),
    "loss of a scaler": SituationRow(
        "scaler.scale takes the loss as a tensor, and got a number or None.",
        "Give the tensor: without .item() and float() where the loss is made.",
    ),
    "update without scale": SituationRow(
        "scaler.update was called before a loss was scaled.",
        "Scale the loss for backward: scaler.scale(loss).backward(), then scaler.step(optimizer), "
        "then scaler.update().",
    ),
}
