"""Writes in place that autograd cannot bear."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import UNNAMED, Details, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import out_of_place, statement_of
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import TracebackFrame

_CLONED = "Write into a clone: {name_cloned}."


def _target(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The name of what is written into: the operation's first tensor."""
    return {"name": failure.name_of(_written(failure)), "details": failure.details()}


def _written(failure: Failure) -> Operand:
    return next(iter(failure.tensors or failure.candidates), Operand(UNNAMED))


def _leaf(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    facts, value = _target(failure, found), _written(failure).value
    state = failure.names.state(value)
    leaf = f"{facts['name']}, a leaf that requires grad"
    return {
        **facts,
        "part": "a part of " if found["view"] else "",
        "leaf": leaf if state is None else f"the parameter {state.name}",
        "is_module": getattr(failure.module, "inplace", False) is True,
        "where": failure.names.holder(value),
        **_meant(failure, value),
        **_anew(failure, value),
    }


def _meant(failure: Failure, leaf: object) -> Mapping[str, Any]:
    """Say what a write into a leaf is: a part of what is differentiated, an update, or unknown."""
    frame = failure.user
    statement = None if frame is None else statement_of(frame)
    if frame is None or statement is None:
        return {"is_unknown": True, "is_update": False, "is_part": False, "out": "y = x.clone()"}
    is_of_gradient = any(
        isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(statement)
    )
    is_init = "init" in frame.code.co_name
    given = None if isinstance(statement, ast.Expr) else getattr(statement, "value", None)
    is_part = given is not None and _is_computed(frame, given) and not is_of_gradient
    is_update = (is_of_gradient or is_init) and not is_part
    new = "" if is_update else out_of_place(statement)
    return {
        "is_unknown": not is_part and not is_update,
        "is_update": is_update,
        "is_part": is_part,
        "out": f"y = {new.partition(' = ')[2]}" if new else f"y = {_grouped_name(failure)}.clone()",
    }


def _grouped_name(failure: Failure) -> str:
    """The tensor that is written into, as it stands before a method."""
    return grouped(failure.name_of(_written(failure)))


def _is_computed(frame: TracebackFrame, value: ast.expr) -> bool:
    """Return whether a value is of what is differentiated: computed, or the output of a module."""
    for one in ast.walk(value):
        called = frame.value_of(one.func) if isinstance(one, ast.Call) else None
        if isinstance(called, nn.Module) and any(p.requires_grad for p in called.parameters()):
            return True
        held = frame.value_of(one) if isinstance(one, ast.Name | ast.Attribute) else None
        if isinstance(held, Tensor) and held.grad_fn is not None:
            return True
    return False


def _anew(failure: Failure, value: object) -> Mapping[str, Any]:
    """Words of a number that is computed on, as a loss: the new number is the whole way out."""
    anew = _of_a_number(failure, value)
    return {"anew": anew, "is_part": False, "is_unknown": False} if anew else {"anew": ""}


def _of_a_number(failure: Failure, value: object) -> str:
    """The statement out of place, for a single number that is computed on, as a loss is."""
    is_number = isinstance(value, Tensor) and value.dim() == 0 and value.grad is None
    is_free = is_number and failure.names.state(value) is None
    statement = statement_of(failure.user) if is_free and failure.user is not None else None
    is_plain = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
    return out_of_place(statement) if is_plain else ""


def _hooked(failure: Failure, found: re.Match[str]) -> Details:
    modules = (one for _, one in failure.names.modules())
    hooked = [one for one in modules if one._backward_hooks or one._backward_pre_hooks]
    return tuple(("hooked", failure.names.module(one)) for one in hooked[:4])


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_inference = "inference" in failure.text[:40]
    return {**_target(failure, found), "mode": "inference_mode" if is_inference else "no_grad"}


_view_of_mode = SituationRow(
    "{name} is a view that was taken under torch.{mode}(), and is written into with grad mode on.",
    "Take the view and write into it in the same mode: both outside of it, or both inside.",
    _CLONED,
    facts=_mode,
)
SITUATIONS: dict[str, Situation] = {
    "leaf in place": SituationRow(
        "The program writes in place into {part}{leaf}, while grad mode is on: its gradient would "
        "be that of a value that is gone.",
        ("is_module", "Set inplace=False: {variable}.inplace = False."),
        ("anew", "Compute a new number of it, which keeps the gradient right: {anew}."),
        (
            "is_update",
            "Put the write inside torch.no_grad(): it sets the value and is no part of what is "
            "differentiated.",
        ),
        (
            "is_part",
            "What is written has a graph, so that the write is a part of what is differentiated: "
            "write into a new tensor, {out}, and use y from here on.",
        ),
        ("is_unknown", "If the write sets or updates its value: put it inside torch.no_grad()."),
        (
            "is_unknown",
            "If it is a part of what is differentiated: make a new tensor, {out}, and use y from "
            "here on.",
        ),
        facts=_leaf,
    ),
    "view of a backward hook": SituationRow(
        "{module} writes in place into what a module with a full backward hook returned or takes: "
        "the hook made a view of it, which cannot be written into.",
        "Set inplace=False: {variable}.inplace = False, or x + y for x += y.",
        "Watch the gradient without such a hook: tt.watch(model, '...:grad_output') or "
        "tensor.register_hook bear writes in place.",
        about="tensors",
        details=_hooked,
    ),
    "view of a function": SituationRow(
        "{name} is a view that the custom function {node} returned, and is written into in place: "
        "the backward of {node} would be passed over.",
        _CLONED,
        "Return a tensor of its own from {node}.forward: x.view(...).clone(), or no view.",
        "Compute out of place: x = x + y for x += y.",
        facts=_target,
    ),
    "view of no_grad": _view_of_mode,
    "view of inference": _view_of_mode,
}
