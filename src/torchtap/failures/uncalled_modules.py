"""A module that stands where the output of its call is meant."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import expression_of, grouped, written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame
from torchtap.failures.value_chains import made_of


def made_with_inputs(failure: Failure, module: nn.Module) -> tuple[str, str]:
    """Return how to make and then call a module that was made with its inputs, and the place.

    Both are empty where it was made with its own arguments, or nothing tells.
    """
    frame, text = failure.user, failure.called(module)
    for one in assignments_of(frame, text) if frame is not None and text else ():
        if frame is not None and isinstance(one.value, ast.Call):
            called = _called_with_tensors(frame, one.value)
            if called and _is_class(frame, one.value.func):
                return called, f"line {one.line}"
    made = made_of(failure, module) if _keeps_tensors(module) else None
    if made is None or not isinstance(made.call.node, ast.Call):
        return "", ""
    given = ", ".join(written(one, made.call.scope.file) for one in made.call.node.args)
    kind = written(made.call.node.func, made.call.scope.file)
    return f"{kind}()({given})", made.text.rpartition(" of ")[2]


def way_to_call(failure: Failure, module: nn.Module, text: str) -> str:
    """Return the way out where a module was given in place of its output.

    Args:
        failure: the exception.
        module: the module.
        text: what stands for it in the program.
    """
    called, _ = made_with_inputs(failure, module)
    frame = failure.user
    node = expression_of(text)
    if frame is not None and isinstance(node, ast.Call) and _is_class(frame, node.func):
        called = _called_with_tensors(frame, node) or f"{ast.unparse(node.func)}(...)(...)"
    if called:
        return f"Make the module first, with its own arguments, then call it: {called}."
    if _keeps_tensors(module):
        kind = type(module).__name__
        return (
            f"It was given tensors where it is made: make it first, then call it, nn.{kind}()(x)."
        )
    made = assignments_of(frame, text) if frame is not None and text.isidentifier() else []
    if frame is not None and len(made) == 1 and made[0].value is not None:
        source = made[0].value
        if frame.value_of(source) is module:
            return f"Call it where it is assigned, in line {made[0].line}: {written(source)}(...)."
    return f"If its output is meant: call it, {grouped(text)}(...)."


def _is_class(frame: TracebackFrame, called: ast.expr) -> bool:
    kind = frame.value_of(called)
    return isinstance(kind, type) and issubclass(kind, nn.Module)


def _called_with_tensors(frame: TracebackFrame, call: ast.Call) -> str:
    """Return a call with tensors, or with values that are not known, as that of an object."""
    values = [frame.value_of(one) for one in call.args]
    if not any(isinstance(one, Tensor) or one is MISSING for one in values):
        return ""
    given = ", ".join(ast.unparse(one) for one in call.args)
    return f"{ast.unparse(call.func)}()({given})"


def _keeps_tensors(module: nn.Module) -> bool:
    """Return whether a layer of PyTorch has a tensor where it keeps an option."""
    is_of_torch = type(module).__module__.startswith("torch.nn")
    held = vars(module).items()
    return is_of_torch and any(isinstance(one, Tensor) for key, one in held if key[:1] != "_")
