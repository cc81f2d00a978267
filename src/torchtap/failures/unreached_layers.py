"""Layers that a module calls and does not hold: made in its forward, or kept in a plain list.

``eval()``, ``to()`` and ``parameters()`` of the module do not reach them, so a way out that asks
for one of these asks for what the program may have done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torch import nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import TracebackFrame

_TABLES = frozenset({"_modules", "_parameters", "_buffers"})
_MOST_HELD = 64


def caller_of(failure: Failure) -> TracebackFrame | None:
    """Return the frame of the module that called the running one; ``None`` without one."""
    depth = 0 if failure.running is None else failure.running.depth
    further = (one for one in reversed(failure.frames[:depth]) if one.is_user)
    return next((one for one in further if one.module not in (None, failure.module)), None)


def way_to_reach(failure: Failure) -> str:
    """Return the way out where no running module holds the one that failed; else empty."""
    layer, caller = failure.module, caller_of(failure)
    owner = None if caller is None else caller.module
    if layer is None or caller is None or owner is None or _is_held(failure, layer):
        return ""
    kind, name = type(owner).__name__, caller.code.co_name
    for call in _calls_that_made(caller, layer):
        text, attr = written(call, caller.file), f"self.{type(layer).__name__.lower()}"
        return (
            f"{kind} makes {text} anew in each call of its {name}: neither eval() nor to() of the "
            "model reaches it, and no optimizer trains it. Make it once, in __init__, "
            f"{attr} = {text}, and call {attr} in {name}."
        )
    for attr, container in _containers_of(owner, layer):
        made = "ModuleDict" if type(container) is dict else "ModuleList"
        return (
            f"{kind} keeps its modules in a plain {type(container).__name__}, self.{attr}, which "
            "neither eval() nor to() of the model reaches, and no optimizer trains: register them, "
            f"self.{attr} = nn.{made}(...)."
        )
    return ""


def _is_held(failure: Failure, layer: nn.Module) -> bool:
    """Return whether a module that is running has a layer among its own."""
    running = (one.module for one in failure.frames)
    owners = {id(one): one for one in running if one is not None and one is not layer}
    return any(one is layer for owner in owners.values() for one in owner.modules())


def _calls_that_made(caller: TracebackFrame, layer: nn.Module) -> Iterator[ast.Call]:
    """Yield the call of a class that made a layer in the function that calls it."""
    node = caller.expression
    called = node.func if isinstance(node, ast.Call) else None
    made = [called]
    if isinstance(called, ast.Name):
        made = [one.value for one in assignments_of(caller, called.id)]
    for one in made:
        if isinstance(one, ast.Call) and caller.value_of(one.func) is type(layer):
            yield one


def _containers_of(owner: nn.Module, layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the plain containers in which a module keeps a layer, with their names."""
    for name, held in vars(owner).items():
        if name in _TABLES or type(held) not in (list, tuple, dict):
            continue
        inside = list(held.values() if type(held) is dict else held)[:_MOST_HELD]
        modules = [one for one in inside if isinstance(one, nn.Module)]
        if any(part is layer for one in modules for part in one.modules()):
            yield name, held
