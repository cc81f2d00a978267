"""TorchScript: code that it does not compile, and scripted functions that fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow

_MARK = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<lines>(?:[^\n]*\n)*?)'
    r"(?P<at>[ ]*)(?P<under>~+)[^\n]*<--- HERE"
)
"""Matches the place of an error: the beginning of a function, its lines, and a line of marks."""
_CALL = "If types are no matter of it: torch.compile in place of torch.jit.script."


def _marked(failure: Failure) -> dict[str, Any]:
    """The place that TorchScript marks, and the code there."""
    found = list(_MARK.finditer(failure.text))
    if not found:
        return {"code": "the function", "details": ()}
    mark = found[-1]
    lines = mark["lines"].rstrip("\n").split("\n")
    start, end = len(mark["at"]), len(mark["at"]) + len(mark["under"])
    code = lines[-1][start:end].strip() or lines[-1].strip()
    place = f"{shown_file(mark['file'])}:{int(mark['line']) + len(lines) - 1}: {lines[-1].strip()}"
    return {"code": code, "details": (("script", place),)}


def _failed(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The error inside of a scripted function: its last line."""
    inner = failure.text.strip().split("\n")[-1].partition(": ")[2].rstrip(".")
    is_none = "got None" in inner
    return {
        **_marked(failure),
        "inner": inner or "it raised",
        "is_none": is_none,
        "is_other": not is_none,
    }


def _refused(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    lines = (one.strip().rstrip(":.") for one in failure.text.split("\n"))
    said = next((one for one in lines if one and "(" not in one[:30]), "its code is not known")
    return {**_marked(failure), "said": said}


def _of_mark(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return _marked(failure)


def _container(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name = (found["name"] or found["bare"] or "").rpartition(".")[2].capitalize()
    examples = {"Dict": "Dict[str, torch.Tensor]", "List": "List[torch.Tensor]"}
    examples |= {"Tuple": "Tuple[torch.Tensor, torch.Tensor]", "Optional": "Optional[torch.Tensor]"}
    kind = examples.get(name, "")
    said = found["name"] or found["bare"] or ""
    is_function = said == "torch.tensor"
    return {
        **_marked(failure),
        "kind": name if kind else said,
        "example": kind,
        "is_function": is_function,
        "is_unknown": not kind and not is_function,
    }


SITUATIONS: dict[str, Situation] = {
    "type of a script": SituationRow(
        "TorchScript does not know the type {kind} of an annotation: it needs what a container "
        "holds, and types that it has.",
        ("is_function", "torch.tensor is a function: the type is torch.Tensor."),
        ("example", "Say what it holds, by typing: {example}, if that is it."),
        (
            "is_unknown",
            "Use types of TorchScript: torch.Tensor, int, float, bool, str, List[...], Dict[...], "
            "Tuple[...], Optional[...], and scripted classes.",
        ),
        facts=_container,
    ),
    "types of two returns": SituationRow(
        "A scripted function returns one type, and this one returns {first} and {second}.",
        "Return the same type on every path.",
        "If a switch that never changes decides: mark it as a constant, name: "
        "torch.jit.Final[bool] in the class, and the other path is not compiled.",
        facts=_of_mark,
    ),
    "list of a script": SituationRow(
        "A list that TorchScript takes for one of {wanted} was given a value of type {given}; an "
        "empty list is of tensors.",
        "Say what it holds where it is made: out: List[{given}] = [].",
        facts=_of_mark,
    ),
    "script that failed": SituationRow(
        "A scripted function failed at {code}: {inner}.",
        (
            "is_none",
            "If None is meant to be given: say so in its type, such as mask: "
            "Optional[torch.Tensor] = None; without a type TorchScript takes every argument for a "
            "tensor.",
        ),
        ("is_none", "If not, give a tensor."),
        (
            "is_other",
            "Run it without TorchScript, with the environment variable PYTORCH_JIT=0: the note of "
            "that error names the operands.",
        ),
        facts=_failed,
    ),
    "code of a script": SituationRow(
        "TorchScript cannot compile {code}: {said}.",
        "Write it with what TorchScript has: tensors, numbers, lists and dicts of one type, and "
        "types in annotations where it cannot tell them.",
        _CALL,
        facts=_refused,
    ),
}
