"""Files that torch.load does not take."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from torchtap.core.source_files import is_of_library
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
    words: dict[str, Any] = {"inner": "", "moved": "", **_taken_by(failure, found["name"])}
    if frame is None or not isinstance(node, ast.Call):
        return words
    for one in node.args:
        called = frame.value_of(one.func) if isinstance(one, ast.Call) else None
        if called is not None and callable(called) and _takes(called, found["name"]):
            given = next(part for part in node.keywords if part.arg == found["name"])
            moved = ast.Call(one.func, one.args, [*one.keywords, given])  # type: ignore[attr-defined]
            return {**words, "inner": written(one.func), "moved": ast.unparse(moved)}  # type: ignore[attr-defined]
    return words


def _taken_by(failure: Failure, name: str) -> dict[str, Any]:
    """The arguments that the call takes, and the one whose name is nearly the one given."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = frame.value_of(node.func) if frame is not None and isinstance(node, ast.Call) else None
    try:
        names = list(inspect.signature(called).parameters) if callable(called) else []
    except (TypeError, ValueError):
        names = []
    whole = {"learning_rate": "lr"}.get(name, name)
    starts = [one for one in names if one.startswith(whole)]
    home = getattr(called, "__module__", None) or "torch"
    code = getattr(getattr(called, "__init__", called), "__code__", None)
    is_own = code is not None and not is_of_library(code.co_filename)
    library = str(home).partition(".")[0]
    close = starts or difflib.get_close_matches(whole, names, n=1, cutoff=0.7)
    listed = ", ".join([*names[:12], *(["..."] if len(names) > 12 else [])])
    return {
        "close": close[0] if close else "",
        "is_own": is_own,
        "is_of_library": not is_own,
        "library": "PyTorch" if library == "torch" else library,
        "listed": f" It takes ({listed})." if names else "",
    }


def _takes(called: Any, name: str) -> bool:
    try:
        return name in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


def _gone(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    place = found["place"] or found["module"]
    return {
        "what": f"the class or function {found['name']} of {place}"
        if found["name"]
        else f"a class of {place}",
        "place": place,
        "short": found["name"] or "Net",
        "is_main": place == "__main__",
        "is_there": place != "__main__",
        "is_file": not found["name"],
    }


SITUATIONS: dict[str, Situation] = {
    "class of a pickle": SituationRow(
        "The file holds whole objects, such as a model and not its state, and needs {what}, which "
        "Python does not find here.",
        (
            "is_main",
            "The program that saved it defined {short} itself: define or import {short} in the "
            "file that is run, before torch.load.",
        ),
        (
            "is_there",
            "If {place} is a file of the program that saved it: put it where Python finds it, as "
            "by sys.path.insert(0, folder), with its old name.",
        ),
        ("is_file", "If it is a package: install it, in the release that it was saved with."),
        "Where the program still runs that saved it: save model.state_dict(), which needs no "
        "class, and load it into a model that is made first.",
        facts=_gone,
    ),
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
        "{call} takes no argument {name!r}.{listed}",
        ("close", "If {close} is meant: {close}=..."),
        ("inner", "Give it to {inner}, which takes it: {moved}."),
        "If it is not needed: leave it out.",
        ("is_own", "If {call} is to take it: add it to its parameters."),
        (
            "is_of_library",
            "If it is of another release of {library}: see help({call}) for the arguments of this "
            "one.",
        ),
        facts=_call,
    ),
}
