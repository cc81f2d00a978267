"""Optimizers, schedulers and gradient scalers: states that do not fit, and calls out of turn."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _groups(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """How many parameters each group has, in the file and in the optimizer."""
    sizes = {}
    for word, local in (("saved", "saved_groups"), ("held", "groups")):
        groups = failure.operand(local).value
        known = isinstance(groups, list | tuple)
        sizes[word] = ", ".join(str(len(one["params"])) for one in groups) if known else "others"
    return sizes


def _shared(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Names of the parameters that the new group has in common with those before it."""
    optimizer, group = failure.operand("self").value, failure.operand("param_group").value
    before = {id(one) for held in getattr(optimizer, "param_groups", ()) for one in held["params"]}
    twice = [one for one in group["params"] if id(one) in before] if type(group) is dict else []
    named = [failure.names.state(one) for one in twice]
    return {"which": ", ".join(one.name for one in named[:6] if one is not None) or "a parameter"}


def _last_epoch(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("last_epoch").value
    return {"epoch": value if isinstance(value, int) else "..."}


def _halves(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The names of the parameters of float16 that the optimizer trains."""
    optimizer = failure.operand("optimizer").value
    groups = getattr(optimizer, "param_groups", ())
    half = [p for group in groups for p in group["params"] if p.dtype is torch.float16]
    named = [failure.names.state(one) for one in half]
    return {"which": ", ".join(one.name for one in named[:4] if one is not None) or "some"}


def _optimizer(failure: Failure) -> str:
    """The optimizer whose step was called, as the program calls it."""
    node = None if failure.user is None else failure.user.expression
    called = node.func if isinstance(node, ast.Call) else None
    return ast.unparse(called.value) if isinstance(called, ast.Attribute) else "optimizer"


def _no_member(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what was asked of an optimizer: a rate, the backward of a loss, or another member."""
    frame, name = failure.frames[-1], found["name"]
    node = getattr(frame.expression, "value", None)
    held = frame.value_of(node) if node is not None else None
    is_rate = name in ("lr", "get_lr", "learning_rate", "get_last_lr")
    groups = held.param_groups if isinstance(held, Optimizer) else []
    options = groups[0] if groups else {}
    close = difflib.get_close_matches(name, [one for one in dir(held) if one[:1] != "_"], n=1)
    is_backward = name == "backward"
    is_option = not is_rate and name in options
    return {
        "optimizer": ast.unparse(node) if isinstance(node, ast.AST) else "optimizer",
        "is_rate": is_rate,
        "is_backward": is_backward,
        "is_option": is_option,
        "close": close[0] if close and not (is_rate or is_backward or is_option) else "",
    }


def _skipped(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The line of a ``continue`` between unscale_ and update, which leaves the update out."""
    frame = failure.user
    loop = None if frame is None else frame.loop
    nodes = list(ast.walk(loop)) if loop is not None else []
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    updates = [one.lineno for one in calls if getattr(one.func, "attr", "") == "update"]
    first = 0 if frame is None else frame.line
    lines = [
        one.lineno
        for one in nodes
        if isinstance(one, ast.Continue) and updates and first < one.lineno < max(updates)
    ]
    return {"skips": f"The continue in line {lines[0]}" if lines else ""}


def _lacking(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    owners = (one.owner for one in failure.frames)
    owner = next((one for one in owners if isinstance(one, Optimizer)), None)
    kind = "optimizer" if owner is None else type(owner).__name__
    state = failure.operand("state_dict").value
    held = state.items() if isinstance(state, dict) else ()
    inside = [key for key, one in held if isinstance(one, dict) and "param_groups" in one]
    is_none = found["key"] in ("param_groups", "state") and isinstance(state, dict)
    return {
        "kind": kind,
        "is_group": found["key"] == "params",
        "is_no_state": is_none,
        "inside": inside[0] if inside else "",
        "has": ", ".join(map(repr, list(state)[:4])) if isinstance(state, dict) else "",
    }


SITUATIONS: dict[str, Situation] = {
    "state of another class": first_of(
        SituationRow(
            "A group of parameters is a dict with 'params', and a dict without was given.",
            "Give the parameters by that name: {{'params': model.parameters(), 'lr': 1e-3}}.",
            when="is_group",
        ),
        SituationRow(
            "load_state_dict of {kind} was given a dict without {key!r}, which is no state of an "
            "optimizer: it has {has}.",
            ("inside", "Take the state that stands inside: state[{inside!r}]."),
            "Give what optimizer.state_dict() returned.",
            when="is_no_state",
        ),
        SituationRow(
            "The groups of this {kind} have no {key!r}: load_state_dict put in those of an "
            "optimizer of another class.",
            "Load the state of an optimizer of the same class, or none: this one then begins anew.",
        ),
        facts=_lacking,
    ),
    "step without a closure": SituationRow(
        "{kind} evaluates the loss several times in one step, and step() was given no closure to "
        "do it.",
        "Put zero_grad, forward and backward into a function that returns the loss: "
        "def closure(): ..., and {optimizer}.step(closure).",
        facts=lambda failure, found: {"optimizer": _optimizer(failure)},
    ),
    "groups of an optimizer": SituationRow(
        "The saved state is of an optimizer with {saved} parameters in its groups, and this one "
        "has {held}.",
        "Make the optimizer of the same parameters, in the same groups and order, as the one that "
        "was saved.",
        "If other parameters train from now on, load the state of the model alone: the optimizer "
        "begins without momentum.",
        facts=_groups,
    ),
    "parameter in two groups": SituationRow(
        "The optimizer was given {which} in more than one group; each parameter stands in one.",
        "Leave it out of one of the groups, by identity: "
        "[p for p in model.parameters() if all(p is not q for q in others)].",
        facts=_shared,
    ),
    "scheduler without a beginning": SituationRow(
        "last_epoch={epoch} says that a training goes on, and the optimizer does not have the "
        "learning rate that it began with ('initial_lr').",
        "Make the scheduler without last_epoch, then load what was saved: "
        "optimizer.load_state_dict(...), scheduler.load_state_dict(...).",
        "If a training begins anew: last_epoch=-1, which is the default.",
        "If nothing was saved, give each group the rate that the training began with: "
        "group['initial_lr'] = group['lr'].",
        facts=_last_epoch,
    ),
    "gradients of float16": SituationRow(
        "A GradScaler divides gradients of float32, and those of {which} are float16, as the "
        "parameters are.",
        "Keep the parameters in float32, without .half() and .to(torch.float16), and run the "
        "forward under torch.autocast, which converts what each operation needs.",
        "Or train in bfloat16, without a scaler.",
        facts=_halves,
    ),
    "unscaled twice": SituationRow(
        "The gradients of this optimizer were unscaled already since scaler.update(): once more "
        "would divide them again.",
        (
            "skips",
            "{skips} leaves scaler.update() out in a round that does not step: call it there, too.",
        ),
        "If gradients of several batches are added up: call scaler.unscale_(optimizer) in the "
        "round alone that steps, after its backward.",
        "If a round calls it twice, as for clipping and for a norm: once is enough.",
        facts=_skipped,
    ),
    "member of an optimizer": SituationRow(
        "{kind} is an optimizer, and has no {name!r}.",
        ("is_rate", "Its options stand in groups: {optimizer_it}.param_groups[0]['lr']."),
        ("is_rate", "Of a scheduler: scheduler.get_last_lr()."),
        ("is_backward", "backward is of a loss: loss.backward(), then {optimizer_it}.step()."),
        (
            "is_option",
            "If it is an option, such as {name!r}: {optimizer_it}.param_groups[0][{name!r}].",
        ),
        ("close", "Did you mean {close!r}?"),
        facts=_no_member,
    ),
    "stepped twice": SituationRow(
        "scaler.step(optimizer) was called already since scaler.update().",
        "Call scaler.update() once after the steps of all optimizers, before the next step.",
    ),
}
