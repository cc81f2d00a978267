"""Files that torch.load does not take."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _weights_only(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    named = re.search(r"Unsupported (?:global: GLOBAL|class) ([\w.]+)", failure.text)
    kind = named[1] if named else ""
    return {
        "holds": f"names {kind}" if kind else "holds other objects",
        "kind": kind.rpartition(".")[2],
        "is_plain": bool(kind),
    }


def _call(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The call inside that takes the argument; else nothing."""
    frame = failure.user
    node = None if frame is None else frame.expression
    words = {"inner": "", "moved": ""}
    if frame is None or not isinstance(node, ast.Call):
        return words
    for one in node.args:
        called = frame.value_of(one.func) if isinstance(one, ast.Call) else None
        if called is not None and callable(called) and _takes(called, found["name"]):
            given = next(part for part in node.keywords if part.arg == found["name"])
            moved = ast.Call(one.func, one.args, [*one.keywords, given])  # type: ignore[attr-defined]
            return {"inner": written(one.func), "moved": ast.unparse(moved)}  # type: ignore[attr-defined]
    return words


def _takes(called: Any, name: str) -> bool:
    try:
        return name in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


SITUATIONS: dict[str, Situation] = {
    "weights only": SituationRow(
        "torch.load takes tensors and plain values alone (weights_only=True), and the file "
        "{holds}.",
        "If the file is your own or you trust it: torch.load(..., weights_only=False). It then "
        "runs whatever code the file holds.",
        (
            "is_plain",
            "Or allow that class alone: with torch.serialization.safe_globals([{kind}]).",
        ),
        "Save model.state_dict() in place of the model; that loads without either.",
        facts=_weights_only,
    ),
    "file of a GPU": SituationRow(
        "The file was saved with tensors on {device}, and PyTorch finds none here.",
        "Load them to the CPU: torch.load(..., map_location='cpu').",
        "If there is a GPU, install a PyTorch that was built for it: "
        "torch.cuda.is_available() says whether it is seen.",
    ),
    "unknown argument": SituationRow(
        "{call} takes no argument {name!r}.",
        ("inner", "Give it to {inner}, which takes it: {moved}."),
        "Leave it out, or see help({call}) for the arguments that there are.",
        facts=_call,
    ),
}
